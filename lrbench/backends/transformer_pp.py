"""Transformer++: rotary softmax attention and a gated feed-forward.

The strong baseline of Hua et al. 2022 (arXiv:2202.10447): x + attention(norm(x)), then x + (act(h W1) ⊙ h W2) W3 with
h = norm(x). The hidden width is two thirds of the plain one, to the nearest multiple of 8, so that a layer keeps its
12 · dim² parameters. Time n² · dim + n · dim²; memory as in `full`.

Deviations: absolute positions come from the encoder, added at its input as for all. As in the other layers of the suite
attention has no biases and the feed-forward has. The paper does not say which activation the gate has; `silu` here.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrbench.backends import gated
from lrbench.backends.base import Block, HeadMixer, LayerConfig
from lrbench.backends.full import Full

Activation = Literal["silu", "gelu", "relu", "sigmoid"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "sigmoid": torch.sigmoid}


class TransformerPp(Block):
    """A whole layer.

    Args:
        glu_act: of the gate of the feed-forward.
        impl: of attention: `fused` keeps no score; `math` builds the n × n weights.
    """

    paper, order, can_be_causal = "2202.10447", "n^2", True

    def __init__(
        self, cfg: LayerConfig, *, glu_act: Activation = "silu", impl: Literal["fused", "math"] = "fused"
    ) -> None:
        super().__init__(cfg)
        self.assemble(_RotaryHeads(cfg, impl=impl), glu_act)

    def assemble(self, mixer: HeadMixer, glu_act: Activation) -> None:
        """Norms and a feed-forward around the heads."""
        dim = self.cfg.dim
        self.mixer_norm, self.mixer = nn.LayerNorm(dim), mixer
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = GatedFeedForward(dim, self.cfg.mlp_dim or 4 * dim, glu_act, self.cfg.hidden_dropout)

    @property
    def notes(self) -> list[str]:
        """Those of the heads."""
        return self.mixer.notes

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """Attend and add, feed forward and add."""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # 0 · nan is nan
        mixed = self.mixer(self.mixer_norm(x), mask=mask)
        x = x + F.dropout(mixed, self.cfg.hidden_dropout, self.training)
        y = x + self.mlp(self.mlp_norm(x))
        return y if mask is None else y.masked_fill_(~mask[..., None], 0.0)


class _RotaryHeads(Full):
    """Full attention between turned queries and keys."""

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Turn, then as always."""
        return super().attend(gated.rotated(q), gated.rotated(k), v, mask)


class GatedFeedForward(nn.Module):
    """(act(x W1) ⊙ x W2) W3."""

    def __init__(self, dim: int, mlp_dim: int, glu_act: Activation, dropout: float) -> None:
        super().__init__()
        self.glu_act, self.dropout = glu_act, dropout
        hidden = max(8, 8 * round(mlp_dim / 12))
        self.into = nn.Linear(dim, 2 * hidden)  # W1 and W2
        self.out = nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "rows seq dim"]) -> Float[Tensor, "rows seq dim"]:
        """Gate, drop, project, drop."""
        gate, y = self.into(x).chunk(2, dim=-1)
        y = gated.Gate.apply(gate, y) if self.glu_act == "silu" else ACTIVATIONS[self.glu_act](gate) * y
        y = self.out(F.dropout(y, self.dropout, self.training))
        return F.dropout(y, self.dropout, self.training)
