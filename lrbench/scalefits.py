"""From the points of a study to what they say of each model: exponents, crossovers, budgets, and remarks on them."""

import math
from collections.abc import Mapping, Sequence

from lrbench import scalerecords as records
from lrbench.points import ScalePoint
from lrbench.registry import backends
from lrbench.scaleplan import identity, names
from lrbench.scaling.beyond import FARTHEST, extrapolate, longest_within
from lrbench.scaling.crossover import Crossover, Ratio, crossover, generation_ratios, ratio_at
from lrbench.scaling.curve import Curve, Segment, describe
from lrbench.scaling.landmarks import outgrown
from lrbench.scaling.pace import covering, trend
from lrbench.specs import AttentionSpec

TAIL = 4  # the longest lengths of a study make its far end
BUDGETS = tuple(size * 2**30 for size in (1, 8, 24, 80))
QUADRATIC, LINEAR = 1.7, 1.3  # what is called so in a remark


def fits(
    points: Sequence[ScalePoint],
    floor: float | None,
    budgets: Sequence[int] = BUDGETS,
    sizes: Mapping[str, int] | None = None,
    paces: Mapping[int, float] | None = None,
) -> dict[str, records.ModelFits]:
    """All models of a study, in the order of its points.

    Args:
        floor: the noise floor, relative: smaller differences in time are none.
        budgets: bytes, for the longest length within each.
        sizes: bytes of what peaks may outgrow, see `lrbench.scaling.landmarks`.
        paces: the machine's own pace at each length: intervals of exponents of time allow for its trend.
    """
    curves = by_model(points)
    lengths = sorted({point.length for curve in curves.values() for point in curve})
    # one far end for all, so that exponents stand side by side even where some curves end early
    tail_from = lengths[-TAIL] if len(lengths) > TAIL else None
    return {name: _model(name, curves, floor, budgets, sizes or {}, paces or {}, tail_from) for name in curves}


def by_model(points: Sequence[ScalePoint]) -> dict[str, list[ScalePoint]]:
    """The points of each model by rising length, under the name that tables use. Copies of the A/A control are none."""
    real = [point for point in points if not point.control]
    shown = names([point.spec.attention for point in real])
    curves: dict[str, list[ScalePoint]] = {}
    for point in real:
        curves.setdefault(shown[identity(point.spec.attention)], []).append(point)
    return {name: sorted(curve, key=lambda point: point.length) for name, curve in curves.items()}


def peak_bytes(point: ScalePoint) -> int | None:
    """The peak above the start: the allocator's, or the resident one where that saw memory the allocator did not."""
    memory = point.memory_bytes
    if memory is None:
        return None
    if "untracked" in point.flags and memory.resident is not None:
        return max(memory.extra or 0, memory.resident)
    return memory.extra


def log_ratios(point: ScalePoint, other: ScalePoint) -> list[float]:
    """ln(time of `point` / time of `other`) of each generation; of each round, where there was one generation."""
    if point.time_ms is None or other.time_ms is None:
        return []
    ours, theirs = point.time_ms.rounds, other.time_ms.rounds
    if min(len(ours), len(theirs)) == 1:
        ours, theirs = [[value] for value in ours[0]], [[value] for value in theirs[0]]
    return generation_ratios(ours, theirs)


def full_attentions(curves: Mapping[str, Sequence[ScalePoint]]) -> list[str]:
    """The models to be better than: fused full attention and the textbook one, as far as they are in the study."""
    found = {_form(curve[0].spec.attention): name for name, curve in curves.items()}
    return [found[form] for form in ("fused", "math") if form in found]


def _form(spec: AttentionSpec) -> str | None:
    """Which full attention a model is, if it is one."""
    return spec.settings.get("impl", "fused") if spec.name == "full" and spec.source == "lrbench" else None


def _model(
    name: str,
    curves: Mapping[str, Sequence[ScalePoint]],
    floor: float | None,
    budgets: Sequence[int],
    sizes: Mapping[str, int],
    paces: Mapping[int, float],
    tail_from: int | None,
) -> records.ModelFits:
    curve = curves[name]
    rivals = [rival for rival in full_attentions(curves) if rival != name]
    times = {point.length: point.time_ms.median for point in curve if point.time_ms}
    peaks = {point.length: float(peak) for point in curve if (peak := peak_bytes(point))}
    time = describe(list(times), list(times.values()), _noise(curve), tail_from=tail_from)
    memory = describe(list(peaks), list(peaks.values()), tail_from=tail_from)
    spec = curve[0].spec.attention
    return records.ModelFits(
        name=spec.name,
        settings=spec.settings,
        source=spec.source,
        order=str(backends.about(spec.name)["order"]) if spec.source == "lrbench" else None,
        statuses={point.length: point.status for point in curve},
        reasons={point.length: point.reason for point in curve if point.reason},
        time=_fit(time, times, paces),
        memory=_fit(memory, peaks, {}),
        crossover=[_crossing(rival, _time_ratios(curve, curves[rival], floor)) for rival in rivals],
        memory_crossover=[_crossing(rival, _peak_ratios(curve, curves[rival])) for rival in rivals],
        ratios=[ratio for rival in rivals for ratio in _ratios(rival, curve, curves[rival], floor or 0.0)],
        longest_fitted=max((point.length for point in curve if point.status == "ok"), default=None),
        longest_within=[_within(budget, curve) for budget in budgets],
        outgrown=_outgrown(curve, peaks, sizes),
        extrapolated_ms=_beyond(time, times),
        remarks=_remarks(spec, time, memory),
    )


def _noise(curve: Sequence[ScalePoint]) -> float:
    """The relative standard error of a median time: a quarter of its 95 % interval, in the middle of all points."""
    errors = sorted(
        (point.time_ms.ci_high - point.time_ms.ci_low) / 4 / point.time_ms.median
        for point in curve
        if point.time_ms and point.time_ms.ci_low is not None and point.time_ms.ci_high is not None
    )
    return errors[len(errors) // 2] if errors else math.nan


def _fit(curve: Curve | None, values: Mapping[int, float], paces: Mapping[int, float]) -> records.Fit | None:
    if curve is None:
        return None
    cliff = _cliff(curve)
    # an exponent across a cliff is of neither side
    side = next((side for side in reversed(curve.sides) if side.lengths[0] == curve.cliff_at), None)
    whole = Segment(curve.lengths, curve.exponent, curve.low, curve.high)
    segment = side if cliff else whole
    headline = _exponent(segment, paces) if segment else None
    return records.Fit(
        exponent=headline.exponent if headline else None,
        ci_low=headline.ci_low if headline else None,
        ci_high=headline.ci_high if headline else None,
        headline="side" if cliff else curve.headline,
        interval="residual t",
        lengths=headline.lengths if headline else [],
        loglog=_exponent(Segment(curve.lengths, curve.loglog.exponent, curve.loglog.low, curve.loglog.high), paces),
        offset=_offset(curve, values, paces),
        local=[
            records.Local(shorter=a, longer=b, exponent=slope.exponent, error=_known(slope.error))
            for a, b, slope in zip(curve.lengths, curve.lengths[1:], curve.local, strict=False)
        ],
        tail=_exponent(curve.tail, paces) if curve.tail else None,
        consistent_with=curve.laws,
        cliff=cliff,
        sides=[_exponent(side, paces) for side in curve.sides],
    )


def _exponent(segment: Segment, paces: Mapping[int, float]) -> records.Exponent:
    low, high = covering(segment.low, segment.high, trend(segment.lengths, paces))
    return records.Exponent(
        exponent=segment.exponent, ci_low=_known(low), ci_high=_known(high), lengths=segment.lengths
    )


def _offset(curve: Curve, values: Mapping[int, float], paces: Mapping[int, float]) -> records.OffsetExponent | None:
    fit = curve.offset
    if fit is None:
        return None
    low, high = covering(fit.low, fit.high, trend(curve.lengths, paces))
    return records.OffsetExponent(
        exponent=fit.exponent,
        ci_low=_known(low),
        ci_high=_known(high),
        lengths=curve.lengths,
        offset=fit.offset,
        share=fit.offset / values[curve.lengths[0]],
    )


def _cliff(curve: Curve) -> records.Cliff | None:
    if curve.cliff_at is None:
        return None
    step = curve.step if curve.step and curve.step.found else None
    return records.Cliff(
        at=curve.cliff_at,
        factor=step.factor if step else None,
        f=step.f if step else None,
        critical=step.critical if step else None,
    )


def _pairs(curve: Sequence[ScalePoint], rival: Sequence[ScalePoint]) -> list[tuple[ScalePoint, ScalePoint]]:
    """Points of both at the lengths where both were measured."""
    others = {point.length: point for point in rival if point.status == "ok"}
    return [(point, others[point.length]) for point in curve if point.status == "ok" and point.length in others]


def _time_ratios(curve: Sequence[ScalePoint], rival: Sequence[ScalePoint], floor: float | None) -> list[Ratio]:
    logs = {point.length: log_ratios(point, other) for point, other in _pairs(curve, rival)}
    known = math.nan if floor is None else floor
    return [ratio_at(length, values, len(logs), known) for length, values in logs.items() if values]


def _peak_ratios(curve: Sequence[ScalePoint], rival: Sequence[ScalePoint]) -> list[Ratio]:
    """Peaks of memory repeat to the byte: their ratios have no interval to speak of."""
    both = [(point.length, peak_bytes(point), peak_bytes(other)) for point, other in _pairs(curve, rival)]
    logs = [(length, math.log(ours / theirs)) for length, ours, theirs in both if ours and theirs]
    return [Ratio(length, value, value, value) for length, value in logs]


def _ratios(
    against: str, curve: Sequence[ScalePoint], rival: Sequence[ScalePoint], floor: float
) -> list[records.RatioAt]:
    found = []
    for point, other in _pairs(curve, rival):
        logs = log_ratios(point, other)
        if logs:
            ratio = ratio_at(point.length, logs)
            found.append(
                records.RatioAt(
                    against=against,
                    length=point.length,
                    ratio=math.exp(ratio.mean),
                    ci_low=_known(math.exp(ratio.low)),
                    ci_high=_known(math.exp(ratio.high)),
                    generations=min(len(point.time_ms.rounds), len(other.time_ms.rounds))
                    if point.time_ms and other.time_ms
                    else 0,
                    logs=logs,
                    clear=(ratio.low > 0 or ratio.high < 0) and abs(ratio.mean) > math.log1p(floor),
                )
            )
    return found


def _crossing(against: str, ratios: Sequence[Ratio]) -> records.Crossing:
    found = crossover(ratios)
    return records.Crossing(
        against=against,
        kind=found.kind,
        length=found.length,
        ci_low=found.low,
        ci_high=found.high,
        cheaper_after={"a": "model", "b": "against", None: None}[found.cheaper_after],
        text=crossing_text(found, ratios),
    )


def crossing_text(found: Crossover, ratios: Sequence[Ratio]) -> str:
    """A crossover in a few words."""
    if found.kind == "unknown":
        return "too few rounds to tell" if ratios else "not measured at one length"
    known = [ratio.length for ratio in ratios if not math.isnan(ratio.low)]
    first, last = known[0], known[-1]
    if found.kind == "indistinguishable":
        tail = {"a": ", then cheaper", "b": ", then dearer", None: ""}[found.cheaper_after]
        where = f"at {found.low:.0f}" if found.low == found.high else f"from {found.low:.0f} to {found.high:.0f}"
        return f"indistinguishable {where}{tail}"
    if found.kind == "several":
        return f"changes more than once from {found.low:.0f} to {found.high:.0f}"
    if found.kind == "at":
        low = f"{found.low:.0f}" if found.low else f"<{first}"
        high = f"{found.high:.0f}" if found.high else f">{last}"
        interval = "" if low == high else f" ({low} to {high})"
        return f"{'cheaper' if found.cheaper_after == 'a' else 'dearer'} from {found.length:.0f}{interval}"
    if found.kind == "below":
        return f"cheaper throughout: below {first}"
    return f"not reached: above {last}"


def _within(budget: int, curve: Sequence[ScalePoint]) -> records.Within:
    measured, predicted, start = {}, {}, 0
    for point in curve:
        memory, peak = point.memory_bytes, peak_bytes(point)
        if memory is None:
            continue
        if peak is not None:
            start = (memory.total or 0) - (memory.extra or 0) if memory.total else start
            measured[point.length] = float(peak + start)
        elif memory.predicted is not None:
            predicted[point.length] = float(memory.predicted + start)
    found = longest_within(budget, measured, predicted)
    return records.Within(
        budget_bytes=budget,
        length=found.length,
        over=found.over,
        estimate=found.estimate,
        extrapolated=found.extrapolated,
    )


def _outgrown(
    curve: Sequence[ScalePoint], peaks: Mapping[int, float], sizes: Mapping[str, int]
) -> list[records.Outgrown]:
    """By peaks as they were measured; by predicted ones where a point ran out."""
    predicted = {point.length: point.memory_bytes.predicted for point in curve if point.memory_bytes}
    known = {length: float(size) for length, size in predicted.items() if size} | dict(peaks)
    return [
        records.Outgrown(what=found.what, size_bytes=found.size, fits=found.fits, at=found.at)
        for found in outgrown(known, sizes)
    ]


def _beyond(curve: Curve | None, times: Mapping[int, float]) -> records.Beyond | None:
    if curve is None or sum(n >= (curve.cliff_at or 0) for n in times) < 2:
        return None
    lengths = list(times)
    found = extrapolate(lengths, list(times.values()), FARTHEST * lengths[-1], curve.cliff_at)
    return records.Beyond(length=found.length, value=found.value, low=found.low, high=found.high)


def _remarks(spec: AttentionSpec, time: Curve | None, memory: Curve | None) -> list[str]:
    if time is None or memory is None:
        return []
    in_time = (time.tail or time.sides[-1]).exponent if time.tail or time.sides else time.exponent
    in_memory = memory.tail.exponent if memory.tail else memory.exponent
    if _form(spec) == "fused" and in_time > QUADRATIC and in_memory < LINEAR:
        return [
            f"fused: near n^2 in time ({in_time:.2f}) but near n in memory ({in_memory:.2f}),"
            " for it never keeps the n × n scores"
        ]
    if _form(spec) == "math" and in_memory > QUADRATIC:
        return [f"textbook: keeps the n × n scores, near n^2 in memory ({in_memory:.2f})"]
    return []


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
