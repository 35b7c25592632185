"""Verdicts of `lrbench check` for a terminal, readable at 80 columns."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lrbench.gate import Answer, Finding, Verdict

WHOLE = 3  # so many backends are shown probe by probe; of more only those that fell short
MARKS = {"passed": "[green]ok[/]", "failed": "[red]FAILED[/]", "skipped": "[dim]skipped[/]"}


def render(answers: "Sequence[Answer]") -> Iterator[RenderableType]:
    """A table of probes for each backend and direction; of many backends a line each first."""
    many = len(answers) > WHOLE
    if many:
        yield overview(answers)
    for answer in answers:
        for verdict in answer.verdicts:
            if not many or verdict.status == "failed":
                yield from _whole(answer.model, verdict)
    if many:
        yield Text("each probe with its number: lrbench check NAME, or --json", style="dim")


def overview(answers: "Sequence[Answer]") -> Table:
    """A line for each backend and direction."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("model", "", "passed", "failed", "skipped", "remarks"):
        right = name in ("passed", "failed", "skipped")
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for answer in answers:
        if not answer.verdicts:
            table.add_row(escape(answer.model), "", "–", "–", "–", escape(answer.reason))
        for verdict in answer.verdicts:
            counts = [str(verdict.count(status)) if verdict.probes else "–" for status in MARKS]
            remarks = "; ".join(filter(None, [verdict.reason, *verdict.notes]))
            table.add_row(escape(answer.model), verdict.direction, *counts, escape(remarks))
    return table


def _whole(model: str, verdict: "Verdict") -> Iterator[RenderableType]:
    yield Text(f"{model}, {verdict.direction}: {verdict.status}", style="bold")
    if verdict.probes:
        yield _table(verdict.probes)
    for line in filter(None, [verdict.reason, *(f"note: {note}" for note in verdict.notes)]):
        yield Text(line, style="dim")
    yield Text("")


def _table(probes: "Sequence[Finding]") -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("probe", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("bound", justify="right", no_wrap=True)
    table.add_column("where worst", overflow="fold")
    for probe in probes:
        table.add_row(escape(probe.name), MARKS[probe.status], _number(probe), _bound(probe), escape(probe.detail))
    return table


def _number(probe: "Finding") -> str:
    return "–" if probe.measured is None else f"{probe.measured:.3g}"


def _bound(probe: "Finding") -> str:
    sign = "≥" if probe.sense == "at least" else "≤"
    return "–" if probe.bound is None else f"{sign} {probe.bound:.3g}"
