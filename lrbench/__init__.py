"""Which attention pays off for my data, at my length, on my hardware?

`run`, `scale`, `report`, `attention` and `load_results` are the calls that the commands make; each is imported when it
is first used.
"""

from typing import Any

from lrbench._version import __version__

__all__ = ["__version__", "attention", "load_results", "report", "run", "scale"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from lrbench import api

        return getattr(api, name)
    raise AttributeError(f"module 'lrbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
