"""Small language models for measures that need a trained one, kept in this process for the next measure.

They read the generated reviews of the text task in bytes, as a file of a language task: in a text of words there is
something for attention to find. The Markov chain that stands in for the files of these tasks has too many contexts to
be learned in a minute. Positions are rotary: of those that all backends used here honour, the quickest to be learned.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from lrbench import plan
from lrbench.loaders import text_standin
from lrbench.loaders.base import TaskData
from lrbench.models import heads
from lrbench.registry import backends
from lrbench.specs import Grid, RunSpec
from lrbench.taskdata import TaskSource
from lrbench.train.batches import Batch, collate
from lrbench.train.loop import Trainer, accelerator
from lrbench.train.scores import loss_sum

REVIEWS, BATCH, SCORED = 1200, 8, 32  # of text, rows of an update, rows of validation and test


class Trained(NamedTuple):
    """A model in eval mode on the CPU, never to be changed, and what it is scored on."""

    spec: RunSpec
    model: heads.Model
    rows: Batch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A block whose random numbers follow from the seed and disturb no others."""
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(seed)
        yield


@functools.cache
def trained(*, task: str, layers: int, length: int, steps: int, seed: int = 0) -> Trained:
    """A model with full attention after so many updates.

    Args:
        task: `enwik8` predicts each byte from those before it; `c4-mlm` fills masked ones in from both sides.
    """
    spec = _spec(task, layers, length, steps, seed)
    with reviews(spec) as data:
        rows = collate(data.test, range(len(data.test)), spec.task.kind)
        return Trained(spec, fitted(fresh(spec), data, spec), rows)


def fresh(spec: RunSpec) -> heads.Model:
    """The model as it was before training."""
    with seeded(spec.seed):
        return heads.build(backends.load(spec.attention), spec.task, spec.model, spec.data.length).eval()


def fitted(model: heads.Model, data: TaskData, spec: RunSpec) -> heads.Model:
    """The same model after the spec's recipe, in eval mode on the CPU."""
    with seeded(spec.seed), torch.enable_grad(), TemporaryDirectory() as folder:
        Trainer(model, data, spec, Path(folder), accelerator(spec)).fit()
    return model.cpu().eval()


@contextmanager
def reviews(spec: RunSpec) -> Iterator[TaskData]:
    """The splits of the generated text, for as long as the block lasts."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "reviews.txt"
        file.write_bytes(b"\n".join(text for text, _ in text_standin.reviews(0, 0, REVIEWS)))
        asked = spec.data.model_copy(update={"source": str(file)})
        yield TaskSource(spec.task, asked, Path(folder) / "cache").load()


@torch.no_grad()
def loss(model: heads.Model, rows: Batch) -> float:
    """Nats for each byte that is asked for."""
    return float(loss_sum(model(rows.tokens, rows.mask), rows.targets)) / rows.scored


def _spec(task: str, layers: int, length: int, steps: int, seed: int) -> RunSpec:
    sizes = {"layers": layers, "dim": 64, "heads": 4, "mlp_dim": 128, "positions": "rotary"}
    recipe = {"steps": steps, "batch": BATCH, "lr": 3e-3, "schedule": "cosine", "warmup_steps": steps // 10}
    recipe |= {"clip": 1.0, "eval_every": steps}
    data = {"length": length, "examples": [steps * BATCH, SCORED, SCORED]}
    sections: dict[str, dict[str, Any]] = {"model": sizes, "train": recipe, "data": data}
    sets = {f"{section}.{name}": value for section, fields in sections.items() for name, value in fields.items()}
    (cell,) = plan.cells(Grid(models=["full"], tasks=[task], seeds=[seed], set=sets), Path())
    return cell.spec
