"""Intervals over seeds and over test examples, and verdicts on pairs of methods. numpy and scipy only."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

Z95 = float(special.ndtri(0.975))  # of a normal interval


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


Verdict = Literal["better", "worse", "equivalent", "undecided"]


class Paired(NamedTuple):
    """a - b on the same seeds: mean difference, 95 % t interval, and the p values of both questions.

    `p_gap`: that the means are equal (two-sided paired t). `p_apart`: that they differ by the margin or more (the
    larger of two one-sided t tests).
    """

    gap: float
    low: float
    high: float
    n: int
    margin: float
    p_gap: float
    p_apart: float


def paired(a: Sequence[float], b: Sequence[float], margin: float) -> Paired:
    """Compare two methods on the same two or more seeds. `margin` > 0: what would matter."""
    gaps = np.asarray(a, float) - np.asarray(b, float)
    found, degrees = over_seeds(gaps.tolist()), len(gaps) - 1
    error = float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps))
    return Paired(
        gap=found.mean,
        low=found.low,
        high=found.high,
        n=found.n,
        margin=margin,
        p_gap=2 * _t_tail(abs(found.mean), error, degrees),
        p_apart=_t_tail(margin - abs(found.mean), error, degrees),
    )


def verdicts(pairs: Sequence[Paired], level: float = 0.05) -> list[Verdict]:
    """What a table of comparisons may say, each of its two questions corrected for their number (Holm).

    better, worse: the corrected p of the gap is below `level` and the gap is at least the margin. equivalent: the
    corrected p of lying outside the margin is below `level`. Everything else, and a lack of proof above all, is
    undecided.
    """
    gaps = holm([pair.p_gap for pair in pairs])
    aparts = holm([pair.p_apart for pair in pairs])
    return [_verdict(pair, gap, apart, level) for pair, gap, apart in zip(pairs, gaps, aparts, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's step-down method, in the order given."""
    order = np.argsort(p_values)
    corrected, running = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = running
    return corrected


def default_margin(examples: int, accuracy: float = 0.5) -> float:
    """The larger of one point and two binomial standard errors of a test set of this size."""
    return max(0.01, 2 * math.sqrt(accuracy * (1 - accuracy) / examples))


def _verdict(pair: Paired, gap: float, apart: float, level: float) -> Verdict:
    if gap < level and abs(pair.gap) >= pair.margin:
        return "better" if pair.gap > 0 else "worse"
    return "equivalent" if apart < level else "undecided"


def _t_tail(distance: float, error: float, degrees: int) -> float:
    """P(T > distance / error); without any scatter, certainty."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(special.stdtr(degrees, -distance / error))
