"""What can be said of lengths that were not measured: little in time, more in memory, and marked as such."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lrbench.errors import SpecError
from lrbench.scaling.fits import loglog

FARTHEST = 2  # times the longest measured length
LAST = 4  # lengths that an extrapolation stands on
RANGE, RANGE_WITH_CLIFF = 1.5, 2.0  # what it may be wrong by, at least


class Extrapolation(NamedTuple):
    """A value that nobody measured, with the range in which the measured one may lie."""

    length: int
    value: float
    low: float
    high: float


class Longest(NamedTuple):
    """The longest length within a budget.

    `length` was measured (None: none fits), `over` is the shortest known to exceed the budget (None: none does), and
    `estimate` lies between known lengths, or up to twice the longest measured one: then `extrapolated`.
    """

    length: int | None
    over: int | None
    estimate: int | None
    extrapolated: bool


def extrapolate(
    lengths: Sequence[int], values: Sequence[float], length: int, cliff_at: int | None = None
) -> Extrapolation:
    """The power law of the last lengths behind any cliff, at most twice as far as was measured.

    Raises:
        SpecError: farther than that.
    """
    if length > FARTHEST * lengths[-1]:
        raise SpecError(
            f"length {length} is more than {FARTHEST} times the longest measured one ({lengths[-1]})",
            f"measure {length}, or a length of at least {math.ceil(length / FARTHEST)}",
        )
    kept = [place for place, n in enumerate(lengths) if cliff_at is None or n >= cliff_at][-LAST:]
    if len(kept) < 2:
        raise SpecError(f"fewer than two lengths to extrapolate to {length} from", "measure more lengths")
    fit = loglog([lengths[place] for place in kept], [values[place] for place in kept])
    value = fit.factor * length**fit.exponent
    spread = RANGE if cliff_at is None else RANGE_WITH_CLIFF
    return Extrapolation(length, value, value / spread, value * spread)


def longest_within(budget: float, measured: Mapping[int, float], predicted: Mapping[int, float]) -> Longest:
    """The longest length whose memory stays within a budget (bytes).

    Args:
        measured: bytes by length; `predicted`: of lengths that did not run, from fake tensors (exact).
    """
    known = dict(sorted({**predicted, **measured}.items()))
    fitting = [n for n in measured if measured[n] <= budget]
    length = max(fitting, default=None)
    over = min((n for n in known if known[n] > budget and n > (length or 0)), default=None)
    if length is None:
        return Longest(None, over, None, False)
    # predictions of memory are exact: they bound the estimate as measured lengths do
    below = [n for n in known if over is None or n < over]
    last = below[-1]
    if over is not None:
        slope = math.log(known[over] / known[last]) / math.log(over / last)
        return Longest(length, over, int(last * (budget / known[last]) ** (1 / slope)), False)
    if len(below) < 2:
        return Longest(length, None, None, False)
    fit = loglog(below[-2:], [known[n] for n in below[-2:]])
    farthest = max(FARTHEST * length, last)
    # a curve that hardly rises would end at a length that no float holds
    if fit.factor * farthest**fit.exponent <= budget:
        return Longest(length, None, farthest, True)
    return Longest(length, None, int((budget / fit.factor) ** (1 / fit.exponent)), True)
