"""Tables of scores: tasks beside models, each comparison with its intervals and published figures, and what it cost."""

import math
from collections.abc import Iterator, Sequence

from lrbench import metrics
from lrbench.metrics import MetricName
from lrbench.reporting.averages import Average, averages
from lrbench.reporting.published import COMPARABLE_PRESET, Published
from lrbench.reporting.scores import Comparison, Row, by_preset
from lrbench.reporting.tables import Body, Cell, Table, row

NONE = Cell("–")
STANDINGS = {
    "best": ("best", "best of its track"),
    "tied": ("tied", "not distinguishable from the best (paired t test over seeds, Holm)"),
    "behind": ("", "worse than the best (paired t test over seeds, Holm)"),
    "untold": ("", "fewer than two seeds in common with the best: no test"),
}
WORDS = {"best": "best", "tied": "≈ best", "behind": "worse", "untold": "not told"}


def overviews(comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """Models beside tasks, for each preset that has several tables. Nothing is averaged over presets."""
    for preset, tables in by_preset(comparisons).items():
        if len(tables) > 1:
            yield _overview(preset, tables)


def _overview(preset: str, tables: Sequence[Comparison]) -> Table:
    models = list(dict.fromkeys(row.model for table in tables for row in table.rows))
    there = [{row.model: row for row in table.rows} for table in tables]
    means = {average.model: average for average in averages(tables)}
    rows = [
        row(
            model,
            *(_short(rows.get(model), table.metric) for rows, table in zip(there, tables, strict=True)),
            _average(means.get(model)),
        )
        for model in models
    ]
    last = "mean accuracy"
    columns = ["model", *(f"{table.name.removesuffix(f'-{preset}')}, {_unit(table.metric)}" for table in tables), last]
    return Table(
        name=f"overview-{preset}",
        caption=f"All tasks, preset {preset}",
        columns=columns,
        bodies=[Body("", rows)],
        numbers=frozenset(columns[1:]),
        notes=[
            "Means over seeds, ± half of the 95 % interval (over seeds, or * over test examples of a single seed).",
            "Bold: best of its track; ≈ not distinguishable from it. Free-for-all runs are in italics.",
            "Mean accuracy: of models that have every task scored by accuracy here, and not free-for-all in any.",
        ],
    )


def _short(found: Row | None, metric: MetricName) -> Cell:
    if found is None:
        return NONE
    if found.mean is None:
        return Cell(found.failures[0].split(": ")[1], mark="bad", why="; ".join(found.failures))
    mark, why = STANDINGS[found.standing or "untold"]
    text = metrics.shown(metric, found.mean) + _half(found, metric)
    track = "" if found.is_fair else f"; {found.track or 'track not recorded'}"
    return Cell(text, found.mean, mark, f"{why}; n = {len(found.seeds)}{track}", faint=not found.is_fair)


def _half(found: Row, metric: MetricName) -> str:
    if found.mean is None or found.low is None or found.high is None or math.isnan(found.low):
        return ""
    return f" ± {metrics.shown(metric, (found.high - found.low) / 2)}{'*' if found.interval == 'examples' else ''}"


def _average(found: Average | None) -> Cell:
    if found is None:
        return NONE
    return Cell(found.text, found.mean, why=f"over {found.tasks} tasks")


def scores(comparison: Comparison, figures: Sequence[Published]) -> Table:
    """One comparison in full."""
    columns = ["model", "n", _unit(comparison.metric), "95 % interval", "beside the best", "beats no model"]
    columns += ["parameters", "published", "difference"]
    ours = comparison.figures(figures)
    return Table(
        name=f"scores-{comparison.name}",
        caption=caption(comparison),
        columns=columns,
        bodies=[
            *(
                Body(track or "track not recorded", [_score(row, comparison, ours) for row in rows])
                for track, rows in comparison.tracks.items()
            ),
            Body("failed", list(_failed(comparison))),
            Body("without any model", list(_baselines(comparison))),
        ],
        numbers=frozenset(columns) - {"model", "beside the best", "beats no model", "95 % interval"},
        notes=list(_notes(comparison, bool(ours))),
    )


def caption(comparison: Comparison) -> str:
    """What was asked of how many examples."""
    test = f", {comparison.test_examples:,} test examples" if comparison.test_examples else ""
    return f"{comparison.title}{test}: {metrics.unit(comparison.metric)}"


def _unit(metric: MetricName) -> str:
    return {"accuracy": "accuracy, %", "bits_per_dim": "bits/dim", "bits_per_byte": "bits/byte"}.get(metric, metric)


def _score(found: Row, comparison: Comparison, figures: Sequence[Published]) -> list[Cell]:
    metric, mean = comparison.metric, found.mean or 0.0
    mark, why = STANDINGS[found.standing or "untold"]
    interval = f"{interval_text(found, metric)}{' *' if found.interval == 'examples' else ''}"
    figure = next((each for each in figures if each.is_of(found.records[0])), None)
    return row(
        found.model,
        Cell(str(len(found.seeds)), len(found.seeds), why=f"seeds {', '.join(map(str, found.seeds))}"),
        Cell(metrics.shown(metric, mean), mean, mark, why),
        Cell(interval, found.low),
        Cell(WORDS[found.standing or "untold"], why=why),
        NONE if found.beats is None else Cell("yes" if found.beats else "no", mark="" if found.beats else "bad"),
        NONE if found.parameters is None else Cell(f"{found.parameters:,}", found.parameters),
        *_beside(figure, mean, comparison),
    )


def _beside(figure: Published | None, mean: float, comparison: Comparison) -> tuple[Cell, Cell]:
    """A published figure and how far the measured one is from it, which is told of the same protocol only."""
    if figure is None:
        return NONE, NONE
    metric = comparison.metric
    shown = Cell(metrics.shown(metric, figure.score), figure.score, why=_source(figure))
    if not _comparable(figure, comparison):
        return shown, Cell("not comparable", why=_why_not(figure, comparison))
    gap = mean - figure.score
    return shown, Cell(f"{'+' if gap >= 0 else '−'}{metrics.shown(metric, abs(gap))}", gap)


def _comparable(figure: Published, comparison: Comparison) -> bool:
    return figure.comparable and comparison.preset == COMPARABLE_PRESET and not comparison.changed


def _why_not(figure: Published, comparison: Comparison) -> str:
    if comparison.preset != COMPARABLE_PRESET:
        return f"published figures are of preset {COMPARABLE_PRESET}"
    return "the runs here are not as on the card" if comparison.changed else figure.remark


def _source(figure: Published) -> str:
    return f"{figure.model} in {figure.source}" + (f": {figure.remark}" if figure.remark else "")


def published(comparison: Comparison, figures: Sequence[Published]) -> Table | None:
    """All that papers say of a task, whether or not it was run here; None where that is nothing."""
    ours = comparison.figures(figures)
    if not ours:
        return None
    unit = _unit(comparison.metric)
    rows = [
        row(
            figure.model,
            Cell(metrics.shown(comparison.metric, figure.score), figure.score),
            figure.backend or "–",
            "yes" if _comparable(figure, comparison) else f"no: {_why_not(figure, comparison)}",
            figure.source,
            figure.remark,
        )
        for figure in ours
    ]
    return Table(
        name=f"published-{comparison.name}",
        caption=f"Published figures for {comparison.task}, not measured here",
        columns=["model", unit, "here", "comparable with the table above", "source", "remark"],
        bodies=[Body("", rows)],
        numbers=frozenset({unit}),
        folded=True,
    )


def _failed(comparison: Comparison) -> Iterator[list[Cell]]:
    for found in comparison.rows:
        for failure in found.failures:
            yield row(found.model, NONE, Cell(failure, mark="bad"), *[NONE] * 6)


def _baselines(comparison: Comparison) -> Iterator[list[Cell]]:
    best_first = metrics.higher_is_better(comparison.metric)
    known = sorted(comparison.baselines.items(), key=lambda item: item[1], reverse=best_first)
    for name, score in [*known, ("chance", comparison.chance)]:
        yield row(name, NONE, Cell(metrics.shown(comparison.metric, score), score), *[NONE] * 6)


def interval_text(found: Row, metric: MetricName) -> str:
    """Both ends, within what is possible; none of a single example."""
    if found.low is None or found.high is None or math.isnan(found.low):
        return "–"
    top = 1.0 if metric == "accuracy" else math.inf
    return f"{metrics.shown(metric, max(0.0, found.low))} to {metrics.shown(metric, min(top, found.high))}"


def _notes(comparison: Comparison, published: bool) -> Iterator[str]:
    if any(row.interval == "seeds" for row in comparison.rows):
        yield "Intervals are Student's t over seeds; the score is the mean over them."
    if any(row.interval == "examples" for row in comparison.rows):
        yield "* One seed: the interval is over test examples and knows nothing of other seeds."
    if comparison.to_beat:
        best = metrics.with_unit(comparison.metric, comparison.baselines[comparison.to_beat])
        yield f"Beats no model: the whole interval is better than '{comparison.to_beat}' ({best})."
    if published:
        yield "Published figures were copied from papers, not measured here."
    if comparison.changed:
        yield f"Not as on the card: {'; '.join(comparison.changed)}."
    for found in comparison.rows:
        reasons = [reason for reason in found.reasons if reason not in comparison.changed]
        if reasons:
            yield f"{found.model} is free-for-all: {'; '.join(reasons)}."
    yield from comparison.notes


def costs(comparisons: Sequence[Comparison]) -> Table:
    """Time, speed and memory of training, beside full attention where that is in the same comparison."""
    columns = ["task", "preset", "model", "n", "train, s", "tokens/s", "× full", "peak, MiB", "machine"]
    rows = [_cost(row, comparison) for comparison in comparisons for row in comparison.rows if row.mean is not None]
    return Table(
        name="costs",
        caption="What training took",
        columns=columns,
        bodies=[Body("", rows)],
        numbers=frozenset(columns[3:-1]),
        notes=[
            "Means over seeds; the peak is the highest of any seed. A dash: not recorded, or of unlike machines.",
            "× full: tokens per second over those of full attention in the same table, on the same machine.",
        ],
    )


def _cost(found: Row, comparison: Comparison) -> list[Cell]:
    full = next((each for each in comparison.rows if each.model == "full" and each.machines == found.machines), None)
    speed = found.tokens_per_s
    ratio = speed / full.tokens_per_s if speed and full and full.tokens_per_s else None
    return row(
        comparison.task,
        comparison.preset,
        found.model,
        Cell(str(len(found.seeds)), len(found.seeds)),
        NONE if found.train_s is None else Cell(f"{found.train_s:,.1f}", found.train_s),
        NONE if speed is None else Cell(f"{speed:,.0f}", speed),
        NONE if ratio is None else Cell(f"{ratio:.2f}", ratio),
        NONE if found.peak_bytes is None else Cell(f"{found.peak_bytes / 2**20:,.0f}", found.peak_bytes),
        "; ".join(found.machines) or "–",
    )
