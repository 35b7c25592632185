"""Comparing results: pairs by seed, verdicts that are corrected, and reasons where nothing can be told."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Called
from test_report import record
from test_scale_cli import Stub, stub

from lrbench import records
from lrbench.compare import Line, compare_runs, regressions

__all__ = ["stub"]  # a fixture
SEEDS = range(4)


def runs(*correct: int | None, **more: object) -> list[records.RunRecord]:
    return [record(seed=seed, correct=value, **more) for seed, value in enumerate(correct)]


def only(old: list[records.RunRecord], new: list[records.RunRecord], threshold: float = 0.05) -> Line:
    (line,) = compare_runs(old, new, threshold)
    return line


def bits(seed: int, value: float) -> records.RunRecord:
    """A record of a task whose metric is better when it is lower."""
    found = record(seed=seed)
    score = found.metrics.test.model_copy(update={"bits_per_byte": value})
    metrics = found.metrics.model_copy(update={"test": score})
    spec = found.spec | {"task": {"metric": {"name": "bits_per_byte", "chance": 8.0}}}
    return found.model_copy(update={"metrics": metrics, "spec": spec})


class TestVerdicts:
    def test_a_fall_on_every_seed_is_worse_and_a_rise_better(self) -> None:
        line = only(runs(50, 51, 49, 50), runs(40, 41, 40, 39))
        assert line.verdict == "worse" and line.change == pytest.approx(-0.10) and line.n == 4
        assert line.low < -0.10 < line.high < 0
        assert only(runs(40, 41, 40, 39), runs(50, 51, 49, 50)).verdict == "better"

    def test_of_bits_fewer_are_better(self) -> None:
        old, new = ([bits(seed, value + seed / 1000) for seed in SEEDS] for value in (4.0, 3.0))
        line = only(old, new)
        assert line.verdict == "better" and line.change == pytest.approx(-1.0)
        assert only(new, old).verdict == "worse"

    def test_the_same_is_no_difference_and_noise_is_undecided(self) -> None:
        assert only(runs(50, 51, 49, 50), runs(50, 51, 49, 50)).verdict == "no difference"
        assert only(runs(50, 30, 70, 40), runs(40, 60, 35, 55)).verdict == "undecided"

    def test_a_small_fall_is_no_regression_under_the_threshold(self) -> None:
        old, new = runs(50, 51, 49, 50), runs(49, 50, 48, 49)
        assert only(old, new, threshold=0.05).verdict == "no difference"
        assert only(old, new, threshold=0.01).verdict == "worse"

    def test_many_comparisons_are_corrected(self) -> None:
        """A gap that one comparison would call a difference is none among thirty."""
        old, new = [], []
        for number in range(30):
            name = f"model{number}"
            shift = 6 if number == 0 else 0
            old += [record(model=name, seed=seed, correct=50 + (seed % 2) * 3) for seed in SEEDS]
            new += [record(model=name, seed=seed, correct=50 - shift + (seed * 7 % 4) * 2) for seed in SEEDS]
        alone = only(old[:4], new[:4])
        assert alone.verdict == "worse"
        among = compare_runs(old, new, 0.05)
        assert among[0].model == "model0" and among[0].verdict == "undecided"


class TestReasons:
    def test_one_seed_has_no_spread(self) -> None:
        line = only(runs(50), runs(40))
        assert line.verdict == "undecided" and "one seed" in line.reason and line.change == pytest.approx(-0.1)

    def test_what_fails_now_is_worse_and_what_failed_before_is_nothing(self) -> None:
        line = only(runs(50, 50), runs(50, None))
        assert line.verdict == "worse" and "seed 1 is error now: it broke" in line.reason
        assert only(runs(None), runs(50)).verdict == "not comparable"

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"steps": 20}, "train.steps is 10 there and 20 here"),
            ({"task": {"name": "listops", "card_version": 2}}, "card version 1 there, 2 here"),
        ],
    )
    def test_unlike_runs_say_what_differs(self, change: dict[str, object], why: str) -> None:
        line = only(runs(50, 51), runs(40, 41, **change))
        assert line.verdict == "not comparable" and line.reason == why

    def test_other_data_are_not_compared(self) -> None:
        new = [
            each.model_copy(update={"data": each.data.model_copy(update={"fingerprint": "g"})}) for each in runs(4, 5)
        ]
        assert only(runs(50, 51), new).reason == "the data differ"

    def test_other_presets_and_models_are_lines_of_their_own(self) -> None:
        lines = compare_runs(runs(50, 51), runs(50, 51, preset="paper"), 0.05)
        assert [line.reason for line in lines] == ["only in the old results", "only in the new results"]
        assert not regressions(lines)

    def test_of_two_records_of_a_seed_the_later_counts(self) -> None:
        late = {"started_at": "2026-01-02T00:00:00", "finished_at": "2026-01-02T00:00:00"}
        line = only(runs(50, 51), [*runs(10, 11), *runs(50, 51, time=late)])
        assert line.new == pytest.approx(0.505)


class TestCommand:
    def kept(self, folder: Path, found: list[records.RunRecord]) -> Path:
        for each in found:
            place = folder / "runs" / each.run_id
            place.mkdir(parents=True)
            records.write(each, place)
        return folder

    def test_a_regression_fails_only_if_asked_for(self, call: Callable[..., Called], tmp_path: Path) -> None:
        old, new = self.kept(tmp_path / "a", runs(50, 51, 49)), self.kept(tmp_path / "b", runs(30, 31, 29))
        assert call("compare", old, new)[0] == 0
        code, out, _ = call("compare", old, new, "--fail-on", "regression")
        assert code == 1 and "worse" in out and "1 worse" in out
        assert call("compare", new, old, "--fail-on", "regression")[0] == 0

    def test_markdown_and_json(self, call: Callable[..., Called], tmp_path: Path) -> None:
        old = self.kept(tmp_path / "a", runs(50, 51, 49, settings={"window": 8}, model="local"))
        code, out, _ = call("compare", old, old, "--format", "md")
        lines = out.splitlines()
        assert (
            code == 0 and lines[0] == "**1 no difference**" and lines[4].startswith("| listops small | local[window=8]")
        )
        assert all(line.count("|") == 9 for line in lines[2:] if line)
        found = json.loads(call("compare", old, old, "--json")[1])
        assert found["regressions"] == 0 and found["lines"][0]["verdict"] == "no difference"

    @pytest.mark.parametrize(
        ("flags", "told"),
        [
            (["--fail-on", "rain"], "--fail-on rain"),
            (["--threshold", "x"], "--threshold x"),
            (["--format", "pdf"], "pdf"),
        ],
    )
    def test_wrong_words_are_refused(
        self, call: Callable[..., Called], tmp_path: Path, flags: list[str], told: str
    ) -> None:
        code, _, err = call("compare", tmp_path, tmp_path, *flags)
        assert code == 2 and told in err

    def test_nothing_to_compare_is_an_error(self, call: Callable[..., Called], tmp_path: Path) -> None:
        assert call("compare", tmp_path, tmp_path / "nowhere")[0] == 2
        code, _, err = call("compare", tmp_path, tmp_path)
        assert code == 2 and "no records" in err

    def test_studies_are_compared_by_ratio_and_by_byte(
        self, call: Callable[..., Called], stub: Stub, tmp_path: Path
    ) -> None:
        scale = (
            "scale",
            "--models",
            "full,full[impl=math],local",
            "--lengths",
            "512..4096",
            "--device",
            "cpu",
            "--json",
        )
        assert call(*scale, "--out", tmp_path / "a")[0] == 0
        stub.drift = 2.0  # of local's time
        assert call(*scale, "--out", tmp_path / "b")[0] == 0
        code, out, _ = call("compare", tmp_path / "a", tmp_path / "b", "--fail-on", "regression", "--json")
        lines = json.loads(out)["lines"]
        worse = {(line["model"], line["measure"]) for line in lines if line["verdict"] == "worse"}
        assert code == 1 and worse == {("local", "time")}
        assert all(line["verdict"] == "no difference" for line in lines if line["measure"] == "memory")
        assert call("compare", tmp_path / "a", tmp_path / "a", "--fail-on", "regression")[0] == 0

    def test_studies_of_other_settings_say_so(self, call: Callable[..., Called], stub: Stub, tmp_path: Path) -> None:
        for name, width in (("a", 256), ("b", 512)):
            flags = ("--lengths", "512,1024", "--width", width, "--device", "cpu", "--out", tmp_path / name)
            assert call("scale", "--models", "full,local", *flags)[0] == 0
        found = json.loads(call("compare", tmp_path / "a", tmp_path / "b", "--json")[1])
        assert [line["verdict"] for line in found["lines"]] == ["not comparable"]
        assert "width" in found["lines"][0]["reason"]
