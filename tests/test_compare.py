"""Comparing results: pairs by seed, verdicts that are corrected, and reasons where nothing can be told."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Called
from test_report import record
from test_scale_cli import Stub, blank, stub

from lrbench import records
from lrbench.compare import Line, compare_runs, regressions
from lrbench.points import PointSpec, ScalePoint

__all__ = ["stub"]  # a fixture
SEEDS = range(4)
LATE = {"started_at": "2026-01-02T00:00:00", "finished_at": "2026-01-02T00:00:00"}


def runs(*correct: int | None, **more: object) -> list[records.RunRecord]:
    return [record(seed=seed, correct=value, **more) for seed, value in enumerate(correct)]


def only(old: list[records.RunRecord], new: list[records.RunRecord], threshold: float = 0.05) -> Line:
    (line,) = compare_runs(old, new, threshold)
    return line


def bits(seed: int, value: float | None) -> records.RunRecord:
    """A record of a task whose metric is better when it is lower."""
    found = record(seed=seed)
    score = found.metrics.test.model_copy(update={"bits_per_byte": value})
    metrics = found.metrics.model_copy(update={"test": score})
    spec = found.spec | {"task": {"metric": {"name": "bits_per_byte", "chance": 8.0}}}
    return found.model_copy(update={"metrics": metrics, "spec": spec})


def ended(seed: int, status: str) -> records.RunRecord:
    """A record of a run that did not end well."""
    return record(seed=seed, correct=None, status=status, reason="so it is")


def done(found: list[records.RunRecord], **changes: object) -> list[records.RunRecord]:
    """The records with some fields of their specs replaced, of sections those that are given."""

    def spec(old: dict[str, object]) -> dict[str, object]:
        return old | {name: old[name] | new if isinstance(new, dict) else new for name, new in changes.items()}

    return [each.model_copy(update={"spec": spec(each.spec)}) for each in found]


def other_data(found: records.RunRecord) -> records.RunRecord:
    return found.model_copy(update={"data": found.data.model_copy(update={"fingerprint": "g"})})


def from_file(digest: str, *correct: int) -> list[records.RunRecord]:
    return done(runs(*correct, model="Mine"), attention={"source": "mine.py", "digest": digest})


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
        assert line.verdict == "worse" and line.reason == "seed 1: error now (it broke)"
        before = only(runs(None), runs(50))
        assert before.verdict == "not comparable" and before.reason == "seed 0: error before (it broke)"
        assert only(runs(None), runs(None)).verdict == "not comparable"

    @pytest.mark.parametrize("status", ["oom", "timeout"])
    def test_what_runs_out_now_is_worse(self, status: str) -> None:
        assert only(runs(50, 50), [record(seed=0), ended(1, status)]).verdict == "worse"
        assert regressions([only(runs(50, 50), [ended(seed, status) for seed in (0, 1)])])

    @pytest.mark.parametrize("status", ["unsupported", "interrupted", "skipped"])
    def test_what_measured_nothing_is_no_regression(self, status: str) -> None:
        line = only(runs(50, 50), [ended(seed, status) for seed in (0, 1)])
        assert line.verdict == "not comparable" and line.reason == f"seeds 0, 1: {status} now (so it is)"

    def test_a_seed_that_measured_nothing_does_not_hide_what_became_of_the_others(self) -> None:
        line = only(runs(50, 51, 49, 50), [*runs(30, 31, 29), ended(3, "interrupted")])
        assert line.verdict == "worse" and line.n == 3
        assert line.remarks == ("seed 3: interrupted now (so it is)",)

    def test_a_failure_is_told_beside_what_else_is_left_out(self) -> None:
        line = only(runs(50, 51, 49), [ended(0, "oom"), ended(1, "skipped")])
        assert line.verdict == "worse" and line.reason == "seed 0: oom now (so it is)"
        assert line.remarks == ("seed 1: skipped now (so it is)", "seed 2: only in the old results")

    @pytest.mark.parametrize("value", [None, float("inf"), float("nan")])
    def test_a_score_that_is_no_number_is_none(self, value: float | None) -> None:
        whole = [bits(seed, 4.0 + seed / 1000) for seed in SEEDS]
        line = only(whole, [*whole[:3], bits(3, value)])
        assert line.verdict == "no difference" and line.n == 3
        assert line.remarks == ("seed 3: ok now, but without a finite bits_per_byte",)
        before = only([bits(0, value)], whole[:1])
        assert before.verdict == "not comparable"
        assert before.reason == "seed 0: ok before, but without a finite bits_per_byte"

    def test_a_record_without_metrics_is_told(self) -> None:
        empty = [each.model_copy(update={"metrics": None}) for each in runs(50, 51)]
        assert only(runs(50, 51), empty).reason == "seeds 0, 1: ok now, but without a finite accuracy"

    def test_seeds_of_one_side_are_told(self) -> None:
        line = only(runs(50, 51, 49), runs(50, 51))
        assert line.n == 2 and line.remarks == ("seed 2: only in the old results",)
        apart = only(runs(50), [record(seed=5)])
        assert apart.reason == "seed 0: only in the old results; seed 5: only in the new results"

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"steps": 20}, "train.steps is 10 there and 20 here"),
            ({"task": {"name": "listops", "card_version": 2}}, "card version is 1 there and 2 here"),
        ],
    )
    def test_unlike_runs_say_what_differs(self, change: dict[str, object], why: str) -> None:
        line = only(runs(50, 51), runs(40, 41, **change))
        assert line.verdict == "not comparable" and line.reason == why

    def test_other_devices_and_threads_are_not_compared(self) -> None:
        assert only(runs(50), done(runs(50), device="cuda")).reason == "device is cpu there and cuda here"
        assert only(runs(50), done(runs(50), threads=2)).reason == "threads is None there and 2 here"

    def test_another_metric_is_not_compared(self) -> None:
        assert only(runs(50), [bits(0, 4.0)]).reason == "metric is accuracy there and bits_per_byte here"

    @pytest.mark.parametrize("seeds", [(0,), (2,), (1, 2)])
    def test_other_data_of_any_seed_are_not_compared(self, seeds: tuple[int, ...]) -> None:
        new = [other_data(each) if each.seed in seeds else each for each in runs(50, 51, 49)]
        line = only(runs(50, 51, 49), new)
        named = ", ".join(map(str, seeds))
        assert (
            line.verdict == "not comparable" and line.reason == f"seed{'s'[: len(seeds) - 1]} {named}: the data differ"
        )

    def test_the_place_that_data_came_from_is_no_difference(self) -> None:
        assert only(runs(50, 51), done(runs(50, 51), data={"source": "hub"})).verdict == "no difference"

    def test_another_machine_is_a_remark(self) -> None:
        old, new = (runs(50, 51, environment={"cpu_model": name}) for name in ("this", "that"))
        assert only(old, new).remarks == ("cpu_model was this there and is that here",)
        assert only(old, new).verdict == "no difference"

    def test_other_presets_and_models_are_lines_of_their_own(self) -> None:
        lines = compare_runs(runs(50, 51), runs(50, 51, preset="paper"), 0.05)
        assert [line.reason for line in lines] == ["only in the old results", "only in the new results"]
        assert not regressions(lines)

    def test_of_two_records_of_a_seed_the_later_counts_and_both_are_named(self) -> None:
        again = [record(seed=seed, correct=50 + seed, run_id=f"again-{seed}", time=LATE) for seed in (0, 1)]
        line = only(runs(50, 51), [*again, *runs(10, 11)])
        assert line.new == pytest.approx(0.505)
        assert line.remarks == tuple(
            f"seed {seed}: again-{seed} counts, full-{seed} is older, in the new results" for seed in (0, 1)
        )
        assert only([*again, *runs(10, 11)], runs(50, 51)).remarks[0].endswith("in the old results")


class TestProtocols:
    def test_each_is_compared_with_its_own(self) -> None:
        """The later runs are others, and no reruns."""
        old = [*runs(50, 51), *done(runs(80, 81, time=LATE), data={"length": 32})]
        new = [*runs(30, 31), *done(runs(80, 81, time=LATE), data={"length": 32})]
        lines = compare_runs(old, new, 0.05)
        assert [(line.what, line.verdict) for line in lines] == [
            ("listops small, data.length 64", "worse"),
            ("listops small, data.length 32", "no difference"),
        ]
        assert not any(line.remarks for line in lines)

    def test_of_one_side_alone_it_is_told_apart_from_what_is_compared(self) -> None:
        more = done(runs(80, 81), data={"length": 32})
        same, alone = compare_runs(runs(50, 51), [*runs(50, 51), *more], 0.05)
        assert same.verdict == "no difference" and same.what == "listops small, data.length 64"
        assert alone.what == "listops small, data.length 32" and alone.reason == "only in the new results"
        assert [line.reason for line in compare_runs([*more, *runs(50, 51)], runs(50, 51), 0.05)] == [
            "",
            "only in the old results",
        ]

    def test_without_a_partner_the_most_similar_is_named(self) -> None:
        old = done(runs(50, 51), data={"length": 32})
        far = done(runs(50, 51, steps=20), data={"length": 128}, model={"layers": 2})
        near, left = compare_runs(old, [*far, *runs(50, 51)], 0.05)
        assert near.verdict == "not comparable" and near.reason == "data.length is 32 there and 64 here"
        assert left.reason == "only in the new results" and "train.steps 20" in left.what

    def test_a_field_that_older_records_lack_is_no_difference_where_it_is_none(self) -> None:
        older, newer = runs(50, 51), done(runs(50, 51), train={"clip": None})
        assert only(newer, older).verdict == "no difference"
        assert only([older[0], newer[1]], newer).n == 2


class TestFiles:
    def test_a_changed_file_is_what_is_compared(self) -> None:
        line = only(from_file("a" * 64, 50, 51, 49), from_file("b" * 64, 30, 31, 29))
        assert line.verdict == "worse" and line.model == "Mine"
        assert line.remarks == ("file aaaaaaaa there, file bbbbbbbb here",)

    def test_two_files_on_one_side_are_told_apart(self) -> None:
        first, second = from_file("a" * 64, 50, 51), from_file("b" * 64, 30, 31)
        same, other = compare_runs(first, [*first, *second], 0.05)
        assert (same.model, same.verdict) == ("Mine (file aaaaaaaa)", "no difference")
        assert (other.model, other.reason) == ("Mine (file bbbbbbbb)", "only in the new results")
        assert [line.model for line in compare_runs([*first, *second], second, 0.05)] == [same.model, other.model]

    def test_a_file_and_a_package_of_one_name_are_told_apart(self) -> None:
        lines = compare_runs(
            from_file("a" * 64, 50, 51), [*from_file("a" * 64, 50, 51), *runs(9, 9, model="Mine")], 0.05
        )
        assert [line.model for line in lines] == ["Mine (file aaaaaaaa)", "Mine (lrbench)"]


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

    def test_remarks_are_in_all_forms(self, call: Callable[..., Called], tmp_path: Path) -> None:
        old, new = self.kept(tmp_path / "a", runs(50, 51, 49)), self.kept(tmp_path / "b", runs(50, 51))
        for form in (["--format", "md"], ["--format", "table"], ["--json"]):
            assert "seed 2: only in the old results" in call("compare", old, new, *form)[1]

    def test_markdown_begins_with_what_became_worse_and_holds_any_text(
        self, call: Callable[..., Called], tmp_path: Path
    ) -> None:
        broke = record(model="full", correct=None, reason="a | b\n<c>", run_id="z")
        old = self.kept(tmp_path / "a", [*runs(50, 51, model="local"), *runs(50, 51, model="full")])
        new = self.kept(tmp_path / "b", [*runs(50, 51, model="local"), broke, record(seed=1, correct=51)])
        lines = call("compare", old, new, "--format", "md")[1].splitlines()
        assert lines[0] == "**1 worse, 1 no difference**" and lines[5].startswith(
            "| listops small: accuracy in % | local"
        )
        assert lines[4].endswith("| worse: seed 0: error now (a \\| b &lt;c&gt;) |")

    def test_markdown_and_json(self, call: Callable[..., Called], tmp_path: Path) -> None:
        old = self.kept(tmp_path / "a", runs(50, 51, 49, settings={"window": 8}, model="local"))
        code, out, _ = call("compare", old, old, "--format", "md")
        lines = out.splitlines()
        assert (
            code == 0
            and lines[0] == "**1 no difference**"
            and lines[4].startswith("| listops small: accuracy in % | local\\[window=8\\]")
        )
        assert all(line.count("|") == 9 for line in lines[2:] if line)
        assert "| 50.0 | 50.0 | 0.0 | 0.0 to 0.0 | 3 | no difference |" in lines[4]
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

    def test_points_that_no_longer_end_well_are_worse(
        self, call: Callable[..., Called], stub: Stub, tmp_path: Path
    ) -> None:
        scale = ("scale", "--models", "full,local,performer", "--lengths", "512..2048", "--device", "cpu", "--out")
        assert call(*scale, tmp_path / "a")[0] == 0
        ends = {("local", 1024): "oom", ("local", 2048): "skipped", ("performer", 2048): "oom"}

        def instead(spec: PointSpec) -> ScalePoint | None:
            name = spec.attention.name
            status = ends.get((name, spec.length))
            return blank(spec, status, reason="so it is", predicted=name == "performer") if status else None

        stub.instead = instead
        call(*scale, tmp_path / "b")
        code, out, _ = call("compare", tmp_path / "a", tmp_path / "b", "--json", "--fail-on", "regression")
        told = {(line["length"], line["model"]): (line["verdict"], line["reason"]) for line in json.loads(out)["lines"]}
        assert code == 1 and told[1024, "local"] == ("worse", "oom now (so it is)")
        assert told[2048, "local"] == ("not comparable", "skipped now (so it is)")
        back = json.loads(call("compare", tmp_path / "b", tmp_path / "a", "--json")[1])["lines"]
        assert [line["reason"] for line in back if line["reason"].startswith("oom")] == ["oom before (so it is)"] * 2
        assert told[2048, "performer"] == ("not comparable", "oom now (so it is)")

    def test_what_one_side_alone_has_of_studies_is_told(
        self, call: Callable[..., Called], stub: Stub, tmp_path: Path
    ) -> None:
        for name, models, lengths in (("a", "full,local", "512,1024"), ("b", "full,performer", "512,2048")):
            flags = ("--lengths", lengths, "--device", "cpu", "--out", tmp_path / name)
            assert call("scale", "--models", models, *flags)[0] == 0
        assert (
            call(
                "scale",
                "--models",
                "full",
                "--lengths",
                "512",
                "--device",
                "cpu",
                "--mode",
                "forward",
                "--out",
                tmp_path / "a",
            )[0]
            == 0
        )
        found = json.loads(call("compare", tmp_path / "a", tmp_path / "b", "--json")[1])["lines"]
        alone = {(line["length"], line["model"]): line["reason"] for line in found if line["reason"].startswith("only")}
        assert alone == {
            (1024, "full"): "only in the old results",
            (512, "local"): "only in the old results",
            (1024, "local"): "only in the old results",
            (2048, "full"): "only in the new results",
            (512, "performer"): "only in the new results",
            (2048, "performer"): "only in the new results",
            (None, "all"): "only in the old results",
        }

    def test_an_unfinished_study_is_not_compared(self, call: Callable[..., Called], stub: Stub, tmp_path: Path) -> None:
        for name in "ab":
            flags = ("--lengths", "512,1024", "--device", "cpu", "--out", tmp_path / name)
            assert call("scale", "--models", "full,local", *flags)[0] == 0
        next((tmp_path / "b").rglob("record.json")).unlink()
        (line,) = json.loads(call("compare", tmp_path / "a", tmp_path / "b", "--json")[1])["lines"]
        assert line["verdict"] == "not comparable" and "not finished" in line["reason"]

    def test_studies_of_other_settings_say_so(self, call: Callable[..., Called], stub: Stub, tmp_path: Path) -> None:
        for name, width in (("a", 256), ("b", 512)):
            flags = ("--lengths", "512,1024", "--width", width, "--device", "cpu", "--out", tmp_path / name)
            assert call("scale", "--models", "full,local", *flags)[0] == 0
        found = json.loads(call("compare", tmp_path / "a", tmp_path / "b", "--json")[1])
        assert [line["verdict"] for line in found["lines"]] == ["not comparable"]
        assert "width" in found["lines"][0]["reason"]
