"""Suites: several grids and studies in one file, and what a command makes of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import TOY, Called

from lrbench import plan, runner, scaleplan, scalestudy
from lrbench.errors import SpecError
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
