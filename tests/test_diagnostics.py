"""Recall and copy: tasks that need no data, and whose best possible score is known."""

from pathlib import Path

import numpy as np
import pytest
from conftest import Called
from task_helpers import request_for, run_tiny

from lrbench.errors import SpecError
from lrbench.loaders import copying, recall
from lrbench.loaders.blocks import BlockSplit
from lrbench.loaders.streams import Stream

RECALL, COPY = request_for("recall", "tiny"), request_for("copy", "tiny")


class TestRecall:
    def test_each_key_is_asked_once_and_its_value_is_the_answer(self) -> None:
        tokens, targets = recall.sequences(Stream(0), 200, 40, 5)
        for row, wanted in zip(tokens, targets, strict=True):
            told = dict(zip(row[0:10:2].tolist(), row[1:10:2].tolist(), strict=True))
            asked = np.flatnonzero(wanted >= 0)
            assert len(told) == 5 and (asked >= 10).all()
            assert sorted(row[asked].tolist()) == sorted(told)
            assert [told[key] for key in row[asked].tolist()] == wanted[asked].tolist()
            rest = np.delete(row[10:], asked - 10)
            assert (rest == 0).all()

    def test_keys_and_values_are_even_and_places_too(self) -> None:
        tokens, targets = recall.sequences(Stream(1), 4000, 40, 5)
        keys = np.bincount(tokens[:, 0:10:2].ravel(), minlength=129)[1:]
        assert keys.min() > 0.6 * keys.mean() and keys.max() < 1.4 * keys.mean()
        asked = (targets >= 0)[:, 10:].mean(0)
        assert abs(asked - 5 / 30).max() < 0.03

    def test_rules_without_memory_stay_near_chance(self, tmp_path: Path) -> None:
        data = recall.load(request_for("recall", "small", examples=(2000, 10, 1000)), tmp_path)
        assert data.baselines["majority"] < 0.02
        assert data.baselines["the last value told"] == pytest.approx(1 / 8, abs=0.02), "one in eight pairs"

    def test_a_wrong_answer_is_found(self, tmp_path: Path) -> None:
        data = recall.load(RECALL, tmp_path, pairs=4)
        assert all(check.ok for check in recall.verify(data, RECALL, pairs=4))
        example = data.test[0]
        broken = example.views[1].copy()
        broken[np.flatnonzero(broken >= 0)[0]] ^= 1
        assert recall._wrong(example._replace(views=(example.views[0], broken)), 4) == 1

    @pytest.mark.parametrize(("length", "pairs"), [(64, 22), (600, 129), (64, 0)])
    def test_more_pairs_than_fit_are_refused(self, tmp_path: Path, length: int, pairs: int) -> None:
        with pytest.raises(SpecError, match=f"pairs {pairs}"):
            recall.load(request_for("recall", "tiny", length=length), tmp_path, pairs=pairs)

    def test_it_is_told_in_words(self, tmp_path: Path) -> None:
        text = recall.describe(recall.load(RECALL, tmp_path, pairs=4).test[0])
        assert text.count("=") == 4 and text.count("?") == 4 and "answers: v" in text


class TestCopy:
    @pytest.mark.parametrize(("order", "turn"), [("copy", 1), ("mirror", -1)])
    def test_the_second_half_is_the_first(self, tmp_path: Path, order: str, turn: int) -> None:
        data = copying.load(COPY, tmp_path, order=order)
        for index in range(20):
            first, second = np.split(data.train[index].views[0], 2)
            assert (first[::turn] == second).all()
        assert all(check.ok for check in copying.verify(data, COPY, order=order))
        other = "mirror" if order == "copy" else "copy"
        assert not all(check.ok for check in copying.verify(data, COPY, order=other))

    def test_letters_are_even_and_cost_four_bits(self, tmp_path: Path) -> None:
        data = copying.load(request_for("copy", "small", examples=(2000, 10, 500)), tmp_path)
        assert data.baselines["letters alone"] == pytest.approx(4.0, abs=0.01)
        assert copying.FLOOR == 2.0 and "2 bits" in data.notes[0]

    def test_an_odd_length_has_no_halves(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="data.length 63"):
            copying.load(request_for("copy", "tiny", length=63), tmp_path)


@pytest.mark.parametrize(("task", "metric"), [("recall", "accuracy"), ("copy", "bits_per_byte")])
def test_a_tiny_run(tmp_path: Path, task: str, metric: str) -> None:
    record = run_tiny(task, tmp_path)
    assert record["data"]["source"] == "generated"
    assert record["metrics"]["test"][metric] > 0 or metric == "accuracy"
    assert record["metrics"]["test"]["scored"] == {"recall": 4, "copy": 64}[task] * 64


def test_data_can_be_verified_and_shown(call: Called) -> None:
    for task in ("recall", "copy"):
        assert call("data", "verify", task, "--preset", "tiny")[0] == 0
        assert call("data", "show", task, "--preset", "tiny", "-n", 1)[0] == 0
    code, _, err = call("data", "verify", "recall", "--preset", "tiny", "--data", "hub")
    assert code == 2 and "no such source" in err


def test_an_empty_split_is_one(tmp_path: Path) -> None:
    data = recall.load(request_for("recall", "tiny", examples=(5, 0, 5)), tmp_path, pairs=2)
    assert isinstance(data.validation, BlockSplit) and len(data.validation) == 0
