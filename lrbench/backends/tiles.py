"""Kernel attention on the CPU, a tile at a time: features are made in the cache, used there, and made again going back.

Kept between the passes are q, k, v, the output and its normaliser, and the sums over keys: nothing of n · features. It
computes what `ops.kernel_attention` and `ops.causal_kernel_attention` do, which suit devices where a small operation
costs as much as a large one. The way back is by hand: autograd would keep every tile.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops

TILE = 128  # tokens, at least
LONG = 2**16  # tokens
CACHE = 2**19  # elements of a tile of features, over heads and rows


class FeatureMap:
    """φ, on a tile in at least float32. Where `logarithmic`, log φ up to terms that cancel in the ratio."""

    logarithmic: ClassVar[bool] = False
    features: int

    def raw(self, x: Float[Tensor, "rows heads tile head_dim"], *, key: bool) -> Tensor:
        """φ(x) or log φ(x), a tensor of its own: rows heads tile features."""
        raise NotImplementedError

    def back(self, x: Float[Tensor, "rows heads tile head_dim"], phi: Tensor, grad: Tensor, *, key: bool) -> Tensor:
        """The gradient of x from that of φ(x), which may be overwritten. Where φ is 0, x was hidden."""
        raise NotImplementedError


def worthwhile(x: Tensor) -> bool:
    """Whether there is a cache to stay in, and small operations are cheap. A compiler would unroll every tile."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


class TiledAttention(torch.autograd.Function):
    """Σ_s (φq·φk_s) v_s / Σ_s φq·φk_s, over all s or over s <= t.

    Time as in `ops`, and the features once more; memory n · head_dim, causal n / C · features · head_dim besides.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
        phi: FeatureMap,
        causal: bool,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Slab by slab; the result lies in memory as the last projection wants it."""
        slab_of = CausalSlab if causal else Slab
        mixed, inverse = like_tokens(v, ops.compact(v.dtype)), v.new_empty(*v.shape[:3], 1, dtype=ops.wide(v.dtype))
        kept: list[Tensor | None] = []
        for place in slabs(v, phi.features):
            slab = slab_of(phi, mask, place, q, k, v, mixed, inverse)
            kept += slab.mix(any(ctx.needs_input_grad))
        ctx.phi, ctx.slab_of = phi, slab_of
        ctx.save_for_backward(q, k, v, mask, mixed, inverse, *kept)
        return mixed

    @staticmethod
    def backward(
        ctx: Any, grad: Float[Tensor, "rows heads seq head_dim"]
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        """The same slabs."""
        q, k, v, mask, mixed, inverse, *kept = ctx.saved_tensors
        into = [like_tokens(x, x.dtype) for x in (q, k, v)]
        with ops.full_precision(v):
            for number, place in enumerate(slabs(v, ctx.phi.features)):
                slab = ctx.slab_of(ctx.phi, mask, place, q, k, v, mixed, inverse)
                slab.unmix(grad[place], *kept[2 * number : 2 * number + 2], *(x[place] for x in into))
        return into[0], into[1], into[2], None, None, None


def like_tokens(x: Float[Tensor, "rows heads seq head_dim"], dtype: torch.dtype) -> Tensor:
    """Room for a tensor of this shape, tokens outside and heads inside: folding heads away costs no copy."""
    rows, heads, seq, head_dim = x.shape
    return x.new_empty(rows, seq, heads, head_dim, dtype=dtype).transpose(1, 2)


def slabs(x: Float[Tensor, "rows heads seq head_dim"], features: int) -> Iterator[tuple[slice, slice]]:
    """Rows and heads that are walked through together: as many as fit the cache."""
    rows, heads, seq, _ = x.shape
    fits = max(1, CACHE // (min(TILE, seq) * features))
    few, many = -(-heads // -(-heads // fits)), max(1, fits // heads)
    for row in range(0, rows, many):
        for head in range(0, heads, few):
            yield slice(row, row + many), slice(head, head + few)


class Slab:
    """A few rows and heads, all tokens; queries see all keys."""

    def __init__(self, phi: FeatureMap, mask: Tensor | None, place: tuple[slice, slice], *tensors: Tensor) -> None:
        self.phi, self.hidden = phi, None if mask is None else ~mask[place[0], None, :, None]
        self.q, self.k, self.v, self.mixed, self.inverse = (tensor[place] for tensor in tensors)
        self.dtype, self.wide = self.mixed.dtype, self.inverse.dtype
        self.lowest = torch.finfo(self.wide).min  # instead of -inf where all is hidden: -inf - -inf is nan

    def tiles(self) -> list[slice]:
        """The tokens of each tile: as many as fit the cache."""
        rows, heads = self.v.shape[:2]
        return self.cut(max(TILE, CACHE // (rows * heads * self.phi.features) // TILE * TILE))

    def cut(self, tile: int) -> list[slice]:
        """All tokens in pieces."""
        seq = self.v.shape[2]
        return [slice(start, min(start + tile, seq)) for start in range(0, seq, tile)]

    def raw_keys(self, at: slice) -> tuple[Tensor, Tensor]:
        """Keys and φ or log φ of them, where a hidden one is none."""
        x = self.k[:, :, at].to(self.wide)
        raw = self.phi.raw(x, key=True)
        if self.hidden is not None:
            raw.masked_fill_(self.hidden[:, :, at], -torch.inf if self.phi.logarithmic else 0.0)
        return x, raw

    def queries(self, at: slice, top: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Queries and φ of them; what keys subtracted from each feature is added."""
        x = self.q[:, :, at].to(self.wide)
        raw = self.phi.raw(x, key=False)
        if self.phi.logarithmic:
            raw = raw if top is None else raw.add_(top)
            raw.sub_(raw.amax(-1, keepdim=True)).exp_()
        return x, raw

    def values(self, at: slice) -> Tensor:
        """[v, 1]."""
        return F.pad(self.v[:, :, at].to(self.dtype), (0, 1), value=1.0)

    def divide(self, at: slice, sums: Tensor) -> None:
        """The output, and what it was divided by."""
        self.inverse[:, :, at] = ops.inverse_weight(sums)
        torch.mul(sums[..., :-1], self.inverse[:, :, at], out=self.mixed[:, :, at])

    def undivide(self, at: slice, grad: Tensor) -> Tensor:
        """The gradient of the sums."""
        return ops.undivided(grad[:, :, at], self.mixed[:, :, at], self.inverse[:, :, at])

    def mix(self, keep: bool) -> tuple[Tensor | None, Tensor | None]:
        """Sum over keys, then divide for each query. A feature's maximum rises from tile to tile: sums follow it."""
        sums, top = self.sum_keys()
        used = sums.to(self.dtype)
        for at in self.tiles():
            self.divide(at, self.queries(at, top)[1].to(self.dtype) @ used)
        return sums, top

    def sum_keys(self) -> tuple[Tensor, Tensor | None]:
        """Σ φk [v, 1] and, where features are exponentials, the maximum that was subtracted from each one's log."""
        rows, heads, _, head_dim = self.v.shape
        sums = self.inverse.new_zeros(rows, heads, self.phi.features, head_dim + 1)
        top = self.inverse.new_full((rows, heads, 1, self.phi.features), self.lowest)
        for at in self.tiles():
            _, raw = self.raw_keys(at)
            if self.phi.logarithmic:
                above = torch.maximum(top, raw.amax(-2, keepdim=True))
                sums.mul_((top - above).exp_().transpose(-1, -2))
                raw.sub_(above).exp_()
                top = above
            sums.add_(raw.to(self.dtype).transpose(-1, -2) @ self.values(at))
        return sums, top if self.phi.logarithmic else None

    def unmix(self, grad: Tensor, sums: Tensor, top: Tensor | None, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """The gradient of queries, which gathers that of the sums, then that of keys and values."""
        used, dsums = sums.to(self.dtype).transpose(-1, -2), torch.zeros_like(sums)
        for at in self.tiles():
            x, phi = self.queries(at, top)
            dmixed = self.undivide(at, grad)
            dsums.add_(phi.to(self.dtype).transpose(-1, -2) @ dmixed)
            dq[:, :, at] = self.phi.back(x, phi, (dmixed @ used).to(self.wide), key=False)
        used = dsums.to(self.dtype)
        for at in self.tiles():
            x, phi = self.raw_keys(at)
            if top is not None:
                phi.sub_(top).exp_()
            dv[:, :, at] = (phi.to(self.dtype) @ used)[..., :-1]
            dphi = self.values(at) @ used.transpose(-1, -2)
            dk[:, :, at] = self.phi.back(x, phi, dphi.to(self.wide), key=True)


class CausalSlab(Slab):
    """A few rows and heads; queries see keys up to their own. A tile by a masked product, what lies before by a sum.

    Where features are exponentials, key s is divided by exp(level_s), its running maximum over keys and features, and
    pairs are brought to a common scale by exp(level_s - level_t) <= 1: no later key touches an earlier sum.
    """

    def tiles(self) -> list[slice]:
        """Shorter where there are few features: a tile costs its square. Longer where sums would pile up."""
        tile = TILE if self.phi.features > 128 else TILE // 2
        return self.cut(tile if self.v.shape[2] <= LONG else 2 * tile)

    def mix(self, keep: bool) -> tuple[Tensor | None, Tensor | None]:
        """Tile by tile. Kept for the way back: the sums before each tile, and levels."""
        rows, heads, seq, head_dim = self.v.shape
        state = self.inverse.new_zeros(rows, heads, self.phi.features, head_dim + 1)
        level = self.inverse.new_full((rows, heads, seq + 1), self.lowest) if self.phi.logarithmic else None
        tiles = self.tiles()
        before = self.mixed.new_empty(len(tiles), *state.shape) if keep else None
        for number, at in enumerate(tiles):
            if before is not None:
                before[number] = state
            state = self.mix_tile(at, state, level)
        return before, level

    def mix_tile(self, at: slice, state: Tensor, level: Tensor | None) -> Tensor:
        """One tile and the sums after it. Levels are those before each token."""
        _, k = self.raw_keys(at)
        if level is not None:
            here = level[:, :, at.start : at.stop + 1]
            here[:, :, 1:] = k.amax(-1)
            here.copy_(here.cummax(-1).values)
            k.sub_(here[:, :, 1:, None]).exp_()
        q, k, v = self.queries(at)[1].to(self.dtype), k.to(self.dtype), self.values(at)
        near, past = (q @ k.transpose(-1, -2)).tril_(), q @ state.to(self.dtype)
        if level is None:
            self.divide(at, (near @ v).add_(past))
            return state + k.transpose(-1, -2) @ v
        fade = Fade(level[:, :, at.start : at.stop + 1], self.dtype)
        self.divide(at, (near.mul_(fade.pairs) @ v).add_(past.mul_(fade.since)))
        return torch.addcmul(k.transpose(-1, -2) @ v.mul_(fade.until), state, fade.whole)

    def unmix(self, grad: Tensor, sums: Tensor, top: Tensor | None, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """From the last tile to the first, with the gradient of the sums after it."""
        dstate = torch.zeros_like(sums[0], dtype=self.wide)
        for at, state in zip(reversed(self.tiles()), reversed(sums.unbind(0)), strict=True):
            dstate = self.unmix_tile(at, grad, state, top, dstate, dq, dk, dv)

    def unmix_tile(
        self,
        at: slice,
        grad: Tensor,
        state: Tensor,
        level: Tensor | None,
        dstate: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
    ) -> Tensor:
        """One tile, and the gradient of the sums before it."""
        (asked, phi_q), (known, phi_k) = self.queries(at), self.raw_keys(at)
        fade = None
        if level is not None:
            phi_k.sub_(level[:, :, at.start + 1 : at.stop + 1, None]).exp_()
            fade = Fade(level[:, :, at.start : at.stop + 1], self.dtype)
        q, k, v, used = phi_q.to(self.dtype), phi_k.to(self.dtype), self.values(at), dstate.to(self.dtype)
        dnear = dpast = self.undivide(at, grad)
        near, dpairs = (q @ k.transpose(-1, -2)).tril_(), (dnear @ v.transpose(-1, -2)).tril_()
        dv_after = (k @ used)[..., :-1]
        if fade is not None:
            near.mul_(fade.pairs), dpairs.mul_(fade.pairs), dv_after.mul_(fade.until), v.mul_(fade.until)
            dpast = dnear * fade.since
        dv[:, :, at] = (near.transpose(-1, -2) @ dnear)[..., :-1] + dv_after
        dphi = (dpairs @ k).add_(dpast @ state.transpose(-1, -2))
        dq[:, :, at] = self.phi.back(asked, phi_q, dphi.to(self.wide), key=False)
        dphi = (dpairs.transpose(-1, -2) @ q).add_(v @ used.transpose(-1, -2))
        dk[:, :, at] = self.phi.back(known, phi_k, dphi.to(self.wide), key=True)
        dsums = q.transpose(-1, -2) @ dpast
        return dstate + dsums if fade is None else torch.addcmul(dsums, dstate, fade.whole)


class Fade:
    """What differences of levels within a tile weigh; `level` starts one token before."""

    def __init__(self, level: Float[Tensor, "rows heads after"], dtype: torch.dtype) -> None:
        start, here, end = level[..., :1], level[..., 1:], level[..., -1:]
        self.pairs = (here[..., None, :] - here[..., None]).clamp_(max=0.0).exp_().to(dtype)  # query, key
        self.since, self.until = (part.exp_().to(dtype)[..., None] for part in (start - here, here - end))
        self.whole = (start - end).exp_()[..., None]
