"""What `gpu_check.py` measures in child processes: one line of JSON for each finding, as soon as it is there.

python bench/gpu_work.py precision --device cuda
python bench/gpu_work.py steps performer --device cuda --compile
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from lrbench import plan
from lrbench.errors import Unsupported
from lrbench.models import heads
from lrbench.probes.base import Factory, objective
from lrbench.probes.precision import BOUNDS
from lrbench.registry import backends
from lrbench.runner import cache_folder
from lrbench.specs import Grid
from lrbench.taskdata import TaskSource
from lrbench.train.loop import Trainer, accelerator

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRIMES: dict[str, int] = {}  # the factory's own: odd widths, which no fused kernel takes
USUAL = {"dim": 256, "heads": 4, "head_dim": 64}
SIZES = ((65, PRIMES), (1000, USUAL))  # tokens, and sizes of the layer
WARM_UP = 5  # steps that are left out of a rate
TREES = "[4000, 500, 500]"  # of the published 96,000, 2,000 and 2,000: to be generated in seconds


def say(**found: Any) -> None:
    """One finding."""
    print(json.dumps(found), flush=True)


# precision


def precision(device: str, quick: bool) -> None:
    """Every shipped backend in half precision on the device against float64 on the CPU."""
    for name in backends.shipped():
        for causal in (False, True):
            for seq, sizes in SIZES[:1] if quick else SIZES:
                found = backends.get(name)
                try:
                    _compare(Factory(found.cls, found.options, causal, **sizes), name, seq, device)
                except Unsupported:
                    continue  # it cannot be causal


def _compare(make: Factory, name: str, seq: int, device: str) -> None:
    length = max(seq, 128)
    exact = _grown(make(length).double(), make.inputs(seq).double())
    for word, dtype in DTYPES.items():
        if word == "fp16" and device == "cpu":
            continue
        where = {"model": name, "causal": make.causal, "tokens": seq, "dtype": word, "bound": BOUNDS[dtype]}
        try:
            found = _grown(make(length).to(device), make.inputs(seq).to(device), dtype)
        except Exception as error:  # whatever a device's kernels refuse is a finding
            say(**where, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            continue
        say(**where, **errors(found, exact))


def errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Relative errors, infinite where something is not finite.

    Of outputs the largest; of gradients the root of the mean square, for where a maximum falls on another token single
    gradients move as a whole.
    """
    finite = all(bool(tensor.isfinite().all()) for tensor in found.values())
    parts = {"output": math.inf, "input": math.inf, "weights": math.inf}  # by `inf` or 2
    for part, norm in (("output", math.inf), ("input", 2), ("weights", 2)) if finite else ():
        apart = torch.linalg.vector_norm(found[part] - exact[part], norm)
        parts[part] = float(apart / torch.linalg.vector_norm(exact[part], norm))
    return parts


def _grown(mixer: nn.Module, x: Tensor, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Output, and gradients of a mean over tokens, in double precision on the CPU."""
    x.requires_grad_()
    with torch.autocast(x.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        y = mixer(x)
    (objective(y) / x[..., 0].numel()).backward()
    assert x.grad is not None
    weights = [p.grad.flatten() for p in mixer.parameters() if p.grad is not None]
    both = {"output": y.detach(), "input": x.grad, "weights": torch.cat(weights)}
    return {name: tensor.double().cpu() for name, tensor in both.items()}


# steps a second


def steps(model: str, device: str, compiled: bool, quick: bool) -> None:
    """Training steps of published ListOps in bfloat16: the first, and those after the warm-up."""
    grid = Grid(
        models=[model],
        tasks=["listops"],
        preset="tiny" if quick else "paper",
        device=device,
        dtype="bf16",
        compile=compiled,
        set={} if quick else {"data.examples": json.loads(TREES), "train.eval_every": 5000},
    )
    (cell,) = plan.cells(grid, Path("unused"))
    with tempfile.TemporaryDirectory() as folder:
        times = _times(cell, Path(folder), WARM_UP + (5 if quick else 25))
    warm = times[WARM_UP:]
    say(model=model, compiled=compiled, first_s=times[0], steps_per_s=1 / median(warm), steps=len(times))


def _times(cell: plan.Cell, folder: Path, count: int) -> list[float]:
    """Seconds of so many steps. The trainer asks before each whether to stop, when the one before is done."""
    spec, asked = cell.spec, list[float]()
    data = TaskSource(spec.task, spec.data, cache_folder(None)).load()
    torch.manual_seed(spec.seed)
    trained = heads.build(backends.load(spec.attention), spec.task, spec.model, spec.data.length)

    def enough() -> bool:
        asked.append(time.perf_counter())
        return len(asked) > count

    Trainer(trained, data, spec, folder, accelerator(spec, None, folder)).fit(enough)
    return [after - before for before, after in zip(asked, asked[1:], strict=False)]


def main(given: Sequence[str] | None = None) -> None:
    """As the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("precision", "steps"))
    parser.add_argument("model", nargs="?", default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(given)
    if asked.what == "precision":
        precision(asked.device, asked.quick)
    else:
        steps(asked.model, asked.device, asked.compile, asked.quick)


if __name__ == "__main__":
    main()
