"""Tables: what stands together, what is averaged, and what is said beside it."""

import math
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from lrbench import stats
from lrbench.records import RunRecord
from lrbench.reporting.scores import Comparison, comparisons
from lrbench.reporting.terminal import render


def record(model: str = "full", seed: int = 0, correct: int | None = 50, **more: Any) -> RunRecord:
    """A record as a run would leave it, scoring `correct` of 100; None: it failed."""
    settings = more.pop("settings", {})
    spec = {
        "attention": {"name": model, "settings": settings, "source": "lrbench", "digest": None},
        "task": {"metric": {"name": "accuracy", "chance": 0.1}},
        "data": {"length": 64, "source": "generated", "limit": None},
        "model": {"layers": 1},
        "train": {"steps": more.pop("steps", 10)},
        **{"device": "cpu", "dtype": "fp32", "threads": None, "compile": False},
    }
    score = {"accuracy": (correct or 0) / 100, "loss": 1.0, "correct": correct or 0, "examples": 100, "step": 10}
    good = {
        "metrics": {"validation": score, "test": score, "test_last": score},
        "parameters": {"total": 1234, "trainable": 1234, "embedding": 10, "positional": 0, "non_embedding": 1224},
        "fairness": {"track": "apples-to-apples", "reasons": []},
        "speed": dict.fromkeys(
            (
                "train_steps_per_s",
                "train_tokens_per_s",
                "train_padded_tokens_per_s",
                "eval_tokens_per_s",
                "eval_padded_tokens_per_s",
                "forward_passes_per_step",
            ),
            100.0,
        ),
        "memory": {"peak_bytes": 3 * 2**20, "baseline_bytes": 0, "method": "test"},
        "data": {
            "source": "generated",
            "fingerprint": "f",
            "train_examples": 1,
            "validation_examples": 1,
            "test_examples": 100,
        },
        "baselines": {"majority": 0.17, "root operator": 0.36},
    }
    plain = {
        "schema": "lrbench.run/1",
        "run_id": f"{model}-{seed}",
        "status": "ok" if correct is not None else "error",
        "reason": "" if correct is not None else "it broke",
        "model": {"name": model, "settings": settings, "source": "lrbench"},
        "task": {"name": "listops", "card_version": 1},
        "preset": "small",
        "seed": seed,
        "time": {"started_at": "2026-01-01T00:00:00", "finished_at": "2026-01-01T00:00:00", "train_s": 5.0},
        "environment": {},
        "spec": spec,
        "lrbench_version": "0",
    }
    return RunRecord.model_validate({**plain, **(good if correct is not None else {}), **more})


def shown(table: Comparison, width: int = 80) -> str:
    out = StringIO()
    console = Console(file=out, width=width, highlight=False)
    for part in render(table):
        console.print(part)
    return out.getvalue()


def test_seeds_are_averaged_with_students_interval() -> None:
    (table,) = comparisons([record(seed=seed, correct=correct) for seed, correct in enumerate((50, 52, 48))])
    (row,) = table.rows
    half = 4.302652729911275 * 0.02 / math.sqrt(3)
    assert row.mean == pytest.approx(0.5) and row.interval == "seeds"
    assert (row.low, row.high) == pytest.approx((0.5 - half, 0.5 + half))


def test_one_seed_has_no_spread_and_says_so() -> None:
    (table,) = comparisons([record(correct=50)])
    assert table.rows[0].interval == "examples"
    text = shown(table)
    assert "40.4 to 59.6 *" in text and "one seed" in text
    assert "nan" not in text and "±" not in text


def test_two_equal_seeds_have_a_spread_of_zero() -> None:
    (table,) = comparisons([record(seed=0), record(seed=1)])
    assert table.rows[0].low == table.rows[0].high == 0.5


@pytest.mark.parametrize(("correct", "beats"), [(30, False), (40, False), (60, True)])
def test_what_does_not_beat_the_root_operator_is_marked(correct: int, beats: bool) -> None:
    (table,) = comparisons([record(correct=correct)])
    assert table.to_beat == "root operator" and table.rows[0].beats is beats
    assert (" yes " if beats else " no ") in shown(table)


def test_baselines_and_chance_are_rows_of_every_table() -> None:
    text = shown(comparisons([record()])[0])
    assert "root operator  –  36.0" in text and "majority       –  17.0" in text and "chance         –  10.0" in text


@pytest.mark.parametrize(
    "other",
    [
        {"preset": "tiny"},
        {"steps": 11},
        {"task": {"name": "listops", "card_version": 2}},
        {"task": {"name": "text", "card_version": 1}},
    ],
)
def test_unlike_runs_never_share_a_table(other: dict[str, Any]) -> None:
    assert len(comparisons([record(), record("local"), record("linear", **other)])) == 2


def test_variants_are_rows_of_their_own() -> None:
    (table,) = comparisons([record(), record(settings={"impl": "math"}, correct=51)])
    assert [row.model for row in table.rows] == ["full[impl=math]", "full"]


def test_a_rerun_is_not_a_second_seed() -> None:
    later = {"started_at": "2026-01-01T00:00:00", "finished_at": "2026-01-02T00:00:00"}
    (table,) = comparisons([record(correct=60, run_id="new", time=later), record(correct=50, run_id="old")])
    assert table.rows[0].mean == 0.6 and table.rows[0].seeds == [0]
    assert "new counts, old is older" in table.notes[0]


def test_failures_are_rows_with_their_reason() -> None:
    (table,) = comparisons([record(), record("local", correct=None), record("full", seed=1, correct=None)])
    assert [row.model for row in table.rows] == ["full", "local"]
    assert table.rows[0].seeds == [0] and table.rows[0].failures == ["seed 1: error: it broke"]
    text = shown(table)
    assert "local, seed 0: error: it broke" in text and "full, seed 1: error: it broke" in text


def test_rows_stand_by_falling_score() -> None:
    (table,) = comparisons([record(name, correct=score) for name, score in [("a", 20), ("b", 60), ("c", 40)]])
    assert [row.model for row in table.rows] == ["b", "c", "a"]


def test_a_table_fits_eighty_columns_and_hides_no_name() -> None:
    long = record("longformer", settings={"window": 128, "dilation": 2}, correct=99)
    text = shown(comparisons([long, record("performer", seed=1)])[0])
    assert max(map(len, text.splitlines())) <= 80
    assert "longformer[window=1 " in text and "28,dilation=2]" in text  # broken in two, and whole


def test_a_hostile_name_is_text_and_no_markup() -> None:
    (table,) = comparisons([record("[red]<img src=x>[/red]")])
    assert "[red]<img" in shown(table)


def test_changed_fields_are_named_once_for_the_table() -> None:
    reasons = {"track": "free-for-all", "reasons": ["train.steps is 3, the card says 12"]}
    (table,) = comparisons([record(fairness=reasons), record("local", fairness=reasons)])
    assert shown(table).replace("\n", " ").count("train.steps is 3, the card says 12") == 1


def test_wilsons_interval_is_the_published_one() -> None:
    found = stats.over_examples(45, 128)
    assert (found.low, found.high) == pytest.approx((0.2742728728, 0.4375021611))


def test_an_accuracy_of_one_keeps_its_interval_below_one() -> None:
    found = stats.over_examples(100, 100)
    assert found.mean == 1 and found.low < 1 and found.high == pytest.approx(1)
