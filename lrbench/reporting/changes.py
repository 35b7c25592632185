"""What `lrbench compare` found, as a table for a terminal or a comment."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import get_args

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lrbench import metrics
from lrbench.compare import Line, Verdict
from lrbench.reporting import tables
from lrbench.reporting.claims import number

COLUMNS = ("model", "old", "new", "change", "95 % interval", "n", "verdict")
NUMBERS = frozenset({"old", "new", "change", "n"})
COLOURS = {"better": "green", "worse": "red", "not comparable": "dim"}
FIRST: tuple[Verdict, ...] = ("worse", "better", "undecided", "not comparable")  # in a comment; all others after them


def summary(lines: Sequence[Line]) -> str:
    """How many of each verdict."""
    counts = Counter(line.verdict for line in lines)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict])


def remarks(lines: Sequence[Line]) -> list[str]:
    """What was left out or differs, under the name of its line."""
    return [f"{line.what}, {line.name}: {remark}" for line in lines for remark in line.remarks]


def reasons(lines: Sequence[Line]) -> list[str]:
    """Why verdicts are what they are, where that is not the numbers, under the name of their lines."""
    return [f"{line.what}, {line.name}: {line.verdict}: {line.reason}" for line in lines if line.reason]


def render(lines: Sequence[Line]) -> Iterator[RenderableType]:
    """For a terminal: a table for each task or study and measure, what is said beside them, and how many of each."""
    groups: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        groups[_title(line)].append(line)
    for title, group in groups.items():
        yield Text(title, style="bold")
        yield _table(group)
    for remark in [*reasons(lines), *remarks(lines)]:
        yield Text(remark, style="dim")
    yield Text(summary(lines))


def markdown(lines: Sequence[Line]) -> Iterator[str]:
    """For a comment on a change: what became worse first."""
    ranked = sorted(lines, key=lambda line: FIRST.index(line.verdict) if line.verdict in FIRST else len(FIRST))
    cells = [
        [_title(line), *_values(line), f"{line.verdict}: {line.reason}" if line.reason else line.verdict]
        for line in ranked
    ]
    body = tables.Body("", [tables.row(*row) for row in cells])
    yield from tables.markdown(tables.Table("changes", summary(lines), ["", *COLUMNS], [body], NUMBERS, remarks(lines)))


def _title(line: Line) -> str:
    if line.measure == "claim":
        return "claims"
    return f"{line.what}: {metrics.unit(line.metric) if line.metric else line.measure}"


def _table(lines: Sequence[Line]) -> Table:
    """The reasons of its verdicts are told below, for want of room."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        found.add_column(name, overflow="fold", no_wrap=name != "model", justify="right" if name in NUMBERS else "left")
    for line in lines:
        colour = COLOURS.get(line.verdict)
        verdict = f"[{colour}]{line.verdict}[/]" if colour else line.verdict
        found.add_row(*map(escape, _values(line)), verdict)
    return found


def _values(line: Line) -> list[str]:
    """The columns but the verdict, as texts."""
    old, new, change = (_shown(line, value) for value in (line.old, line.new, line.change))
    return [line.name, old, new, change, _interval(line), str(line.n or "–")]


def _interval(line: Line) -> str:
    if line.low is None or line.high is None:
        return "–"
    return f"{_shown(line, line.low)} to {_shown(line, line.high)}"


def _shown(line: Line, value: float | None) -> str:
    """A value as tables have that metric, or a factor of time or memory."""
    if value is None:
        return "–"
    if line.measure == "claim":
        return number(value)
    return metrics.shown(line.metric, value) if line.metric else f"×{value:.3f}"
