"""Started once a device: trainings that are cut off and resumed, and ones that are not. Dropout draws numbers."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from lrbench import plan
from lrbench.models import heads
from lrbench.registry import backends
from lrbench.specs import Grid
from lrbench.taskdata import TaskSource
from lrbench.train.loop import Trainer, accelerator

CHANGES = {"model.dropout": 0.3, "train.steps": 6, "train.eval_every": 3}
STRATEGIES = {
    "train.eval_every": 1,
    "train.stages": [{"length": 30, "patience": 1}],
    "train.growth": [{"step": 3, "batch": 24}],
    "train.checkpointing": True,
    "train.patience": 3,
}
OUT = Path(sys.argv[1])


def main() -> None:
    said = [*cut_and_whole("plain", CHANGES), *cut_and_whole("strategies", CHANGES | STRATEGIES)]
    index = accelerator(plan.cells(grid_for(CHANGES), OUT)[0].spec).process_index
    (OUT / f"said-{index}.json").write_text(json.dumps(said))


def grid_for(changes: dict[str, Any]) -> Grid:
    return Grid(models=["full"], tasks=["listops"], preset="tiny", limit=103, device="cpu", set=changes)


def cut_and_whole(name: str, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """What is recorded of a run that was never cut off, and of the same one that was."""
    spec = plan.cells(grid_for(changes), OUT)[0].spec
    data = TaskSource(spec.task, spec.data, OUT / "cache").load()
    engine = accelerator(spec)

    def trainer(which: str) -> Trainer:
        folder = OUT / name / which
        (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        torch.manual_seed(spec.seed)
        model = heads.build(backends.load(spec.attention), spec.task, spec.model, spec.data.length)
        torch.manual_seed(engine.process_index)
        return Trainer(model, data, spec, folder, engine)

    whole = trainer("whole")
    undisturbed = whole.fit()
    answers = iter([False, False, False, False, True])
    assert trainer("cut").fit(lambda: next(answers)) is None
    again = trainer("cut")
    resumed = again.fit()
    assert undisturbed is not None and resumed is not None
    runs = (undisturbed, whole), (resumed, again)
    return [{**outcome.metrics.model_dump(), "notes": each.notes} for outcome, each in runs]


main()
