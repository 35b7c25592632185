"""Floating-point operations of a region: as executed, and by the convention that all backends share.

Counted are matrix products, convolutions and attention kernels, two for a multiply-add; not element-wise work, sums and
FFTs. PyTorch's counter knows no formula for the CPU's attention kernel, whose products it would leave out.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from lrbench.measure.region import Region
from lrbench.points import PointSpec

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


def executed_forward(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *_: Any, **__: Any
) -> int:
    """4 · h · n · m · d; a causal kernel leaves out half."""
    return halved(int(sdpa_flop_count(q, k, v)), is_causal)


def executed_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, dropout_p: float, is_causal: bool, *_: Any, **__: Any
) -> int:
    """10 · h · n · m · d: the scores are computed again."""
    return halved(int(sdpa_backward_flop_count(grad, q, k, v)), is_causal)


def model_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, dropout_p: float, is_causal: bool, *_: Any, **__: Any
) -> int:
    """8 · h · n · m · d: twice the forward pass."""
    return halved(2 * int(sdpa_flop_count(q, k, v)), is_causal)


def halved(count: int, causal: bool) -> int:
    """Half of it, if causal."""
    return count // 2 if causal else count


def count(region: Region, formulas: dict[Any, Callable[..., int]]) -> int:
    """Operations of one call; works under fake tensors. The first call, which draws the gradient, must be over."""
    region.prepare()
    with FlopCounterMode(display=False, custom_mapping=cast(Any, formulas)) as counter:
        region.run()
    return int(counter.get_total_flops())


def executed(region: Region) -> int | None:
    """As executed. None for a region that did something, but nothing that is counted."""
    return count(region, {FORWARD: executed_forward, BACKWARD: executed_backward}) or None


def by_convention(region: Region) -> int | None:
    """Without recomputation: attention 4 · h · n² · d forward and 8 backward, half of it if causal."""
    whole = count(region, {FORWARD: executed_forward, BACKWARD: model_backward})
    spec = region.spec
    if spec.attention.name == "full" and spec.causal:
        # the textbook form multiplies what it masks; the convention does not let it count twice
        return whole - (scores_flops(spec) // 2 if spec.attention.settings.get("impl") == "math" else 0)
    return whole or None


def scores_flops(spec: PointSpec) -> int:
    """All products of full attention with n × n scores."""
    passes = 3 if spec.mode == "train" else 1
    layers = 2 if spec.level == "model" else 1
    return layers * passes * 4 * spec.batch * spec.width * spec.length**2
