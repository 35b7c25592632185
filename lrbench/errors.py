"""Errors that a user can act on. Anything else that is raised is a bug.

Each carries one line that says what is wrong and a hint that says the way out; the command line
prints both and exits with `exit_code`.
"""

import difflib
from collections.abc import Iterable


class LrbenchError(Exception):
    """What is wrong, in one line, and the way out."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SpecError(LrbenchError):
    """A file, a field or a flag holds what it may not hold."""


class UnknownName(SpecError):
    """A name that nothing answers to; the hint names the nearest that something does."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        known = sorted(known)
        super().__init__(
            f"{where}: unknown {kind} {name!r}" if where else f"unknown {kind} {name!r}", nearest(name, known)
        )


class Unsupported(LrbenchError):
    """A backend was asked for what it cannot do: a causal Linformer, a longer input than its table."""


class Missing(LrbenchError):
    """The environment lacks something: data, a device, a package. The hint names what brings it."""

    exit_code = 3


def nearest(name: str, known: list[str]) -> str:
    """The way out for a misspelt name: the closest known one, or all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none is known"
