"""Intervals over seeds and over test examples. numpy and scipy only."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats as scipy_stats


class Estimate(NamedTuple):
    """A mean with a 95 % interval and what it stands on."""

    mean: float
    low: float
    high: float
    n: int


def over_seeds(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Student's t interval over two or more seeds; of one seed there is no spread, and the ends are nan."""
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Estimate(mean, math.nan, math.nan, n)
    half = float(scipy_stats.t.ppf((1 + level) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half, n)


def over_examples(correct: int, examples: int, level: float = 0.95) -> Estimate:
    """Wilson's interval of an accuracy: how far another test set of this size might have been from it."""
    interval = scipy_stats.binomtest(correct, examples).proportion_ci(level, method="wilson")
    return Estimate(correct / examples, float(interval.low), float(interval.high), examples)
