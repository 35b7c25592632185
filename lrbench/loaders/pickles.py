"""Pickles of numpy arrays, and nothing else: reading one must not run what it asks for."""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct

from lrbench.errors import SpecError

# what an array needs to be put together, under its names of all numpys; all else is refused
ALLOWED: Mapping[tuple[str, str], Any] = {
    (module, name): thing
    for modules, name, thing in (
        (("numpy.core.multiarray", "numpy._core.multiarray"), "_reconstruct", _reconstruct),
        (("numpy",), "ndarray", np.ndarray),
        (("numpy",), "dtype", np.dtype),
    )
    for module in modules
}


class _Refused(Exception):
    pass


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise _Refused(f"{module}.{name}")
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("something outside the file")


def read_arrays(path: Path) -> dict[bytes, Any]:
    """The dictionary of a file as Python 2 wrote it, its texts as bytes.

    Raises `SpecError` that names the file, and what it asked for if that is not an array's.
    """
    content = path.read_bytes()
    try:
        found = _Arrays(io.BytesIO(content), encoding="bytes").load()
    except _Refused as asked:
        raise SpecError(
            f"{path}: asks for {asked}: nothing of it was run", "fetch the file from where it is published"
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise SpecError(f"{path}: no whole pickle: {type(error).__name__}: {error}", "fetch it again") from None
    if not isinstance(found, dict):
        raise SpecError(f"{path}: holds a {type(found).__name__}, not a dictionary")
    return {key.encode() if isinstance(key, str) else key: value for key, value in found.items()}
