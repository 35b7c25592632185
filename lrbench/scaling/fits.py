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
START_EXPONENTS = np.linspace(0.1, 3.9, 39)
START_SHARES = 1 - np.geomspace(0.999, 0.005, 24)  # of the overhead in the smallest length's value


class Power(NamedTuple):
    """value = offset + factor · n^exponent, with the 95 % interval of the exponent (nan where there is none)."""

    exponent: float
    low: float
    high: float
    factor: float
    offset: float
    residuals: Floats  # of the logarithm
    basis: Floats  # derivatives of the logarithm by the free parameters, one row a length
    offset_half: float = math.nan  # half-width of the offset's 95 % interval


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
    n, logs = np.asarray(lengths, float), np.log(np.asarray(values, float))
    x = n / n[0]

    # the logarithm of level · (share + (1 - share) · x^exponent), with parameters log level, exponent, share
    def residual(p: Floats) -> Floats:
        return np.asarray(p[0] + np.log(p[2] + (1 - p[2]) * x ** p[1]) - logs)

    def jacobian(p: Floats) -> Floats:
        work = x ** p[1]
        total = p[2] + (1 - p[2]) * work
        return np.stack([np.ones_like(x), (1 - p[2]) * work * np.log(x) / total, (1 - work) / total], axis=1)

    found = optimize.least_squares(
        residual,
        _start(x, logs),
        jacobian,
        bounds=([-np.inf, EXPONENTS[0], 0], [np.inf, EXPONENTS[1], 1]),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
    ).x
    level, exponent, share = math.exp(found[0]), float(found[1]), float(found[2])
    # an offset at its bound is not free: it takes nothing from the residual's degrees of freedom
    basis = jacobian(found)[:, : 3 if share > 1e-3 else 2]
    residuals = -residual(found)
    half = _half_width(basis, residuals)
    factor = level * (1 - share) / float(n[0]) ** exponent
    unsure = level * _half_width(jacobian(found), residuals, 2)
    return Power(exponent, exponent - half, exponent + half, factor, level * share, residuals, basis, unsure)


def _start(x: Floats, logs: Floats) -> list[float]:
    """The best of many starts: every pair of an exponent and a share, each at its best level."""
    exponents, shares = np.meshgrid(START_EXPONENTS, START_SHARES)
    work = x[:, None, None] ** exponents
    residuals = logs[:, None, None] - np.log(shares + (1 - shares) * work)
    levels = residuals.mean(axis=0)
    best = np.unravel_index(((residuals - levels) ** 2).sum(axis=0).argmin(), levels.shape)
    return [float(levels[best]), float(exponents[best]), float(shares[best])]


def has_overhead(fit: Power | None, values: Sequence[float]) -> bool:
    """Whether the fitted overhead exceeds a tenth of the first value: then the fit with an offset is the headline.

    Not so where the exponent ran into its bounds: a curve that is all overhead, or all noise, has none to tell.
    """
    if fit is None or fit.offset <= OVERHEAD * values[0]:
        return False
    return EXPONENTS[0] + 0.01 < fit.exponent < EXPONENTS[1] - 0.01


def is_unsettled(fit: Power | None, values: Sequence[float]) -> bool:
    """Whether the overhead may as well be on the other side of a tenth: then the choice of the fit is chance.

    An interval that ignored this would exclude, in one run, what the next run prints.
    """
    return fit is not None and abs(fit.offset - OVERHEAD * values[0]) <= fit.offset_half


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


def _half_width(basis: Floats, residuals: Floats, parameter: int = 1) -> float:
    """Of the 95 % t interval of a parameter, usually the exponent, from the scatter of the residuals."""
    degrees = len(residuals) - basis.shape[1]
    if degrees < 1:
        return math.nan
    variance = float(residuals @ residuals) / degrees
    return t_quantile(degrees) * math.sqrt(variance * float(np.linalg.pinv(basis.T @ basis)[parameter, parameter]))
