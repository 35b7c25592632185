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
                q, k, v = (x.transpose(1, 2).flatten(-2) for x in (q, k, v))
                sums, total = _Sums.apply(k, v, mask, self.cfg.heads)
                mixed = self.split(_Share.apply(q, sums, total, self.cfg.heads))
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


class _Sums(torch.autograd.Function):
    """S = Σ φk vᵀ and s = Σ φk over all keys of unsplit heads, by tiles; a padded key has φk = 0.

    Going back dv = φk dS and dφk = v dSᵀ + ds. Apart from `_Share`, whose tensors are gone when this one goes back.
    """

    @staticmethod
    def forward(
        ctx: Any,
        k: Float[Tensor, "rows seq width"],
        v: Float[Tensor, "rows seq width"],
        mask: Bool[Tensor, "rows seq"] | None,
        heads: int,
    ) -> tuple[Float[Tensor, "units head_dim head_dim"], Float[Tensor, "units head_dim"]]:
        """Sums in at least float32, one unit a row and head."""
        rows, _, width = k.shape
        kind, wide = ops.compact(v.dtype), ops.wide(v.dtype)
        apart, _ = _layouts(rows, heads)
        phi, tiles = torch.empty_like(k, dtype=kind), _tiles(k)
        sums, total = k.new_zeros(rows * heads, *2 * [width // heads], dtype=wide), k.new_zeros(rows, width, dtype=wide)
        for tile in tiles:
            features = _features(k[:, tile], phi[:, tile])
            if mask is not None:
                # elu(0) + 1 is 1: a padded key would stay in the normaliser
                features.masked_fill_(~mask[:, tile, None], 0.0)
            sums += apart(features).transpose(-1, -2) @ apart(v[:, tile].to(kind))
            total += features.sum(1, dtype=wide)
        ctx.save_for_backward(phi, v)
        ctx.heads, ctx.tiles, ctx.dtype = heads, tiles, k.dtype
        return sums, total.view(rows * heads, -1)

    @staticmethod
    def backward(ctx: Any, d_sums: Tensor, d_total: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Each key and value has a part in the sums."""
        phi, v = ctx.saved_tensors
        apart, together = _layouts(len(v), ctx.heads)
        d_k, d_v = torch.empty_like(phi, dtype=ctx.dtype), torch.empty_like(v)
        narrow = d_sums.to(phi.dtype)
        for tile in ctx.tiles:
            d_v[:, tile].unflatten(-1, (ctx.heads, -1)).copy_(together(apart(phi[:, tile]) @ narrow))
            d_features = (apart(v[:, tile].to(phi.dtype)) @ narrow.transpose(-1, -2)) + d_total[:, None]
            _through(phi[:, tile], together(d_features), d_k[:, tile])
        return d_k, d_v, None, None


class _Share(torch.autograd.Function):
    """y = φq S / φq·s for each query of unsplit heads, by tiles.

    Going back with u = g / φq·s: dφq = u Sᵀ - (u·y) s, dS = Σ φq uᵀ, ds = -Σ (u·y) φq.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "rows seq width"],
        sums: Float[Tensor, "units head_dim head_dim"],
        total: Float[Tensor, "units head_dim"],
        heads: int,
    ) -> Float[Tensor, "rows seq width"]:
        """Each query's share of the sums, in the type of q."""
        rows, seq, _ = q.shape
        apart, together = _layouts(rows, heads)
        kind, tiles = ops.compact(q.dtype), _tiles(q)
        phi, out, inverse = torch.empty_like(q, dtype=kind), torch.empty_like(q), total.new_empty(rows, seq, heads, 1)
        narrow, weight = sums.to(kind), total[..., None].to(kind)
        for tile in tiles:
            features = apart(_features(q[:, tile], phi[:, tile]))
            inverse[:, tile] = ops.inverse_weight(together(features @ weight))
            torch.mul(together(features @ narrow), inverse[:, tile], out=out[:, tile].unflatten(-1, (heads, -1)))
        ctx.save_for_backward(phi, out, inverse, narrow, total)
        ctx.heads, ctx.tiles, ctx.dtype = heads, tiles, q.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "rows seq width"]) -> tuple[Tensor, Tensor, Tensor, None]:
        """The queries, and what the sums are worth."""
        phi, out, inverse, sums, total = ctx.saved_tensors
        heads, kind = ctx.heads, phi.dtype
        apart, together = _layouts(len(out), heads)
        d_q = torch.empty_like(out, dtype=ctx.dtype)
        d_sums, d_total = torch.zeros_like(sums, dtype=total.dtype), torch.zeros_like(total)[..., None]
        for tile in ctx.tiles:
            share = grad[:, tile].unflatten(-1, (heads, -1)) * inverse[:, tile]
            pull = (share * out[:, tile].unflatten(-1, (heads, -1))).sum(-1, keepdim=True).neg_()
            share, pull = (x.transpose(1, 2).flatten(0, 1) for x in (share.to(kind), pull))
            turned = apart(phi[:, tile]).transpose(-1, -2)
            d_sums += turned @ share
            d_total += turned @ pull.to(kind)
            d_features = (share @ sums.transpose(-1, -2)).to(total.dtype).baddbmm_(pull, total[:, None])
            _through(phi[:, tile], together(d_features), d_q[:, tile])
        return d_q, d_sums, d_total.squeeze(-1), None


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
