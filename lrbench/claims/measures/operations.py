"""What a method asks of PyTorch: whose operations, how large their results are, and what takes the time."""

import math
import os
import statistics
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lrbench.backends.base import parted
from lrbench.claims.built import factory
from lrbench.claims.intervals import averaged
from lrbench.claims.measured import Measured, exact
from lrbench.models.encoder import as_block

LENGTHS = (1024, 2048, 4096)
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "_scaled_dot_product")


class Watch(TorchDispatchMode):
    """Sees every operation: how often each was called, and which gave the largest tensor.

    A view counts as what it shows. What happens inside a fused kernel is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()
        self.elements, self.largest = 0, "nothing"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls[func] += 1
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.numel() > self.elements:
                self.elements, self.largest = leaf.numel(), f"{func} {[*leaf.shape]}"
        return out


def foreign(*, model: str = "combiner") -> Measured:
    """K17, F16: calls of a forward and backward pass that are of no stock operation, but of somebody's own kernel."""
    seen = _watched(model, 256, causal=False).calls
    others = Counter({str(func): count for func, count in seen.items() if func.namespace != "aten"})
    told = f"{seen.total()} calls of {len(seen)} operations" + "".join(f", {name}" for name in others)
    return exact(others.total(), told)


def largest_tensor(*, model: str = "linformer", causal: bool = False) -> Measured:
    """S12: the power of the length by which the largest tensor of a forward and backward pass grows: 2 with n x n.

    Least squares through the logarithms at three lengths, of one head of width 8. A method that works in pieces of a
    fixed size may have one near 0, or below.
    """
    found = [_watched(model, length, causal) for length in LENGTHS]
    sizes = [math.log(watch.elements) for watch in found]
    slope = statistics.linear_regression([math.log(length) for length in LENGTHS], sizes).slope
    return exact(slope, f"n = {LENGTHS[0]} to {LENGTHS[-1]}: at last {found[-1].largest}", n=len(LENGTHS))


def matmul_share(*, model: str = "flash", length: int = 1024, width: int = 128, repeats: int = 5) -> Measured:
    """F16: the share of the CPU time of a layer's training step that goes to matrix products and fused attention.

    A step is forward, backward and AdamW of a residual layer, four rows of input. The interval is over repeats.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else each start of the profiler is a line of stderr
    mixer = factory(model, dim=width, heads=4, head_dim=width // 4)(length)
    layer = as_block(mixer, width, 4 * width, 0.0).train()
    x = torch.randn(4, length, width, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(layer.parameters())
    _step(layer, x, optimizer)  # what happens once only
    told = f"one layer, {length} tokens of width {width}, on {torch.get_num_threads()} threads"
    return averaged([_share(layer, x, optimizer) for _ in range(repeats)], told)


def _watched(model: str, length: int, causal: bool) -> Watch:
    """What a forward and backward pass of one small head does."""
    make = factory(model, causal, dim=8, heads=1, head_dim=8)
    mixer, x = make(length).train(), make.inputs(length, rows=1).requires_grad_()
    with Watch() as watch:
        _backward(mixer, x)
    return watch


def _backward(layer: nn.Module, x: Tensor) -> None:
    y, loss = parted(layer(x))
    (y.square().mean() + (0.0 if loss is None else loss)).backward()


def _step(layer: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    _backward(layer, x)
    optimizer.step()


def _share(layer: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> float:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        _step(layer, x, optimizer)
    times = {event.key: event.self_cpu_time_total for event in recorded.key_averages()}
    return sum(time for name, time in times.items() if _is_product(name)) / sum(times.values())


def _is_product(name: str) -> bool:
    """Whether an operation multiplies matrices; every fused attention is named alike."""
    space, _, operation = name.partition("::")
    return space == "aten" and (operation in PRODUCTS or operation.startswith(PRODUCTS[-1]))
