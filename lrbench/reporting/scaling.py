"""A scaling study as tables for a terminal, readable at 80 columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lrbench.points import ScalePoint
from lrbench.scalefits import by_model, peak_bytes
from lrbench.scalerecords import Drift, Exponent, Fit, ModelFits, StudyRecord, Within
from lrbench.scaling.beyond import FARTHEST
from lrbench.scaling.pace import trend

LENGTHS = 6  # columns of one table
SHOWN_TREND = 0.01  # of the machine's pace: less of it moves no digit of an exponent
FLAGS = {
    "contended": "more than a fifth of its blocks waited for a CPU",
    "denormals": "subnormal numbers in outputs or gradients, which CPUs are slow at",
    "untracked": "memory that the tensor allocator did not see; the resident peak counts",
    "untouched": "memory that was allocated and never written",
    "below_resolution": "too little memory for the resident cross-check",
    "rss_unreset": "the resident peak could not be reset before the region",
    "precision_missed": "the interval is wider than was asked for",
    "single_generation": "one generation of processes only: what differs between processes is unknown",
    "drifted": "the machine's matmul peak changed by more than 15 % during the study",
    "alloc_retries": "the accelerator's allocator had to free and try again, which costs time",
    "in_process": "measured without a process of its own: nothing limited it, and points influence each other",
}
SHORT = {"unsupported": "n/a", "interrupted": "stopped"}

Cell = Callable[[ScalePoint], str]


def render(record: StudyRecord, points: Sequence[ScalePoint]) -> Iterator[RenderableType]:
    """Every table of a study, and what has to be said about it."""
    curves = by_model(points)
    yield Text(title(record), style="bold")
    for lengths in _chunks(record.lengths):
        yield _grid("time, ms", curves, lengths, _time)
    for lengths in _chunks(record.lengths):
        yield _grid("memory, MiB", curves, lengths, _memory)
    yield from (Text(line, style="dim") for line in about_points(points))
    yield _exponents(record)
    if any(tails(model) != (None, None) for model in record.models.values()):
        yield _far_end(record)
    yield from (Text(line, style="dim") for line in about_exponents(record))
    if any(model.crossover for model in record.models.values()):
        yield _crossovers(record)
    yield _longest(record)
    if record.drift:
        yield from _drift(record.drift)
    yield from (Text(line, style="dim") for line in about_study(record))


def number(value: float) -> str:
    """Three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def outcome(point: ScalePoint) -> str:
    """A status in the space of a number; `*` marks what was foreseen and not run."""
    return SHORT.get(point.status, point.status) + ("*" if point.predicted else "")


def title(record: StudyRecord) -> str:
    """What was measured."""
    batch = f"{record.tokens} tokens" if record.tokens else f"batch {record.batch}"
    what = {"forward": "forward", "train": "forward and backward", "stream": "streaming"}[record.mode]
    timed = "one attention layer" if record.level == "layer" else "a whole model of two layers"
    causal = ", causal" if record.causal else ""
    return (
        f"{timed}, {what}{causal}: width {record.width}, {record.heads} heads, {batch}, {record.dtype}, {record.device}"
    )


def _chunks(lengths: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(lengths), LENGTHS):
        yield list(lengths[start : start + LENGTHS])


def _new_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(columns):
        width = {"95 %": 12, "like": 6}.get(name, 6 if place else 15)
        table.add_column(name, justify="right" if place else "left", overflow="fold", min_width=width)
    return table


def _grid(title: str, curves: Mapping[str, Sequence[ScalePoint]], lengths: Sequence[int], cell: Cell) -> Table:
    table = _new_table(title, *map(str, lengths))
    for name, curve in curves.items():
        there = {point.length: point for point in curve}
        table.add_row(escape(name), *(cell(there[n]) if n in there else "–" for n in lengths))
    return table


def _time(point: ScalePoint) -> str:
    if point.status != "ok":
        return f"[yellow]{outcome(point)}[/]"
    return marked_time(point, number(point.time_ms.median)) if point.time_ms else "–"


def _memory(point: ScalePoint) -> str:
    if point.status != "ok":
        return f"[yellow]{outcome(point)}[/]"
    peak = peak_bytes(point)
    return "–" if peak is None else marked_peak(point, number(peak / 2**20))


def marked_time(point: ScalePoint, text: str) -> str:
    """`!`: measured under contention, or less precisely than was asked for."""
    return text + ("!" if {"contended", "precision_missed"} & set(point.flags) else "")


def marked_peak(point: ScalePoint, text: str) -> str:
    """`?`: holds memory that the tensor allocator did not see."""
    return text + ("?" if "untracked" in point.flags else "")


def about_points(points: Sequence[ScalePoint]) -> Iterator[str]:
    """What marks in tables of times and memory mean, and what points say of themselves."""
    real = [point for point in points if not point.control]
    if any(point.predicted for point in real):
        yield "* foreseen, and not run."
    if any({"contended", "precision_missed"} & set(point.flags) for point in real):
        yield "! measured under contention, or less precisely than was asked for."
    if any("untracked" in point.flags for point in real):
        yield "? holds memory that the tensor allocator did not see: the resident peak."
    seen: dict[str, None] = {}
    for point in real:
        if point.reason and point.status not in ("ok", "skipped"):
            seen.setdefault(f"{point.spec.attention.label}, {point.status}: {point.reason}")
        for note in point.notes:
            seen.setdefault(f"{point.spec.attention.label}: {note}")
    yield from seen


def _exponents(record: StudyRecord) -> Table:
    table = _new_table("exponent of", "time", "95 %", "like", "memory", "95 %")
    for name, model in record.models.items():
        # what memory is like its exponent says well enough, and eighty columns hold no more
        table.add_row(escape(name), *exponent_cells(model.time), *exponent_cells(model.memory)[:2])
    return table


def exponent_cells(fit: Fit | None) -> list[str]:
    """An exponent with its mark, its interval, and the laws that it is like."""
    if fit is None or fit.exponent is None:
        return ["–", "–", "–"]
    mark = {"loglog": "", "offset": "o", "side": "c"}[fit.headline]
    return [f"{fit.exponent:.2f}{mark}", interval_text(fit.ci_low, fit.ci_high), ", ".join(fit.consistent_with) or "–"]


def about_exponents(record: StudyRecord) -> Iterator[str]:
    """What marks in the table of exponents mean, and what was found out about single models."""
    found = [fit for model in record.models.values() for fit in (model.time, model.memory) if fit]
    if any(fit.headline == "offset" for fit in found):
        yield "o above a constant overhead, which is more than a tenth of the time at the smallest length."
    if any(fit.cliff for fit in found):
        yield "c a cliff was found: the exponent is that of the lengths behind it (– where they are fewer than three)."
    yield "like: laws that the times do not contradict, each with a constant overhead (from five lengths on)."
    for name, model in record.models.items():
        for curve, fit in (("time", model.time), ("memory", model.memory)):
            if fit and fit.cliff:
                factor = f" by x{fit.cliff.factor:.2f}" if fit.cliff.factor else ""
                yield f"{name}, {curve}: a cliff before {fit.cliff.at}{factor}."
        yield from (f"{name}, {remark}." for remark in model.remarks)


def _far_end(record: StudyRecord) -> Table:
    first = min(tail.lengths[0] for model in record.models.values() for tail in tails(model) if tail)
    table = _new_table(f"from {first} on", "time", "95 %", "memory", "95 %")
    for name, model in record.models.items():
        table.add_row(escape(name), *(cell for tail in tails(model) for cell in segment_cells(tail)))
    return table


def tails(model: ModelFits) -> tuple[Exponent | None, Exponent | None]:
    """The exponents of the longest lengths, in time and in memory."""
    return (model.time.tail if model.time else None, model.memory.tail if model.memory else None)


def segment_cells(segment: Exponent | None) -> list[str]:
    """An exponent and its interval."""
    return (
        ["–", "–"] if segment is None else [f"{segment.exponent:.2f}", interval_text(segment.ci_low, segment.ci_high)]
    )


def interval_text(low: float | None, high: float | None) -> str:
    """Both ends, or a dash."""
    return "–" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _crossovers(record: StudyRecord) -> Table:
    table = _new_table("against", "model", "time", "memory")
    for column in table.columns[1:]:
        column.justify = "left"
    rivals = {crossing.against for model in record.models.values() for crossing in model.crossover}
    for rival in (name for name in record.models if name in rivals):
        for name, model in record.models.items():
            texts = [
                next((crossing.text for crossing in crossings if crossing.against == rival), None)
                for crossings in (model.crossover, model.memory_crossover)
            ]
            if any(texts):
                table.add_row(escape(rival), escape(name), *(text or "–" for text in texts))
        table.add_section()
    return table


def _longest(record: StudyRecord) -> Table:
    budgets = [within.budget_bytes for within in next(iter(record.models.values())).longest_within]
    table = _new_table("longest length", "measured", *(f"in {size_text(budget)}" for budget in budgets))
    for name, model in record.models.items():
        measured = "none" if model.longest_fitted is None else str(model.longest_fitted)
        table.add_row(escape(name), measured, *(within_cell(within) for within in model.longest_within))
    return table


def within_cell(within: Within) -> str:
    """`~`: between two measured or predicted lengths, `>` at least, `(…)` extrapolated, and never more than twice."""
    if within.length is None:
        return "–" if within.over is None else f"<{within.over}"
    if within.estimate is None:
        return f">{within.length}"
    if within.extrapolated:
        return f"({'>' if within.estimate >= FARTHEST * within.length else '~'}{within.estimate})"
    return f"~{within.estimate}"


def size_text(size: int) -> str:
    """Bytes in a unit that suits them."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def _outgrown(record: StudyRecord) -> Iterator[str]:
    """Where peaks leave a cache or half of the memory, of all models in one line; the record has them one by one."""
    places: dict[str, list[int]] = {}
    for model in record.models.values():
        for found in model.outgrown:
            places.setdefault(f"{found.what} ({size_text(found.size_bytes)})", []).append(found.at)
    texts = [f"{what} {_range(lengths)}" for what, lengths in places.items()]
    if texts:
        yield f"The first lengths whose memory exceeds {', '.join(texts)}."


def _range(lengths: Sequence[int]) -> str:
    first, last = min(lengths), max(lengths)
    return f"at {first}" if first == last else f"at {first} to {last}, by model"


def _drift(drift: Drift) -> Iterator[RenderableType]:
    moved = [change for change in drift.changes if change.beyond_noise]
    times = sum(change.what == "time" for change in drift.changes)
    yield Text(
        f"Against study {drift.study_id}: {len(moved)} changes beyond noise among {times} times (as ratios to"
        f" {drift.reference}) and {len(drift.changes) - times} peaks of memory."
    )
    if moved:
        table = _new_table("change", "length", "of", "factor", "95 %")
        for change in moved:
            interval = interval_text(change.ci_low, change.ci_high)
            table.add_row(escape(change.model), str(change.length), change.what, f"{change.factor:.2f}", interval)
        yield table
    if drift.differs:
        yield Text(f"The machines differ in {', '.join(drift.differs)}: changes in time prove nothing.", style="yellow")


def about_study(record: StudyRecord) -> Iterator[str]:
    """How far its numbers are to be trusted."""
    if any(within.extrapolated for model in record.models.values() for within in model.longest_within):
        yield "~ between lengths that were measured or predicted; (…) extrapolated, at most twice as far as measured."
    yield "Memory is what the operation adds to its inputs and parameters; what fits counts those too."
    yield from _outgrown(record)
    if record.noise and record.noise.floor is not None:
        yield (
            f"Noise floor {record.noise.floor:.1%}: two copies of {record.noise.model} differed by so much;"
            " smaller differences are none."
        )
    reached = record.precision.reached
    if record.precision.missed:
        yield (
            f"warning: this machine was too noisy, or the budget too short, for ±{record.precision.asked:.0%} at"
            f" {record.precision.missed} points" + (f" (the worst: ±{reached:.0%})." if reached is not None else ".")
        )
    start, end = record.matmul_peak_flops.get("start"), record.matmul_peak_flops.get("end")
    if start and end:
        yield f"Matmul peak {start / 1e9:,.0f} GFLOP/s at the start, {end / 1e9:,.0f} at the end."
    drift = trend(record.lengths, record.matmul_pace_flops)
    if abs(drift) >= SHOWN_TREND:
        yield (
            f"While the lengths grew, the machine's own pace went as n^{drift:+.2f}: the intervals of exponents of time"
            " allow for that."
        )
    yield from (
        f"{flag} ({count} points): {FLAGS.get(flag, 'see the points')}." for flag, count in record.flags.items()
    )
    yield "All intervals are within this run."
    yield from (f"warning: {warning}" for warning in record.warnings)
    if "total" in record.seconds:
        spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in record.seconds.items())
        yield f"Seconds: {spent}."
