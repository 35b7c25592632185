"""What all tests share: a task of their own that trains in a second, and folders that are nobody's."""

from pathlib import Path

import pytest

from lrbench.loaders.base import TaskData
from lrbench.specs import DataSpec, ModelSpec, RunSpec, TrainSpec

TOY = Path(__file__).parent / "toy" / "toy.yaml"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache and results."""
    monkeypatch.setenv("LRBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LRBENCH_RESULTS", str(tmp_path / "results"))
    for name in ("LRBENCH_PATH", "LRBENCH_DEBUG", "HF_HUB_OFFLINE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


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
