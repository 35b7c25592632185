"""`lrbench scale` as a user meets it: requests, records, tables, and what becomes of failures."""

import json
import math
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import Called
from filelock import FileLock

from lrbench import records, scaleplan, scalerecords
from lrbench.cli.scalelive import spark
from lrbench.errors import SpecError
from lrbench.points import Flops, MemoryBytes, PointSpec, ScalePoint, TimeMs
from lrbench.scalefits import by_model
from lrbench.specs import ScaleGrid, Suite, parse

MIB = 2**20


# a study without a clock: times and bytes by formula, with the noise of a fixed seed


def cost(spec: PointSpec) -> tuple[float, float]:
    """Milliseconds and bytes: full attention n^2 in time, its textbook form in memory too, all else linear."""
    n = spec.length
    form = spec.attention.settings.get("impl", "fused") if spec.attention.name == "full" else "linear"
    kept = 24 * 4 * spec.batch * n * spec.width
    times = {"fused": 2e-5 * n**2, "math": 6e-5 * n**2, "linear": 0.06 * n}
    return times[form] * spec.batch, kept + (96 * n**2 if form == "math" else 0)


def measured(spec: PointSpec, control: bool = False, drift: float = 1.0) -> ScalePoint:
    ms, size = cost(spec)
    rng = np.random.default_rng(zlib.crc32(f"{spec.attention.label} {spec.length} {control}".encode()))
    ms *= drift if spec.attention.name == "local" else 1.0
    rounds = (ms * np.exp(0.02 * rng.standard_normal((4, 5)))).tolist()
    median = float(np.median(rounds))
    return blank(
        spec,
        "ok",
        control=control,
        time_ms=TimeMs(
            median=median,
            ci_low=median * 0.98,
            ci_high=median * 1.02,
            p10=median,
            p90=median,
            minimum=median,
            first=median,
            repeats=60,
            rounds=rounds,
        ),
        memory_bytes=MemoryBytes(
            extra=int(size),
            total=int(size + 4 * MIB),
            resident=int(size),
            saved=None,
            reserved=None,
            predicted=int(size),
            agree=True,
            method="a formula",
        ),
        flops=Flops(model=1, executed=1),
    )


def blank(spec: PointSpec, status: str, **fields: Any) -> ScalePoint:
    given = spec.model_dump(include={"length", "batch", "width", "heads", "causal", "mode", "level", "dtype", "seed"})
    return ScalePoint.model_validate(
        {
            "schema": "lrbench.scale/1",
            "model": spec.attention.name,
            "settings": spec.attention.settings,
            "device": spec.device,
            "status": status,
            "spec": spec,
            **given,
            **fields,
        }
    )


class Stub:
    """Stands for `lrbench.study.run_study`: writes and returns what it is told, with what is there already kept."""

    def __init__(self) -> None:
        self.asked: list[PointSpec] = []
        self.options: Any = None
        self.instead: Callable[[PointSpec], ScalePoint | None] = lambda spec: None
        self.stop_after: int | None = None
        self.drift = 1.0

    def __call__(self, points: Sequence[PointSpec], options: Any, listener: Any = None) -> Any:
        from lrbench.study import Noise, Silent, Study

        listener, self.options = listener or Silent(), options
        file = options.folder / "points.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not options.resume:
            file.unlink(missing_ok=True)
        there = {point.spec.model_dump_json(): point for point in scalerecords.read_points(file)}
        todo = [spec for spec in points if spec.model_dump_json() not in there]
        listener.plan(todo, list(there.values()))
        for number, spec in enumerate(sorted(todo, key=lambda spec: spec.length)):
            if number == self.stop_after:
                raise KeyboardInterrupt
            self.asked.append(spec)
            listener.at(spec, "memory")
            listener.tick(number, options.budget_s)
            point = self.instead(spec) or measured(spec, drift=self.drift)
            with file.open("a") as lines:
                lines.write(records.dumps(point.model_dump(mode="json", by_alias=True)) + "\n")
            there[spec.model_dump_json()] = point
            listener.done(point)
        return Study(
            points=[*(there[spec.model_dump_json()] for spec in points), measured(points[0], control=True)],
            reference=points[0].attention.label,
            noise=Noise(points[0].attention.label, {512: [0.01, -0.02, 0.0]}, 0.03),
            peak_flops={"start": 1.5e11, "end": 1.4e11},
            pace_flops={},
            environment={"cpu_model": "paper", "torch": "2", "caches": {"L2": "8M", "L3": "128M"}},
            seconds={"total": 10.0, "measured": 8.0, "imports": 1.0, "overhead": 1.0},
            warnings=["this is a stub"],
        )


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub()
    monkeypatch.setattr("lrbench.study.run_study", stub)
    return stub


SIX = "full,full[impl=math],local,linear"
GRID_ONLY = str(Path(__file__).parent / "toy" / "grid.yaml")


def study(call: Callable[..., Called], *more: object, code: int = 0) -> dict[str, Any]:
    left, out, err = call("scale", "--models", SIX, "--lengths", "512..16384", "--device", "cpu", *more, "--json")
    assert left == code, err
    return json.loads(out)["studies"][0]


# what is refused


@pytest.mark.parametrize(
    ("arguments", "code", "error", "way_out"),
    [
        (["--lengths", "0"], 2, "--lengths 0", "512..16384"),
        (["--lengths", "16384..512"], 2, "backwards", "write 512..16384"),
        (["--lengths", "512.."], 2, "no end", "512..16384"),
        (["--lengths", "long"], 2, "not a length", "512..16384"),
        (["--model", "perfomer"], 2, "unknown model 'perfomer'", "did you mean 'performer'?"),
        (["--model", "full[impl=flash]"], 2, "impl", "math"),
        (["--model", "local[windw=3]"], 2, "windw", "'window'"),
        (["--model", "./no/such.py:Mine"], 2, "no such file", "path"),
        (["--model", ","], 2, "--model", "full,performer"),
        (["--mode", "backward"], 2, "--mode backward", "forward"),
        (["--level", "block"], 2, "--level block", "layer"),
        (["--dtype", "fp8"], 2, "dtype", "'fp32'"),
        (["--device", "gpu"], 2, "--device gpu", "cuda"),
        (["--heads", "7"], 2, "--heads 7", "divide"),
        (["--batch", "2", "--tokens", "4096"], 2, "exclude", "--tokens"),
        (["--lengths", "512,1000", "--tokens", "4096"], 2, "length 1000", "64000"),
        (["--memory-limit", "much"], 2, "--memory-limit much", "8GB"),
        (["--memory-limit", "0GB"], 2, "--memory-limit 0GB", "8GB"),
        (["--time-limit", "1 week"], 2, "--time-limit 1 week", "60s"),
        (["--precision", "120%"], 2, "--precision 120%", "5%"),
        (["--compare", "no/where"], 2, "--compare no/where", "results folder"),
        (["--suite", GRID_ONLY], 2, "no scale section", "lrbench run"),
        (["--device", "cuda"], 3, "--device cuda", "--device auto"),
        (["--dtype", "fp16", "--device", "cpu"], 3, "fp16", "bf16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_request_is_two_lines_and_no_work(
    call: Callable[..., Called], stub: Stub, tmp_path: Path, arguments: list[str], code: int, error: str, way_out: str
) -> None:
    import torch

    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    left, out, err = call("scale", *arguments)
    lines = err.splitlines()
    assert left == code and out == "", err
    assert lines[-2].startswith("error: ") and error in lines[-2], err
    assert way_out in lines[-1], err
    assert not stub.asked and not list(tmp_path.rglob("points.jsonl"))


def test_a_suite_without_a_grid_is_none_for_run(call: Callable[..., Called], tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("scale: {models: [full], lengths: 512}")
    code, _, err = call("run", "--suite", tmp_path / "s.yaml")
    assert code == 2 and "lrbench scale --suite" in err


# what is asked for


def test_flags_stand_over_the_suite(call: Callable[..., Called], tmp_path: Path) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "scale: {models: [full, 'local[window=64]'], lengths: '512..2048', modes: [forward, train], tokens: 4096,"
        " memory_limit: 8GB, time_limit: 30s, precision: 10%}"
    )
    code, out, err = call("scale", "--suite", suite, "--batch", "2", "--dtype", "bfloat16", "--dry-run", "--json")
    assert code == 0, err
    specs = [PointSpec.model_validate(row["spec"]) for row in json.loads(out)["points"]]
    assert len(specs) == 2 * 2 * 3 and {spec.dtype for spec in specs} == {"bf16"}
    assert {spec.batch for spec in specs} == {2} and {spec.mode for spec in specs} == {"forward", "train"}
    assert {spec.attention.label for spec in specs} == {"full", "local[window=64]"}


def test_tokens_keep_batch_times_length(call: Callable[..., Called], tmp_path: Path) -> None:
    code, out, _ = call("scale", "-m", "full", "--lengths", "512..2048", "--tokens", "4096", "--dry-run", "--json")
    specs = [row["spec"] for row in json.loads(out)["points"]]
    assert [(spec["length"], spec["batch"]) for spec in specs] == [(512, 8), (1024, 4), (2048, 2)]
    assert not (tmp_path / "results").exists()


def test_all_is_every_backend_and_both_full_attentions_first() -> None:
    models = scaleplan.expanded(["all", "local"])
    assert models[:2] == ["full", "full[impl=math]"] and models.count("local") == 1
    assert {"performer", "linformer", "longformer", "linear"} <= set(models)


def test_a_suite_knows_amounts_with_units_and_lengths_as_lists() -> None:
    suite = parse(
        Suite,
        {"scale": {"models": ["full"], "lengths": [512, "1024..4096"], "memory_limit": "1GiB", "budget": "2min"}},
        "here",
    )
    (study,) = suite.scale
    assert study.lengths == [512, 1024, 2048, 4096]
    assert (study.memory_limit, study.budget, study.precision) == (2**30, 120.0, 0.05)
    with pytest.raises(SpecError):
        parse(Suite, {"scale": {"models": ["full"], "lengths": "0"}}, "here")


def test_a_study_is_named_by_all_that_was_asked_for(tmp_path: Path) -> None:
    def id_of(**words: Any) -> str:
        grid = ScaleGrid.model_validate({"models": ["full"], "lengths": "512..1024", "device": "cpu", **words})
        return scaleplan.studies(grid, tmp_path)[0].study_id

    assert id_of() == id_of() == id_of(lengths=[1024, 512])
    others = [id_of(), id_of(models=["local"]), id_of(lengths=[512]), id_of(dtype="bf16"), id_of(memory_limit="1GB")]
    assert len(set(others)) == len(others)


def test_two_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("class Mine: ...")
    grid = ScaleGrid.model_validate(
        {"models": [f"{tmp_path}/a.py:Mine", f"{tmp_path}/b.py:Mine"], "lengths": [512], "device": "cpu"}
    )
    points = [measured(spec) for spec in scaleplan.studies(grid, tmp_path)[0].points]
    assert list(by_model(points)) == [f"{tmp_path}/a.py:Mine", f"{tmp_path}/b.py:Mine"]


# what is written


def test_the_record_holds_all_fits(call: Callable[..., Called], stub: Stub, tmp_path: Path) -> None:
    told = study(call)
    (folder,) = (tmp_path / "results" / "scale").glob("train-*")
    record = json.loads((folder / "record.json").read_text())
    assert record == told["record"] and record["schema"] == "lrbench.study/1"
    assert json.loads((folder / "environment.json").read_text())["cpu_model"] == "paper"
    models = record["models"]
    assert list(models) == ["full", "full[impl=math]", "local", "linear"]
    for name, in_time, in_memory in (("full", 2, 1), ("full[impl=math]", 2, 2), ("local", 1, 1)):
        time, memory = models[name]["time"], models[name]["memory"]
        assert time["ci_low"] < in_time < time["ci_high"] and time["exponent"] == pytest.approx(in_time, abs=0.05)
        assert memory["tail"]["exponent"] == pytest.approx(in_memory, abs=0.15)
        assert {"loglog", "offset", "headline", "local", "consistent_with"} <= set(time)
        assert len(time["local"]) == 5 and time["lengths"] == record["lengths"]
    assert "n^2" in models["full"]["time"]["consistent_with"] and "n" in models["local"]["time"]["consistent_with"]
    crossing = {one["against"]: one for one in models["local"]["crossover"]}
    assert crossing["full"]["length"] == pytest.approx(3000, rel=0.1)
    assert crossing["full"]["ci_low"] < crossing["full"]["length"] < crossing["full"]["ci_high"]
    assert crossing["full[impl=math]"]["length"] == pytest.approx(1000, rel=0.1)
    left = {name: {one["what"]: one["at"] for one in models[name]["outgrown"]} for name in ("full", "full[impl=math]")}
    # 48 KiB a token, and 96 bytes a pair of tokens
    assert left == {"full": {"L2": 512, "L3": 4096}, "full[impl=math]": {"L2": 512, "L3": 1024}}
    assert record["noise"]["floor"] == 0.03 and models["local"]["longest_fitted"] == 16384
    (remark,) = models["full"]["remarks"]
    assert "near n^2 in time" in remark and "near n in memory" in remark
    assert record["points"] == {"ok": 24} and len(told["points"]) == 25


def test_tables_fit_eighty_columns_and_say_what_matters(
    call: Callable[..., Called], stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call("scale", "--models", SIX, "--lengths", "512..16384", "--device", "cpu")
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    for words in (
        "exponent of",
        "Noise floor 3.0%",
        "cheaper from",
        "near n^2 in time",
        "16384",
        "longest length",
        "exceeds L2",
    ):
        assert words in " ".join(out.split()), words
    assert "warning: this is a stub" in out
    assert err.count("ms ±2%") == 24 and "[24/24]" in err and "results: " in err


def test_a_finished_study_is_not_measured_again(call: Callable[..., Called], stub: Stub) -> None:
    first = study(call)
    stub.asked.clear()
    assert study(call)["record"] == first["record"] and not stub.asked
    study(call, "--no-resume")
    assert len(stub.asked) == 24


def test_a_study_that_another_process_measures_is_left_to_it(
    call: Callable[..., Called], stub: Stub, tmp_path: Path
) -> None:
    study(call)
    results = tmp_path / "results"
    assert {path.name for path in (results / "scale").iterdir()} == {path.parent.name for path in results.rglob("rec*")}
    assert not [path for path in results.rglob(".*")]
    (lock,) = (tmp_path / "cache" / "locks").iterdir()
    with FileLock(lock):
        code, out, err = call("scale", "--models", SIX, "--lengths", "512..16384", "--device", "cpu")
    assert code == 2 and out == "" and "another process" in err and "--out" in err


def test_a_cache_that_cannot_be_written_to_is_named(
    call: Callable[..., Called], stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LRBENCH_CACHE", str(tmp_path / "file" / "cache"))
    code, _, err = call("scale", "-m", "full", "--lengths", "512", "--device", "cpu")
    assert code == 2 and "Not a directory" in err and "LRBENCH_CACHE" in err and not stub.asked


def test_an_interrupted_study_keeps_its_points_and_goes_on(
    call: Callable[..., Called], stub: Stub, tmp_path: Path
) -> None:
    stub.stop_after = 5
    code, out, err = call("scale", "-m", SIX, "--lengths", "512..4096", "--device", "cpu", "--json")
    assert code == 130 and out == "" and "interrupted" in err and "Traceback" not in err
    assert not list(tmp_path.rglob("record.json"))
    (file,) = tmp_path.rglob("points.jsonl")
    with file.open("a") as lines:
        lines.write('{"schema": "lrbench.sc')  # a kill in the middle of a line
    assert len(scalerecords.read_points(file)) == 5
    file.write_text(file.read_text().rpartition("\n")[0] + "\n")
    stub.stop_after = None
    code, out, err = call("scale", "-m", SIX, "--lengths", "512..4096", "--device", "cpu", "--json")
    assert code == 0 and len(stub.asked) == 16 and len(json.loads(out)["studies"][0]["points"]) == 17


# what fails


def test_limits_are_results(call: Callable[..., Called], stub: Stub) -> None:
    def limited(spec: PointSpec) -> ScalePoint | None:
        if spec.attention.settings.get("impl") != "math" or spec.length < 8192:
            return None
        if spec.length == 8192:
            return blank(spec, "oom", reason="predicted 6.2 GiB, limit 1.0 GiB", predicted=True)
        return blank(spec, "skipped", reason="a shorter one ran out")

    stub.instead = limited
    told = study(call, "--memory-limit", "1GB")
    model = told["record"]["models"]["full[impl=math]"]
    assert stub.options.memory_limit_bytes == 10**9
    assert model["statuses"]["8192"] == "oom" and model["statuses"]["16384"] == "skipped"
    assert model["longest_fitted"] == 4096 and model["time"]["lengths"] == [512, 1024, 2048, 4096]
    assert told["record"]["points"] == {"ok": 22, "oom": 1, "skipped": 1}
    assert 10**9 in [within["budget_bytes"] for within in model["longest_within"]]
    assert all(point["time_ms"] is None for point in told["points"] if point["status"] != "ok")


def test_what_ran_out_is_a_word_in_the_table(call: Callable[..., Called], stub: Stub) -> None:
    stub.instead = lambda spec: (
        blank(spec, "oom", reason="killed") if spec.attention.name == "local" and spec.length > 512 else None
    )
    code, out, err = call("scale", "-m", "full,local", "--lengths", "512,1024", "--device", "cpu")
    assert code == 0 and out.count(" oom") >= 2 and "local, oom: killed" in out and "local 1024: oom: killed" in err


def test_what_broke_is_a_failure_and_the_rest_is_measured(call: Callable[..., Called], stub: Stub) -> None:
    stub.instead = lambda spec: (
        blank(spec, "error", reason="ValueError: what a pity") if "local" in spec.attention.name else None
    )
    told = study(call, code=1)
    assert told["record"]["points"] == {"ok": 18, "error": 6}
    assert told["record"]["models"]["local"]["time"] is None
    assert told["record"]["models"]["local"]["reasons"]["512"] == "ValueError: what a pity"
    stub.asked.clear()
    stub.instead = lambda spec: None
    study(call, "--no-resume")
    assert len(stub.asked) == 24


def test_a_refusal_is_a_row_among_others_and_an_error_alone(
    call: Callable[..., Called], stub: Stub, tmp_path: Path
) -> None:
    stub.instead = lambda spec: (
        blank(spec, "unsupported", reason="linformer cannot be causal") if spec.attention.name == "linformer" else None
    )
    words = ["--lengths", "512", "--causal", "--device", "cpu"]
    code, out, _ = call("scale", "--model", "linformer,full", *words, "--json")
    points = [point for point in json.loads(out)["studies"][0]["points"] if not point["control"]]
    statuses = {point["model"]: point["status"] for point in points}
    assert code == 0 and statuses == {"linformer": "unsupported", "full": "ok"}
    stub.asked.clear()
    code, out, err = call("scale", "--model", "linformer", *words, "--out", tmp_path / "alone")
    assert code == 2 and out == "" and "error: linformer cannot be causal" in err and not stub.asked


def test_what_a_file_refuses_alone_is_an_error_too(call: Callable[..., Called], stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from lrbench.backends.base import Mixer\n\n\nclass Mine(Mixer): ...")
    stub.instead = lambda spec: blank(spec, "unsupported", reason="Mine takes no length of 512")
    code, out, err = call("scale", "--model", tmp_path / "mine.py", "--lengths", "512", "--device", "cpu")
    assert code == 2 and out == "" and "error: Mine takes no length of 512" in err
    assert not list(tmp_path.rglob("record.json"))


def test_a_study_of_one_short_point_is_still_a_table(call: Callable[..., Called], stub: Stub) -> None:
    code, out, err = call("scale", "-m", "local", "--lengths", "512", "--device", "cpu")
    assert code == 0, err
    assert "local" in out and "nan" not in out


# comparisons


def test_drift_is_found_in_ratios(call: Callable[..., Called], stub: Stub, tmp_path: Path) -> None:
    study(call, "--out", tmp_path / "old")
    same = study(call, "--compare", tmp_path / "old")["record"]["drift"]
    assert same["reference"] == "full" and not any(change["beyond_noise"] for change in same["changes"])
    stub.drift = 1.4
    told = study(call, "--no-resume", "--compare", tmp_path / "old")["record"]["drift"]
    moved = [change for change in told["changes"] if change["beyond_noise"]]
    assert {change["model"] for change in moved} == {"local"} and len(moved) == 6
    assert all(change["ci_low"] < 1.4 < change["ci_high"] for change in moved)
    code, out, _ = call("scale", "-m", SIX, "--lengths", "512..16384", "--device", "cpu", "--compare", tmp_path / "old")
    assert code == 0 and "6 changes beyond noise" in " ".join(out.split())


def test_only_like_is_compared_with_like(call: Callable[..., Called], stub: Stub, tmp_path: Path) -> None:
    study(call, "--out", tmp_path / "old")
    code, _, err = call("scale", "-m", SIX, "--dtype", "bf16", "--device", "cpu", "--compare", tmp_path / "old")
    assert code == 2 and "dtype is fp32 there and bf16 here" in err


# records among others


def test_a_reader_of_runs_passes_studies_by_in_silence(
    call: Callable[..., Called], stub: Stub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import lrbench

    study(call)
    assert records.load([tmp_path / "results"]) == [] and lrbench.load_results(tmp_path / "results").empty
    assert len(scalerecords.load([tmp_path / "results"])) == 1
    assert not caplog.records


def test_newer_and_damaged_records_are_named(
    call: Callable[..., Called], stub: Stub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study(call)
    (path,) = tmp_path.rglob("record.json")
    newer = json.loads(path.read_text()) | {"schema": "lrbench.study/2"}
    path.write_text(json.dumps(newer))
    assert scalerecords.read(path) is None and "lrbench.study/2" in caplog.text and str(path) in caplog.text
    path.write_text("{")
    assert scalerecords.read(path) is None and "not valid JSON" in caplog.text
    points = path.with_name("points.jsonl")
    lines = points.read_text().splitlines(keepends=True)
    points.write_text(lines[0] + "rubbish\n" + lines[1] + lines[2][:40])
    caplog.clear()
    assert len(scalerecords.read_points(points)) == 2
    assert [f"{points}:2" in r.getMessage() or "(torn)" in r.getMessage() for r in caplog.records] == [True, True]


# with the clock

BREAKS = """
from lrbench.backends.base import HeadMixer


class Breaks(HeadMixer):
    can_be_causal = True

    def attend(self, q, k, v, mask):
        raise ValueError("what a pity")
"""


def real(*arguments: object) -> list[str]:
    small = ["--width", "16", "--heads", "2", "--threads", "1", "--device", "cpu", "--budget", "1s"]
    return [sys.executable, "-m", "lrbench", "scale", *small, *map(str, arguments)]


def test_a_real_study_measures_what_it_can_and_records_what_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    models = f"full,linformer,{tmp_path}/breaks.py:Breaks"
    done = subprocess.run(
        real("-m", models, "--lengths", "32,64", "--causal", "--json"), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stderr
    (told,) = json.loads(done.stdout)["studies"]
    points = {(point["model"], point["length"]): point for point in told["points"] if not point["control"]}
    assert {key: point["status"] for key, point in points.items()} == {
        ("full", 32): "ok",
        ("full", 64): "ok",
        ("linformer", 32): "unsupported",
        ("linformer", 64): "unsupported",
        ("Breaks", 32): "error",
        ("Breaks", 64): "error",
    }
    assert "cannot be causal" in points["linformer", 32]["reason"]
    assert "what a pity" in points["Breaks", 32]["reason"]
    full = told["record"]["models"]["full"]
    assert full["memory"]["exponent"] > 0.5 and points["full", 64]["time_ms"]["median"] > 0
    assert told["record"]["seconds"]["total"] > 0


def test_a_real_study_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    words = real("-m", "local", "--lengths", "32..128", "--json")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(1200):
        if any(path.read_text().count("\n") >= 1 for path in tmp_path.rglob("points.jsonl")):
            break
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not psutil.wait_procs(children, timeout=20)[1] and not list(tmp_path.rglob("record.json"))
    (file,) = tmp_path.rglob("points.jsonl")
    kept = scalerecords.read_points(file)
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["studies"]
    points = [ScalePoint.model_validate(point) for point in told["points"]]
    assert [point for point in points if point in kept] and told["record"]["points"] == {"ok": 3}
    assert "points are there" in done.stderr


# Python, and what must be quick


def test_python_gives_the_study_as_a_frame(stub: Stub, tmp_path: Path) -> None:
    import lrbench

    frame = lrbench.scale(models=["full", "local"], lengths=[512, 1024], device="cpu")
    real = frame[~frame["control"]]
    assert real["length"].tolist() == [512, 1024, 512, 1024]
    assert real["time_ms.median"].gt(0).all() and real["memory_bytes.extra"].gt(0).all()
    assert set(frame.attrs["record"]["models"]) == {"full", "local"}


def test_the_dry_run_and_the_help_import_no_torch() -> None:
    for words in (["scale", "--help"], ["scale", "--lengths", "512..1024", "--dry-run"]):
        code = f"""
import sys
sys.argv = ["lrbench", *{words!r}]
from lrbench.cli import main
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
assert not {{"torch", "pandas"}} & set(sys.modules)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_help_fits_eighty_columns_and_has_an_example(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("scale", "--help")
    assert code == 0 and "Example: lrbench" in out and max(map(len, out.splitlines())) <= 80


def test_a_spark_has_a_block_for_each_length() -> None:
    spec = PointSpec.model_validate({"attention": {"name": "local"}, "length": 512})
    point = measured(spec)
    curve = [(point, 1.0), (point, math.e), (point, math.e**2), (point, None), (None, None)]
    assert spark(curve, {"local": curve}) == "▁▅█×·"
