"""The command line as a user meets it: answers, exit codes, two-line errors, kills and reruns."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import TOY, Called

from lrbench import catalog
from lrbench.cli.spellings import accepted


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "lrbench", *map(str, arguments)]


def toy(*more: object) -> list[str]:
    return ["run", "-m", "full", "-t", str(TOY), "--preset", "tiny", "--device", "cpu", *map(str, more)]


def finished(*arguments: object) -> Called:
    done = subprocess.run(command(*arguments), capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


# what is refused


@pytest.mark.parametrize(
    ("arguments", "code", "error", "way_out"),
    [
        (["run", "-m", "perfomer", "-t", "listops"], 2, "unknown model 'perfomer'", "did you mean 'performer'?"),
        (["run", "-m", "full", "-t", "lsitops"], 2, "unknown task 'lsitops'", "did you mean 'listops'?"),
        (["run", "-m", "full", "-t", "listops", "--preset", "smal"], 2, "smal", "small"),
        (["run", "-m", "full", "-t", "listops", "--set", "train.stepz=3"], 2, "train.stepz", "'train.steps'"),
        (["run", "-m", "full", "-t", "listops", "--set", "train.steps=many"], 2, "train.steps", "many"),
        (["run", "-m", "full", "-t", "listops", "--lenght", "512"], 2, "no such option: --lenght", ""),
        (["run", "-m", "full", "-t", "listops", "--steps", "0"], 2, "--steps", ""),
        (["run", "-m", "full", "-t", "listops", "--seeds", "x"], 2, "--seeds", ""),
        (["run", "-m", "full", "-t", "listops", "--seed", "1", "--seeds", "2"], 2, "exclude", "--seeds 5"),
        (["run", "-m", "full", "-t", "listops", "--dtype", "fp8"], 2, "unknown dtype 'fp8'", "'fp32'"),
        (["run", "-m", "full", "-t", "listops", "--limit", "some"], 2, "--limit some", "fraction"),
        (["run", "-m", "full", "-t", "listops", "--limit", "0"], 2, "limit", ""),
        (["run", "-m", "full", "-t", "listops", "--data", "hub"], 2, "--data hub", "generated"),
        (["run", "-m", "full", "-t", "listops", "--data", "no/where"], 2, "--data no/where", "basic_train.tsv"),
        (["run", "-m", "full", "-t", "listops", "--device", "gpu"], 2, "--device gpu", "cuda"),
        (["run", "-m", "full", "-t", "listops", "--track", "excel"], 2, "--track excel", "tensorboard"),
        (["run", "-m", "full[impl=flash]", "-t", "listops"], 2, "unknown impl 'flash'", "fused"),
        (["run", "-m", "full", "-t", "listops", "--set", "model.heads=5"], 2, "divisible", "head_dim"),
        (["run", "-m", "full", "-t", "listops", "--compile=yes"], 2, "--compile", ""),
        (["run", "-m", "full"], 2, "--task is missing", "lrbench run"),
        (["run", "--suite", "reproduc"], 2, "unknown suite 'reproduc'", "'reproduce'"),
        (["list", "model"], 2, "unknown kind 'model'", "'models'"),
        (["data", "verify", "listop"], 2, "unknown task 'listop'", "'listops'"),
        (["rnu"], 2, "rnu", "run"),
        (["run", "-m", "full", "-t", "listops", "--device", "cuda"], 3, "--device cuda", "--device auto"),
        (["run", "-m", "full", "-t", "listops", "--dtype", "fp16", "--device", "cpu"], 3, "fp16", "bf16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_request_is_two_lines_and_no_work(
    call: Callable[..., Called], tmp_path: Path, arguments: list[str], code: int, error: str, way_out: str
) -> None:
    import torch

    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    left, out, err = call(*arguments)
    lines = err.splitlines()
    assert left == code and out == ""
    assert lines[-2].startswith("error: ") and error in lines[-2]
    assert way_out in lines[-1]
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("record.json"))


def test_debug_shows_the_traceback(call: Callable[..., Called]) -> None:
    code, _, err = call("run", "-m", "perfomer", "-t", "listops", "--debug")
    assert code == 2 and "Traceback" in err and "error: unknown model" in err


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    call: Callable[..., Called], tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "file.txt"
    file.write_text("mine")
    code, _, err = call(*toy("--out", file if kind == "a file" else file / "below"))
    assert code == 2 and f"error: --out {file}" in err
    assert file.read_text() == "mine"


def test_a_tracker_that_is_not_installed_is_named_with_what_brings_it(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lrbench.runner.find_spec", lambda name: None)
    code, _, err = call(*toy("--track", "trackio"))
    assert code == 3 and "pip install trackio" in err


# what answers at once


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["run", "-h"], ["list"], ["list", "tasks", "--json"], ["--version"]]
)
def test_quick_answers_import_no_torch_and_open_no_connection(arguments: list[str]) -> None:
    code = f"""
import socket, sys
def refuse(*_): raise AssertionError("a connection")
socket.socket.connect = refuse
sys.argv = ["lrbench", *{arguments!r}]
from lrbench.cli import main
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
heavy = {{"torch", "pandas", "datasets", "accelerate", "matplotlib", "scipy"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_importing_the_package_is_cheap_and_its_calls_are_there() -> None:
    code = "import sys, lrbench as l; assert 'torch' not in sys.modules; print(l.run, l.attention, l.load_results)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_fits_eighty_columns_and_has_an_example(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ("run", "report", "check", "cp", "list", "doctor", "data prepare", "data verify", "data show")
    for path in map(str.split, words):
        code, out, _ = call(*path, "--help")
        assert code == 0 and "Example: lrbench" in out
        assert max(map(len, out.splitlines())) <= 80


def test_lists_name_what_is_there(call: Callable[..., Called]) -> None:
    listed = json.loads(call("list", "--json")[1])
    assert {entry["name"] for entry in listed["models"]} >= {"full", "performer"}
    assert [entry["name"] for entry in listed["tasks"]] == catalog.names("tasks")
    assert [entry["name"] for entry in listed["suites"]] == catalog.names("configs")


def test_a_broken_card_is_listed_as_broken(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    monkeypatch.setenv("LRBENCH_PATH", str(tmp_path))
    code, out, _ = call("list", "tasks")
    assert code == 0 and "broken: " in out and "mine.yaml" in out and "listops" in out


def test_spellings_of_other_tools_are_ours(call: Callable[..., Called]) -> None:
    brought = ["--models", "a_b", "--output_path=x_y", "--batch_size", "3", "--num_seeds=2", "-m"]
    assert accepted(brought) == ["--model", "a_b", "--out=x_y", "--batch", "3", "--seeds=2", "-m"]
    code, out, _ = call(
        "run",
        "--models",
        "full, full",
        "--tasks",
        TOY,
        "--preset=tiny",
        "--batch_size",
        3,
        "--dtype",
        "bfloat16",
        "--dry-run",
        "--json",
    )
    (row,) = json.loads(out)
    assert code == 0 and row["spec"]["train"]["batch"] == 3 and row["spec"]["dtype"] == "bf16"


def test_a_dry_run_shows_the_grid_and_its_cost_and_does_nothing(call: Callable[..., Called], tmp_path: Path) -> None:
    code, out, _ = call("run", "-m", "full,local[window=3]", "-t", "listops", "--seeds", "2", "--dry-run")
    assert code == 0 and "4 cells" in out and "local[window=3]" in out and "PFLOP" in out
    assert not (tmp_path / "results").exists()
    (row,) = json.loads(call(*toy("--dry-run", "--json"))[1])
    assert row["train_tokens"] == 12 * 7 * 13


def test_a_report_of_nothing_says_so(call: Callable[..., Called], tmp_path: Path) -> None:
    code, out, err = call("report", tmp_path)
    assert code == 1 and out == "" and "no records" in err


def test_doctor_tells_what_was_found(call: Callable[..., Called]) -> None:
    code, out, _ = call("doctor", "--json")
    names = {check["name"]: check for check in json.loads(out)["checks"]}
    assert code == 0 and {"python", "torch"} <= set(names)
    assert any("bf16" in name for name in names)


# what runs


def test_a_grid_runs_once_and_then_not_again(tmp_path: Path) -> None:
    words = ["run", "-m", "full,local[window=2]", "-t", TOY, "--preset", "tiny", "--seeds", "2", "--workers", "2"]
    code, out, err = finished(*words, "--json")
    records = json.loads(out)
    assert code == 0, err
    assert [(r["model"]["name"], r["seed"], r["status"]) for r in records] == [
        ("full", 0, "ok"),
        ("local", 0, "ok"),
        ("full", 1, "ok"),
        ("local", 1, "ok"),
    ]
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    code, again, err = finished(*words, "--json")
    assert code == 0 and json.loads(again) == records
    assert "4 of 4 were there already" in err
    assert files == {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()
    }
    code, out, _ = finished("report")
    assert code == 0 and "local[window=2]" in out and "majority" in out
    code, out, _ = finished("list", "runs")
    assert code == 0 and out.count(" ok ") == 4


def plugin(tmp_path: Path, name: str, body: str) -> str:
    file = tmp_path / f"{name.lower()}.py"
    file.write_text(f"from lrbench.backends.base import HeadMixer\n\n\nclass {name}(HeadMixer):\n{body}\n")
    return f"{file}:{name}"


BREAKS = "    def attend(self, q, k, v, mask):\n        raise ValueError('what a pity')"
DIES = "    def attend(self, q, k, v, mask):\n        import os\n        os.kill(os.getpid(), 9)"
PRINTS = "    def attend(self, q, k, v, mask):\n        print('{rubbish')\n        return v"
REFUSES = """    def __init__(self, cfg):
        from lrbench.errors import Unsupported

        raise Unsupported("not here", "but there")"""


def test_one_failure_does_not_end_a_grid(tmp_path: Path) -> None:
    bodies = {"Breaks": BREAKS, "Dies": DIES, "Prints": PRINTS, "Refuses": REFUSES}
    models = ",".join([*(plugin(tmp_path, name, body) for name, body in bodies.items()), "full"])
    code, out, err = finished("run", "-m", models, "-t", TOY, "--preset", "tiny", "--json")
    records = {record["model"]["name"]: record for record in json.loads(out)}
    assert code == 1
    assert {name: record["status"] for name, record in records.items()} == {
        "Breaks": "error",
        "Dies": "oom",
        "Prints": "ok",
        "Refuses": "unsupported",
        "full": "ok",
    }
    assert records["Breaks"]["reason"] == "ValueError: what a pity" and "SIGKILL" in records["Dies"]["reason"]
    (trace,) = (tmp_path / "results" / "runs" / "toy" / "Breaks").glob("*/error.txt")
    assert "what a pity" in trace.read_text()
    assert "what a pity" in finished("report")[1]


def test_a_pair_that_cannot_be_is_an_error_alone_and_a_row_in_a_grid(
    tmp_path: Path, call: Callable[..., Called]
) -> None:
    refuses = plugin(tmp_path, "Refuses", REFUSES)
    code, _, err = call("run", "-m", refuses, "-t", TOY, "--preset", "tiny")
    assert code == 2 and err.splitlines()[-2:] == ["error: not here", "but there"]
    code, out, _ = call("run", "-m", refuses, "-t", TOY, "--preset", "tiny", "--seeds", "2", "--json")
    assert code == 0 and [record["status"] for record in json.loads(out)] == ["unsupported"] * 2


SLOW = """    def attend(self, q, k, v, mask):
        import os, time
        time.sleep(float(os.environ.get("SECONDS_A_PASS", 0)))
        return v"""


def started(tmp_path: Path, *arguments: str) -> tuple["subprocess.Popen[str]", Path]:
    """A run that has done some steps and has half a minute to go, and its folder."""
    slowly = {**os.environ, "SECONDS_A_PASS": "1"}
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=slowly
    )
    for _ in range(600):
        found = [path for path in tmp_path.rglob("metrics.jsonl") if path.read_text().count("\n") >= 3]
        if found:
            return process, found[0].parent
        time.sleep(0.1)
    process.kill()
    pytest.fail(f"nothing was trained: {process.communicate()}")


def uninterrupted(tmp_path: Path, words: list[str]) -> dict[str, object]:
    _, out, err = finished(*words, "--out", tmp_path / "whole", "--json")
    (record,) = json.loads(out)
    return record


def slow(tmp_path: Path) -> list[str]:
    """A run that `started` makes slow enough to be disturbed on its way."""
    model = plugin(tmp_path, "Slow", SLOW)
    return ["run", "-m", model, "-t", str(TOY), "--preset", "tiny", "--set", "model.dropout=0.1"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_place_and_ends_as_if_it_never_had_been(
    tmp_path: Path, how: signal.Signals
) -> None:
    words = slow(tmp_path)
    process, folder = started(tmp_path / "results", *words)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not (folder / "record.json").exists() and (folder / "checkpoint" / "latest.json").exists()
    code, out, err = finished(*words, "--json")
    assert code == 0, err
    (record,) = json.loads(out)
    whole = uninterrupted(tmp_path, words)
    assert record["metrics"] == whole["metrics"] and record["run_id"] == whole["run_id"]
    (other,) = (tmp_path / "whole").rglob("metrics.jsonl")
    assert (folder / "metrics.jsonl").read_text() == other.read_text()


def test_a_killed_run_leaves_no_child_and_no_half_record_and_is_finished_by_the_same_command(tmp_path: Path) -> None:
    words = slow(tmp_path)
    process, folder = started(tmp_path / "results", *words)
    process.kill()
    process.communicate(timeout=60)
    for _ in range(300):  # the child notices, saves its state and goes
        if (folder / "checkpoint" / "latest.json").exists():
            break
        time.sleep(0.1)
    assert not (folder / "record.json").exists()
    code, out, err = finished(*words, "--json")
    assert code == 0, err
    assert json.loads(out)[0]["metrics"] == uninterrupted(tmp_path, words)["metrics"]


def test_a_worker_that_is_killed_is_a_failure_and_the_same_command_makes_it_good(tmp_path: Path) -> None:
    words = slow(tmp_path)
    process, folder = started(tmp_path / "results", *words)
    (child,) = psutil.Process(process.pid).children()
    child.kill()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert json.loads((folder / "record.json").read_text())["status"] == "oom"
    code, out, err = finished(*words, "--json")
    assert code == 0 and json.loads(out)[0]["status"] == "ok"


def test_several_commands_share_a_results_folder(tmp_path: Path) -> None:
    """Two of one cell, two of others, and a reader at the same time."""
    words = ["run", "-m", "full", "-t", str(TOY), "--preset", "tiny", "--quiet"]
    running = [
        subprocess.Popen(command(*words, "--seed", seed), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in (0, 0, 1, 2)
    ]
    while any(process.poll() is None for process in running):
        code, _, err = finished("report")
        assert code in (0, 1) and "left out" not in err and "Traceback" not in err
    told = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * 4, told
    records = [path for path in tmp_path.rglob("record.json")]
    assert len(records) == 3
    assert {path.name for record in records for path in record.parent.iterdir()} == {
        "record.json",
        "config.yaml",
        "metrics.jsonl",
    }


def test_a_run_can_be_repeated_from_what_it_left(tmp_path: Path, call: Callable[..., Called]) -> None:
    code, out, _ = call(*toy("--set", "train.steps=5", "--seed", 3, "--json"))
    (record,) = json.loads(out)
    (config,) = tmp_path.rglob("config.yaml")
    kept = shutil.copy(config, tmp_path / "kept.yaml")
    code, out, _ = call("run", "--suite", kept, "--out", tmp_path / "again", "--json")
    (again,) = json.loads(out)
    assert code == 0 and again["metrics"] == record["metrics"] and again["run_id"] == record["run_id"]


def test_python_gives_the_record_that_the_command_writes(tmp_path: Path) -> None:
    import lrbench

    record = lrbench.run(model="full", task=str(TOY), preset="tiny", device="cpu")
    frame = lrbench.load_results(tmp_path / "results")
    assert record.status == "ok"
    assert frame["run_id"].tolist() == [record.run_id]
    assert frame["metrics.test.accuracy"].tolist() == [record.metrics.test.accuracy]


def test_an_attention_stands_alone() -> None:
    import torch

    import lrbench
    from lrbench.errors import LrbenchError

    x = torch.randn(2, 17, 64)
    y = lrbench.attention("local[window=3]", dim=64, heads=4, causal=True)(x)
    assert y.shape == x.shape
    for wrong in ({"heads": 5}, {"heads": 4, "windw": 3}):
        with pytest.raises(LrbenchError):
            lrbench.attention("local", dim=64, **wrong)
    with pytest.raises(LrbenchError, match="(?i)linformer.*causal"):
        lrbench.attention("linformer", dim=64, heads=4, causal=True)


# data


def test_data_are_prepared_verified_and_shown(call: Callable[..., Called], tmp_path: Path) -> None:
    code, out, _ = call("data", "prepare", "listops", "--preset", "tiny", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["train"] == 512 and set(facts["baselines"]) == {"majority", "root operator"}
    code, out, _ = call("data", "verify", "listops", "--preset", "tiny")
    assert code == 0 and "WRONG" not in out and "0 mismatches" in out
    code, out, _ = call("data", "show", "listops", "--preset", "tiny", "-n", "2")
    assert code == 0 and out.count("answer: ") == 2 and "[M" in out
    (file,) = (tmp_path / "cache").rglob("train.arrow")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    code, out, err = call("data", "verify", "listops", "--preset", "tiny")
    assert code == 1 and f"WRONG  cache        {file}" in out
    assert call("data", "verify", "listops", "--preset", "tiny")[0] == 0  # made anew


def test_data_of_one_seed_are_the_same_and_of_another_are_not(call: Callable[..., Called], tmp_path: Path) -> None:
    prints = [
        json.loads(
            call(
                "data",
                "prepare",
                "listops",
                "--preset",
                "tiny",
                "--seed",
                seed,
                "--cache-dir",
                tmp_path / name,
                "--json",
            )[1]
        )["fingerprint"]
        for seed, name in ((0, "a"), (0, "b"), (1, "a"))
    ]
    assert prints[0] == prints[1] != prints[2]
