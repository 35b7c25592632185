"""What `lrbench compare` found, as a table for a terminal or a comment."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

from rich import box
from rich.markup import escape
from rich.table import Table

from lrbench import metrics
from lrbench.compare import Line, Verdict
from lrbench.report import tables

COLUMNS = ("task", "model", "measure", "old", "new", "change", "95 % interval", "verdict")
NUMBERS = frozenset({"old", "new", "change"})
COLOURS = {"better": "green", "worse": "red", "not comparable": "dim"}
FIRST: tuple[Verdict, ...] = ("worse", "better", "undecided", "not comparable")  # in a comment; all others after them


def summary(lines: Sequence[Line]) -> str:
    """How many of each verdict."""
    counts = Counter(line.verdict for line in lines)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict])


def remarks(lines: Sequence[Line]) -> list[str]:
    """What was left out or differs, under the name of its line."""
    return [f"{line.what}, {line.model}: {remark}" for line in lines for remark in line.remarks]


def table(lines: Sequence[Line]) -> Table:
    """For a terminal."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        found.add_column(name, overflow="fold", justify="right" if name in NUMBERS else "left")
    for line in lines:
        *cells, verdict = map(escape, cells_of(line))
        colour = COLOURS.get(line.verdict)
        found.add_row(*cells, f"[{colour}]{verdict}[/]" if colour else verdict)
    return found


def markdown(lines: Sequence[Line]) -> Iterator[str]:
    """For a comment on a change: what became worse first."""
    ranked = sorted(lines, key=lambda line: FIRST.index(line.verdict) if line.verdict in FIRST else len(FIRST))
    body = tables.Body("", [tables.row(*cells_of(line)) for line in ranked])
    yield from tables.markdown(tables.Table("changes", summary(lines), list(COLUMNS), [body], NUMBERS, remarks(lines)))


def cells_of(line: Line) -> list[str]:
    """One line as texts."""
    reason = f": {line.reason}" if line.reason else ""
    old, new, change = (_shown(line, value) for value in (line.old, line.new, line.change))
    return [line.what, line.model, line.measure, old, new, change, _interval(line), line.verdict + reason]


def _interval(line: Line) -> str:
    if line.low is None or line.high is None:
        return "–"
    seeds = f" ({line.n} seeds)" if line.n else ""
    return f"{_shown(line, line.low)} to {_shown(line, line.high)}{seeds}"


def _shown(line: Line, value: float | None) -> str:
    """A value as tables have that metric, or a factor of time or memory."""
    if value is None:
        return "–"
    return metrics.shown(line.metric, value) if line.metric else f"x {value:.3f}"
