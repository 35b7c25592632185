"""What `lrbench compare` found, as a table for a terminal or a comment."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from lrbench import metrics
from lrbench.compare import Line

COLUMNS = ("", "model", "what", "old", "new", "change", "95 % interval", "verdict")
COLOURS = {"better": "green", "worse": "red", "not comparable": "dim"}


def summary(lines: Sequence[Line]) -> str:
    """How many of each verdict."""
    counts = Counter(line.verdict for line in lines)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def table(lines: Sequence[Line]) -> Table:
    """For a terminal."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        found.add_column(name, overflow="fold", justify="right" if name in ("old", "new", "change") else "left")
    for line in lines:
        *cells, verdict = map(escape, cells_of(line))
        colour = COLOURS.get(line.verdict)
        found.add_row(*cells, f"[{colour}]{verdict}[/]" if colour else verdict)
    return found


def markdown(lines: Sequence[Line]) -> Iterator[str]:
    """For a comment on a change: what became worse first."""
    yield f"**{summary(lines)}**"
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "| --- | --- | --- | ---: | ---: | ---: | --- | --- |"
    for line in sorted(lines, key=lambda line: line.verdict != "worse"):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells_of(line))} |"


def cells_of(line: Line) -> list[str]:
    """One line as texts."""
    reason = f": {line.reason}" if line.reason else ""
    seeds = f" ({line.n} seeds)" if line.n > 1 else ""
    if line.measure in ("time", "memory"):
        change = "–" if line.change is None else f"x {line.change:.3f}"
        interval = "–" if line.low is None or line.high is None else f"{line.low:.3f} to {line.high:.3f}"
        return [line.what, line.model, line.measure, "–", "–", change, interval, line.verdict + reason]
    shown = [_shown(line.measure, value) for value in (line.old, line.new, line.change)]
    low, high = (_shown(line.measure, value) for value in (line.low, line.high))
    interval = "–" if line.low is None else f"{low} to {high}{seeds}"
    return [line.what, line.model, line.measure, *shown, interval, line.verdict + reason]


def _shown(metric: str, value: float | None) -> str:
    return "–" if value is None else metrics.shown(metric, value)  # type: ignore[arg-type]
