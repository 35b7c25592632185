"""Softmax attention over all pairs of tokens.

softmax(Q Kᵀ / √d) V (Vaswani et al. 2017). Time n² · dim. Memory n with `impl=fused`, which calls the fused kernel, and
heads · n² with `impl=math`, the textbook form that papers compare with. Positions `t5` and `xl` add learned numbers to
the scores and take that form; `alibi` stays fused, and is a bias of heads · n² only if not causal.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer, LayerConfig
from lrbench.backends.positions import Alibi


class Full(HeadMixer):
    """Exact attention.

    Args:
        impl: `fused` keeps no score; `math` builds the n × n weights.
    """

    paper, order, can_be_causal = "1706.03762", "n^2", True
    positions = ("rotary", "pia", "alibi", "t5", "xl")

    def __init__(self, cfg: LayerConfig, *, impl: Literal["fused", "math"] = "fused") -> None:
        super().__init__(cfg)
        self.impl = impl

    @property
    def notes(self) -> list[str]:
        """What takes memory of n² although `fused` was asked for. Dropout has no fused kernel on a CPU."""
        if self.impl == "math":
            return []
        if self.place.learned:
            return [f"{self.cfg.positions} positions add learned numbers to scores: n x n weights are built"]
        wide = isinstance(self.place, Alibi) and not self.cfg.causal
        notes = ["alibi positions, not causal, are a bias of heads x n x n"] if wide else []
        if self.cfg.dropout > 0 and self.out.weight.device.type == "cpu":
            notes.append("attention dropout has no fused kernel on the CPU: training builds n x n weights")
        return notes

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Mix v by the softmax of q kᵀ / √head_dim."""
        dropout = self.cfg.dropout if self.training else 0.0
        if self.impl == "math" or self.place.learned:
            return math_attention(q, k, v, mask, self.cfg.causal, dropout, self.place.bias(q, 0, q.shape[2]))
        if isinstance(self.place, Alibi):
            return alibi_attention(q, k, v, mask, self.cfg.causal, dropout, self.place)
        return fused_attention(q, k, v, mask, self.cfg.causal, dropout)


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


def alibi_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float, place: Alibi
) -> Float[Tensor, "rows heads seq head_dim"]:
    """The fused kernel with -slope |i - j| added to the scores.

    Causal, slope · (j - i) is a product of a few more coordinates, and no bias.
    """
    seq, head_dim = q.shape[2:]
    if mask is None:
        mask = torch.ones(1, seq, dtype=torch.bool, device=q.device)
    asked, told = place.products(q) if causal else ([], [])
    bias = None if causal else place.bias(q, 0, seq).to(q.dtype)
    q, k = ops.widened(q, head_dim**0.5, front=asked), ops.widened(k, ops.hiding(mask, k.dtype), front=told)
    v = ops.widened(v, 0.0, front=[0.0] * len(told))
    mixed = F.scaled_dot_product_attention(q, k, v, bias, dropout, is_causal=causal, scale=head_dim**-0.5)
    return mixed[..., len(told) : len(told) + head_dim]


def math_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float, bias: Tensor | None = None
) -> Float[Tensor, "rows heads seq head_dim"]:
    """The textbook form."""
    seq = q.shape[2]
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)  # rows heads seq seq
    if bias is not None:
        scores = scores + bias
    if causal:
        future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu_(1)
        scores = scores.masked_fill_(future, -torch.inf)
    if mask is not None:
        # not -inf: a row of nothing else would be nan; as it is it averages padded values, which are zeros
        scores = scores.masked_fill_(~mask[:, None, None], torch.finfo(scores.dtype).min)
    return F.dropout(scores.softmax(-1), dropout) @ v
