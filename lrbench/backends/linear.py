"""Attention by the feature map elu + 1, in linear time.

Linear Transformer (Katharopoulos et al. 2020): Σ_s (φq·φk_s) v_s / Σ_s φq·φk_s with φ(x) = elu(x) + 1. Time
n · head_dim² a head; causal by chunks of 64 and a running sum. Features and running sums are computed in float32.

ALiBi positions, causal only, multiply φq_i·φk_j by exp(-slope (i - j)), which the running sum does by decaying.

Deviation: there are no weights to drop, so dropout falls on the mixed values.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops
from lrbench.backends.base import LayerConfig
from lrbench.backends.positions import Alibi
from lrbench.backends.running import Running


class Linear(Running):
    """Kernel attention with elu + 1."""

    paper, order, can_be_causal = "2006.16236", "n", True
    positions = ("pia", "alibi")

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        if not cfg.causal:
            self.check_positions(("pia",), "unless causal")

    @property
    def notes(self) -> list[str]:
        """Where dropout falls."""
        return ["dropout falls on the mixed values: there are no attention weights"] if self.cfg.dropout > 0 else []

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Mix v by the products of features."""
        kept = v.dtype
        with ops.full_precision(v):
            q, k, v = EluPlusOne.apply(q), EluPlusOne.apply(k), v.to(ops.compact(kept))
            if mask is not None:
                # elu(0) + 1 is 1: a padded key would stay in the normaliser
                k = k.masked_fill(~mask[:, None, :, None], 0.0)
            if self.cfg.causal:
                mixed = ops.causal_kernel_attention(q, k, v, self.level(q))
            else:
                mixed = ops.kernel_attention(q, k, v)
            return F.dropout(mixed, self.cfg.dropout, self.training).to(kept)

    def level(self, q: Float[Tensor, "rows heads seq head_dim"]) -> Float[Tensor, "rows heads seq"] | None:
        """ALiBi: the pair (t, s) is multiplied by exp(level_s - level_t)."""
        if not isinstance(self.place, Alibi):
            return None
        level = self.place.slopes[:, None].to(ops.wide(q.dtype)) * torch.arange(q.shape[2], device=q.device)
        return level.expand(len(q), -1, -1)

    def running(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
        past: ops.KernelSums | None,
    ) -> tuple[Float[Tensor, "rows heads seq head_dim"], ops.KernelSums]:
        """`attend` to one more chunk."""
        q, k, v = EluPlusOne.apply(q), EluPlusOne.apply(k), v.to(ops.compact(v.dtype))
        k = k if mask is None else k.masked_fill(~mask[:, None, :, None], 0.0)
        return ops.kernel_attention_step(q, k, v, past=past)


class EluPlusOne(torch.autograd.Function):
    """elu(x) + 1, which keeps its value only: the slope is min(value, 1)."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "rows heads seq head_dim"]) -> Float[Tensor, "rows heads seq head_dim"]:
        """x + 1 above zero, exp(x) below."""
        x = x.to(ops.wide(dtype := x.dtype)).contiguous()  # else each product would make a copy of its own
        value = F.elu(x).add_(1.0).to(ops.compact(dtype))
        ctx.dtype = dtype
        ctx.save_for_backward(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "rows heads seq head_dim"]) -> Tensor:
        """The slope times what comes back."""
        (value,) = ctx.saved_tensors
        return (grad * value.clamp(max=1.0)).to(ctx.dtype)
