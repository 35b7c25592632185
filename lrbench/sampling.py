"""Sequences drawn from a trained model, token after token."""

from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lrbench.errors import Missing, SpecError
from lrbench.models import heads
from lrbench.records import read
from lrbench.registry import backends
from lrbench.specs import RunSpec
from lrbench.train import checkpoint, devices


def trained(folder: Path) -> tuple[RunSpec, nn.Module]:
    """A finished run's spec, and its model with the weights that validation chose, ready to be used.

    Raises:
        SpecError: no finished run, or one that predicts nothing.
        Missing: its weights were not kept.
    """
    record = read(folder / "record.json")
    if record is None or record.status != "ok":
        raise SpecError(f"{folder}: no finished run", "name the folder of a run: results/runs/TASK/MODEL/RUN")
    spec = RunSpec.model_validate(record.spec)
    if spec.task.kind != "predict":
        raise SpecError(
            f"{folder}: task {spec.task.name} predicts no tokens", "sample from a density or language model"
        )
    state, problem = checkpoint.load(folder / "checkpoint")
    if state is None:
        raise Missing(
            f"{folder}: its weights are not there{problem and ': '}{problem}",
            "train with --keep-checkpoint: lrbench run … --no-resume --keep-checkpoint",
        )
    model = heads.build(backends.load(spec.attention), spec.task, spec.model, spec.data.length)
    model.load_state_dict(state["best_weights"] or state["model"])
    return spec, model.eval()


@torch.no_grad()
def draw(model: nn.Module, length: int, count: int, seed: int, device: str = "auto") -> Int[Tensor, "count length"]:
    """So many sequences, each token from its distribution given those before it.

    Costs one forward pass over all that is there for each token: O(length) of them.
    """
    devices.check(device, "fp32")
    place = torch.device("cpu" if devices.on_cpu(device) else devices.accelerator() if device == "auto" else device)
    random = torch.Generator(place).manual_seed(seed)
    model = model.to(place)
    tokens = torch.zeros(count, length, dtype=torch.long, device=place)
    for position in range(length):
        # what stands at the position itself is not read: the model sees the token before it
        logits = model(tokens[:, : position + 1])[:, -1].float()
        tokens[:, position] = torch.multinomial(logits.softmax(-1), 1, generator=random)[:, 0]
    return tokens.cpu()
