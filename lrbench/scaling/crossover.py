"""From which length on one backend is cheaper than another: from ratios that were taken side by side."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from lrbench.stats import over_seeds

MARGIN = math.log(1.1)  # ratios closer to 1 are no difference

Kind = Literal["at", "below", "above", "indistinguishable", "several", "unknown"]


class Ratio(NamedTuple):
    """ln(a / b) at one length with its interval."""

    length: int
    mean: float
    low: float
    high: float


class Crossover(NamedTuple):
    """Where a becomes cheaper than b.

    Kinds: `at` a length, with the interval [low, high] (None: beyond the measured lengths); `below` the smallest or
    `above` the largest measured length; `indistinguishable` from low to high; `several` changes between low and high;
    `unknown` for want of ratios. `cheaper_after` says who is cheaper at the lengths behind it.
    """

    kind: Kind
    length: float | None = None
    low: float | None = None
    high: float | None = None
    cheaper_after: Literal["a", "b"] | None = None


def generation_ratios(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> list[float]:
    """ln(a / b) of each generation: the mean over the rounds that both backends ran within seconds of one another."""
    return [
        float(np.mean([math.log(x / y) for x, y in zip(one, other, strict=False)]))
        for one, other in zip(a, b, strict=False)
        if one and other
    ]


def ratio_at(length: int, logs: Sequence[float], lengths: int = 1, floor: float = math.nan) -> Ratio:
    """The mean log ratio with Student's t interval over generations, or over rounds if there was one generation.

    Args:
        logs: one value a generation (or round).
        lengths: of the whole curve; the level is Bonferroni's, so that no length stands out by chance.
        floor: the noise floor, relative; of a single value it stands, doubled, for the interval.
    """
    if len(logs) == 1:
        return Ratio(length, logs[0], logs[0] - math.log1p(2 * floor), logs[0] + math.log1p(2 * floor))
    found = over_seeds(logs, level=1 - 0.05 / lengths)
    return Ratio(length, found.mean, found.low, found.high)


def crossover(ratios: Sequence[Ratio], margin: float = MARGIN) -> Crossover:
    """Where the sign of ln(a / b) changes for good, interpolated in log n.

    A length counts for one side if its ratio leaves the margin and its interval excludes 1. Where the curve hovers
    around 1 in between, the answer is the stretch of lengths, not a number. Lengths without an interval say nothing.
    """
    ratios = [ratio for ratio in ratios if not math.isnan(ratio.low)]
    signs = [_side(ratio, margin) for ratio in ratios]
    clear = [place for place, sign in enumerate(signs) if sign]
    if not ratios:
        return Crossover("unknown")
    if not clear:
        return _stretch(ratios, 0, len(ratios) - 1, None)
    changes = [(i, j) for i, j in zip(clear, clear[1:], strict=False) if signs[i] != signs[j]]
    if len(changes) > 1:
        return Crossover("several", None, ratios[changes[0][0]].length, ratios[changes[-1][1]].length)
    if changes:
        return _between(ratios, *changes[0])
    return _one_sided(ratios, signs, clear)


def _side(ratio: Ratio, margin: float) -> int:
    """-1: a is cheaper; 1: b is cheaper; 0: nobody clearly is."""
    outside = ratio.low > 0 or ratio.high < 0
    return int(math.copysign(1, ratio.mean)) if outside and abs(ratio.mean) > margin else 0


def _one_sided(ratios: Sequence[Ratio], signs: Sequence[int], clear: Sequence[int]) -> Crossover:
    """One of the two is cheaper wherever anybody is."""
    if clear[-1] < len(signs) - 1:
        return _stretch(ratios, clear[-1] + 1, len(signs) - 1, None)
    if clear[0] > 0:
        return _stretch(ratios, 0, clear[0] - 1, _cheaper(signs[-1]))
    return Crossover("below" if signs[-1] < 0 else "above", cheaper_after=_cheaper(signs[-1]))


def _between(ratios: Sequence[Ratio], i: int, j: int) -> Crossover:
    """The crossing between a clear length i and a clear length j of the other side."""
    part = ratios[i : j + 1]
    sign = 1 if part[0].mean > 0 else -1
    crossings = _zeros(part, [ratio.mean for ratio in part])
    after = _cheaper(-sign)
    if len(crossings) > 1:
        return _stretch(ratios, i + 1, j - 1, after)
    # the lengths at which the band of intervals contains equality: its two edges cross zero at their ends
    near, far = ("low", "high") if sign > 0 else ("high", "low")
    ends = [_zeros(part, [getattr(ratio, edge) for ratio in part]) for edge in (near, far)]
    return Crossover("at", crossings[0], min(ends[0], default=None), max(ends[1], default=None), after)


def _zeros(part: Sequence[Ratio], values: Sequence[float]) -> list[float]:
    """Lengths at which straight lines in log n between the values cross zero."""
    found = []
    for (one, y), (other, z) in zip(
        zip(part, values, strict=True), zip(part[1:], values[1:], strict=False), strict=False
    ):
        if (y > 0) != (z > 0):
            share = y / (y - z)
            found.append(math.exp((1 - share) * math.log(one.length) + share * math.log(other.length)))
    return found


def _stretch(ratios: Sequence[Ratio], i: int, j: int, after: Literal["a", "b"] | None) -> Crossover:
    return Crossover("indistinguishable", None, ratios[i].length, ratios[j].length, after)


def _cheaper(sign: int) -> Literal["a", "b"]:
    return "a" if sign < 0 else "b"
