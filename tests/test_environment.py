"""The fingerprint, the doctor and the peak of memory."""

import getpass
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import lrbench.environment.checks as checks
import lrbench.environment.model as model
from lrbench import memory
from lrbench.environment import Check, Environment, accelerator, fingerprint, software, storage
from lrbench.environment.probes import Unreadable, gather, why
from lrbench.memory import PeakMemory

MIB = 2**20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is Linux's")


@pytest.fixture(scope="module")
def here() -> Environment:
    return fingerprint()


def test_every_field_has_a_value_or_a_reason(here: Environment) -> None:
    for name in Environment.model_fields:
        if name != "reasons":
            assert (getattr(here, name) is None) == (name in here.reasons), name
    assert all(here.reasons.values())


def test_fingerprint_is_strict_json_and_reads_back(here: Environment) -> None:
    text = json.dumps(here.model_dump(mode="json"), allow_nan=False)
    assert Environment.model_validate_json(text) == here


def test_fingerprint_names_no_host_user_or_path(here: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/home/somebody/lib/liballocator.so")
    strings = set(_strings(fingerprint().model_dump(mode="json")))
    assert "liballocator.so" in strings
    private = {platform.node(), getpass.getuser(), str(Path.home()), str(Path.cwd())} - {""}
    assert not strings & private
    assert not [text for text in strings if text.startswith(("/", "~")) or ":\\" in text or "somebody" in text]


def test_reasons_of_failed_reads_name_no_path(tmp_path: Path) -> None:
    found, reasons = gather(
        {"file": lambda: (tmp_path / "gone").read_text(), "sum": lambda: 1 + 1, "bug": lambda: 1 / 0}
    )
    assert found == {"file": None, "sum": 2, "bug": None}
    assert reasons == {"file": "no such file or directory", "bug": "not readable here (ZeroDivisionError)"}
    assert why(Unreadable("no fan")) == "no fan"


def test_a_machine_that_tells_nothing_still_has_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    def mute() -> None:
        raise OSError(13, "Permission denied", "/secret")

    for part in (model.processor, model.storage, model.accelerator, model.software):
        monkeypatch.setattr(part, "PROBES", dict.fromkeys(part.PROBES, mute))
    assert set(fingerprint().reasons.values()) == {"permission denied"}


def test_checkout_is_named_by_its_commit_and_a_wheel_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    monkeypatch.setattr(software, "CHECKOUT", tmp_path)
    with pytest.raises(Unreadable, match="installed"):
        software.PROBES["git_sha"]()
    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    assert len(software.PROBES["git_sha"]()) == 40
    assert software.PROBES["git_dirty"]() is False
    (tmp_path / "file").write_text("two")
    assert software.PROBES["git_dirty"]() is True
    assert len(software.PROBES["git_diff_hash"]()) == 16


def test_tightest_limit_above_the_process_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "outer/inner").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "outer/memory.max").write_text("1000\n")
    (tmp_path / "outer/inner/memory.max").write_text("3000\n")
    groups = {"/proc/self/cgroup": "0::/outer/inner"}
    monkeypatch.setattr(storage, "CGROUPS", tmp_path)
    monkeypatch.setattr(storage, "read", lambda path: groups.get(path) or Path(path).read_text().strip())
    assert storage.memory_limit() == 1000


def test_gpus_are_read_from_the_drivers_own_tool() -> None:
    (gpu,) = accelerator.parse("NVIDIA H200, GPU-1, 143771, 580.1, 345, 1980, 3201, 700.00, Enabled, [N/A], Enabled\n")
    assert (gpu["name"], gpu["memory_mib"], gpu["mig"]) == ("NVIDIA H200", "143771", None)


def test_doctor_looks_at_all_that_a_run_depends_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "bf16_gain", lambda: 2.0)
    found = {check.name: check for check in checks.doctor(tmp_path / "cache", tmp_path / "results", offline=True)}
    assert {"python", "torch", "cpu", "bf16 on the cpu", "threads", "memory", "gpu"} <= set(found)
    assert {"cache folder", "results folder", "network", "compiler", "ray", "submitit"} <= set(found)
    assert all(check.found and check.meaning for check in found.values())
    assert found["cache folder"].status == found["results folder"].status == "ok"
    assert "2.00x" in found["bf16 on the cpu"].found
    assert "--offline" in found["network"].found
    assert not list(tmp_path.iterdir())  # looking leaves nothing behind


def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    check = checks._package("ray", "--on ray")
    assert check == Check(
        name="ray", status="missing", found="not installed", meaning="rules out --on ray; `pip install ray` brings it"
    )


def test_a_folder_under_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = checks._folder("results folder", tmp_path / "file" / "results", "--out", 0)
    assert check.status == "missing"
    assert "--out" in check.meaning


def test_bf16_gain_is_a_ratio_of_times() -> None:
    from lrbench.environment.speed import bf16_gain

    assert 0.001 < bf16_gain() < 1000


BALLAST = """
import numpy
from lrbench.memory import PeakMemory
before = numpy.ones({before} * 2**20, numpy.uint8)
del before
with PeakMemory() as memory:
    ballast = numpy.ones({during} * 2**20, numpy.uint8)
    del ballast
after = numpy.ones({after} * 2**20, numpy.uint8)
print(memory.result().model_dump_json())
"""


def ballast(before: int, during: int, after: int) -> dict:
    script = BALLAST.format(before=before, during=during, after=after)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@LINUX
def test_ballast_of_256_mib_is_read_back_within_2_percent() -> None:
    found = ballast(before=0, during=256, after=0)
    if "no reset" in found["method"]:
        pytest.skip("this kernel's mark cannot be set back")
    assert found["peak_bytes"] - found["baseline_bytes"] == pytest.approx(256 * MIB, rel=0.02)


@LINUX
def test_what_came_before_or_after_does_not_count() -> None:
    found = ballast(before=400, during=128, after=400)
    if "no reset" in found["method"]:
        pytest.skip("this kernel's mark cannot be set back")
    assert found["peak_bytes"] - found["baseline_bytes"] == pytest.approx(128 * MIB, rel=0.02)


@LINUX
def test_a_mark_that_cannot_be_set_back_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path)  # a folder cannot be written as a file
    with PeakMemory() as peak:
        pass
    assert peak.result().method == "VmHWM of the whole process (no reset here)"
    assert (peak.result().peak_bytes or 0) > 0


def test_an_unknown_peak_is_null_with_the_reason() -> None:
    with PeakMemory("mps:0") as peak:
        pass
    assert peak.result().peak_bytes is None
    assert "MPS" in peak.result().method


@pytest.mark.gpu
def test_gpu_ballast_is_read_back() -> None:
    import torch

    with PeakMemory("cuda") as peak:
        tensor = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
        del tensor
    found = peak.result()
    assert (found.peak_bytes or 0) - (found.baseline_bytes or 0) == 256 * MIB


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) else []
