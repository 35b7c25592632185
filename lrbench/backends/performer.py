"""Softmax attention by positive random features, in linear time.

Performer, FAVOR+ (Choromanski et al. 2020): exp(q·k / √d) is the mean of φ(q)·φ(k) over random w, with
φ_j(x) = exp(w_j·x' - |x'|² / 2) and x' = x / d^¼; then kernel attention. Time n · features · head_dim a head; memory
n · features. Directions are orthogonal within blocks of d, with the signs of R in QR = Gaussian, without which the
estimate is biased; norms are those of Gaussian vectors. Features, maxima and running sums are computed in
float32.

Deviations from the authors' code: no constant is added to the features, which would bias them. Not causal, keys
subtract their maximum for each feature, and queries add it: the normaliser is at least 1. Causal, keys subtract the
running maximum, so that no later token reaches an earlier sum. There are no weights to drop, so dropout falls on the
mixed values.
"""

import math
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops, tiles
from lrbench.backends.base import LayerConfig, check_option
from lrbench.backends.running import Running


class Performer(Running):
    """Kernel attention with random features.

    Args:
        features: how many; by default head_dim · ln head_dim, with `relu` head_dim.
        kernel: `softmax`, or `relu` for φ_j(x) = relu(w_j·x) / √features + 0.001, which approximates nothing.
        redraw: optimiser steps between new draws, counted by `before_step`; 0 keeps the first.

    Draws come from a generator of their own, seeded by one number from torch's at construction: they are equal on all
    devices and after a resume, and change no other random number.
    """

    paper, order, can_be_causal = "2009.14794", "n", True
    positions = ("rotary", "pia")
    refined_by = "features"
    directions: Tensor
    seed: Tensor
    steps: Tensor

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        features: int | None = None,
        kernel: Literal["softmax", "relu"] = "softmax",
        redraw: int = 1000,
    ) -> None:
        super().__init__(cfg)
        if kernel == "relu":  # products of rectified features do not depend on i - j, however q and k are turned
            self.check_positions(("pia",), "with kernel=relu")
        check_option("features", features, features is None or features >= 1, "of at least 1")
        check_option("redraw", redraw, redraw >= 0, "of at least 0")
        usual = max(1, int(cfg.head_dim * math.log(cfg.head_dim))) if kernel == "softmax" else cfg.head_dim
        self.approximates = "softmax" if kernel == "softmax" else ""
        self.features, self.kernel, self.redraw = features or usual, kernel, redraw
        self.register_buffer("directions", torch.empty(self.features, cfg.head_dim))  # shared by heads
        self.register_buffer("seed", torch.randint(2**62, ()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.draw()

    @property
    def notes(self) -> list[str]:
        """Where dropout falls."""
        return ["dropout falls on the mixed values: there are no attention weights"] if self.cfg.dropout > 0 else []

    @torch.no_grad()
    def draw(self) -> None:
        """New directions, determined by the seed and the steps done."""
        generator = torch.Generator().manual_seed(int(self.seed) + int(self.steps))
        self.directions.copy_(orthogonal(self.features, self.cfg.head_dim, generator))

    def before_step(self) -> None:
        """Redraw when it is time, and count."""
        if self.redraw and int(self.steps) and int(self.steps) % self.redraw == 0:
            self.draw()
        self.steps += 1

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
            if tiles.worthwhile(v):
                phi = (_Rectified if self.kernel == "relu" else _Exponential)(self.directions, ops.wide(kept))
                mixed = tiles.TiledAttention.apply(q, k, v, mask, phi, self.cfg.causal)
                return F.dropout(mixed, self.cfg.dropout, self.training).to(kept)
            q, k = q.to(ops.wide(kept)), k.to(ops.wide(kept))
            level = None
            if self.kernel == "relu":
                q, k = self.relu_features(q), self.relu_features(k)
                k = k if mask is None else k.masked_fill(~mask[:, None, :, None], 0.0)
            else:
                log_q, log_k, level = self.log_features(q, k, mask)
                q, k = Exp.apply(log_q, ops.compact(kept)), Exp.apply(log_k, ops.compact(kept))
                del log_q, log_k
            q, k, v = (part.to(ops.compact(kept)) for part in (q, k, v))
            mixed = ops.causal_kernel_attention(q, k, v, level) if self.cfg.causal else ops.kernel_attention(q, k, v)
            return F.dropout(mixed, self.cfg.dropout, self.training).to(kept)

    def running(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
        past: ops.KernelSums | None,
    ) -> tuple[Float[Tensor, "rows heads seq head_dim"], ops.KernelSums]:
        """`attend` to one more chunk, whose level goes on from the past's. Directions must be those of the past."""
        dtype = ops.compact(v.dtype)
        q, k = q.to(ops.wide(v.dtype)), k.to(ops.wide(v.dtype))
        if self.kernel == "relu":
            q, k = self.relu_features(q), self.relu_features(k)
            k = k if mask is None else k.masked_fill(~mask[:, None, :, None], 0.0)
            return ops.kernel_attention_step(q.to(dtype), k.to(dtype), v.to(dtype), past=past)
        log_q, log_k, level = self.log_features(q, k, mask)
        if past is not None and past.level is not None and level is not None:
            own, level = level, level.maximum(past.level[..., None])
            log_k = log_k + (own - level)[..., None]
        return ops.kernel_attention_step(Exp.apply(log_q, dtype), Exp.apply(log_k, dtype), v.to(dtype), level, past)

    def relu_features(self, x: Float[Tensor, "rows heads seq head_dim"]) -> Float[Tensor, "rows heads seq features"]:
        """Positive by a small constant, whatever x."""
        return (x @ (self.directions.to(x.dtype).T * self.features**-0.5)).relu_() + 1e-3

    def log_features(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """log φ(q), log φ(k) and the level of each key, up to terms that cancel in the ratio: a query's norm is one.

        Maxima are constants to autograd, which is exact because they cancel. In place: n · features is what costs.
        """
        scale = self.cfg.head_dim**-0.25
        directions = (self.directions.to(q.dtype) * scale).T
        log_k = (k @ directions).sub_(k.square().sum(-1, keepdim=True) * (0.5 * scale**2))
        if mask is not None:
            log_k.masked_fill_(~mask[:, None, :, None], -torch.inf)
        log_q = q @ directions
        lowest = torch.finfo(q.dtype).min  # instead of -inf where all is padding: -inf - -inf is nan
        if self.cfg.causal:
            level = log_k.detach().amax(-1).clamp_min(lowest).cummax(-1).values  # rows heads seq
            log_k.sub_(level[..., None])
        else:
            level, top = None, log_k.detach().amax(-2, keepdim=True).clamp_min(lowest)  # rows heads 1 features
            log_k.sub_(top)
            log_q.add_(top)
        log_q.sub_(log_q.detach().amax(-1, keepdim=True))
        return log_q, log_k, level


class _Directions(tiles.FeatureMap):
    """Features on a tile. Empty ones fill their number up to a multiple of 16, which matrix products like."""

    def __init__(self, directions: Float[Tensor, "features head_dim"], dtype: torch.dtype, scale: float) -> None:
        self.count, self.scale = len(directions), scale
        self.features = self.count + -self.count % 16
        self.weight = F.pad(directions.to(dtype) * scale, (0, 0, 0, self.features - self.count)).T


class _Exponential(_Directions):
    """Logarithms of positive features of the softmax kernel."""

    logarithmic = True

    def __init__(self, directions: Float[Tensor, "features head_dim"], dtype: torch.dtype) -> None:
        super().__init__(directions, dtype, directions.shape[1] ** -0.25)

    def raw(self, x: Tensor, *, key: bool) -> Tensor:
        """w·x' and, for a key, less |x'|² / 2: a query's norm cancels in the ratio."""
        raw = x @ self.weight
        if key:
            raw.sub_(x.square().sum(-1, keepdim=True).mul_(0.5 * self.scale**2))
        raw[..., self.count :] = -torch.inf
        return raw

    def back(self, x: Tensor, phi: Tensor, grad: Tensor, *, key: bool) -> Tensor:
        """Maxima cancel in the ratio too: constants."""
        back = grad.mul_(phi) @ self.weight.T
        return back.addcmul_(x, grad.sum(-1, keepdim=True), value=-(self.scale**2)) if key else back


class _Rectified(_Directions):
    """ReLU features, positive by a small constant."""

    def __init__(self, directions: Float[Tensor, "features head_dim"], dtype: torch.dtype) -> None:
        super().__init__(directions, dtype, len(directions) ** -0.5)

    def raw(self, x: Tensor, *, key: bool) -> Tensor:
        """relu(w·x) / √features + 0.001."""
        raw = (x @ self.weight).relu_().add_(1e-3)
        raw[..., self.count :] = 0.0
        return raw

    def back(self, x: Tensor, phi: Tensor, grad: Tensor, *, key: bool) -> Tensor:
        """Through what was above zero."""
        return grad.mul_(phi > 1e-3) @ self.weight.T


class Exp(torch.autograd.Function):
    """exp(x) in another precision, of which only the value is kept."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "rows heads seq features"], dtype: torch.dtype
    ) -> Float[Tensor, "rows heads seq features"]:
        """Computed in x's precision."""
        value = x.exp().to(dtype)
        ctx.save_for_backward(value)
        ctx.dtype = x.dtype
        return value

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "rows heads seq features"]) -> tuple[Tensor, None]:
        """The value times what comes back."""
        (value,) = ctx.saved_tensors
        return (grad * value).to(ctx.dtype), None


def orthogonal(count: int, width: int, generator: torch.Generator) -> Float[Tensor, "count width"]:
    """Gaussian vectors, orthogonal to each other within blocks of `width`; each alone is distributed as N(0, I)."""
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal((-(-count // width), width, width)))
    # householder QR gives R's diagonal a fixed sign, so that without this Q is not uniform over rotations
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    norms = normal((count, width)).norm(dim=-1, keepdim=True)
    return q.transpose(-1, -2).reshape(-1, width)[:count] * norms
