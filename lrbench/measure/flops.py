"""Floating-point operations of a region: as executed, and by the convention that all backends share.

Counted are matrix products, convolutions and attention kernels, two for a multiply-add; not element-wise work, sums and
FFTs. PyTorch's counter knows no formula for the CPU's attention kernel, whose products it would leave out.
"""

from typing import Any, cast

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from lrbench.measure.region import BLOCKS
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


FORMULAS = {FORWARD: executed_forward, BACKWARD: executed_backward}
REPEATED = 0.2  # of the kernel's backward products: those of the forward pass, computed again


def halved(count: int, causal: bool) -> int:
    """Half of it, if causal."""
    return count // 2 if causal else count


def counter() -> FlopCounterMode:
    """Counts what runs inside, under fake tensors too."""
    return FlopCounterMode(display=False, custom_mapping=cast(Any, FORMULAS))


def executed(counted: FlopCounterMode) -> int | None:
    """As executed. None where nothing was counted: whatever ran did something."""
    return int(counted.get_total_flops()) or None


def by_convention(counted: FlopCounterMode, spec: PointSpec) -> int | None:
    """Without recomputation: attention 4 · h · n² · d forward and 8 backward, half of it if causal."""
    again = int(counted.get_flop_counts()["Global"].get(BACKWARD, 0) * REPEATED)
    # the textbook form multiplies what it masks, which the convention does not count
    masked = spec.causal and spec.attention.name == "full" and spec.attention.settings.get("impl") == "math"
    return int(counted.get_total_flops()) - again - (scores_flops(spec) // 2 if masked else 0) or None


def scores_flops(spec: PointSpec) -> int:
    """All products of full attention with n × n scores."""
    passes = 3 if spec.mode == "train" else 1
    layers = BLOCKS if spec.level == "model" else 1
    return layers * passes * 4 * spec.batch * spec.width * spec.length**2
