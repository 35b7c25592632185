"""A whole curve described: both fits, the headline, local exponents, laws, cliffs, and an exponent for each side."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from lrbench.scaling.cliffs import Step, steep_slopes, step_test
from lrbench.scaling.fits import (
    Power,
    Slope,
    has_overhead,
    is_unsettled,
    local_slopes,
    loglog,
    sweep_interval,
    with_offset,
)
from lrbench.scaling.guide import consistent_laws

SWEEPS = 3  # of them and more, the interval is over their exponents
SIDE_LENGTHS = 3  # an exponent of one side of a cliff stands on at least so many
TAIL_LENGTHS = 3  # an exponent of the far end stands on at least so many


class Segment(NamedTuple):
    """The log-log exponent of some lengths with its interval."""

    lengths: list[int]
    exponent: float
    low: float
    high: float


class Curve(NamedTuple):
    """What is known of a curve. `headline` names the fit that `exponent` comes from.

    Where the size of the overhead leaves open which fit that is, the interval covers those of both.
    """

    lengths: list[int]
    headline: Literal["loglog", "offset"]
    exponent: float
    low: float
    high: float
    loglog: Power
    offset: Power | None
    local: list[Slope]
    laws: list[str]
    step: Step | None
    steep: list[int]  # lengths that a local exponent far above the fit leads to
    sides: list[Segment]  # of a cliff
    tail: Segment | None

    @property
    def cliff_at(self) -> int | None:
        """The first length behind a cliff, by the step test or else by the alarm of local exponents."""
        if self.step and self.step.found:
            return self.step.at
        return self.steep[0] if self.steep else None


def describe(
    lengths: Sequence[int],
    values: Sequence[float],
    noise: float = math.nan,
    sweeps: Sequence[Sequence[float]] = (),
    tail_from: int | None = None,
) -> Curve | None:
    """Fit a curve over two or more rising lengths; None for fewer.

    Args:
        noise: relative standard error of one value, where it is known.
        tail_from: the length from which on the far end's exponent is taken.
        sweeps: values of whole sweeps over all lengths, if there were several; `values` are then their medians.
    """
    if len(lengths) < 2:
        return None
    straight, bent = loglog(lengths, values), with_offset(lengths, values)
    kind: Literal["loglog", "offset"] = "offset" if has_overhead(bent, values) else "loglog"
    fit = bent if bent is not None and kind == "offset" else straight
    low, high = fit.low, fit.high
    if bent is not None and is_unsettled(bent, values):
        low, high = min(straight.low, bent.low), max(straight.high, bent.high)
    if len(sweeps) >= SWEEPS:
        low, high = sweep_interval([_exponent(lengths, sweep, kind) for sweep in sweeps])
    step = step_test(lengths, fit)
    local = local_slopes(lengths, values, noise)
    steep = [lengths[place + 1] for place in steep_slopes(_with_errors(local, fit, lengths), fit.exponent)]
    found = Curve(
        lengths=list(lengths),
        headline=kind,
        exponent=fit.exponent,
        low=low,
        high=high,
        loglog=straight,
        offset=bent,
        local=local,
        laws=consistent_laws(lengths, values, bent, 0.0 if math.isnan(noise) else noise),
        step=step,
        steep=steep,
        sides=[],
        tail=_tail(lengths, values, tail_from),
    )
    return found._replace(sides=_sides(found.cliff_at, lengths, values))


def _exponent(lengths: Sequence[int], values: Sequence[float], kind: str) -> float:
    bent = with_offset(lengths, values) if kind == "offset" else None
    return (bent or loglog(lengths, values)).exponent


def _with_errors(local: Sequence[Slope], fit: Power, lengths: Sequence[int]) -> list[Slope]:
    """Local exponents with errors from the scatter around the fit, where the noise of a value is unknown."""
    degrees = len(lengths) - fit.basis.shape[1]
    if degrees < 1 or not any(math.isnan(slope.error) for slope in local):
        return list(local)
    noise = math.sqrt(float(fit.residuals @ fit.residuals) / degrees)
    gaps = [math.log(b / a) for a, b in zip(lengths, lengths[1:], strict=False)]
    return [Slope(slope.exponent, noise * math.sqrt(2) / gap) for slope, gap in zip(local, gaps, strict=True)]


def _sides(cliff_at: int | None, lengths: Sequence[int], values: Sequence[float]) -> list[Segment]:
    if cliff_at is None:
        return []
    split = list(lengths).index(cliff_at)
    parts = ((lengths[:split], values[:split]), (lengths[split:], values[split:]))
    return [_segment(n, y) for n, y in parts if len(n) >= SIDE_LENGTHS]


def _tail(lengths: Sequence[int], values: Sequence[float], tail_from: int | None) -> Segment | None:
    kept = [(n, y) for n, y in zip(lengths, values, strict=True) if tail_from is not None and n >= tail_from]
    return _segment(*zip(*kept, strict=True)) if len(kept) >= TAIL_LENGTHS else None


def _segment(lengths: Sequence[int], values: Sequence[float]) -> Segment:
    fit = loglog(lengths, values)
    return Segment(list(lengths), fit.exponent, fit.low, fit.high)
