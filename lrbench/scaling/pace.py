"""Whether a machine that grew slower or faster while a study went on is taken for a property of the curves."""

import math
from collections.abc import Mapping, Sequence

from lrbench.scaling.fits import loglog

LEAST = 3  # lengths whose pace is known: fewer say nothing of a trend


def trend(lengths: Sequence[int], paces: Mapping[int, float]) -> float:
    """The exponent of the machine's own pace over these lengths, 0 where too few are known.

    Lengths are measured one after the other. Where the pace (FLOP/s of one and the same matrix product) fell as n^-t
    meanwhile, times grew as n^t for no reason of their own.
    """
    known = [length for length in lengths if paces.get(length)]
    if len(known) < LEAST:
        return 0.0
    return loglog(known, [paces[length] for length in known]).exponent


def covering(low: float, high: float, drift: float) -> tuple[float, float]:
    """The interval of an exponent of time, widened to hold that of time counted in matrix products as well."""
    if math.isnan(low) or math.isnan(high):
        return low, high
    return low + min(0.0, drift), high + max(0.0, drift)
