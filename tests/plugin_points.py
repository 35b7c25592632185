"""Points of the plug-ins in `plugins/`, for the tests of `measure` and of studies."""

import sys
from pathlib import Path
from typing import Any

import pytest

from lrbench.points import PointSpec
from lrbench.registry import backends

PLUGINS = Path(__file__).parent / "plugins"
linux = pytest.mark.skipif(sys.platform != "linux", reason="forks and reads /proc")


def point(model: str, length: int = 64, **fields: Any) -> PointSpec:
    """One thread's work for a backend, or a plug-in written as `file.py:Class[option=value]`."""
    text = str(PLUGINS / model) if ".py:" in model else model
    return PointSpec(attention=backends.spec(text), **{"length": length, "mode": "forward", "threads": 1, **fields})
