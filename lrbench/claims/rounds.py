"""Times of two calls, taken in turns, so that a machine that slows down slows both."""

from collections.abc import Callable
from time import perf_counter

from lrbench.measure.timing import quiet

Call = Callable[[], object]


def ratios(one: Call, other: Call, rounds: int) -> list[float]:
    """Time of `one` over that of `other` in each round, after one that does not count; who begins alternates."""
    found = []
    with quiet():
        for number in range(rounds + 1):
            first, second = (one, other) if number % 2 else (other, one)
            times = {first: seconds(first), second: seconds(second)}
            found.append(times[one] / times[other])
    return found[1:]


def seconds(call: Call) -> float:
    """Of one call."""
    started = perf_counter()
    call()
    return perf_counter() - started
