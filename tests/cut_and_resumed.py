"""Started once a device: a training that is cut off and resumed, and one that is not. Dropout needs the generators."""

import json
import sys
from pathlib import Path

import torch

from lrbench import plan
from lrbench.models import heads
from lrbench.registry import backends
from lrbench.specs import Grid
from lrbench.taskdata import TaskSource
from lrbench.train.loop import Trainer, accelerator

CHANGES = {"model.dropout": 0.3, "train.steps": 6, "train.eval_every": 3}
OUT = Path(sys.argv[1])


def main() -> None:
    grid = Grid(models=["full"], tasks=["listops"], preset="tiny", limit=103, device="cpu", set=CHANGES)
    spec = plan.cells(grid, OUT)[0].spec
    data = TaskSource(spec.task, spec.data, OUT / "cache").load()
    engine = accelerator(spec)

    def trainer(name: str) -> Trainer:
        (OUT / name / "checkpoint").mkdir(parents=True, exist_ok=True)
        torch.manual_seed(spec.seed)
        model = heads.build(backends.load(spec.attention), spec.task, spec.model, spec.data.length)
        torch.manual_seed(engine.process_index)
        return Trainer(model, data, spec, OUT / name, engine)

    whole = trainer("whole").fit()
    answers = iter([False, False, False, False, True])
    assert trainer("cut").fit(lambda: next(answers)) is None
    resumed = trainer("cut").fit()
    assert whole is not None and resumed is not None
    said = [outcome.metrics.model_dump() for outcome in (whole, resumed)]
    (OUT / f"said-{engine.process_index}.json").write_text(json.dumps(said))


main()
