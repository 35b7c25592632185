"""Finds and reads files of claims; what is wrong in one is told with file, claim and field."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lrbench import catalog, plan, scaleplan
from lrbench.claims import measure
from lrbench.claims.records import in_order
from lrbench.claims.spec import QUANTITIES, Claim, ClaimFile, Measure, Paper, Part, Scaling, Side, sides
from lrbench.errors import LrbenchError, SpecError, UnknownName, nearest
from lrbench.plan import Cell
from lrbench.registry import backends
from lrbench.scaleplan import StudyPlan
from lrbench.specs import parse, read_yaml

NAMES = ("a", "b", "c", "d")  # of the sides of a part


class Told(NamedTuple):
    """A claim and the paper that makes it."""

    paper: Paper
    claim: Claim


def select(asked: Sequence[str]) -> list[Told]:
    """Claims by their ids, by `required`, or `all` of them, in the order of their ids.

    Raises:
        SpecError: a file of claims is faulty; UnknownName: nobody claims that.
    """
    known = read_all()
    wanted = set[str]()
    for word in asked:
        if word in ("all", "required"):
            wanted |= {name for name, told in known.items() if word == "all" or told.claim.required}
        elif word.upper() in known:
            wanted.add(word.upper())
        else:
            raise UnknownName("claim", word, [*known, "required", "all"])
    return [known[name] for name in sorted(wanted, key=in_order)]


def read_all() -> dict[str, Told]:
    """Every claim that can be found, by id.

    Raises:
        SpecError: a file is faulty, or an id stands twice.
    """
    found: dict[str, Told] = {}
    for path in catalog.claim_files():
        for told in read(path):
            if told.claim.id in found:
                raise SpecError(f"{catalog.shown(path)}: claim {told.claim.id} stands twice", "give each its own id")
            found[told.claim.id] = told
    return found


def read(path: Path) -> list[Told]:
    """The claims of one file.

    Raises:
        SpecError: that names file, claim and field.
    """
    where = catalog.shown(path)
    page = parse(ClaimFile, read_yaml(path), where)
    return [
        Told(page.paper, _claim(found, f"{where}: {found.get('id', f'claims.{number}')}"))
        for number, found in enumerate(page.claims)
    ]


def _claim(found: dict[str, Any], where: str) -> Claim:
    claim = parse(Claim, found, where)
    parts = [_part(part, f"{where}: parts.{number}") for number, part in enumerate(claim.parts)]
    return claim.model_copy(update={"parts": parts})


def _part(found: Any, where: str) -> Part:
    """A part by its quantity. Sides may be a model alone; what all of them have in common may stand once."""
    if not isinstance(found, dict):
        raise SpecError(f"{where}: expected fields, found {type(found).__name__}")
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
        _check(part)
    except LrbenchError as error:
        raise SpecError(f"{where}: {error.message}", error.hint) from None
    return part


def _check(part: Part) -> None:
    """Whether suites hold what a part stands on, and a measure is there. Nothing is loaded."""
    if isinstance(part, Measure):
        measure.check(part.by, part.options)
    if isinstance(part, Scaling):
        asked = [part.model, getattr(part, "against", part.model)]
        there = [point.attention.label for point in study(part.suite, Path()).points]
        for model in asked:
            if label(model) not in there:
                raise SpecError(f"model: suite {part.suite} does not scale {model!r}", nearest(model, sorted({*there})))
    for side in sides(part):
        cells(side, Path())


def label(model: str) -> str:
    """A model's name as tables have it.

    Raises:
        UnknownName: there is no such backend.
    """
    return backends.spec(model).label


def study(suite: str, out: Path) -> StudyPlan:
    """The one scaling study of a suite.

    Raises:
        SpecError: it has none, or several.
    """
    found = [each for grid in catalog.suite(suite).scale for each in scaleplan.studies(grid, out)]
    if len(found) != 1:
        raise SpecError(f"suite: {suite} has {len(found)} scaling studies", "a claim stands on a suite with one")
    if found[0].grid.device == "auto":
        raise SpecError(f"suite: {suite} leaves the device of its study open", "name it: device: cpu")
    return found[0]


def cells(side: Side, out: Path) -> list[Cell]:
    """The runs of a side, one a seed.

    Raises:
        SpecError: its suite has no such runs, or has them in two ways.
    """
    name = label(side.model)
    grids = [grid for grid in catalog.suite(side.suite).grid if grid.name == side.grid]
    found = [list(_of(plan.cells(grid, out), name, side.task)) for grid in grids]
    found = [group for group in found if group]
    if len(found) != 1:
        count = "not run" if not found else "run in more than one way"
        where = f"{side.suite}, grid {side.grid!r}" if side.grid else side.suite
        raise SpecError(f"suite: in {where}, {side.model} on {side.task} is {count}", "name another suite or grid")
    return found[0]


def _of(found: Sequence[Cell], name: str, task: str) -> Iterator[Cell]:
    return (cell for cell in found if cell.spec.attention.label == name and cell.spec.task.name == task)
