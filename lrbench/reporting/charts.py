"""Charts as data: curves and points of models, drawn by `plotted` for a page and by `figures` for a paper."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from lrbench import metrics, stats
from lrbench.points import ScalePoint
from lrbench.reporting.material import Evaluation, Material, Study, evaluations
from lrbench.reporting.scaling import number, outcome, title
from lrbench.reporting.scores import Comparison, Row
from lrbench.reporting.tables import slug
from lrbench.scalefits import by_model, peak_bytes

CURVE_POINTS = 100  # of a learning curve, at most
SHARE = 100.0  # accuracy is drawn in per cent


@dataclass(frozen=True)
class Axis:
    """What is on it. `ticks`: the values that are named on it, where those are few and known."""

    label: str
    log: bool = False
    ticks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Point:
    """One value with its interval and what is said of it. `y` is None where it was not measured: the line breaks."""

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    text: str = ""
    size: float | None = None  # of a bubble


@dataclass(frozen=True)
class Series:
    """What belongs to one model. `ends`: where it ran out of memory or time, with the status."""

    model: str
    points: list[Point]
    ends: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """A chart. `slopes`: guide lines, as exponents of x with a name. `front`: points that no other beats in both."""

    name: str
    title: str
    x: Axis
    y: Axis
    series: list[Series]
    slopes: list[tuple[str, float]] = field(default_factory=list)
    front: list[tuple[float, float]] = field(default_factory=list)
    joined: bool = True  # points of a series by lines
    note: str = ""

    @property
    def known(self) -> list[tuple[float, float]]:
        """Every point that was measured."""
        return [(point.x, point.y) for series in self.series for point in series.points if point.y is not None]

    @property
    def above(self) -> float:
        """Where what ran out is marked, on a logarithmic axis: above all that was measured."""
        return 1.4 * max((y for _, y in self.known), default=1.0)

    @property
    def largest(self) -> float:
        """The largest bubble; 0 where there are none."""
        return max((point.size or 0.0 for series in self.series for point in series.points), default=0.0)

    def guide(self, slope: float) -> list[tuple[float, float]]:
        """A power of x through the lower left of what was measured, at both ends and in the middle; else nothing."""
        first, last = min((x for x, _ in self.known), default=0.0), max((x for x, _ in self.known), default=0.0)
        if first == last:
            return []
        start = min(y for x, y in self.known if x == first)
        return [(x, start * (x / first) ** slope) for x in (first, math.sqrt(first * last), last)]


def scaling(study: Study) -> list[Chart]:
    """Time and memory against length."""
    curves = by_model(study.points)
    what, name = title(study.record), slug(f"scale-{study.record.study_id}")
    slopes = [("n", 1.0), ("n²", 2.0)]
    length = Axis("length, tokens", log=True, ticks=tuple(study.record.lengths))
    kinds = (("time", "Time", "time, ms", _time), ("memory", "Memory", "peak memory, MiB", _memory))
    return [
        Chart(
            f"{name}-{kind}",
            f"{said}: {what}",
            length,
            Axis(unit, log=True),
            [Series(model, [drawn(point) for point in curve], _ends(curve)) for model, curve in curves.items()],
            slopes,
        )
        for kind, said, unit, drawn in kinds
    ]


def _time(point: ScalePoint) -> Point:
    if point.status != "ok" or point.time_ms is None:
        return Point(point.length, None)
    found = point.time_ms
    low, high = _number(found.ci_low), _number(found.ci_high)
    interval = "no interval" if low is None or high is None else f"{number(low)} to {number(high)}"
    return Point(point.length, found.median, low, high, f"{number(found.median)} ms ({interval})")


def _memory(point: ScalePoint) -> Point:
    peak = peak_bytes(point)
    if point.status != "ok" or not peak:
        return Point(point.length, None)
    return Point(point.length, peak / 2**20, text=f"{number(peak / 2**20)} MiB")


def _number(value: float | None) -> float | None:
    """A number that a logarithmic axis can show."""
    return value if value is not None and value > 0 else None


def _ends(curve: Sequence[ScalePoint]) -> list[tuple[float, str]]:
    """Where a curve ends; of what was skipped for it the first alone."""
    return [(point.length, outcome(point)) for point in curve if point.status in ("oom", "timeout", "error")]


def trade_off(comparison: Comparison) -> Chart | None:
    """Score against speed, bubbles by memory; None where machines differ or no speed is known."""
    shown = [row for row in comparison.rows if row.mean is not None and row.tokens_per_s]
    if len(shown) < 2 or len(comparison.machines) > 1:
        return None
    points = {row.model: _bubble(row, comparison) for row in shown}
    return Chart(
        name=slug(f"trade-off-{comparison.name}"),
        title=f"Score against speed: {comparison.title}",
        x=Axis("training, tokens per second", log=True),
        y=Axis(metrics.unit(comparison.metric)),
        series=[Series(model, [point]) for model, point in points.items()],
        front=list(_front(points.values(), metrics.higher_is_better(comparison.metric))),
        joined=False,
        note="Bubbles grow with peak memory. The line joins what nothing else beats in both.",
    )


def _bubble(row: Row, comparison: Comparison) -> Point:
    mean, low, high = (_drawn(comparison, value) for value in (row.mean, row.low, row.high))
    peak = f", {row.peak_bytes / 2**20:,.0f} MiB" if row.peak_bytes else ""
    text = f"{_said(comparison, row.mean, row.low, row.high, len(row.seeds))}, {row.tokens_per_s:,.0f} tokens/s{peak}"
    return Point(row.tokens_per_s or 0.0, mean, low, high, text, size=row.peak_bytes)


def _drawn(comparison: Comparison, value: float | None) -> float | None:
    """A score in the unit of its axis, within what is possible."""
    if not _finite(value):
        return None
    return SHARE * min(1.0, max(0.0, value)) if comparison.metric == "accuracy" else max(0.0, value)


def _said(comparison: Comparison, mean: float | None, low: float | None, high: float | None, seeds: int) -> str:
    """A score, its interval where it has one, and the seeds it is of."""
    shown, *ends = (metrics.shown(comparison.metric, value) if _finite(value) else "–" for value in (mean, low, high))
    interval = f" ({ends[0]} to {ends[1]})" if _finite(low) else ""
    return f"{shown}{interval}, {seeds} seed{'s' * (seeds != 1)}"


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _front(points: Iterable[Point], higher: bool) -> Iterator[tuple[float, float]]:
    """From the fastest on, each point that is better than all faster ones."""
    sign, best = (1 if higher else -1), -math.inf
    for point in sorted(points, key=lambda point: (-point.x, -sign * (point.y or 0.0))):
        if point.y is not None and sign * point.y > best:
            best = sign * point.y
            yield point.x, point.y


def learning_curves(comparison: Comparison, material: Material) -> Chart | None:
    """Score on validation against steps: means over seeds, with t intervals where there are several."""
    series = []
    for row in comparison.rows:
        curves = [evaluations(material.folder(record), comparison.metric) for record in row.records]
        points = list(_averaged([curve for curve in curves if curve], comparison))
        if len(points) > 1:
            series.append(Series(row.model, points))
    if not series:
        return None
    return Chart(
        name=slug(f"curve-{comparison.name}"),
        title=f"Learning curves: {comparison.title}",
        x=Axis("training steps"),
        y=Axis(f"validation, {metrics.unit(comparison.metric)}"),
        series=series,
        note="Means over seeds, with 95 % t intervals where there are several.",
    )


def _averaged(curves: Sequence[Sequence[Evaluation]], comparison: Comparison) -> Iterator[Point]:
    """Steps that all seeds were evaluated at, thinned out where there are very many."""
    scores = [{found.step: found.score for found in curve} for curve in curves]
    steps = sorted(set.intersection(*map(set, scores))) if scores else []
    stride = -(-len(steps) // CURVE_POINTS)
    for step in (step for place, step in enumerate(steps) if (len(steps) - 1 - place) % stride == 0):
        found = stats.over_seeds([curve[step] for curve in scores])
        mean, low, high = (_drawn(comparison, value) for value in (found.mean, found.low, found.high))
        yield Point(step, mean, low, high, _said(comparison, *found))
