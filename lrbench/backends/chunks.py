"""The linear half of mixed chunk attention: a mean of kᵀ v over all tokens, or over the chunks before one's own.

Hua et al. 2022 (arXiv:2202.10447). Running sums are in float32 at least. Hidden tokens have values of zero.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lrbench.backends import ops
from lrbench.backends.base import LayerConfig, check_option

GlobalNorm = Literal["mean", "chunk"]


def padded(x: Tensor, chunk: int) -> Tensor:
    """Zeros, or False, after the sequence up to a multiple of the chunk; x is batch seq or batch seq width."""
    tail = -x.shape[1] % chunk
    return F.pad(x, (0, 0) * (x.ndim - 2) + (0, tail)) if tail else x


def cut(x: Float[Tensor, "batch seq width"], chunk: int) -> Float[Tensor, "pieces chunk width"]:
    """Each chunk a row of the batch."""
    return x.unflatten(1, (-1, chunk)).flatten(0, 1)


def add_global(
    near: Float[Tensor, "batch seq width"] | None,
    q: Float[Tensor, "batch seq s"],
    k: Float[Tensor, "batch seq s"],
    v: Float[Tensor, "batch seq width"],
    shown: Bool[Tensor, "batch seq"],
    *,
    chunk: int,
    causal: bool,
    divisor: int | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch seq width"]:
    """near + Q Σ kᵀ v / count, the sequence being whole chunks.

    Args:
        divisor: what causal sums are divided by in place of the count of tokens in them.
        dropout: on the values that are added.
    """
    kept = v.dtype
    with ops.full_precision(v):
        q, k, v = (x.to(ops.compact(kept)) for x in (q, k, v))
        if causal:
            q, k, v = (cut(x, chunk) for x in (q, k, v))
        sums = k.transpose(1, 2) @ v  # batch s width, or pieces s width
        counts = shown.sum(1)
        if causal:
            per_chunk = shown.unflatten(1, (-1, chunk)).sum(2)  # batch chunks
            sums = before(sums.unflatten(0, per_chunk.shape)).flatten(0, 1).to(v.dtype)
            counts = before(per_chunk).flatten()
        q = over(q, counts if divisor is None else torch.full_like(counts, divisor))
        if near is None or dropout:
            far = F.dropout((q @ sums).view(shown.shape[0], shown.shape[1], -1), dropout).to(kept)
            return far if near is None else near + far
        return torch.baddbmm(near.to(v.dtype).view(*q.shape[:2], -1), q, sums).view(near.shape).to(kept)


def over(q: Float[Tensor, "batch few s"], counts: Int[Tensor, " batch"]) -> Float[Tensor, "batch few s"]:
    """Queries divided by counts, which is less than the sums they meet; by 1 where nothing was counted."""
    return q * counts.clamp(min=1).to(ops.wide(q.dtype)).reciprocal().to(q.dtype)[:, None, None]


def before(x: Float[Tensor, "batch chunks *rest"] | Int[Tensor, "batch chunks"]) -> Tensor:
    """For each chunk the sum over those before it.

    Shifted first: a sum that includes the own chunk and has it subtracted keeps a rounding error of what is later.
    """
    shifted = F.pad(x[:, :-1], (0, 0) * (x.ndim - 2) + (1, 0))
    return shifted.cumsum(1, dtype=ops.wide(x.dtype) if x.is_floating_point() else None)


def one_chunk(chunk: int, cfg: LayerConfig) -> list[str]:
    """The note of a chunk that no input is longer than."""
    left = "nothing is before it" if cfg.causal else "attention over all pairs besides a mean"
    return [f"inputs of at most {cfg.max_len} tokens are one chunk of {chunk}: {left}"] if chunk >= cfg.max_len else []


def check_global_norm(value: GlobalNorm, sums_grow: bool) -> None:
    """Refuse what has no effect."""
    check_option("global_norm", value, value == "mean" or sums_grow, "mean: only a causal global part has sums to norm")
