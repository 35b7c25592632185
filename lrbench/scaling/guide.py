"""Which of the usual laws a curve is consistent with: n, n log n, n^1.5, n^2, each with a constant overhead."""

from collections.abc import Sequence

import numpy as np
from scipy import special

from lrbench.scaling.fits import Floats, with_offset

LAWS = {
    "n": lambda n: n,
    "n log n": lambda n: n * np.log(n),
    "n^1.5": lambda n: n**1.5,
    "n^2": lambda n: n**2,
}
FINEST = 2e-3  # relative: no curve is asked to follow a law more closely


def consistent_laws(lengths: Sequence[int], values: Sequence[float], noise: float = 0.0) -> list[str]:
    """The laws that the curve does not contradict; none for fewer than five lengths.

    A law stays if its residual sum of squares exceeds that of the best description (any law, or a free exponent) by
    no more than an F test at 95 % allows. `noise` is the relative standard error of one value, where it is known.
    """
    free = with_offset(lengths, values)
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

    def loss(share: float) -> float:
        residuals = np.log(share + (1 - share) * shape) - target
        residuals -= residuals.mean()  # the best common factor
        return float(residuals @ residuals)

    grid = np.linspace(0, 1, 41)
    best = int(np.argmin([loss(share) for share in grid]))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, 40)])
    found = optimize.minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 1e-8})
    return min(float(found.fun), loss(float(grid[best])))
