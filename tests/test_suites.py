"""Suites: several grids and studies in one file, and what a command makes of them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from conftest import TOY, Called

from lrbench import catalog, plan, runner, scaleplan, scalestudy
from lrbench.backends.performer import Performer
from lrbench.cli import costs
from lrbench.errors import SpecError
from lrbench.models import heads
from lrbench.plan import Cell
from lrbench.registry import backends
from lrbench.specs import Grid, ScaleGrid, Suite, parse

TWO = f"""\
grid:
  - {{models: [full, linear], tasks: ['{TOY}'], preset: tiny, device: cpu}}
  - {{models: [linear, performer], tasks: ['{TOY}'], preset: tiny, device: cpu, seeds: 2}}
scale:
  - {{models: [full], lengths: 128, device: cpu}}
  - {{models: [full], lengths: 256, device: cpu}}
"""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.yaml"
    path.write_text(TWO)
    return path


# reading


def test_one_mapping_is_a_list_of_it_and_nothing_is_an_empty_one() -> None:
    grid = {"models": ["full"], "tasks": ["listops"]}
    assert parse(Suite, {"grid": grid, "scale": None}, "s") == parse(Suite, {"grid": [grid]}, "s")
    assert parse(Suite, {}, "s").model_dump() == {"summary": "", "grid": [], "scale": [], "claims": []}
    assert len(parse(Suite, {"grid": [grid, grid]}, "s").grid) == 2


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"grid": {"models": ["full"], "tasks": [], "modelz": 1}}, "s: grid.modelz: unknown field"),
        ({"grid": [{"models": [], "tasks": []}, {"modelz": 1}]}, "s: grid.1.modelz: unknown field"),
        ({"grid": {"models": [3], "tasks": []}}, "s: grid.models.0: should be a valid string"),
        ({"grid": [{"models": []}]}, "s: grid.0.tasks: missing"),
        ({"grid": "full"}, "s: grid: should be a valid list"),
        ({"grid": [None]}, "s: grid.0: should be a valid dictionary or instance of Grid"),
        ({"scale": [{"models": ["full"], "lengths": 8, "level": "house"}]}, "s: scale.0.level: unknown level 'house'"),
    ],
)
def test_a_field_of_a_suite_is_named_as_it_stands_in_the_file(fields: dict[str, object], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(Suite, fields, "s")
    assert caught.value.message == told


@pytest.mark.parametrize("grid", [{"modelz": 1}, [{"modelz": 1}]])
def test_the_nearest_field_is_offered_inside_a_list_too(grid: object) -> None:
    with pytest.raises(SpecError) as caught:
        parse(Suite, {"grid": grid}, "s")
    assert caught.value.hint == "did you mean 'models'?"


def test_the_config_of_a_run_holds_its_grid_and_nothing_else() -> None:
    (cell,) = plan.cells(Grid(models=["full"], tasks=[str(TOY)], preset="tiny"), Path("out"))
    written = yaml.safe_load(yaml.safe_dump(plan.as_suite(cell.spec).model_dump(mode="json", exclude_unset=True)))
    assert set(written) == {"summary", "grid"}
    assert parse(Suite, written, "config.yaml").grid == plan.as_suite(cell.spec).grid


# running


def labels(rows: list[dict[str, dict[str, object]]]) -> list[tuple[object, object]]:
    return [(row["spec"]["attention"]["name"], row["spec"]["seed"]) for row in rows]  # type: ignore[index]


def test_all_grids_run_in_one_go_and_a_cell_of_two_counts_once(call: Callable[..., Called], two: Path) -> None:
    code, out, err = call("run", "--suite", two, "--dry-run", "--json")
    assert code == 0, err
    wanted = [("full", 0), ("linear", 0), ("performer", 0), ("linear", 1), ("performer", 1)]
    assert labels(json.loads(out)) == wanted
    code, out, err = call("run", "--suite", two, "--steps", 1, "--json", "-q")
    assert code == 0, err
    assert [(record["model"]["name"], record["seed"]) for record in json.loads(out)] == wanted


def test_flags_stand_over_every_grid(call: Callable[..., Called], two: Path) -> None:
    code, out, err = call("run", "--suite", two, "--steps", 3, "--seed", 7, "--threads", 1, "--dry-run", "--json")
    assert code == 0, err
    specs = [row["spec"] for row in json.loads(out)]
    assert len(specs) == 3
    assert {(spec["train"]["steps"], spec["seed"], spec["threads"]) for spec in specs} == {(3, 7, 1)}


def test_run_cells_counts_a_cell_given_twice_once(tmp_path: Path) -> None:
    cells = plan.cells(
        Grid(models=["full"], tasks=[str(TOY)], preset="tiny", device="cpu", set={"train.steps": 1}), tmp_path
    )
    options = runner.Options(out=tmp_path, cache=tmp_path / "cache")
    (result,) = runner.run_cells([*cells, *cells], options)
    assert result.fresh and result.record.status == "ok"
    (again,) = runner.run_cells(cells, options)
    assert not again.fresh and again.record == result.record


def test_all_studies_of_a_suite_are_planned_and_flags_stand_over_each(call: Callable[..., Called], two: Path) -> None:
    code, out, err = call("scale", "--suite", two, "--heads", 4, "--dry-run", "--json")
    assert code == 0, err
    assert [(p["spec"]["length"], p["spec"]["heads"]) for p in json.loads(out)["points"]] == [(128, 4), (256, 4)]


def test_a_study_that_two_grids_ask_for_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[scaleplan.StudyPlan] = []
    monkeypatch.setattr(scalestudy, "_study", lambda plan, *rest: asked.append(plan))
    short, long = (ScaleGrid(models=["full"], lengths=[n], device="cpu") for n in (128, 256))
    scalestudy.run_each([short, long, short], scalestudy.Request(tmp_path, tmp_path))
    assert [plan.grid.lengths for plan in asked] == [[128], [256]]


def test_what_is_wrong_with_a_later_study_is_told_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalestudy, "_study", lambda *given: pytest.fail("measured"))
    grids = [ScaleGrid(models=[name], lengths=[128], device="cpu") for name in ("full", "nobody")]
    with pytest.raises(SpecError):
        scalestudy.run_each(grids, scalestudy.Request(tmp_path, tmp_path))


# what is shipped


def unlike(grids: list[Grid]) -> list[Cell]:
    """The cells of the first seed."""
    return [cell for grid in grids for cell in plan.cells(grid.model_copy(update={"seeds": 1}), Path("out"))]


@pytest.mark.parametrize("name", catalog.names("configs"))
def test_every_model_of_a_shipped_suite_can_be_built_at_its_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Performer, "draw", lambda self: None)  # numbers, where there are only shapes
    for cell in unlike(catalog.suite(name).grid):
        spec = cell.spec
        with torch.device("meta"):
            model = heads.build(backends.load(spec.attention), spec.task, spec.model, spec.data.length)
        assert all(parameter.numel() for parameter in model.parameters())
    for study in catalog.suite(name).scale:
        assert all(backends.load(backends.spec(model)) for model in scaleplan.expanded(study.models))


@pytest.mark.parametrize("name", [name for name in catalog.names("configs") if name.startswith("paper-")])
def test_suites_of_papers_run_their_recipes(name: str) -> None:
    cells = unlike(catalog.suite(name).grid)
    assert {cell.spec.preset for cell in cells} == {"paper"}
    assert {cell.spec.dtype for cell in cells} == {"fp32"}
    changed = {line.split(" is ")[0] for cell in cells for line in cell.deviations}
    assert changed <= {"model.layers", "data.length", "train.batch"}
    for cell in cells:  # as many tokens a step as on the card
        card = catalog.task(cell.spec.task.name).presets["paper"]
        assert cell.spec.train.batch * cell.spec.data.length == card.train.batch * card.data.length


def test_the_arena_of_the_papers_is_whole() -> None:
    cells = unlike(catalog.suite("paper-lra").grid)
    tasks = {"listops", "text", "retrieval", "image", "pathfinder32", "pathx"}
    assert {cell.spec.task.name for cell in cells} == tasks
    for task in tasks:
        names = {cell.spec.attention.name for cell in cells if cell.spec.task.name == task}
        assert names == set(backends.shipped())


def test_rows_of_axial_plans_are_those_of_the_pictures() -> None:
    found = {
        (cell.spec.task.name, cell.spec.attention.settings["width"])
        for name in ("paper-lra", "paper-density")
        for cell in unlike(catalog.suite(name).grid)
        if "width" in cell.spec.attention.settings
    }
    arena = {("image", 32), ("pathfinder32", 32), ("pathx", 128)}
    photographs = {("cifar10-density", 96), ("imagenet64-density", 192), ("imagenet64-box-density", 192)}
    assert found == arena | photographs


# what it would cost


def test_a_dry_run_has_a_line_for_each_task_and_model_and_a_total(call: Callable[..., Called]) -> None:
    code, out, err = call("run", "--suite", "paper-lra", "--dry-run")
    assert code == 0, err
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  full ") for line in lines) == 6  # tasks
    assert len([line for line in lines if re.match(r"  \S+ +5 ", line)]) == 6 * len(backends.shipped()) + 6
    assert "450 cells" in out and "at 100 TFLOP/s sustained: 405 hours" in out


def test_the_total_is_that_of_all_seeds() -> None:
    cells = plan.cells(Grid(models=["full"], tasks=["text"], preset="paper", seeds=4), Path("out"))
    (one,) = plan.cells(Grid(models=["full"], tasks=["text"], preset="paper"), Path("out"))
    cost = plan.cost(one.spec)
    seconds = 4 * cost.flops / 1e14
    assert costs.total(cells).startswith(
        f"4 cells, {4 * cost.train_tokens:.2g} tokens, {4 * cost.flops / 1e15:.2g} PFLOP"
    )
    assert f"sustained: {costs.hours(seconds)}" in costs.total(cells)
    assert (costs.hours(3600 * 1234.4), costs.hours(1800)) == ("1,234 hours", "0.5 hours")


def test_precisions_do_not_share_a_line() -> None:
    grids = [Grid(models=["full"], tasks=["text"], dtype=dtype) for dtype in ("fp32", "bf16")]  # type: ignore[arg-type]
    groups = costs.grouped([cell for grid in grids for cell in plan.cells(grid, Path("out"))])
    assert [len(cells) for models in groups.values() for cells in models.values()] == [1, 1]


def test_a_long_name_of_a_model_has_a_line_of_its_own(call: Callable[..., Called]) -> None:
    long = "compressive[segment=150,memory=75,compressed=75]"
    code, out, _ = call("run", "-m", f"full,{long}", "-t", "listops", "--dry-run")
    assert code == 0 and f"\n  {long}\n" in out and max(map(len, out.splitlines())) <= 80
