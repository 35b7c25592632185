"""Quantities of a scaling study: exponents, ratios of two models and how these grow, and what fits into memory."""

import math

from lrbench.claims.files import label
from lrbench.claims.measured import Measured, Unknown, exact
from lrbench.claims.spec import Exponent, Growth, Longest, Ratio, Scaling
from lrbench.points import ScalePoint
from lrbench.scalefits import by_model, log_ratios, peak_bytes
from lrbench.scalestudy import Measured as Study
from lrbench.scaling.fits import loglog
from lrbench.stats import Estimate, over_seeds


def measured(part: Scaling, study: Study) -> Measured:
    """The quantity of a part.

    Raises:
        Unknown
    """
    if isinstance(part, Exponent):
        return exponent(part, study)
    if isinstance(part, Ratio):
        return ratio(part, study)
    if isinstance(part, Growth):
        return growth(part, study)
    assert isinstance(part, Longest)
    return longest(part, study)


def exponent(part: Exponent, study: Study) -> Measured:
    """That of the study's headline fit."""
    fits = study.record.models[label(part.model)]
    fit = fits.time if part.of == "time" else fits.memory
    if fit is None or fit.exponent is None:
        raise _unknown(f"too few lengths of {part.model}", study, part.model)
    detail = f"lengths {fit.lengths[0]} to {fit.lengths[-1]}, {fit.headline} fit"
    return Measured(value=fit.exponent, low=fit.ci_low, high=fit.ci_high, n=len(fit.lengths), detail=detail)


def ratio(part: Ratio, study: Study) -> Measured:
    """At one length; of `every` length the one that is nearest to a bound or farthest beyond it.

    The longest is the longest that was measured more than once, if any was: one measurement has no interval.
    """
    found = _estimates(part, study)
    if part.at == "longest":
        known = [length for length, estimate in found.items() if not math.isnan(estimate.low)]
        length = max(known or found)
    elif part.at == "every":
        length = _worst(part, found)
    elif part.at in found:
        length = part.at
    else:
        raise _unknown(f"not measured at {part.at}", study, part.model, part.against)
    estimate = found[length]
    ends = [None if math.isnan(end) else math.exp(end) for end in (estimate.low, estimate.high)]
    return Measured(
        value=math.exp(estimate.mean), low=ends[0], high=ends[1], n=estimate.n, detail=f"at length {length}"
    )


def growth(part: Growth, study: Study) -> Measured:
    """The slope of the ratio over length, both in logarithms."""
    found = _estimates(part, study)
    if len(found) < 3:
        raise _unknown("fewer than three lengths", study, part.model, part.against)
    lengths = sorted(found)
    fit = loglog(lengths, [math.exp(found[length].mean) for length in lengths])
    ratios = ", ".join(f"{math.exp(found[length].mean):.3g}" for length in lengths)
    detail = f"ratios {ratios} at {', '.join(map(str, lengths))}"
    return Measured(value=fit.exponent, low=fit.low, high=fit.high, n=len(lengths), detail=detail)


def longest(part: Longest, study: Study) -> Measured:
    """Within the memory limit of the study, as measured: the true ratio may be larger, where the study ends first."""
    reached = [study.record.models[label(model)].longest_fitted for model in (part.model, part.against)]
    if not reached[0] or not reached[1]:
        raise _unknown("no length fitted", study, part.model, part.against)
    return exact(reached[0] / reached[1], f"{reached[0]} against {reached[1]} tokens")


def _estimates(part: Ratio | Growth, study: Study) -> dict[int, Estimate]:
    """ln(cost of the model / cost of `against`) at each length that both have."""
    curves = by_model(study.points)
    others = {point.length: point for point in curves[label(part.against)]}
    found = {}
    for point in curves[label(part.model)]:
        logs = _logs(part, point, others.get(point.length))
        if logs:
            found[point.length] = over_seeds(logs) if part.of == "time" else Estimate(logs[0], logs[0], logs[0], 1)
    if not found:
        raise _unknown("no length that both have", study, part.model, part.against)
    return found


def _logs(part: Ratio | Growth, point: ScalePoint, other: ScalePoint | None) -> list[float]:
    if other is None or point.status != "ok" or other.status != "ok":
        return []
    if part.of == "time":
        return log_ratios(point, other)
    ours, theirs = peak_bytes(point), peak_bytes(other)
    return [math.log(ours / theirs)] if ours and theirs else []


def _worst(part: Ratio, found: dict[int, Estimate]) -> int:
    if part.expect.most is not None:
        return max(found, key=lambda length: found[length].mean)
    return min(found, key=lambda length: found[length].mean)


def _unknown(what: str, study: Study, *models: str) -> Unknown:
    """With what became of some models, where not all of it is well."""
    curves = by_model(study.points)
    ended = [(model, point) for model in models for point in curves[label(model)] if point.status != "ok"]
    told = [f"{model} at {point.length}: {point.status} {point.reason}".strip() for model, point in ended]
    broken = any(point.status == "error" for _, point in ended)
    return Unknown(": ".join(filter(None, [what, "; ".join(told[:2])])), broken)
