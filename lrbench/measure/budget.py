"""Shares a study's time out: every length gets what it needs at least, and an equal part of what is left."""

from collections.abc import Mapping, Sequence

CALLS = 5.4  # of the slowest backends at least: for memory two and a forward pass, then two to warm up and one block
POINT_S = 1.0  # at least, for processes and small calls
LEAST_SHARE = 0.05
EFFICIENCY = 0.4  # of the matmul peak, in a forecast


def grown(seconds: float, flops: tuple[int | None, int | None], lengths: tuple[int, int]) -> float:
    """What a call takes at the second length if it takes `seconds` at the first: by its operations, else by n²."""
    before, after = flops
    if before and after:
        return seconds * after / before
    return seconds * (lengths[1] / lengths[0]) ** 2


def likely_s(grown_s: float, flops: int | None, peak_flops: float | None) -> float:
    """A forecast that one slow call on a busy machine does not spoil: `grown_s`, or less if operations say so."""
    return min(grown_s, flops / (EFFICIENCY * peak_flops)) if flops and peak_flops else grown_s


def least_s(calls_s: Sequence[float]) -> float:
    """What a length takes at least, given the time of one call of each backend."""
    return sum(POINT_S + CALLS * call_s for call_s in calls_s)


def share(whole_s: float, left_s: float, least: Mapping[int, float], length: int) -> float:
    """What of `left_s` the time pass at `length` may take; `least` holds this length and all longer ones.

    A twentieth of the whole in any case: what the longest lengths want must not leave the short ones with one block.
    """
    spare_s = max(0.0, left_s - sum(least.values()))
    return max(least[length] + spare_s / len(least), LEAST_SHARE * whole_s)
