"""Exponents of a curve over lengths: a power law, and one on top of a constant overhead.

Both are fitted to logarithms, so that a relative error counts alike at every length. Intervals are Student's t on the
residuals of one curve, or over the exponents of three or more whole sweeps; calls are never resampled, for what
moves a point on a shared machine is drift that all calls of the point have in common.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lrbench.stats import over_seeds

Floats = NDArray[np.float64]

OFFSET_LENGTHS = 5  # fewer leave no residual to judge three parameters by
OVERHEAD = 0.1  # of the smallest length's value: above it the fit with an offset is the headline
ROBUST_SCALE = 0.1  # residuals of the log beyond this count linearly
EXPONENTS = (0.0, 4.0)  # that the fit with an offset may find; at either end it has found none
STARTS = (0.01, 0.3, 0.7, 0.95)  # of the overhead, as a share of the smallest length's value


class Power(NamedTuple):
    """value = offset + factor · n^exponent, with the 95 % interval of the exponent (nan where there is none)."""

    exponent: float
    low: float
    high: float
    factor: float
    offset: float
    residuals: Floats  # of the logarithm
    basis: Floats  # derivatives of the logarithm by the free parameters, one row a length


class Slope(NamedTuple):
    """The exponent between two neighbouring lengths and its standard error (nan where the noise is unknown)."""

    exponent: float
    error: float


def loglog(lengths: Sequence[int], values: Sequence[float]) -> Power:
    """Ordinary least squares of log value = log factor + exponent · log n, over two or more lengths."""
    x, y = np.log(np.asarray(lengths, float)), np.log(np.asarray(values, float))
    basis = np.stack([np.ones_like(x), x], axis=1)
    (intercept, exponent), *_ = np.linalg.lstsq(basis, y, rcond=None)
    residuals = y - basis @ np.array([intercept, exponent])
    half = _half_width(basis, residuals)
    return Power(float(exponent), exponent - half, exponent + half, math.exp(intercept), 0.0, residuals, basis)


def with_offset(lengths: Sequence[int], values: Sequence[float]) -> Power | None:
    """value = offset + factor · n^exponent with offset >= 0, or None for fewer than five lengths.

    Least squares on logarithms with a loss that outliers cannot rule (soft L1), from several starts.
    """
    from scipy import optimize

    if len(lengths) < OFFSET_LENGTHS:
        return None
    n, y = np.asarray(lengths, float), np.asarray(values, float)
    x, logs, unit = np.log(n / n.min()), np.log(y), float(y[n.argmin()])
    target = logs - math.log(unit)

    def model(p: Floats) -> tuple[Floats, Floats]:
        """The two terms: overhead and work, in units of the smallest length's value."""
        work = np.exp(p[0] + p[1] * x)
        return p[2] + work, work

    def residual(p: Floats) -> Floats:
        return np.log(model(p)[0]) - target

    def jacobian(p: Floats) -> Floats:
        total, work = model(p)
        return np.stack([work / total, work * x / total, 1 / total], axis=1)

    slope = float(np.polyfit(x[-3:], target[-3:], 1)[0])
    fits = [
        optimize.least_squares(
            residual,
            [math.log(1 - start), min(max(slope, 0.05), 3.9), start],
            jacobian,
            bounds=([-12, EXPONENTS[0], 0], [12, EXPONENTS[1], 2]),
            loss="soft_l1",
            f_scale=ROBUST_SCALE,
        )
        for start in STARTS
    ]
    log_factor, exponent, share = min(fits, key=lambda fit: fit.cost).x
    # an offset at its bound is not free: it takes nothing from the residual's degrees of freedom
    columns = slice(None) if share > 1e-3 else slice(0, 2)
    basis = jacobian(np.array([log_factor, exponent, share]))[:, columns]
    residuals = -residual(np.array([log_factor, exponent, share]))
    half = _half_width(basis, residuals)
    factor = unit * math.exp(log_factor) / float(n.min()) ** exponent
    return Power(float(exponent), exponent - half, exponent + half, factor, share * unit, residuals, basis)


def has_overhead(fit: Power | None, values: Sequence[float]) -> bool:
    """Whether the fitted overhead exceeds a tenth of the first value: then the fit with an offset is the headline.

    Not so where the exponent ran into its bounds: a curve that is all overhead, or all noise, has none to tell.
    """
    if fit is None or fit.offset <= OVERHEAD * values[0]:
        return False
    return EXPONENTS[0] + 0.01 < fit.exponent < EXPONENTS[1] - 0.01


def sweep_interval(exponents: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % t interval over the exponents of whole sweeps."""
    found = over_seeds(exponents)
    return found.low, found.high


def local_slopes(lengths: Sequence[int], values: Sequence[float], noise: float = math.nan) -> list[Slope]:
    """log(v'/v) / log(n'/n) between neighbours; `noise` is the relative standard error of one value.

    A local exponent has an error of noise · sqrt(2) / log(n'/n), so it is never a headline.
    """
    gaps = np.diff(np.log(np.asarray(lengths, float)))
    rises = np.diff(np.log(np.asarray(values, float)))
    return [Slope(float(rise / gap), noise * math.sqrt(2) / float(gap)) for rise, gap in zip(rises, gaps, strict=True)]


def t_quantile(degrees: int, level: float = 0.95) -> float:
    """Half-width of a two-sided t interval in standard errors."""
    return float(special.stdtrit(degrees, (1 + level) / 2))


def _half_width(basis: Floats, residuals: Floats) -> float:
    """Of the 95 % t interval of the second parameter, from the scatter of the residuals."""
    degrees = len(residuals) - basis.shape[1]
    if degrees < 1:
        return math.nan
    variance = float(residuals @ residuals) / degrees
    return t_quantile(degrees) * math.sqrt(variance * float(np.linalg.pinv(basis.T @ basis)[1, 1]))
