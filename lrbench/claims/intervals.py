"""What several independent findings of one quantity come to."""

import math
from collections.abc import Sequence

from lrbench.claims.measured import Measured
from lrbench.stats import over_seeds


def averaged(values: Sequence[float], detail: str) -> Measured:
    """Their mean and its interval; of a single one nobody knows the spread."""
    mean, low, high, n = over_seeds(values)
    known = not math.isnan(low)
    return Measured(value=mean, low=low if known else None, high=high if known else None, n=n, detail=detail)


def geometric(ratios: Sequence[float], detail: str) -> Measured:
    """The same of ratios, on a logarithmic scale: their inverses have the inverse as their mean."""
    found = averaged([math.log(ratio) for ratio in ratios], detail)
    ends = {name: None if end is None else math.exp(end) for name, end in (("low", found.low), ("high", found.high))}
    return found.model_copy(update={"value": math.exp(found.value), **ends})
