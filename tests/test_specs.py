"""Names, files and flags: what is refused, and that the way out is named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lrbench import catalog, plan, scaleplan
from lrbench.errors import LrbenchError, SpecError, UnknownName
from lrbench.registry import backends, check_options, split_list, split_settings, typed_settings
from lrbench.specs import Grid, Suite, parse, read_yaml

CARD = """
name: mine
version: 1
summary: A card of one's own.
kind: classify
loader: listops
vocabulary: 17
classes: 10
metric: {name: accuracy, chance: 0.1}
sources: [generated]
presets:
  tiny:
    data: {length: 64, examples: [8, 4, 4]}
    model: {layers: 1, dim: 8, heads: 2, mlp_dim: 8}
    train: {steps: 2, batch: 2, lr: 1e-3}
"""
MINE = """
from lrbench.backends.base import HeadMixer

class Mine(HeadMixer):
    def attend(self, q, k, v, mask):
        return v
"""


def refused(error: type[LrbenchError] = SpecError):
    return pytest.raises(error)


def message(caught: pytest.ExceptionInfo[LrbenchError]) -> str:
    return f"{caught.value.message} | {caught.value.hint}"


def test_settings_in_brackets_survive_a_round_trip() -> None:
    settings = {"window": [1, 2], "share": "none", "on": True, "off": None, "rate": 0.5}
    assert split_settings(typed_settings("longformer", settings)) == ("longformer", settings)


def test_a_list_splits_outside_brackets_and_drops_blanks_and_repetitions() -> None:
    assert split_list("full, local[window=[1,2],x=3] ,full,") == ["full", "local[window=[1,2],x=3]"]


@pytest.mark.parametrize("text", ["local[window]", "local[", "[x=1]", ""])
def test_a_malformed_model_is_refused(text: str) -> None:
    with refused():
        backends.spec(text)


def test_an_unknown_model_names_the_nearest() -> None:
    with refused(UnknownName) as caught:
        backends.spec("perfomer")
    assert message(caught) == "unknown model 'perfomer' | did you mean 'performer'?"


def test_an_unknown_option_names_the_nearest() -> None:
    with refused() as caught:
        backends.get("local[windw=3]")
    assert message(caught) == "model local: windw: unknown field | did you mean 'window'?"


def test_options_take_the_types_of_the_signature() -> None:
    def function(*, rate: float = 1.0, size: int = 3) -> None: ...

    assert check_options(function, {"rate": "1e-3"}, "here") == {"rate": 0.001, "size": 3}
    with refused():
        check_options(function, {"size": "many"}, "here")


def test_every_shipped_backend_says_what_it_is_without_being_imported() -> None:
    code = (
        "import sys, json; from lrbench.registry import backends;"
        "print(json.dumps([backends.about(name) for name in backends.names()])); assert 'torch' not in sys.modules"
    )
    told = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert {entry["name"] for entry in told} >= {"full", "local", "linformer", "performer", "longformer", "linear"}
    for entry in told:
        backend = backends.get(entry["name"])
        assert entry["summary"].endswith(".") and len(entry["summary"]) <= 80
        for trait in ("paper", "order", "can_be_causal", "any_length"):
            assert entry[trait] == getattr(backend.cls, trait)
        assert tuple(entry["positions"]) == backend.cls.positions


def test_a_file_is_a_model_and_its_content_is_part_of_its_identity(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    first = backends.spec(f"{file}:Mine")
    assert backends.load(first).cls.__name__ == "Mine"
    assert backends.spec(str(file)).name == "Mine"  # the only class need not be named
    assert backends.spec(backends.typed(first)) == first
    file.write_text(MINE + "\n# changed\n")
    assert backends.spec(f"{file}:Mine").digest != first.digest


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_this_name\n", "mine.py:1: ModuleNotFoundError"),
        ("x = 1\n\nclass Mine(:\n", "mine.py:3: SyntaxError"),
        ("class Mine: ...\n\nraise ValueError('no')\n", "mine.py:3: ValueError: no"),
    ],
)
def test_a_file_that_fails_to_import_is_named_with_line_and_cause(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with refused() as caught:
        backends.get(f"{file}:Mine")
    assert told in message(caught)


def test_a_file_without_the_class_names_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    with refused(UnknownName) as caught:
        backends.get(f"{file}:Mime")
    assert "did you mean 'Mine'?" in message(caught)
    with refused() as caught:
        backends.spec(str(tmp_path / "none.py"))
    assert "no such file" in message(caught)


@pytest.mark.parametrize("name", catalog.names("tasks"))
def test_every_card_is_complete(name: str) -> None:
    card = catalog.task(name)
    assert card.name == name
    assert set(card.presets) == {"tiny", "small", "paper"}
    assert card.summary and card.citation and card.licence and card.sources


@pytest.mark.parametrize("name", catalog.names("configs"))
def test_every_suite_resolves_to_cells_or_points(name: str) -> None:
    suite = catalog.suite(name)
    assert suite.grid or suite.scale
    assert all(plan.cells(grid, Path("out")) for grid in suite.grid)
    assert all(study.points for grid in suite.scale for study in scaleplan.studies(grid, Path("out")))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("steps: 2", "stepz: 2", "presets.tiny.train.stepz: unknown field | did you mean 'steps'?"),
        ("version: 1", "version: none", "version: should be a valid integer"),
        ("vocabulary: 17\n", "", "vocabulary: missing"),
        ("dim: 8, heads", "dim: 0, heads", "presets.tiny.model.dim: should be greater than or equal to 1"),
        ("version: 1", "version: 1\nversion: 2", "'version' stands twice"),
        ("tiny:", "tny:", "presets.tny"),
    ],
)
def test_a_broken_card_is_named_with_its_field(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(CARD.replace(old, new))
    with refused() as caught:
        catalog.task(str(path))
    assert "mine.yaml" in message(caught) and told in message(caught)


def test_a_card_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nversion: [1\n")
    with refused() as caught:
        catalog.task(str(path))
    assert "mine.yaml: line" in message(caught)
    with refused():
        read_yaml(tmp_path / "none.yaml")


def test_an_unknown_key_of_a_suite_names_the_nearest() -> None:
    with refused() as caught:
        parse(Suite, {"grid": {"models": ["full"], "tasks": ["listops"], "sead": 1}}, "suite.yaml")
    assert message(caught) == "suite.yaml: grid.sead: unknown field | did you mean 'seeds'?"
    with refused() as caught:
        parse(Suite, {"scale": {"models": ["full"], "lengths": 512, "widht": 64}}, "suite.yaml")
    assert message(caught) == "suite.yaml: scale.widht: unknown field | did you mean 'width'?"


def test_cards_are_found_in_the_users_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text(CARD)
    monkeypatch.setenv("LRBENCH_PATH", str(tmp_path))
    assert "mine" in catalog.names("tasks")
    assert catalog.task("mine").summary == "A card of one's own."


def test_two_cards_of_one_name_are_an_error_that_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listops.yaml").write_text(CARD)
    monkeypatch.setenv("LRBENCH_PATH", str(tmp_path))
    with refused() as caught:
        catalog.task("listops")
    assert str(tmp_path / "listops.yaml") in message(caught) and str(catalog.shipped("tasks")) in message(caught)


def resolved(**sets: object):
    return catalog.resolve(catalog.task("listops"), "tiny", {key.replace("__", "."): v for key, v in sets.items()})


def test_a_set_reaches_its_field_and_no_other() -> None:
    before, after = resolved(), resolved(train__steps=200)
    assert after.train.steps == 200
    assert after.model_copy(update={"train": before.train}) == before


@pytest.mark.parametrize("key", ["train.stepz", "trian.steps", "steps", "train.steps.more", "data"])
def test_an_unknown_key_of_set_is_refused(key: str) -> None:
    with refused() as caught:
        resolved(**{key: 3})
    assert "--set" in message(caught)


def test_a_misspelt_key_of_set_names_the_nearest() -> None:
    with refused() as caught:
        resolved(train__stepz=3)
    assert message(caught) == "--set train.stepz: unknown key | did you mean 'train.steps'?"


@pytest.mark.parametrize("value", [0, -5, "many", None])
def test_a_set_value_of_the_wrong_kind_is_refused(value: object) -> None:
    with refused() as caught:
        resolved(train__steps=value)
    assert "train.steps" in message(caught)


@pytest.mark.parametrize("text", ["train.steps", "=3", "a=[1"])
def test_a_set_that_is_no_pair_is_refused(text: str) -> None:
    with refused():
        catalog.parse_sets([text])


def cells(**words: object) -> list[plan.Cell]:
    grid = {"models": ["full"], "tasks": ["listops"], "preset": "tiny", **words}
    return plan.cells(parse(Grid, grid, "test"), Path("out"))


def test_a_grid_is_the_product_of_its_lists() -> None:
    found = cells(models=["full", "local[window=3]"], seeds=3)
    assert [(c.spec.seed, c.spec.attention.label) for c in found] == [
        (seed, label) for seed in (0, 1, 2) for label in ("full", "local[window=3]")
    ]
    assert len({cell.folder for cell in found}) == 6


def test_every_field_of_a_run_is_part_of_its_key() -> None:
    base = cells()[0].run_id
    changes: list[dict[str, object]] = [
        {"set": {key: LISTS.get(key) or _other(value)}} for key, value in _leaves().items()
    ]
    changes += [{"seeds": [1]}, {"dtype": "bf16"}, {"device": "cpu"}, {"threads": 1}, {"compile": True}, {"limit": 5}]
    changes += [{"models": ["full[impl=math]"]}]
    keys = [cells(**change)[0].run_id for change in changes]
    assert base not in keys and len(set(keys)) == len(keys)


LISTS = {"train.stages": [{"length": 9, "steps": 1}], "train.growth": [{"step": 2, "batch": 9}]}  # empty on a card


def _leaves() -> dict[str, object]:
    tree = catalog.leaves(resolved().model_dump(mode="json"))
    return {key: value for key, value in tree.items() if key not in plan.GRID_FIELDS}


def _other(value: object) -> object:
    words = {"cls": "mean", "sinusoidal": "learned", "linear": "cosine", "four": "concat"}
    if value is None or isinstance(value, int):
        return (value or 0) + 1
    if isinstance(value, float):
        return value / 2 + 0.25
    return (
        words[value] if isinstance(value, str) else [*value[:-1], value[-1] / 2 or 1] if len(value) == 2 else [9, 9, 9]
    )


def test_the_config_that_a_run_leaves_repeats_it() -> None:
    words = {
        "models": ["local[window=3]"],
        "set": {"train.steps": 7, "data.options.shortest": 12},
        "seeds": [4],
        "limit": 0.5,
    }
    (cell,) = cells(**words)
    suite = parse(Suite, json.loads(plan.as_suite(cell.spec).model_dump_json()), "config.yaml")
    (grid,) = suite.grid
    (again,) = plan.cells(grid, Path("out"))
    assert again.spec == cell.spec and again.run_id == cell.run_id


def test_deviations_from_the_card_are_found_and_sources_are_none(tmp_path: Path) -> None:
    assert cells()[0].deviations == []
    assert cells(set={"train.steps": 51})[0].deviations == ["train.steps is 51, the card says 50"]
    assert cells(data=str(tmp_path))[0].deviations == []


def test_the_users_own_files_are_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "basic_train.tsv").write_text("one")
    before = cells(data=str(tmp_path))[0].run_id
    (tmp_path / "basic_train.tsv").write_text("another")
    assert cells(data=str(tmp_path))[0].run_id != before


@pytest.mark.parametrize(
    "words",
    [
        {"data": "hub"},
        {"data": "no/such/folder"},
        {"device": "gpu"},
        {"device": "cuda:x"},
        {"seeds": 0},
        {"seeds": []},
        {"limit": 0},
        {"limit": 1.5},
        {"preset": "huge"},
        {"dtype": "fp8"},
    ],
)
def test_a_bad_word_of_a_grid_is_refused(words: dict[str, object]) -> None:
    with refused():
        cells(**words)


def test_long_settings_make_short_folder_names(tmp_path: Path) -> None:
    (cell,) = cells(models=[f"full[impl={'x' * 300}]"])
    assert all(len(part.encode()) <= 120 for part in cell.folder.parts)
    assert cell.spec.attention.settings["impl"] == "x" * 300
