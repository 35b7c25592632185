"""What claims stand on: runs, studies and measures, read from a results folder and made where they are missing."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from lrbench import records, runner, scalestudy
from lrbench.claims import answers
from lrbench.claims.files import Suites
from lrbench.claims.measured import Measured, Unknown
from lrbench.claims.spec import Measure, Part, Scaling, Side, sides
from lrbench.errors import Missing
from lrbench.plan import Cell
from lrbench.records import RunRecord
from lrbench.study import Listener as StudyListener

Kind = TypeVar("Kind")
NOBODY = Unknown("not measured yet")


@dataclass(frozen=True)
class Request:
    """Where evidence lies and how what is missing is made; with `run` off, it is only read."""

    options: runner.Options
    run: bool = True


@dataclass(frozen=True)
class Progress:
    """What is shown while evidence is made."""

    cells: Callable[[], AbstractContextManager[runner.Listener]]
    curves: Callable[[], AbstractContextManager[StudyListener]]
    measure: answers.Told  # of each measure that is done, and after how many seconds


@dataclass
class Evidence:
    """Everything that was found; what was not, with the reason."""

    runs: dict[Side, Mapping[int, RunRecord] | Unknown] = field(default_factory=dict)
    studies: dict[str, scalestudy.Measured | Unknown] = field(default_factory=dict)
    measures: dict[str, Measured | Unknown] = field(default_factory=dict)

    def seeds(self, side: Side) -> Mapping[int, RunRecord]:
        """The good runs of a side.

        Raises:
            Unknown
        """
        return _known(self.runs[side])

    def study(self, suite: str) -> scalestudy.Measured:
        """The study of a suite. Raises `Unknown`."""
        return _known(self.studies[suite])

    def measure(self, part: Measure) -> Measured:
        """What a measure found. Raises `Unknown`."""
        return _known(self.measures[answers.question(part).key])


def gather(parts: Iterable[Part], suites: Suites, request: Request, progress: Progress) -> Evidence:
    """Read what is there and make the rest: measures first, then studies, which want the machine alone, then runs.

    Raises:
        SpecError: a suite is wrong. KeyboardInterrupt: what was finished is kept.
    """
    parts, found = list(parts), Evidence()
    questions = [answers.question(part) for part in parts if isinstance(part, Measure)]
    found.measures.update(answers.given(questions, request.options, request.run, progress.measure))
    for suite in dict.fromkeys(part.suite for part in parts if isinstance(part, Scaling)):
        found.studies[suite] = _study(suite, suites, request, progress)
    asked = dict.fromkeys(side for part in parts for side in sides(part))
    for suite in dict.fromkeys(side.suite for side in asked):
        cells = {side: suites.cells(side) for side in asked if side.suite == suite}
        found.runs.update(_runs(cells, request, progress))
    return found


def _study(suite: str, suites: Suites, request: Request, progress: Progress) -> scalestudy.Measured | Unknown:
    if not request.run:
        return scalestudy.finished(suites.study(suite)) or NOBODY
    options = request.options
    asked = scalestudy.Request(options.out, options.cache, resume=options.resume)
    try:
        with progress.curves() as listener:
            (measured,) = scalestudy.run_each(suites.suite(suite).scale, asked, listener)
    except Missing as error:
        return Unknown(error.message)
    return measured


def _runs(
    cells: Mapping[Side, list[Cell]], request: Request, progress: Progress
) -> dict[Side, Mapping[int, RunRecord] | Unknown]:
    """All sides of one suite in one go."""
    together = [cell for group in cells.values() for cell in group]
    if not request.run:
        read = {cell.run_id: records.read(cell.folder / "record.json") for cell in together}
    else:
        try:
            with progress.cells() as listener:
                results = runner.run_cells(together, request.options, listener)
        except Missing as error:
            return {side: Unknown(error.message) for side in cells}
        read = {result.cell.run_id: result.record for result in results}
    if any(record is not None and record.status == "interrupted" for record in read.values()):
        raise KeyboardInterrupt
    return {side: _good(group, read) for side, group in cells.items()}


def _good(cells: list[Cell], read: Mapping[str, RunRecord | None]) -> Mapping[int, RunRecord] | Unknown:
    """The runs that ended well, by seed; one that did not spoils all, for seeds must not be chosen by their luck."""
    found = {}
    for cell in cells:
        record = read[cell.run_id]
        if record is None:
            return NOBODY
        if record.status != "ok":
            name = f"{cell.spec.attention.label} on {cell.spec.task.name}, seed {cell.spec.seed}"
            return Unknown(f"{name}: {record.status} {record.reason}", broken=record.status == "error")
        found[cell.spec.seed] = record
    return found


def _known(found: Kind | Unknown) -> Kind:
    if isinstance(found, Unknown):
        raise found
    return found
