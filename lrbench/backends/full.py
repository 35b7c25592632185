"""Softmax attention over all pairs of tokens.

softmax(Q Kᵀ / √d) V (Vaswani et al. 2017). Time n² · dim. Memory n with `impl=fused`, which calls the fused kernel, and
heads · n² with `impl=math`, the textbook form that papers compare with.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer, LayerConfig


class Full(HeadMixer):
    """Exact attention.

    Args:
        impl: `fused` keeps no score; `math` builds the n × n weights.
    """

    paper, order, can_be_causal = "1706.03762", "n^2", True

    def __init__(self, cfg: LayerConfig, *, impl: Literal["fused", "math"] = "fused") -> None:
        super().__init__(cfg)
        self.impl = impl

    @property
    def notes(self) -> list[str]:
        """Attention dropout has no fused kernel on a CPU."""
        on_cpu = self.out.weight.device.type == "cpu"
        if self.impl == "fused" and self.cfg.dropout > 0 and on_cpu:
            return ["attention dropout has no fused kernel on the CPU: training builds n x n weights"]
        return []

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Mix v by the softmax of q kᵀ / √head_dim."""
        dropout = self.cfg.dropout if self.training else 0.0
        attend = math_attention if self.impl == "math" else fused_attention
        return attend(q, k, v, mask, self.cfg.causal, dropout)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> Float[Tensor, "rows heads seq head_dim"]:
    """The fused kernel. Padding and causality together would need a mask of n², so then keys hide themselves."""
    if mask is None or not causal:
        seen = None if mask is None else mask[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout, is_causal=causal)
    head_dim = q.shape[-1]
    q, k, v = ops.widened(q, head_dim**0.5), ops.widened(k, ops.hiding(mask, k.dtype)), ops.widened(v, 0.0)
    mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=head_dim**-0.5)
    return mixed[..., :head_dim]


def math_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> Float[Tensor, "rows heads seq head_dim"]:
    """The textbook form."""
    seq = q.shape[2]
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)  # rows heads seq seq
    if causal:
        future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu_(1)
        scores = scores.masked_fill_(future, -torch.inf)
    if mask is not None:
        # not -inf: a row of nothing else would be nan; as it is it averages padded values, which are zeros
        scores = scores.masked_fill_(~mask[:, None, None], torch.finfo(scores.dtype).min)
    return F.dropout(scores.softmax(-1), dropout) @ v
