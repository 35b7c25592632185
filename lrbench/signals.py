"""Signals as something to look at between two steps, in place of an exception anywhere."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noted(*names: str) -> Iterator[list[int]]:
    """A list to which the signals add their number in place of what they do otherwise. Main thread only."""
    arrived: list[int] = []
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in numbers}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
