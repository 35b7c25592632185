"""`lrbench check`: what every attention must hold, measured."""

from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lrbench.cli import options as opt
from lrbench.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lrbench.gate import Answer


def command(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Names, variants local[window=64], files ./mine.py:Mine, or all."),
    ],
    causal: Annotated[
        bool | None, typer.Option("--causal/--no-causal", help="One direction. [default: both, where it can be]")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Backends side by side.")] = 2,
    as_json: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: opt.Debug = False,
) -> int:
    """Conformance of attentions: masks, causality, gradients, precision, lengths, state, cost. Exit 1 if any fails.

    Example: lrbench check performer ./mine.py:Mine
    """
    from lrbench import gate
    from lrbench.registry import split_list

    named = [name for text in models for name in split_list(text)]
    if not named:
        raise SpecError("nothing to check", "for example: lrbench check performer ./mine.py:Mine, or lrbench check all")
    with Bar(quiet) as bar:
        answers, warnings = gate.check(named, causal, workers, bar)
    passed = all(answer.status in ("passed", "unsupported") for answer in answers)
    if as_json:
        _print_json(answers, warnings, passed)
    else:
        _print(answers)
    return 0 if passed else 1


def _print(answers: "Sequence[Answer]") -> None:
    from lrbench.reporting.checks import render

    console = Console(highlight=False)
    for part in render(answers):
        console.print(part)
    for answer in answers:
        for line in answer.failures:
            typer.echo(line)


def _print_json(answers: "Sequence[Answer]", warnings: list[str], passed: bool) -> None:
    from lrbench.records import dumps

    checks = [answer.model_dump(mode="json", exclude={"refusal"}) for answer in answers]
    print(dumps({"passed": passed, "checks": checks, "warnings": warnings}, indent=1))


class Bar:
    """A listener for `gate.check`: a bar on a terminal, else one line a backend."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("backends", total=None)
        self._total = self._ended = 0

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def plan(self, models: "Sequence[str]") -> None:
        """So many are to come."""
        self._total = len(models)
        self._bar.update(self._task, total=self._total, completed=0)

    def tick(self) -> None:
        """The bar moves by itself."""

    def done(self, answer: "Answer") -> None:
        """One line."""
        self._ended += 1
        self._bar.update(self._task, completed=self._ended)
        reason = f": {answer.reason}" if answer.reason else f" in {answer.seconds:.0f} s"
        self._console.print(escape(f"[{self._ended}/{self._total}] {answer.model}: {answer.status}{reason}"))
