"""What changed between two studies: ratios to the same reference, for absolute times do not carry over."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lrbench.scaling.fits import t_quantile


class Change(NamedTuple):
    """Factor by which a ratio to the reference changed, with Welch's 95 % t interval (nan: one value of each)."""

    factor: float
    low: float
    high: float

    def beyond(self, floor: float) -> bool:
        """Whether neither chance nor the noise floor (relative) explains it."""
        return (self.low > 1 or self.high < 1) and abs(math.log(self.factor)) > math.log1p(floor)


def change(new: Sequence[float], old: Sequence[float]) -> Change:
    """exp(mean(new) - mean(old)) of log ratios, one a generation."""
    gap = float(np.mean(new) - np.mean(old))
    half = _half_width(new, old)
    return Change(math.exp(gap), math.exp(gap - half), math.exp(gap + half))


def _half_width(new: Sequence[float], old: Sequence[float]) -> float:
    if min(len(new), len(old)) < 2:
        return math.nan
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (new, old)]
    spread = sum(parts)
    if spread == 0:
        return 0.0
    degrees = spread**2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, (new, old), strict=True))
    return t_quantile(max(1, int(degrees))) * math.sqrt(spread)
