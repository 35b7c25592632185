"""Intervals over seeds and over test examples. numpy and scipy only."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special


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
    half = float(special.stdtrit(n - 1, (1 + level) / 2) * np.std(values, ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half, n)


def over_examples(correct: int, examples: int, level: float = 0.95) -> Estimate:
    """Wilson's interval of an accuracy: how far another test set of this size might have been from it."""
    z = float(special.ndtri((1 + level) / 2))
    share, scale = correct / examples, 1 + z**2 / examples
    middle = (share + z**2 / (2 * examples)) / scale
    half = z * math.sqrt(share * (1 - share) / examples + z**2 / (4 * examples**2)) / scale
    return Estimate(share, middle - half, middle + half, examples)
