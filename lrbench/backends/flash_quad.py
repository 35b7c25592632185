"""The gated attention unit: one head of squared ReLU, no feed-forward.

FLASH-Quad (Hua et al. 2022): x + (U ⊙ relu(Q Kᵀ / n + b)² V) W with U, V, Z = silu(norm(x) W'), Q and K from Z by a
scale and a shift each, then rotary positions. n is the longest input, a constant, so that nothing depends on padding.
Two units stand for a layer. Time n² · (s + 2 · dim), half of it when causal; memory n with `impl=fused`, which computes
weights in strips and once more on the way back, and n² with `impl=math`. Weights are not normalised: rows do not sum
to 1.

Deviations: absolute positions come from the encoder, added at its input as for all. One head: their number is ignored.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import gated
from lrbench.backends.base import LayerConfig


class FlashQuad(gated.GatedUnit):
    """Gated attention over all pairs.

    Args:
        s: width of queries and keys; models of width 128 take 64.
        expansion: width of gate and values over that of the model.
        function: of a score to a weight; `ns` is relu(q·k / √s + b)² / n.
        length: n is `max_len` (`fixed`), or the number of keys that a query sees (`valid`).
        rel_bias: b; `auto` is a table for n up to 512 and rotary above.
        rotary: turn queries and keys.
        gate: without it the unit is plain attention, U = 1.
        norm: before the unit; scalenorm is a root mean square with one gain.
        shift: half of the features of h come from the token before.
        init: `paper` draws projections, scales and bias from N(0, 0.02); weights then start as a function of position.
        impl: keep the weights (`math`) or not (`fused`).
    """

    paper, order, can_be_causal = "2202.10447", "n^2", True
    any_length = False  # the table of relative positions up to 512

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        s: int = 128,
        expansion: float = 2.0,
        function: gated.Function = "relu2",
        length: Literal["fixed", "valid"] = "fixed",
        rel_bias: gated.Bias = "auto",
        rotary: bool = True,
        gate: bool = True,
        norm: gated.Norm = "scalenorm",
        shift: bool = False,
        init: Literal["unit", "paper"] = "unit",
        impl: Literal["fused", "math"] = "fused",
    ) -> None:
        super().__init__(
            cfg, pairs=1, s=s, expansion=expansion, gate=gate, rotary=rotary, norm=norm, shift=shift, init=init
        )
        gated.check_length(length, function)
        self.function, self.length, self.impl = function, length, impl
        self.bias = gated.relative_bias(rel_bias, cfg.max_len, s, cfg.causal)

    @property
    def notes(self) -> list[str]:
        """When weights are kept in spite of `impl=fused`."""
        if self.impl == "math":
            return []
        if self.function in ("softmax", "laplace"):
            return [f"{self.function} has no fused form: n x n weights are built"]
        return ["attention dropout has no fused form: training builds n x n weights"] if self.cfg.dropout > 0 else []

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """One unit."""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # 0 · nan is nan
        opened = self.opened(self.shifted(self.normed(x, mask)), mask)
        return self.closed(x, opened, self.mix(opened.heads, opened.values, mask), mask)

    def mix(
        self,
        heads: tuple[Tensor, ...],
        v: Float[Tensor, "rows seq width"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows seq width"]:
        """A V of a query and a key."""
        q, k = heads
        n: int | Tensor = self.cfg.max_len
        if self.length == "valid":
            shown = torch.ones(q.shape[:2], dtype=torch.bool, device=q.device) if mask is None else mask
            n = gated.visible_counts(shown, self.cfg.causal, q.shape[1])
        return gated.attend(
            q,
            k,
            v,
            function=self.function,
            n=n,
            bias=None if self.bias is None else self.bias(q.shape[1]),
            causal=self.cfg.causal,
            visible=mask,
            dropout=self.cfg.dropout if self.training else 0.0,
            keep=self.impl == "math",
        )
