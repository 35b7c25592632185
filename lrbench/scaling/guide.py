"""Which of the usual laws a curve is consistent with: n, n log n, n^1.5, n^2, each with a constant overhead."""

from collections.abc import Sequence

import numpy as np
from scipy import special

from lrbench.scaling.fits import Floats, Power

LAWS = {
    "n": lambda n: n,
    "n log n": lambda n: n * np.log(n),
    "n^1.5": lambda n: n**1.5,
    "n^2": lambda n: n**2,
}
FINEST = 2e-3  # relative: no curve is asked to follow a law more closely


def consistent_laws(
    lengths: Sequence[int], values: Sequence[float], free: Power | None, noise: float = 0.0
) -> list[str]:
    """The laws that the curve does not contradict; none for fewer than five lengths.

    A law stays if its residual sum of squares exceeds that of the best description (any law, or a free exponent) by
    no more than an F test at 95 % allows.

    Args:
        free: the fit of a free exponent with an offset to the same values.
        noise: the relative standard error of one value, where it is known.
    """
    if free is None:
        return []
    n, y = np.asarray(lengths, float), np.asarray(values, float)
    squares = {name: _squares(law(n), y) for name, law in LAWS.items()}
    of_free = float(free.residuals @ free.residuals)
    degrees = len(lengths) - 3
    variance = max(of_free / degrees, noise**2, FINEST**2)
    allowed = min(of_free, *squares.values()) + float(special.fdtri(1, degrees, 0.95)) * variance
    return [name for name, found in squares.items() if found <= allowed]


def _squares(law: Floats, y: Floats) -> float:
    """The least sum of squared log residuals of y = a + b · law with a, b >= 0."""
    from scipy import optimize

    shape, target = law / law[0], np.log(y / y[0])

    def losses(shares: Floats) -> Floats:
        residuals = np.log(shares[:, None] + (1 - shares[:, None]) * shape) - target
        residuals -= residuals.mean(axis=1, keepdims=True)  # the best common factor
        return np.asarray((residuals**2).sum(axis=1))

    grid = np.linspace(0, 1, 41)
    tried = losses(grid)
    best = int(tried.argmin())
    found = optimize.minimize_scalar(
        lambda share: float(losses(np.array([share]))[0]),
        bounds=(grid[max(best - 1, 0)], grid[min(best + 1, 40)]),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return min(float(found.fun), float(tried[best]))
