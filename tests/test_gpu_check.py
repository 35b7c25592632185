"""The check of one GPU: its deadline, what it reads from its children, and what it writes; no part is run."""

import importlib.util
import json
import math
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench"


def loaded(name: str) -> ModuleType:
    """A module of `bench`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


gpu_check, gpu_work = loaded("gpu_check"), loaded("gpu_work")
POINT = {
    "model": "full",
    "length": 65536,
    "status": "ok",
    "control": False,
    "time_ms": {"median": 1.5},
    "memory_bytes": {"extra": 2**30, "total": 2**31, "predicted": 2**30, "reserved": 2**31, "agree": None},
}


@pytest.fixture
def check(tmp_path: Path) -> Any:
    return gpu_check.Check("cuda", False, tmp_path, ends=math.inf)


def ends_with(monkeypatch: pytest.MonkeyPatch, *children: Any) -> list[tuple[str, ...]]:
    """Let commands end like this, one after the other; what was asked for."""
    asked, todo = list[tuple[str, ...]](), list(children)

    def run(command: list[str], limit_s: float) -> Any:
        asked.append(tuple(command))
        return todo.pop(0)

    monkeypatch.setattr(gpu_check, "run", run)
    return asked


def child(*found: dict[str, Any], code: int | None = 0, err: str = "") -> Any:
    return gpu_check.Child(code, "\n".join(map(json.dumps, found)), err)


# the deadline


def test_time_that_a_part_leaves_over_goes_to_the_next_and_none_goes_beyond_the_end(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ends = [100.0], list[float]()
    monkeypatch.setattr(gpu_check.time, "monotonic", lambda: now[0])

    def part(check: Any) -> Any:
        ends.append(check.ends)
        now[0] += 7.0
        return gpu_check.Outcome("passed", "")

    monkeypatch.setattr(gpu_check, "PARTS", {"a": (part, 10.0), "b": (part, 10.0), "c": (part, 99.0)})
    rows = list(gpu_check.carried_out(check, total_s=25.0))
    assert ends == [110.0, 120.0, 125.0]
    assert [seconds for _, _, seconds in rows] == [7.0, 7.0, 7.0]


def test_a_part_that_cannot_begin_in_time_is_cut_short_and_one_that_breaks_has_failed(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(gpu_check.time, "monotonic", lambda: now[0])

    def slow(check: Any) -> Any:
        now[0] += 50.0
        raise RuntimeError("it broke")

    monkeypatch.setattr(gpu_check, "PARTS", {"slow": (slow, 10.0), "late": (slow, 10.0)})
    found = {name: outcome for name, outcome, _ in gpu_check.carried_out(check)}
    assert (found["slow"].status, found["slow"].told) == ("failed", "RuntimeError: it broke")
    assert (found["late"].status, found["late"].told) == ("cut short", "not begun")


def test_all_parts_together_end_within_eight_minutes() -> None:
    assert sum(seconds for _, seconds in gpu_check.PARTS.values()) <= gpu_check.TOTAL_S
    assert gpu_check.TOTAL_S + gpu_check.GRACE_S <= 480


def test_a_child_is_interrupted_in_time_and_what_it_said_is_kept() -> None:
    code = "import time; print('{\"a\": 1}', flush=True); time.sleep(600)"
    before = time.monotonic()
    ended = gpu_check.run([sys.executable, "-c", code], 5.0)
    assert ended.code is None and gpu_check.findings(ended.out) == [{"a": 1}] and "KeyboardInterrupt" in ended.err
    assert time.monotonic() - before < 300
    assert gpu_check.run(["true"], 0.0).code is None
    assert gpu_check.run([sys.executable, "-c", "raise SystemExit(3)"], 60.0).code == 3


def test_torn_lines_are_no_findings() -> None:
    assert gpu_check.findings('{"a": 1}\nnoise\n{"b": 2}\n{"c": ') == [{"a": 1}, {"b": 2}]


# parts


def compared(model: str = "full", **errors: float) -> dict[str, Any]:
    found = {"output": 0.001, "input": 0.001, "weights": 0.001} | errors
    return {"model": model, "causal": False, "tokens": 65, "dtype": "bf16", "bound": 0.05, **found}


@pytest.mark.parametrize(
    ("found", "code", "status"),
    [
        ([compared()], 0, "passed"),
        ([compared(), compared("flash", weights=0.06)], 0, "failed"),
        ([compared(weights=math.nan)], 0, "failed"),
        ([compared(input=math.inf)], None, "failed"),
        ([{"model": "full", "dtype": "fp16", "bound": 0.01, "error": "RuntimeError: no kernel"}], 0, "failed"),
        ([compared()], None, "cut short"),
        ([compared()], 1, "failed"),
        ([], 0, "failed"),
    ],
)
def test_precision_passes_only_where_all_was_compared_and_is_within_bounds(
    check: Any, monkeypatch: pytest.MonkeyPatch, found: list[dict[str, Any]], code: int | None, status: str
) -> None:
    ends_with(monkeypatch, child(*found, code=code))
    assert gpu_check.precision(check).status == status


@pytest.mark.parametrize(
    ("memory", "status"),
    [
        ({}, "passed"),
        ({"predicted": 2**29}, "failed"),
        ({"predicted": 2**31}, "failed"),
        ({"predicted": None}, "passed"),
        ({"reserved": 2**29}, "failed"),
        ({"agree": False}, "failed"),
        ({"extra": 2**20}, "skipped"),
        ({"extra": None}, "skipped"),
    ],
)
def test_memory_is_judged_by_the_peak_and_what_was_reserved(check: Any, memory: dict[str, Any], status: str) -> None:
    points = [POINT | {"memory_bytes": POINT["memory_bytes"] | memory}]  # type: ignore[operator]
    check.found["scaling"] = gpu_check.Outcome("passed", "", {"points": points})
    assert gpu_check.allocator(check).status == status


def test_memory_of_a_study_that_was_cut_short_is_not_all(check: Any) -> None:
    check.found["scaling"] = gpu_check.Outcome("cut short", "", {"points": [POINT]})
    assert gpu_check.allocator(check).status == "cut short"
    check.found["scaling"] = gpu_check.Outcome("failed", "")
    assert gpu_check.allocator(check).status == "skipped"


def test_scaling_reads_the_study_and_points_of_an_unfinished_one(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    study = {"record": {"points": {"ok": 1, "oom": 1}, "models": []}, "points": [POINT]}
    asked = ends_with(monkeypatch, child({"studies": [study]}), child(code=None), child(code=1, err="a\nbroken"))
    found = gpu_check.scaling(check)
    assert (found.status, found.told) == ("passed", "points: 1 ok, 1 oom") and "bf16" in asked[0]
    (check.out / "scale" / "x").mkdir(parents=True)
    (check.out / "scale" / "x" / "points.jsonl").write_text(json.dumps(POINT) + "\n{torn")
    found = gpu_check.scaling(check)
    assert (found.status, found.figures) == ("cut short", {"points": [POINT]})
    assert gpu_check.scaling(check).told == "exit 1: broken"


def test_speed_keeps_the_rates_it_has(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = {"model": "full", "compiled": False, "first_s": 1.0, "steps_per_s": 9.0, "steps": 30}
    asked = ends_with(monkeypatch, *[child(rate)] * 6, child(code=None))
    found = gpu_check.speed(check)
    assert (found.status, found.told, len(found.figures)) == ("cut short", "6 of 12 rates", 6)
    assert ["--compile" in command for command in asked] == [False] * 6 + [True]
    ends_with(monkeypatch, child(code=1, err="out of memory"), *[child(rate)] * 11)
    found = gpu_check.speed(check)
    assert found.status == "failed" and "full: out of memory" in found.told


@pytest.mark.parametrize(
    ("lines", "code", "status"),
    [
        ([{"step": 1, "loss": 2.3}, {"step": 50, "split": "validation", "loss": 2.2}], None, "passed"),
        ([{"step": 1, "loss": 2.3}], None, "cut short"),
        ([{"step": 1, "loss": math.nan}, {"step": 50, "split": "validation", "loss": 2.2}], None, "failed"),
        ([{"step": 50, "split": "validation", "loss": 2.2}], 1, "failed"),
    ],
)
def test_the_first_evaluations_are_those_of_this_check(
    check: Any, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]], code: int | None, status: str
) -> None:
    ends_with(monkeypatch, child(code=code, err="broken"))
    folder = check.out / "runs" / "listops" / "performer" / "x"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert gpu_check.paper(check).status == status
    assert not (folder / "checkpoint").exists()
    check.began += 3600
    ends_with(monkeypatch, child(code=None))
    assert gpu_check.paper(check).status == "cut short"


# what is written


def test_the_outcome_of_every_part_is_written_and_a_failure_is_an_exit_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {
        "precision": gpu_check.Outcome("passed", "25 of 25", [compared()]),
        "scaling": gpu_check.Outcome("cut short", "1 points", {"points": [POINT]}),
        "allocator": gpu_check.Outcome("skipped", "nothing"),
        "speed": gpu_check.Outcome("passed", "1 of 12", [{"model": "full", "steps_per_s": 9.123456}]),
        "paper": gpu_check.Outcome("passed", "", [{"step": 50, "split": "validation", "loss": 2.2}]),
    }
    parts = {name: (lambda check, found=found: found, 10.0) for name, found in outcomes.items()}
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    assert gpu_check.main(["--device", "cuda", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [part["status"] for part in found["parts"]] == ["passed", "cut short", "skipped", "passed", "passed"]
    text = (tmp_path / "gpu-check.md").read_text()
    assert "| scaling | cut short | 0 | 1 points |" in text and "torch" in text
    assert "| full | 9.123 |" in text and "| full | 65536 | ok | 1.5 | 1024 |" in text
    assert "scaling    cut short" in capsys.readouterr().out
    parts["allocator"] = (lambda check: gpu_check.Outcome("failed", "no"), 10.0)
    assert gpu_check.main(["--device", "cuda", "--out", str(tmp_path)]) == 1


def test_a_cpu_is_taken_for_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        gpu_check.main(["--device", "cpu"])
    assert left.value.code == 2 and "--quick" in capsys.readouterr().err


# what children measure


def test_errors_are_relative_and_not_finite_is_the_worst() -> None:
    torch = gpu_work.torch
    exact = {name: torch.tensor([3.0, 4.0]) for name in ("output", "input", "weights")}
    found = {name: torch.tensor([3.0, 5.0]) for name in exact}
    assert gpu_work.errors(found, exact) == pytest.approx({"output": 0.25, "input": 0.2, "weights": 0.2})
    found["weights"] = torch.tensor([3.0, math.nan])
    assert set(gpu_work.errors(found, exact).values()) == {math.inf}


def test_a_wrong_attention_is_found_wanting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_work.backends, "shipped", lambda: ["full", "linformer"])
    gpu_work.precision("cpu", quick=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["model"], line["causal"]) for line in lines] == [
        ("full", False),
        ("full", True),
        ("linformer", False),
    ]
    assert all(gpu_check.worst(line) <= line["bound"] for line in lines)
    full = gpu_work.backends.load(gpu_work.backends.spec("full")).cls
    right, torch = full.forward, gpu_work.torch

    def wrong(self: Any, x: Any, **rest: Any) -> Any:
        return right(self, x, **rest) * (1.1 if torch.is_autocast_enabled("cpu") else 1.0)

    monkeypatch.setattr(full, "forward", wrong)
    gpu_work.precision("cpu", quick=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [gpu_check.worst(line) <= line["bound"] for line in lines] == [False, False, True]
