"""Finds and reads files of claims; what is wrong in one is told with file, claim and field."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lrbench import catalog, plan, scaleplan
from lrbench.claims import questions
from lrbench.claims.records import in_order
from lrbench.claims.spec import QUANTITIES, Claim, ClaimFile, Measure, Paper, Part, Scaling, Side, sides
from lrbench.errors import LrbenchError, SpecError, UnknownName, nearest
from lrbench.plan import Cell
from lrbench.registry import backends
from lrbench.scaleplan import StudyPlan
from lrbench.specs import Suite, parse, read_yaml

NAMES = ("a", "b", "c", "d")  # of the sides of a part


class Told(NamedTuple):
    """A claim and the paper that makes it."""

    paper: Paper
    claim: Claim


class Suites:
    """The runs and studies of suites as they would go into a results folder, each suite read once."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._read: dict[str, Suite] = {}
        self._cells: dict[tuple[str, str], list[Cell]] = {}
        self._studies: dict[str, StudyPlan] = {}

    def suite(self, name: str) -> Suite:
        """The suite itself."""
        if name not in self._read:
            self._read[name] = catalog.suite(name)
        return self._read[name]

    def study(self, suite: str) -> StudyPlan:
        """The one scaling study of a suite.

        Raises:
            SpecError: it has none, or several, or may run on any device.
        """
        if suite not in self._studies:
            found = [each for grid in self.suite(suite).scale for each in scaleplan.studies(grid, self._out)]
            if len(found) != 1:
                raise SpecError(
                    f"suite: {suite} has {len(found)} scaling studies", "a claim stands on a suite with one"
                )
            if found[0].grid.device == "auto":
                raise SpecError(f"suite: {suite} leaves the device of its study open", "name it: device: cpu")
            self._studies[suite] = found[0]
        return self._studies[suite]

    def cells(self, side: Side) -> list[Cell]:
        """The runs of a side, one a seed.

        Raises:
            SpecError: its suite has no such runs, or has them in two ways.
        """
        name = label(side.model)
        found = [
            cell
            for cell in self._of(side.suite, side.grid)
            if cell.spec.attention.label == name and cell.spec.task.name == side.task
        ]
        where = f"{side.suite}, grid {side.grid!r}" if side.grid else side.suite
        if not found:
            raise SpecError(f"suite: in {where}, {side.model} on {side.task} is not run", "name another suite or grid")
        if len({cell.spec.seed for cell in found}) < len(found):
            raise SpecError(f"suite: in {where}, {side.model} on {side.task} is run in several ways", "name its grids")
        return found

    def _of(self, suite: str, grid: str) -> list[Cell]:
        """All runs of a suite's grids of a name."""
        if (suite, grid) not in self._cells:
            grids = [each for each in self.suite(suite).grid if each.name == grid]
            self._cells[suite, grid] = [cell for each in grids for cell in plan.cells(each, self._out)]
        return self._cells[suite, grid]


def select(asked: Sequence[str], suites: Suites) -> list[Told]:
    """Claims by their ids, by `required`, or `all` of them, in the order of their ids.

    Raises:
        SpecError: a file of claims is faulty; UnknownName: nobody claims that.
    """
    known = read_all(suites)
    wanted = set[str]()
    for word in asked:
        if word in ("all", "required"):
            wanted |= {name for name, told in known.items() if word == "all" or told.claim.required}
        elif word.upper() in known:
            wanted.add(word.upper())
        else:
            raise UnknownName("claim", word, [*known, "required", "all"])
    return [known[name] for name in sorted(wanted, key=in_order)]


def read_all(suites: Suites) -> dict[str, Told]:
    """Every claim that can be found, by id.

    Raises:
        SpecError: a file is faulty, or an id stands twice.
    """
    found: dict[str, Told] = {}
    for path in catalog.claim_files():
        for told in read(path, suites):
            if told.claim.id in found:
                raise SpecError(f"{catalog.shown(path)}: claim {told.claim.id} stands twice", "give each its own id")
            found[told.claim.id] = told
    return found


def read(path: Path, suites: Suites) -> list[Told]:
    """The claims of one file.

    Raises:
        SpecError: that names file, claim and field.
    """
    where = catalog.shown(path)
    page = parse(ClaimFile, read_yaml(path), where)
    return [
        Told(page.paper, _claim(found, suites, f"{where}: {found.get('id', f'claims.{number}')}"))
        for number, found in enumerate(page.claims)
    ]


def _claim(found: dict[str, Any], suites: Suites, where: str) -> Claim:
    claim = parse(Claim, found, where)
    parts = [_part(part, suites, f"{where}: parts.{number}") for number, part in enumerate(claim.parts)]
    return claim.model_copy(update={"parts": parts})


def _part(found: Any, suites: Suites, where: str) -> Part:
    """A part by its quantity. Sides may be a model alone; what all of them have in common may stand once."""
    if not isinstance(found, dict):
        raise SpecError(f"{where}: expected fields, found {type(found).__name__}", "begin with quantity: …")
    quantity = found.get("quantity")
    if quantity not in QUANTITIES:
        raise SpecError(f"{where}: quantity: unknown quantity {quantity!r}", nearest(str(quantity), list(QUANTITIES)))
    kind = QUANTITIES[quantity]
    if not issubclass(kind, Scaling) and "a" in kind.model_fields:
        found = dict(found)
        shared = {key: found.pop(key) for key in ("suite", "task", "grid") if key in found}
        for name in NAMES:
            if name in found:
                own = found[name] if isinstance(found[name], dict) else {"model": found[name]}
                found[name] = {**shared, **own}
    part = parse(kind, found, where)
    try:
        _check(part, suites)
    except LrbenchError as error:
        raise SpecError(f"{where}: {error.message}", error.hint) from None
    return part


def _check(part: Part, suites: Suites) -> None:
    """Whether suites hold what a part stands on, and a measure is there. Nothing is loaded."""
    if isinstance(part, Measure):
        questions.check(part.by, part.options)
        for option in ("model", "against", "attention", "models"):
            named = part.options.get(option, [])
            for model in named if isinstance(named, list) else [named]:
                label(model)
    if isinstance(part, Scaling):
        asked = [part.model, getattr(part, "against", part.model)]
        there = [point.attention.label for point in suites.study(part.suite).points]
        for model in asked:
            if label(model) not in there:
                raise SpecError(f"model: suite {part.suite} does not scale {model!r}", nearest(model, sorted({*there})))
    for side in sides(part):
        suites.cells(side)


def label(model: str) -> str:
    """A model's name as tables have it.

    Raises:
        UnknownName: there is no such backend.
    """
    return backends.spec(model).label
