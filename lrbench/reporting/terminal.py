"""Comparisons as tables for a terminal, readable at 80 columns."""

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lrbench import metrics
from lrbench.metrics import MetricName
from lrbench.reporting.score_tables import caption, interval_text
from lrbench.reporting.scores import Comparison, Row

COLUMNS = ("model", "n", "test", "95 % interval", "beats", "params", "train", "tok/s", "MiB")


def render(comparison: Comparison) -> Iterator[RenderableType]:
    """A title, the table, and what has to be said about it."""
    yield Text(caption(comparison), style="bold")
    yield _table(comparison)
    for line in _remarks(comparison):
        yield Text(line, style="dim")


def _table(comparison: Comparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        right = name not in ("model", "beats", "95 % interval")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "model", overflow="fold")
    for row in comparison.rows:
        table.add_row(*_cells(row, comparison.metric))
    table.add_section()
    best_first = metrics.higher_is_better(comparison.metric)
    for name, score in sorted(comparison.baselines.items(), key=lambda item: item[1], reverse=best_first):
        table.add_row(f"[italic]{escape(name)}[/]", "–", metrics.shown(comparison.metric, score), "no model")
    table.add_row("[italic]chance[/]", "–", metrics.shown(comparison.metric, comparison.chance), "no model")
    return table


def _cells(row: Row, metric: MetricName) -> list[str]:
    if row.mean is None or row.low is None or row.high is None:
        return [escape(row.model), "0", "–", row.failures[0].split(": ")[1], *["–"] * 5]
    return [
        escape(row.model),
        str(len(row.seeds)),
        metrics.shown(metric, row.mean),
        f"{interval_text(row, metric)}{' *' if row.interval == 'examples' else ''}",
        "–" if row.beats is None else "yes" if row.beats else "[yellow]no[/]",
        "–" if row.parameters is None else f"{row.parameters:,}",
        "–" if row.train_s is None else f"{row.train_s:.0f} s",
        "–" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}",
        "–" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}",
    ]


def _remarks(comparison: Comparison) -> Iterator[str]:
    if comparison.to_beat:
        yield (
            f"beats: the whole interval is better than '{comparison.to_beat}', which needs no model"
            f" ({metrics.shown(comparison.metric, comparison.baselines[comparison.to_beat])})."
        )
    if any(row.interval == "seeds" for row in comparison.rows):
        yield "Interval: Student's t over seeds; test is the mean over them."
    if any(row.interval == "examples" for row in comparison.rows):
        how = " (Wilson)" if comparison.metric == "accuracy" else ""
        yield f"* one seed: the interval is over test examples{how} and knows nothing of other seeds."
    for row in comparison.rows:
        for failure in row.failures:
            yield f"{row.model}, {failure}"
    if comparison.changed:
        yield "Not as on the card: " + "; ".join(comparison.changed) + "."
    free = [row.model for row in comparison.rows if row.track.startswith("free") and not comparison.changed]
    if free:
        yield f"free-for-all (more than 10 % more parameters than full attention): {', '.join(free)}."
    yield from comparison.notes
