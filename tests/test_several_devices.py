"""A command that a launcher starts once a device: two processes on the CPU, which talk through gloo."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lrbench import plan, trial
from lrbench.specs import Grid

HERE = Path(__file__).parent
SCORES = ("validation", "test", "test_last")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="torch's launcher and gloo as on Linux"),
]
RUN = ["run", "-t", "listops", "--preset", "tiny", "--limit", "103", "--device", "cpu", "--json"]


def launch(processes: int, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As `torchrun` does, and `accelerate launch` where there are several devices."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={port}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run([*launcher, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def run_here(model: str, out: Path) -> dict[str, Any]:
    """The record of one process."""
    grid = Grid(models=[model], tasks=["listops"], preset="tiny", limit=103, device="cpu")
    (cell,) = plan.cells(grid, out)
    order = trial.Order(spec=cell.spec, run_id=cell.run_id, folder=cell.folder, cache=Path(os.environ["LRBENCH_CACHE"]))
    return trial.run(order).to_json()


def test_two_devices_score_each_example_once_and_train_as_one_does(tmp_path: Path) -> None:
    alone, done_before = run_here("full", tmp_path / "one"), run_here("local", tmp_path / "two")
    done = launch(2, "-m", "lrbench", *RUN, "-m", "full,local", "--out", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record, other = json.loads(done.stdout)
    assert other == done_before and "1 of 2 were there already" in done.stderr
    assert record["status"] == "ok" and record["run_id"] == alone["run_id"]
    for name in SCORES:
        score, expected = record["metrics"][name], alone["metrics"][name]
        assert score["examples"] == 103
        summed = {"loss": None, "loss_error": None}  # sums of several devices end in other digits
        assert score | summed == expected | summed
        assert score["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert score["loss_error"] == pytest.approx(expected["loss_error"], abs=1e-5)
    assert record["notes"] == ["trained on 2 devices; memory is that of the first", *alone["notes"]]
    assert done.stderr.count("[1/1]") == done.stderr.count("results: two") == 1
    folder = tmp_path / "two" / "runs" / "listops" / "full" / record["run_id"]
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "metrics.jsonl", "record.json"]
    assert json.loads((folder / "record.json").read_text()) == record
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [(line["step"], line.get("split", "train")) for line in lines]
    assert len(logged) == len(set(logged))


def test_a_run_on_two_devices_that_was_cut_off_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    done = launch(2, str(HERE / "cut_and_resumed.py"), str(tmp_path), cwd=HERE)
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "said-0.json").read_text())
    for whole, resumed in (said[:2], said[2:]):  # plain, and with every strategy
        assert resumed == whole
    assert any("tokens until step" in note for note in said[2]["notes"])
    assert said == json.loads((tmp_path / "said-1.json").read_text())


def test_what_fails_on_one_device_ends_the_others_and_is_the_reason_that_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "from lrbench.backends.full import Full\n"
        "class Mine(Full):\n"
        "    def forward(self, *args, **kwargs):\n"
        "        if os.environ['RANK'] == '1' and self.training:\n"
        "            raise RuntimeError('only here')\n"
        "        return super().forward(*args, **kwargs)\n"
    )
    done = launch(2, "-m", "lrbench", *RUN, "-m", "./mine.py:Mine", "--out", "out", cwd=tmp_path)
    assert done.returncode == 1
    record = json.loads(next(tmp_path.glob("out/runs/*/*/*/record.json")).read_text())
    assert (record["status"], record["reason"]) == ("error", "RuntimeError: only here")
    assert not list(tmp_path.glob("out/runs/*/*/*/checkpoint"))
