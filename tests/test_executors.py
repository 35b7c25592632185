"""One contract of all places where jobs run, and how `--on` chooses among them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from lrbench import runner
from lrbench.errors import Missing, SpecError
from lrbench.executors.base import Died, Executor, Job
from lrbench.executors.local import LocalExecutor

HERE = Path(__file__).parent
LONG_S = 120  # for a loaded machine; nothing here takes so long by itself
UNICODE = 'ünïcödé ✓ 数\nsecond line\r\n\ttab "quoted" \\ \x00'
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc as on Linux")


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """One for all tests, and away from any cluster that this machine may belong to."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(params=["local", "ray", "slurm"])
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Executor]:
    """Makes an executor for so many jobs side by side."""
    monkeypatch.chdir(HERE)  # where the jobs' module is found
    if request.param == "local":
        return LocalExecutor
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        from lrbench.executors.ray import RayExecutor

        return RayExecutor
    pytest.importorskip("submitit", reason="submitit is not installed")
    from lrbench.executors.slurm import SlurmExecutor

    return lambda workers: SlurmExecutor(tmp_path, workers, cluster="local")


def job(name: str, payload: object) -> Job:
    return Job(entry=f"executor_jobs:{name}", payload=str(payload))


def appears(path: Path) -> None:
    """Wait for a whole line in a file."""
    until = time.monotonic() + LONG_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until, f"{path.name} never came"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_each_job_has_a_fresh_process_and_its_own_ending(start: Callable[[int], Executor]) -> None:
    executor = start(2)
    big = executor.submit(job("peak", 400))
    raises, killed = executor.submit(job("fail", "ünlucky")), executor.submit(job("kill_itself", ""))
    echo, shout = executor.submit(job("echo", UNICODE)), executor.submit(job("shout", "the answer"))
    small = executor.submit(job("peak", 1))

    assert echo.result(LONG_S) == UNICODE
    assert shout.result(LONG_S) == "the answer"
    with pytest.raises(Died, match="ValueError: ünlucky") as failure:
        raises.result(LONG_S)
    assert not failure.value.killed and not failure.value.asked_to
    with pytest.raises(Died, match="SIGKILL") as death:
        killed.result(LONG_S)
    assert death.value.killed and not death.value.asked_to
    (first, high), (second, low) = (map(int, future.result(LONG_S).split()) for future in (big, small))
    assert first != second and os.getpid() not in (first, second)
    assert high > 400 and low < 300
    executor.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_stop_cancels_what_waits_and_lets_what_runs_clean_up(start: Callable[[int], Executor], tmp_path: Path) -> None:
    executor = start(1)
    runs = executor.submit(job("tidy", tmp_path / "runs"))
    waits = executor.submit(job("tidy", tmp_path / "waits"))
    appears(tmp_path / "runs")
    executor.stop()
    with pytest.raises(CancelledError):
        waits.result(LONG_S)
    assert runs.result(LONG_S) == "tidy"
    assert (tmp_path / "runs.clean").exists()
    assert not (tmp_path / "waits").exists()
    executor.shutdown()
    assert not (tmp_path / "slurm").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_second_stop_ends_what_did_not_heed_the_first(start: Callable[[int], Executor], tmp_path: Path) -> None:
    executor = start(1)
    runs = executor.submit(job("stubborn", tmp_path / "runs"))
    appears(tmp_path / "runs")
    executor.stop()
    time.sleep(1)
    assert not runs.done()
    executor.stop()
    with pytest.raises(Died) as death:
        runs.result(LONG_S)
    assert death.value.asked_to
    gone(int((tmp_path / "runs").read_text()))
    executor.shutdown()


def gone(pid: int) -> None:
    """Wait for the end of a process that is not ours to wait for."""
    until = time.monotonic() + LONG_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "still there"
        time.sleep(0.05)


def test_local_children_clean_up_and_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = f"""
from lrbench.executors.base import Job
from lrbench.executors.local import LocalExecutor
LocalExecutor().submit(Job(entry="executor_jobs:tidy", payload={str(mark)!r})).result()
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=HERE) as parent:
        appears(mark)
        parent.send_signal(signal.SIGKILL)
    gone(int(mark.read_text()))
    assert (tmp_path / "mark.clean").exists()


@pytest.mark.parametrize("place, package", [("ray", "ray"), ("slurm", "submitit")])
def test_a_place_whose_package_is_missing_says_what_to_install(
    place: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(Missing) as missing:
        runner.Options(out=tmp_path, cache=tmp_path, on=place)
    assert f"pip install 'lrbench[{place}]'" in missing.value.hint


def test_slurm_is_not_replaced_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: object())
    monkeypatch.setattr(runner.shutil, "which", lambda name: None)
    with pytest.raises(Missing, match="there is no Slurm here"):
        runner.Options(out=tmp_path, cache=tmp_path, on="slurm")


def test_an_unknown_place_is_told_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        runner.Options(out=tmp_path, cache=tmp_path, on="moon")
    assert all(place in error.value.hint for place in ("local", "ray", "slurm"))
