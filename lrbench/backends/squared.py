"""Squared-ReLU attention, relu(q kᵀ + b)² v, without keeping the weights; and biases that depend on j - i alone.

A bias is the vector of its values: b[i, j] = bias[centre + j - i]. Weights are computed a strip at a time and once more
on the way back, strip by strip of keys, so that only the gradient of the narrow queries is summed over strips. Exact;
time n² · (s + width), half of it when causal; memory n.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lrbench.backends import ops

STRIP = 2**20  # weights held at once for each row of the batch


class Squared(torch.autograd.Function):
    """relu(q kᵀ + b)² v. Queries stand at the last positions of the keys."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "batch few s"],
        k: Float[Tensor, "batch seq s"],
        v: Float[Tensor, "batch seq width"],
        bias: Float[Tensor, " offsets"] | None,
        causal: bool,
    ) -> Float[Tensor, "batch few width"]:
        """Strips of queries against all keys, or all that are not later."""
        ctx.save_for_backward(q, k, v, bias)
        ctx.causal = causal
        few, seq = q.shape[1], k.shape[1]
        out = v.new_empty(len(q), few, v.shape[2])
        for first, last in strips(few, seq):
            stop = seq - few + last if causal else seq
            roots = rectified(q[:, first:last], k[:, :stop], bias, seq - few + first, 0, causal)
            torch.bmm(roots.square_(), v[:, :stop], out=out[:, first:last])
        return out

    @staticmethod
    def backward(
        ctx: Any, grad: Float[Tensor, "batch few width"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        """Strips of keys against all queries, or all that are not earlier."""
        q, k, v, bias = ctx.saved_tensors
        few, seq = q.shape[1], k.shape[1]
        dq, dk, dv = torch.zeros_like(q, dtype=ops.wide(q.dtype)), torch.empty_like(k), torch.empty_like(v)
        dbias = None if bias is None else torch.zeros_like(bias, dtype=ops.wide(bias.dtype))
        with ops.full_precision(q):
            for first, last in strips(seq, few):
                start = max(0, first - (seq - few)) if ctx.causal else 0
                asked, above, keys = q[:, start:], grad[:, start:], k[:, first:last]
                roots = rectified(asked, keys, bias, seq - few + start, first, ctx.causal)
                dv[:, first:last] = roots.square().transpose(1, 2) @ above
                slope = (above @ v[:, first:last].transpose(1, 2)).mul_(roots)  # times 2 is d / d score
                dk[:, first:last] = slope.transpose(1, 2) @ asked
                dq[:, start:] += slope @ keys
                if dbias is not None:
                    low = len(dbias) // 2 + first - (seq - 1)
                    sums = diagonals(slope.sum(0, dtype=dbias.dtype))
                    dbias[low : low + len(sums)] += sums
        return dq.mul_(2).to(q.dtype), dk.mul_(2), dv, None if dbias is None else dbias.mul_(2).to(bias.dtype), None


def strips(length: int, across: int) -> Iterator[tuple[int, int]]:
    """Pieces of a length, such that each holds some `STRIP` weights."""
    step = max(64, STRIP // across)
    return ((first, min(first + step, length)) for first in range(0, length, step))


def rectified(
    q: Float[Tensor, "batch few s"],
    k: Float[Tensor, "batch some s"],
    bias: Float[Tensor, " offsets"] | None,
    first_query: int,
    first_key: int,
    causal: bool,
) -> Float[Tensor, "batch few some"]:
    """relu(q kᵀ + b), zeros in the future."""
    if bias is None:
        scores = q @ k.transpose(1, 2)
    else:
        scores = torch.baddbmm(toeplitz(bias, q.shape[1], k.shape[1], first_query - first_key), q, k.transpose(1, 2))
    if causal:
        scores.tril_(first_query - first_key)
    return scores.relu_()


def toeplitz(
    bias: Float[Tensor, "*lead offsets"], rows: int, columns: int, ahead: int
) -> Float[Tensor, "*lead rows columns"]:
    """b[i, j] = bias[centre + j - i] for rows that start `ahead` of the columns."""
    low = bias.shape[-1] // 2 - ahead - (rows - 1)
    return bias[..., low : low + rows + columns - 1].unfold(-1, columns, 1).flip(-2)


def diagonals(x: Float[Tensor, "*lead rows columns"]) -> Float[Tensor, "*lead offsets"]:
    """Sums over j - i, from 1 - rows up to columns - 1: each row goes one place to the right of the row below it."""
    rows, columns = x.shape[-2:]
    if rows > columns:  # the rows that move are to be the fewer
        return diagonals(x.transpose(-1, -2)).flip(-1)
    skewed = F.pad(x.flip(-2), (0, rows)).flatten(-2)[..., : rows * (rows + columns - 1)]
    return skewed.unflatten(-1, (rows, rows + columns - 1)).sum(-2)


class Toeplitz(torch.autograd.Function):
    """`toeplitz` with a way back by sums of diagonals, which autograd's own lookup takes several times as long for."""

    @staticmethod
    def forward(
        ctx: Any, bias: Float[Tensor, "*lead offsets"], rows: int, columns: int
    ) -> Float[Tensor, "*lead rows columns"]:
        """Rows stand at the last positions of the columns."""
        ctx.offsets, ctx.low = bias.shape[-1], bias.shape[-1] // 2 - (columns - 1)
        return toeplitz(bias, rows, columns, columns - rows)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "*lead rows columns"]) -> tuple[Tensor, None, None]:
        """Each value of the bias stands on one diagonal."""
        sums = diagonals(grad)
        return F.pad(sums, (ctx.low, ctx.offsets - ctx.low - sums.shape[-1])), None, None
