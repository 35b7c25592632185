"""Steps in a curve: a cache or a kernel that ends at some length. An exponent across one would be of neither side."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lrbench.scaling.fits import Floats, Power, Slope

SIDE = 2  # lengths that each side of a step must have
NULLS = 4000  # simulated curves without a step
SMALLEST = math.log(1.1)  # a step by a smaller factor is no cliff, however exactly it was measured
STEEPER = 0.3  # than the fit by so much, a local exponent is an alarm where noise does not explain it


class Step(NamedTuple):
    """The best step: the first length behind it, its factor, its F, and the F that one curve in twenty exceeds."""

    at: int
    factor: float
    f: float
    critical: float

    @property
    def found(self) -> bool:
        """Whether chance is no explanation, and the step is worth a remark."""
        return self.f > self.critical and abs(math.log(self.factor)) > SMALLEST


def step_test(lengths: Sequence[int], fit: Power) -> Step | None:
    """Compare `fit` with the same fit plus a step at the best place, or None for too few lengths.

    F = (RSS - RSS with step) / (RSS with step / degrees of freedom), largest over all places. Its critical value is
    simulated for these very lengths: it depends on how many places there are to choose from.
    """
    steps = _steps(fit.basis)
    if not steps.size:
        return None
    gains = (steps @ fit.residuals) ** 2
    degrees = len(lengths) - fit.basis.shape[1] - 1
    best = int(gains.argmax())
    left = max(float(fit.residuals @ fit.residuals) - float(gains[best]), 0.0)
    f = float(gains[best]) / max(left / degrees, 1e-12)
    jump = float(steps[best] @ fit.residuals) / float(steps[best, best + SIDE :].sum())
    critical = critical_f(tuple(map(tuple, fit.basis.round(6).tolist())))
    return Step(lengths[best + SIDE], math.exp(jump), f, critical)


@lru_cache(maxsize=256)
def critical_f(basis: tuple[tuple[float, ...], ...], share: float = 0.05) -> float:
    """The F that a `share` of curves without a step exceed, from simulated ones with fixed seed."""
    columns = np.asarray(basis)
    steps = _steps(columns)
    noise = np.random.default_rng(0).standard_normal((NULLS, len(columns)))
    inside, _ = np.linalg.qr(columns)
    noise -= noise @ inside @ inside.T
    gains = ((noise @ steps.T) ** 2).max(axis=1)
    left = (noise**2).sum(axis=1) - gains
    return float(np.quantile(gains * (len(columns) - columns.shape[1] - 1) / left, 1 - share))


def steep_slopes(slopes: Sequence[Slope], exponent: float) -> list[int]:
    """Places where a local exponent exceeds the fit by more than 0.3 and more than three of its errors."""
    return [
        place
        for place, slope in enumerate(slopes)
        if slope.exponent - exponent > max(STEEPER, 0.0 if math.isnan(slope.error) else 3 * slope.error)
    ]


def _steps(basis: Floats) -> Floats:
    """One row a place: the unit vector of a step there that the fit's own parameters cannot follow."""
    count = len(basis)
    if count - basis.shape[1] - 1 < 1:
        return np.empty((0, count))
    inside, _ = np.linalg.qr(basis)
    rows = np.array([[float(at >= place) for at in range(count)] for place in range(SIDE, count - SIDE + 1)])
    rows = rows - rows @ inside @ inside.T
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
