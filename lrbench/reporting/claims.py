"""The papers' claims as tables of a page and for a terminal: what was expected, what was measured, and the verdict."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from lrbench.claims.records import ClaimRecord, PartRecord
from lrbench.claims.verdicts import Verdict
from lrbench.reporting.findings import Finding
from lrbench.reporting.tables import Body, Cell, Table, row, slug

COLUMNS = ["quantity", "expected", "measured", "95 % interval", "n", "verdict"]
NUMBERS = frozenset({"measured", "n"})
COLOURS = {"reproduced": "green", "contradicted": "red", "inconclusive": "yellow", "not run here": "dim"}
NOTES = [
    "Reproduced: the whole interval lies within what is expected; contradicted: all of it lies beyond; inconclusive:"
    " neither, or no spread is known. A claim of several quantities is reproduced only if each of them is.",
    "Intervals are single 95 % intervals, not corrected for how many there are: of a hundred, a few miss by chance.",
]


def summary(found: Sequence[ClaimRecord]) -> str:
    """How many of each verdict."""
    counts = Counter(record.verdict for record in found)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict])


def findings(found: Sequence[ClaimRecord]) -> list[Finding]:
    """One more question, where claims were checked."""
    if not found:
        return []
    against = [record.id for record in found if record.verdict == "contradicted"]
    broken = [record.id for record in found if record.failed]
    told = f"Of {len(found)} claims: {summary(found)}."
    told += f" Contradicted: {', '.join(against)}." if against else ""
    told += f" That must not be: {', '.join(broken)}." if broken else ""
    return [Finding("Does it do what its paper says?", told)]


def tables(found: Sequence[ClaimRecord]) -> Iterator[Table]:
    """For each paper its claims, and folded how each is checked at full size."""
    for title in dict.fromkeys(record.paper.title for record in found):
        claims = [record for record in found if record.paper.title == title]
        caption = f"{title} ({claims[0].paper.reference}): {summary(claims)}"
        yield Table(
            f"claims-{slug(title)}",
            caption,
            COLUMNS,
            [Body(_title(record), _rows(record)) for record in claims],
            NUMBERS,
            [*NOTES, *(f"{record.id}: {record.condition}" for record in claims if record.condition)],
        )
        yield Table(
            f"claims-{slug(title)}-full",
            f"How {title} is checked at full size",
            ["claim", "source", "needs", "run"],
            [Body("", [row(record.id, record.source, record.full.needs, record.full.run) for record in claims])],
            folded=True,
        )


def _title(record: ClaimRecord) -> str:
    must = ", must hold" if record.required else ""
    return f"{record.id} · {record.verdict}{must} · {record.statement} Published: {_published(record)}."


def _published(record: ClaimRecord) -> str:
    return record.published + (" (second-hand)" if record.tag == "secondary" else "")


def _rows(record: ClaimRecord) -> list[list[Cell]]:
    if not record.parts:
        return [row("–", "–", "–", "–", "–", Cell("not run here", why=record.reason))]
    return [_row(part) for part in record.parts]


def _row(part: PartRecord) -> list[Cell]:
    found = part.measured
    verdict = Cell(part.verdict, mark="bad" if part.verdict == "contradicted" else "", why=part.reason)
    if found is None:
        return row(part.label, part.expected, "–", "–", "–", verdict)
    value = Cell(number(found.value), found.value, why=found.detail)
    return row(part.label, part.expected, value, interval(part), Cell(str(found.n), found.n), verdict)


def interval(part: PartRecord) -> str:
    """The ends of a measured quantity's interval, or that it has no spread."""
    found = part.measured
    if found is None or found.low is None or found.high is None:
        return "unknown"
    return "exact" if found.low == found.high else f"{number(found.low)} to {number(found.high)}"


def number(value: float) -> str:
    """Three digits that count."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.1e}"


def render(found: Sequence[ClaimRecord]) -> Iterator[RenderableType]:
    """For a terminal, readable at 80 columns: each claim with its quantities below it, and how many of each verdict."""
    for record in found:
        must = " (must hold)" if record.required else ""
        yield Text.assemble(
            (f"{record.id} ", "bold"), (record.verdict + must, COLOURS[record.verdict]), f"  {record.statement}"
        )
        yield Padding(Text(f"published: {_published(record)}", style="dim"), (0, 0, 0, 2))
        if not record.parts:
            yield Padding(Text(f"not run here: {record.reason}", style="dim"), (0, 0, 0, 2))
            continue
        yield Padding(_grid(record), (0, 0, 0, 2))
    yield Text(summary(found), style="bold")


def _grid(record: ClaimRecord) -> Grid:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        grid.add_column(overflow="fold")
    for part in record.parts:
        colour = COLOURS[part.verdict]
        told = part.reason if part.measured is None else f"{number(part.measured.value)} ({interval(part)})"
        grid.add_row(
            escape(part.label), f"[dim]{escape(part.expected)}[/]", escape(told), f"[{colour}]{part.verdict}[/]"
        )
    return grid
