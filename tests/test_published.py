"""Published figures: every row has a source and a verdict, names a card, and averages are what they say."""

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from lrbench import catalog

FOLDER = Path(__file__).parents[1] / "results" / "published"
FILES = sorted(FOLDER.glob("*.csv"))
FIVE = ("listops", "text", "retrieval", "image", "pathfinder32")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_there_are_files() -> None:
    assert {path.stem for path in FILES} >= {"lra", "lra-later", "combiner-lra", "nystromformer", "density", "language"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_is_whole(path: Path) -> None:
    for row in rows(path):
        assert list(row) == ["source", "model", "backend", "task", "metric", "value", "comparable", "remark"]
        assert row["source"] and row["model"] and row["comparable"] in ("yes", "no"), row
        assert float(row["value"]) > 0
        assert row["comparable"] == "yes" or row["remark"], "what is not comparable says why"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_comparable_rows_name_a_card_and_its_metric(path: Path) -> None:
    for row in rows(path):
        if row["comparable"] == "yes" and not row["task"].startswith("avg"):
            assert row["metric"] == catalog.task(row["task"]).metric.name, row


@pytest.mark.parametrize("name", ["lra", "lra-later", "combiner-lra", "nystromformer"])
def test_averages_are_those_of_their_rows(name: str) -> None:
    """Five tasks, or six with 50 for a failed Path-X; recomputed from the rows."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    remarks: dict[str, str] = {}
    for row in rows(FOLDER / f"{name}.csv"):
        found[row["model"]][row["task"].removesuffix("-intermediate")] = float(row["value"])
        remarks[row["model"]] = row["remark"]
    checked = 0
    for model, values in found.items():
        for average, tasks in (("avg5", FIVE), ("avg6", (*FIVE, "pathx"))):
            if average in values and all(task in values for task in tasks):
                mean = sum(values[task] for task in tasks) / len(tasks)
                told = "arithmetic" in remarks[model]
                assert abs(mean - values[average]) < (0.25 if told else 0.007), (model, average, mean)
                checked += 1
    assert checked >= 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_backend_that_is_named_is_there_with_its_settings(path: Path) -> None:
    from lrbench.registry import backends

    for row in rows(path):
        if row["backend"]:
            backends.load(backends.spec(row["backend"]))
