"""Attention by the feature map elu + 1, in linear time.

Linear Transformer (Katharopoulos et al. 2020): Σ_s (φq·φk_s) v_s / Σ_s φq·φk_s with φ(x) = elu(x) + 1. Time
n · head_dim² a head; causal by chunks of 64 and a running sum. Features and running sums are computed in float32.

Without direction and on a CPU, both ways go over tiles of the sequence that fit the cache, and heads are never copied
apart. What is left above the projections is products of 64 x 64, which run at half the speed of large ones, and passes
over memory: about as many as softmax features take.

ALiBi positions, causal only, multiply φq_i·φk_j by exp(-slope (i - j)), which the running sum does by decaying.

Deviation: there are no weights to drop, so dropout falls on the mixed values.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops
from lrbench.backends.base import LayerConfig
from lrbench.backends.positions import Alibi
from lrbench.backends.running import Running

TILE = 2**17  # numbers of a tile: half a megabyte in float32


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
            if self.cfg.causal:
                q, k, v = EluPlusOne.apply(q), EluPlusOne.apply(k), v.to(ops.compact(kept))
                if mask is not None:
                    # elu(0) + 1 is 1: a padded key would stay in the normaliser
                    k = k.masked_fill(~mask[:, None, :, None], 0.0)
                mixed = ops.causal_kernel_attention(q, k, v, self.level(q))
            else:
                mixed = self.split(
                    _Both.apply(*(x.transpose(1, 2).flatten(-2) for x in (q, k, v)), mask, self.cfg.heads)
                )
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


class _Both(torch.autograd.Function):
    """Attention without direction on unsplit heads, by hand and by tiles.

    y = φq S / φq·s with S = Σ φk vᵀ and s = Σ φk; a padded key has φk = 0. Going back with u = g / φq·s:
    dφq = u Sᵀ - (u·y) s, dS = Σ φq uᵀ, ds = -Σ (u·y) φq, dv = φk dS, dφk = v dSᵀ + ds. The slope of φ is min(φ, 1).
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "rows seq width"],
        k: Float[Tensor, "rows seq width"],
        v: Float[Tensor, "rows seq width"],
        mask: Bool[Tensor, "rows seq"] | None,
        heads: int,
    ) -> Float[Tensor, "rows seq width"]:
        """Sums over all keys, then each query's share of them."""
        rows, seq, width = q.shape
        kind, wide = ops.compact(v.dtype), ops.wide(v.dtype)
        apart, together = _layouts(rows, heads)
        tiles = _tiles(q)
        phi_q, phi_k = (torch.empty_like(x, dtype=kind) for x in (q, k))
        sums, total = q.new_zeros(rows * heads, *2 * [width // heads], dtype=wide), q.new_zeros(rows, width, dtype=wide)
        for tile in tiles:
            features = _features(k[:, tile], phi_k[:, tile])
            if mask is not None:
                # elu(0) + 1 is 1: a padded key would stay in the normaliser
                features.masked_fill_(~mask[:, tile, None], 0.0)
            sums += apart(features).transpose(-1, -2) @ apart(v[:, tile].to(kind))
            total += features.sum(1, dtype=wide)
        out, inverse = torch.empty_like(v), total.new_empty(rows, seq, heads, 1)
        narrow, weight = sums.to(kind), total.view(rows * heads, -1, 1).to(kind)
        for tile in tiles:
            features = apart(_features(q[:, tile], phi_q[:, tile]))
            inverse[:, tile] = ops.inverse_weight(together(features @ weight))
            torch.mul(together(features @ narrow), inverse[:, tile], out=out[:, tile].unflatten(-1, (heads, -1)))
        ctx.save_for_backward(phi_q, phi_k, v, out, inverse, narrow, total)
        ctx.heads, ctx.tiles, ctx.dtype = heads, tiles, q.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "rows seq width"]) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """First the queries, which say what the sums are worth, then keys and values."""
        phi_q, phi_k, v, out, inverse, sums, total = ctx.saved_tensors
        rows, heads, kind = len(v), ctx.heads, phi_q.dtype
        apart, together = _layouts(rows, heads)
        d_q, d_k, d_v = (torch.empty_like(v, dtype=dtype) for dtype in (ctx.dtype, ctx.dtype, v.dtype))
        d_sums, d_total = torch.zeros_like(sums, dtype=total.dtype), total.new_zeros(*sums.shape[:2], 1)
        weight = total.view(rows * heads, 1, -1)
        for tile in ctx.tiles:
            share = grad[:, tile].unflatten(-1, (heads, -1)) * inverse[:, tile]
            pull = (share * out[:, tile].unflatten(-1, (heads, -1))).sum(-1, keepdim=True).neg_()
            share, pull = (x.transpose(1, 2).flatten(0, 1) for x in (share.to(kind), pull))
            turned = apart(phi_q[:, tile]).transpose(-1, -2)
            d_sums += turned @ share
            d_total += turned @ pull.to(kind)
            d_features = (share @ sums.transpose(-1, -2)).to(total.dtype).baddbmm_(pull, weight)
            _through(phi_q[:, tile], together(d_features), d_q[:, tile])
        narrow, d_total = d_sums.to(kind), d_total.transpose(-1, -2)
        for tile in ctx.tiles:
            d_v[:, tile].unflatten(-1, (heads, -1)).copy_(together(apart(phi_k[:, tile]) @ narrow))
            d_features = (apart(v[:, tile].to(kind)) @ narrow.transpose(-1, -2)) + d_total
            _through(phi_k[:, tile], together(d_features), d_k[:, tile])
        return d_q, d_k, d_v, None, None


def _tiles(x: Float[Tensor, "rows seq width"]) -> list[slice]:
    """Pieces of the sequence for a cache; elsewhere than on a CPU the whole."""
    rows, seq, width = x.shape
    step = max(1, TILE // (rows * width)) if x.device.type == "cpu" else max(1, seq)
    return [slice(start, start + step) for start in range(0, seq, step)]


def _features(x: Float[Tensor, "rows seq width"], into: Tensor) -> Float[Tensor, "rows seq width"]:
    """elu(x) + 1, written to `into`."""
    return torch.add(F.elu(x.to(ops.wide(x.dtype))), 1.0, out=into)


def _through(features: Tensor, grad: Float[Tensor, "rows seq heads head_dim"], into: Tensor) -> None:
    """The gradient of what features were made of, written to `into`; of a hidden key it is zero as its features are."""
    heads = grad.shape[2]
    slope = features.clamp(max=1.0).unflatten(-1, (heads, -1))
    torch.mul(grad, slope, out=into.unflatten(-1, (heads, -1)))


def _layouts(rows: int, heads: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """From [rows seq width] to [rows·heads seq head_dim], and from there to [rows seq heads head_dim]."""

    def apart(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)

    def together(x: Tensor) -> Tensor:
        return x.unflatten(0, (rows, heads)).transpose(1, 2)

    return apart, together
