"""What all tests share: a task of their own that trains in a second, and folders that are nobody's."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lrbench.cli.app import run_app
from lrbench.loaders.base import TaskData
from lrbench.specs import DataSpec, ModelSpec, RunSpec, TrainSpec

TOY = Path(__file__).parent / "toy" / "toy.yaml"
Called = tuple[int, str, str]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache and results."""
    monkeypatch.setenv("LRBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LRBENCH_RESULTS", str(tmp_path / "results"))
    for name in ("LRBENCH_PATH", "LRBENCH_DEBUG", "HF_HUB_OFFLINE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """Call a command in this process: exit code, stdout, stderr."""

    def call(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["lrbench", *map(str, arguments)])
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as left:
            run_app()
        signal.signal(signal.SIGTERM, before)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.fixture
def toy_spec() -> RunSpec:
    """Full attention on the toy task, twelve steps."""
    from lrbench import plan
    from lrbench.specs import Grid

    (cell,) = plan.cells(Grid(models=["full"], tasks=[str(TOY)], preset="tiny", device="cpu"), Path("unused"))
    return cell.spec


def changed(spec: RunSpec, **sections: dict[str, object]) -> RunSpec:
    """The spec with some fields of its data, model or train section replaced, checked as when read."""
    kinds = {"data": DataSpec, "model": ModelSpec, "train": TrainSpec}
    new = {name: kinds[name](**{**getattr(spec, name).model_dump(), **fields}) for name, fields in sections.items()}
    return spec.model_copy(update=new)


@pytest.fixture
def toy_data(toy_spec: RunSpec, tmp_path: Path) -> TaskData:
    """The data of the toy task."""
    from lrbench.taskdata import TaskSource

    return TaskSource(toy_spec.task, toy_spec.data, tmp_path / "cache").load()
