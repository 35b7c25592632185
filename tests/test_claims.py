"""Claims: what files of them may hold, quantities by hand, verdicts, and the command from evidence to exit code."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TOY, Called
from test_report import record
from test_scale_cli import Stub, stub  # noqa: F401

from lrbench.claims import files, questions, runs, scaling
from lrbench.claims.measured import Measured, Unknown, exact
from lrbench.claims.spec import Expected, Exponent, Gap, GapOfGaps, Growth, Longest, Ratio, Score, Seconds, Side
from lrbench.claims.verdicts import Verdict, judge, together
from lrbench.records import RunRecord

LEDGER = [*(f"F{n}" for n in range(1, 19)), *(f"K{n}" for n in range(1, 18)), *(f"S{n}" for n in range(1, 22))]
SUITES = files.Suites(Path("unused"))
FREE = {"least": -1e9}
FULL = {"needs": "much", "run": "lrbench run"}
SIDES = {name: Side(suite="any", model=name, task="listops") for name in "abcd"}


class TestShipped:
    def test_every_row_of_the_ledger_is_there_with_a_check_or_what_it_takes(self) -> None:
        known = files.read_all(SUITES)
        assert [*known] and sorted(known) == sorted(LEDGER)
        assert sum(bool(told.claim.parts) for told in known.values()) >= 50
        assert all(told.claim.full.run.startswith("lrbench") for told in known.values())

    def test_what_must_hold_needs_no_training(self) -> None:
        """So that chance of a seed fails nobody."""
        required = files.select(["required"], SUITES)
        assert len(required) >= 15
        kinds = {type(part).__name__ for told in required for part in told.claim.parts}
        assert kinds == {"Exponent", "Growth", "Measure"}

    def test_ids_are_in_order_and_any_case(self) -> None:
        assert [told.claim.id for told in files.select(["k10", "K2", "F1"], SUITES)] == ["F1", "K2", "K10"]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("low", "high", "expected", "verdict"),
        [
            (0.9, 1.1, {"least": 0.8, "most": 1.2}, "reproduced"),
            (0.7, 1.1, {"least": 0.8, "most": 1.2}, "inconclusive"),
            (0.75, 1.1, {"least": 0.8, "most": 1.2, "tolerance": 0.1}, "reproduced"),
            (1.3, 1.4, {"least": 0.8, "most": 1.2}, "contradicted"),
            (1.3, 1.4, {"least": 0.8, "most": 1.2, "tolerance": 0.15}, "inconclusive"),
            (0.5, 0.7, {"least": 0.8}, "contradicted"),
            (0.5, 0.7, {"most": 0.7}, "reproduced"),
            (0.8, 0.9, {"most": 0.7}, "contradicted"),
            (-0.2, 0.1, {"most": 0.0}, "inconclusive"),
            (0.0, 0.0, {"least": 0.0, "most": 0.0}, "reproduced"),
            (0.0, 0.0, {"least": 1e-12}, "contradicted"),
            (None, None, {"least": -1e9}, "inconclusive"),
        ],
    )
    def test_the_whole_interval_decides(
        self, low: float | None, high: float | None, expected: dict[str, float], verdict: Verdict
    ) -> None:
        assert judge(Measured(value=0.0, low=low, high=high), Expected(**expected)) == verdict

    @pytest.mark.parametrize(
        ("parts", "verdict"),
        [
            (["reproduced", "reproduced"], "reproduced"),
            (["reproduced", "inconclusive"], "inconclusive"),
            (["reproduced", "not run here"], "inconclusive"),
            (["reproduced", "contradicted", "not run here"], "contradicted"),
            (["not run here", "not run here"], "not run here"),
            ([], "not run here"),
        ],
    )
    def test_a_claim_is_reproduced_only_in_all_its_parts(self, parts: list[Verdict], verdict: Verdict) -> None:
        assert together(parts) == verdict


# quantities of runs


def found(**sides: list[int]) -> Callable[[Side], Mapping[int, RunRecord]]:
    """Runs of each side, right answers of 100 by seed; the loss is one hundredth of what is wrong."""

    def scored(model: str, seed: int, correct: int) -> RunRecord:
        made = record(model, seed, correct)
        assert made.metrics is not None
        test = made.metrics.test.model_copy(update={"loss": (100 - correct) / 100})
        time = made.time.model_copy(update={"train_s": float(correct)})
        return made.model_copy(update={"metrics": made.metrics.model_copy(update={"test": test}), "time": time})

    return lambda side: {seed: scored(side.model, seed, n) for seed, n in enumerate(sides[side.model])}


class TestRuns:
    def test_a_gap_is_paired_by_seed(self) -> None:
        part = Gap(quantity="gap", a=SIDES["a"], b=SIDES["b"], of="metric", expect=FREE)
        gap = runs.measured(part, found(a=[50, 60, 71], b=[40, 50, 60]))
        # gaps .10 .10 .11: their spread is 1/√3 hundredths, however far seeds lie apart
        assert gap.value == pytest.approx(0.31 / 3)
        assert gap.low == pytest.approx(0.31 / 3 - 4.302653 * 0.01 / 3, abs=1e-6) and gap.n == 3

    def test_a_relative_gap_is_in_parts_of_b(self) -> None:
        part = Gap(quantity="gap", a=SIDES["a"], b=SIDES["b"], relative=True, expect=FREE)
        assert runs.measured(part, found(a=[40, 40], b=[20, 20])).value == pytest.approx(-0.25)

    def test_only_seeds_that_both_have_count(self) -> None:
        part = Gap(quantity="gap", a=SIDES["a"], b=SIDES["b"], of="metric", expect=FREE)
        gap = runs.measured(part, found(a=[50, 60, 99], b=[40, 50]))
        assert gap.n == 2 and gap.value == pytest.approx(0.1)

    def test_one_seed_has_no_interval(self) -> None:
        part = Gap(quantity="gap", a=SIDES["a"], b=SIDES["b"], expect=FREE)
        assert runs.measured(part, found(a=[50], b=[40])).low is None

    def test_a_gap_of_gaps(self) -> None:
        part = GapOfGaps(quantity="gap_of_gaps", **SIDES, of="metric", expect=FREE)
        gap = runs.measured(part, found(a=[50, 51], b=[40, 41], c=[33, 33], d=[30, 30]))
        assert gap.value == pytest.approx(0.07) and gap.low == pytest.approx(0.07)

    def test_a_score_above_a_baseline(self) -> None:
        part = Score(quantity="score", a=SIDES["a"], above="majority", expect=FREE)
        assert runs.measured(part, found(a=[50, 60])).value == pytest.approx(0.55 - 0.17)

    def test_a_baseline_that_is_not_there_is_no_zero(self) -> None:
        part = Score(quantity="score", a=SIDES["a"], above="majorty", expect=FREE)
        with pytest.raises(Unknown, match="no baseline 'majorty', known: majority, root operator") as caught:
            runs.measured(part, found(a=[50, 60]))
        assert caught.value.broken

    def test_seconds_are_a_ratio(self) -> None:
        part = Seconds(quantity="seconds", a=SIDES["a"], b=SIDES["b"], expect=FREE)
        ratio = runs.measured(part, found(a=[10, 20], b=[20, 40]))
        assert ratio.value == pytest.approx(0.5) and ratio.high == pytest.approx(0.5)

    def test_no_seed_in_common_is_no_measurement(self) -> None:
        part = Gap(quantity="gap", a=SIDES["a"], b=SIDES["b"], expect=FREE)
        with pytest.raises(Unknown, match="no seed"):
            runs.measured(part, found(a=[50], b=[]))


# the command


def claim(**more: Any) -> dict[str, Any]:
    """A claim of one part, to be changed."""
    part = {"quantity": "measure", "by": "parameters.added", "options": {"model": "combiner"}, "expect": {"most": 0}}
    plain = {"id": "T1", "statement": "It adds nothing.", "published": "nothing", "source": "nobody", "tag": "none"}
    return {**plain, "parts": [part], "full": FULL, **more}


def write(folder: Path, *claims: dict[str, Any], suite: dict[str, Any] | None = None) -> None:
    """A folder of claims, and the suite `mine`."""
    (folder / "claims").mkdir(exist_ok=True)
    page = {"paper": {"title": "A toy", "reference": "none"}, "claims": list(claims)}
    (folder / "claims" / "mine.yaml").write_text(yaml.safe_dump(page))
    if suite:
        (folder / "mine.yaml").write_text(yaml.safe_dump(suite))


TOY_RUNS = {
    "grid": {"models": ["full", "local[window=2]"], "tasks": [str(TOY)], "seeds": 2, "preset": "tiny", "device": "cpu"}
}
GAP = {"quantity": "gap", "suite": "mine", "task": "toy", "a": "full", "b": "local[window=2]", "expect": {"least": -9}}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose claims are found beside the shipped ones."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("LRBENCH_PATH", str(folder))
    return folder


def told(out: str) -> dict[str, Any]:
    """The one claim of `--json`."""
    (only,) = json.loads(out)["claims"]
    assert only["schema"] == "lrbench.claim/1"
    return only


class TestCommand:
    def test_a_measure_is_made_once_and_then_read(
        self, call: Callable[..., Called], mine: Path, tmp_path: Path
    ) -> None:
        write(mine, claim())
        code, out, _ = call("claims", "T1", "--no-run", "--json")
        assert code == 0 and told(out)["verdict"] == "not run here" and told(out)["reason"] == "not measured yet"
        code, out, err = call("claims", "t1", "--json")
        assert code == 0 and told(out)["verdict"] == "reproduced" and "parameters.added" in err
        assert told(out)["parts"][0]["measured"]["value"] == 0
        assert json.loads((tmp_path / "results" / "claims" / "T1.json").read_text())["verdict"] == "reproduced"
        code, out, err = call("claims", "T1", "--json")
        assert told(out)["verdict"] == "reproduced" and "parameters.added" not in err

    def test_a_contradiction_fails_only_where_a_claim_must_hold(self, call: Callable[..., Called], mine: Path) -> None:
        wrong = claim(parts=[{**claim()["parts"][0], "expect": {"least": 1}}])
        write(mine, wrong, {**wrong, "id": "T2", "required": True})
        assert call("claims", "T1")[0] == 0
        code, out, _ = call("claims", "T1", "T2")
        assert code == 1 and out.count("contradicted") >= 4 and "must hold" in out
        assert max(map(len, out.splitlines())) <= 80 and "published: nothing" in out

    def test_runs_are_trained_once_and_their_ids_told(
        self, call: Callable[..., Called], mine: Path, tmp_path: Path
    ) -> None:
        write(mine, claim(parts=[GAP]), suite=TOY_RUNS)
        code, out, err = call("claims", "T1", "--json", "--workers", "2")
        assert code == 0, err
        (part,) = told(out)["parts"]
        there = {path.parent.name for path in (tmp_path / "results" / "runs").rglob("record.json")}
        assert part["verdict"] == "reproduced" and part["measured"]["n"] == 2
        assert set(part["evidence"]) == there and len(there) == 4
        before = part["measured"]
        code, out, err = call("claims", "T1", "--json", "--no-run")
        assert told(out)["parts"][0]["measured"] == before

    def test_only_what_a_claim_needs_is_run(self, call: Callable[..., Called], mine: Path, tmp_path: Path) -> None:
        write(mine, claim(parts=[{**GAP, "a": "local[window=2]"}]), suite=TOY_RUNS)
        assert call("claims", "T1", "--quiet")[0] == 0
        models = {path.parts[-3] for path in (tmp_path / "results" / "runs").rglob("record.json")}
        assert models == {"local-window-2"}

    def test_a_run_that_breaks_is_no_verdict_and_fails(self, call: Callable[..., Called], mine: Path) -> None:
        diverging = {"grid": {**TOY_RUNS["grid"], "set": {"train.lr": 1e30}}}
        write(mine, claim(parts=[GAP]), suite=diverging)
        code, out, _ = call("claims", "T1", "--json", "--quiet")
        assert code == 1 and told(out)["verdict"] == "not run here" and "the loss" in told(out)["reason"]

    def test_data_that_cannot_be_had_are_not_run_here(self, call: Callable[..., Called], mine: Path) -> None:
        hub = {"grid": {**TOY_RUNS["grid"], "tasks": ["text"], "data": "hub"}}
        write(mine, claim(required=True, parts=[{**GAP, "task": "text"}]), suite=hub)
        code, out, _ = call("claims", "T1", "--json", "--quiet", "--offline")
        assert code == 0 and told(out)["verdict"] == "not run here" and "hub" in told(out)["reason"]

    def test_a_claim_out_of_reach_says_what_it_takes(self, call: Callable[..., Called], mine: Path) -> None:
        write(mine, claim(parts=[], not_here="takes a library"))
        code, out, _ = call("claims", "T1")
        assert code == 0 and "not run here: takes a library" in out

    def test_a_measure_that_breaks_is_told_and_fails(
        self, call: Callable[..., Called], mine: Path, tmp_path: Path
    ) -> None:
        wrong = {**claim()["parts"][0], "options": {"against": "full[impl=nonsense]"}}
        write(mine, claim(parts=[wrong]))
        code, out, _ = call("claims", "T1", "--json", "--quiet")
        assert code == 1 and "parameters.added" in told(out)["reason"] and "nonsense" in told(out)["reason"]
        assert not list((tmp_path / "results" / "claims").glob("measures/*"))

    def test_a_suite_names_its_claims(self, call: Callable[..., Called], mine: Path) -> None:
        write(mine, claim(), claim(id="T2"), suite={"claims": ["T2"]})
        code, out, _ = call("claims", "--suite", "mine", "--json", "--no-run")
        assert code == 0 and told(out)["id"] == "T2"

    def test_the_report_shows_claims_as_they_were_judged(
        self, call: Callable[..., Called], mine: Path, tmp_path: Path
    ) -> None:
        write(mine, claim(), {**claim(parts=[], not_here="takes <a> library"), "id": "T2"})
        assert call("claims", "T1", "T2", "--quiet")[0] == 0
        page = tmp_path / "page.html"
        assert call("report", tmp_path / "results", "--out", page)[0] == 0
        text = page.read_text()
        assert 'id="table-claims-a-toy"' in text and "Of 2 claims: 1 reproduced, 1 not run here." in text
        assert "takes &lt;a&gt; library" in text


class TestBadFiles:
    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"statment": "x"}, ["T1: statment: unknown field", "did you mean 'statement'?"]),
            ({"parts": [{**GAP, "a": "fulll"}]}, ["T1: parts.0", "unknown model 'fulll'", "did you mean 'full'?"]),
            ({"parts": [{**GAP, "a": "performer"}]}, ["parts.0", "performer on toy is not run"]),
            ({"parts": [{**GAP, "suite": "nobody"}]}, ["parts.0", "unknown suite 'nobody'"]),
            ({"parts": [{**GAP, "quantity": "gapp"}]}, ["parts.0: quantity: unknown quantity 'gapp'", "'gap'"]),
            ({"parts": [{**GAP, "relativ": True}]}, ["parts.0: relativ: unknown field", "'relative'"]),
            ({"parts": [{**GAP, "expect": {}}]}, ["parts.0: expect: needs least, most or both"]),
            ({"parts": ["gap"]}, ["parts.0: expected fields, found str"]),
            ({"parts": []}, ["T1", "needs parts, or not_here"]),
            (
                {"parts": [{**claim()["parts"][0], "by": "parameters.aded"}]},
                ["unknown measure 'parameters.aded'", "did you mean 'parameters.added'?"],
            ),
            (
                {"parts": [{**claim()["parts"][0], "options": {"modell": "full"}}]},
                ["options.modell: parameters.added has no such option", "it has: against, model"],
            ),
            (
                {"parts": [{**claim()["parts"][0], "options": {"model": "fulll"}}]},
                ["parts.0", "unknown model 'fulll'"],
            ),
            (
                {"parts": [{"quantity": "exponent", "suite": "mine", "model": "full", "expect": FREE}]},
                ["parts.0: suite: mine has 0 scaling studies"],
            ),
            (
                {"parts": [{"quantity": "exponent", "suite": "claims-layers", "model": "local", "expect": FREE}]},
                ["parts.0: model: suite claims-layers does not scale 'local'"],
            ),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )
    def test_file_claim_and_field_are_named_and_nothing_is_run(
        self, call: Callable[..., Called], mine: Path, tmp_path: Path, changes: dict[str, Any], told: list[str]
    ) -> None:
        write(mine, claim(**changes), suite=TOY_RUNS)
        code, out, err = call("claims", "T1")
        assert code == 2 and not out and "mine.yaml" in err, err
        assert all(text in err for text in told), err
        assert err.startswith("error: ") and len(err.splitlines()) == 2
        assert not (tmp_path / "results").exists()

    def test_an_id_stands_once(self, call: Callable[..., Called], mine: Path) -> None:
        write(mine, claim(), claim())
        assert "claim T1 stands twice" in call("claims", "T1")[2]

    def test_an_unknown_id_names_the_nearest(self, call: Callable[..., Called]) -> None:
        code, _, err = call("claims", "F55")
        assert code == 2 and "unknown claim 'F55'" in err and "'F5'" in err

    def test_a_study_names_its_device(self, call: Callable[..., Called], mine: Path) -> None:
        open_device = {"scale": {"models": ["full"], "lengths": "512..2048"}}
        write(mine, claim(parts=[{"quantity": "exponent", "suite": "mine", "model": "full", "expect": FREE}]))
        (mine / "mine.yaml").write_text(yaml.safe_dump(open_device))
        code, _, err = call("claims", "T1")
        assert code == 2 and "leaves the device of its study open" in err


def test_measures_are_found_without_being_imported() -> None:
    known = questions.known()
    assert known["weights.least_weight"] == {"model", "causal"} and len(known) >= 20
    assert not any(name.rpartition(".")[2].startswith("_") for name in known)


# quantities of studies


SCALE = {
    "scale": {
        "models": ["full", "full[impl=math]", "local", "linear"],
        "lengths": "512..4096",
        "device": "cpu",
    }
}


@pytest.fixture
def study(mine: Path, stub: Stub, tmp_path: Path) -> Any:  # noqa: F811
    """A study of stand-in points, as the command measures it."""
    from lrbench import catalog, scalestudy

    write(mine, suite=SCALE)
    (measured,) = scalestudy.run_each(catalog.suite("mine").scale, scalestudy.Request(tmp_path, tmp_path / "cache"))
    return measured


def part(kind: type, **fields: Any) -> Any:
    return kind(quantity=kind.model_fields["quantity"].annotation.__args__[0], suite="mine", expect=FREE, **fields)


class TestStudies:
    def test_an_exponent_is_that_of_the_study(self, study: Any) -> None:
        found = scaling.measured(part(Exponent, model="full[impl=math]", of="memory"), study)
        fit = study.record.models["full[impl=math]"].memory
        assert (found.value, found.low, found.high) == (fit.exponent, fit.ci_low, fit.ci_high)

    def test_ratios_at_one_length_at_the_longest_and_the_worst(self, study: Any) -> None:
        def ratio(at: Any, **bound: float) -> Measured:
            asked = part(Ratio, model="full[impl=math]", against="linear", at=at)
            return scaling.measured(asked.model_copy(update={"expect": Expected(**bound)}), study)

        times = {(p.model, p.settings.get("impl"), p.length): p.time_ms.median for p in study.points if not p.control}
        by_hand = {n: times["full", "math", n] / times["linear", None, n] for n in (512, 1024, 2048, 4096)}
        assert ratio(1024, most=1).value == pytest.approx(by_hand[1024], rel=0.02)
        assert ratio("longest", most=1).value == pytest.approx(by_hand[4096], rel=0.02)
        assert ratio("every", most=1).value == pytest.approx(max(by_hand.values()), rel=0.02)
        assert ratio("every", least=1).value == pytest.approx(min(by_hand.values()), rel=0.02)
        with pytest.raises(Unknown, match="not measured at 8192"):
            ratio(8192, most=1)

    def test_the_longest_is_the_longest_with_an_interval(self, study: Any) -> None:
        def once(point: Any) -> Any:
            if point.length < 4096 or point.control:
                return point
            return point.model_copy(update={"time_ms": point.time_ms.model_copy(update={"rounds": [[1.0]]})})

        cut = replace(study, points=[once(point) for point in study.points])
        asked = part(Ratio, model="full[impl=math]", against="linear")
        assert scaling.measured(asked, study).detail == "at length 4096"
        assert scaling.measured(asked, cut).detail == "at length 2048"

    def test_growth_is_the_difference_of_exponents(self, study: Any) -> None:
        asked = part(Growth, model="full[impl=math]", against="linear", of="memory")
        own, other = (study.record.models[name].memory.loglog.exponent for name in ("full[impl=math]", "linear"))
        assert scaling.measured(asked, study).value == pytest.approx(own - other, abs=1e-6)

    def test_the_longest_length_that_fitted(self, study: Any) -> None:
        asked = part(Longest, model="linear", against="full")
        assert scaling.measured(asked, study) == exact(1.0, "4096 against 4096 tokens")


def test_the_command_reads_a_study(call: Callable[..., Called], mine: Path, stub: Stub) -> None:  # noqa: F811
    asked = {"quantity": "exponent", "suite": "mine", "model": "linear", "of": "memory", "expect": {"least": 0.5}}
    write(mine, claim(parts=[asked]), suite=SCALE)
    code, out, err = call("claims", "T1", "--json", "--quiet")
    assert code == 0, err
    (found,) = told(out)["parts"]
    assert found["evidence"][0].startswith("train-layer-") and found["measured"]["n"] >= 3
    asked_before = len(stub.asked)
    assert call("claims", "T1", "--json", "--no-run")[0] == 0 and len(stub.asked) == asked_before


# two folders


class TestCompared:
    @pytest.mark.parametrize(
        ("old", "new", "verdict"),
        [
            ((0.9, 1.1, "reproduced"), (1.0, 1.2, "reproduced"), "no difference"),
            ((0.9, 1.1, "reproduced"), (1.9, 2.1, "contradicted"), "worse"),
            ((1.9, 2.1, "contradicted"), (0.9, 1.1, "reproduced"), "better"),
            ((0.9, 1.3, "reproduced"), (1.25, 1.4, "contradicted"), "undecided"),
            ((0.9, 1.1, "reproduced"), (0.5, 1.5, "inconclusive"), "no difference"),
        ],
    )
    def test_what_no_longer_holds_is_a_regression(
        self, old: tuple[float, float, Verdict], new: tuple[float, float, Verdict], verdict: str
    ) -> None:
        from lrbench.claims.compared import compare_claims

        (line,) = compare_claims([claimed(*old)], [claimed(*new)])
        assert line.verdict == verdict

    def test_parts_of_one_label_are_all_compared(self) -> None:
        from lrbench.claims.compared import compare_claims

        def both(second: Verdict) -> Any:
            one, other = claimed(0.9, 1.1, "reproduced"), claimed(1.9, 2.1, second)
            again = other.parts[0].model_copy(update={"asked": {"model": "full"}})
            return one.model_copy(update={"parts": [*one.parts, again]})

        lines = list(compare_claims([both("reproduced")], [both("reproduced")]))
        assert [line.old for line in lines] == [1.0, 2.0]

    def test_what_one_side_alone_has_is_told(self) -> None:
        from lrbench.claims.compared import compare_claims

        (line,) = compare_claims([claimed(0.9, 1.1, "reproduced")], [])
        assert line.verdict == "not comparable" and line.reason == "only in the old results"

    def test_the_command_fails_on_a_claim_that_no_longer_holds(
        self, call: Callable[..., Called], tmp_path: Path
    ) -> None:
        from lrbench.claims import records

        records.write(claimed(0.9, 1.1, "reproduced"), tmp_path / "old")
        records.write(claimed(1.9, 2.1, "contradicted"), tmp_path / "new")
        code, out, _ = call("compare", tmp_path / "old", tmp_path / "new", "--fail-on", "regression")
        assert code == 1 and "worse" in out and "T1" in out
        assert call("compare", tmp_path / "old", tmp_path / "old", "--fail-on", "regression")[0] == 0


def claimed(low: float, high: float, verdict: Verdict) -> Any:
    from lrbench.claims.records import ClaimRecord, PartRecord

    measured = Measured(value=(low + high) / 2, low=low, high=high, n=3)
    told = {"label": "time", "quantity": "exponent", "asked": {}, "expected": "1"}
    return ClaimRecord(
        **{key: value for key, value in claim().items() if key not in ("parts", "full")},
        paper={"title": "A toy", "reference": "none"},
        condition="",
        required=True,
        verdict=verdict,
        parts=[PartRecord(**told, measured=measured, verdict=verdict)],
        full=FULL,
        machine="paper",
        finished_at="2026-01-01T00:00:00+00:00",
        lrbench_version="0",
    )
