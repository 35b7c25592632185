"""Gated attention against the formulas that it is made of, n x n and from its weights.

Hua et al. 2022 (arXiv:2202.10447): x + (U ⊙ A V) W + b, with U, V, Z = silu(norm(x) W' + b') and A made from Z.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lrbench.claims.built import distance, factory, normal, stirred
from lrbench.claims.measured import Measured, exact

SEQ, WIDTH, CHUNK = 29, 13, 8  # the last chunk is cut short


@torch.no_grad()
def limits() -> Measured:
    """F3: with A = identity a unit is a gated feed-forward, (U ⊙ V) W; without its gate it is attention, A V W.

    The identity is what a bias of 1 at distance 0 makes of queries and keys that are zeros. The value is the largest
    difference from either formula.
    """
    x = normal(2, SEQ, WIDTH)
    gated = _unit("flash-quad[s=6]")
    for parameter in (gated.gamma, gated.beta, gated.bias.table):
        parameter.zero_()
    gated.bias.table[len(gated.bias.table) // 2] = 1.0
    bare = _unit("flash-quad[s=6,gate=false]")
    glu = distance(gated(x), _dense(gated, x, lambda heads: torch.eye(SEQ, dtype=torch.float64)))
    attention = distance(bare(x), _dense(bare, x, lambda heads: _squared_relu(bare, heads, SEQ)))
    return exact(max(glu, attention), f"gated feed-forward {glu:.1e}, attention without a gate {attention:.1e}", n=2)


@torch.no_grad()
def parts_add(*, causal: bool = False) -> Measured:
    """F6: local and global parts are added under one gate.

    The value is the largest difference of the whole unit from its parts alone, added, and from the n x n formula.
    """
    x = normal(2, SEQ, WIDTH)
    both, near, far = (_unit(f"flash[chunk={CHUNK},s=6,parts={part}]", causal) for part in ("both", "local", "global"))
    _share(both, near, slice(0, 2))
    _share(both, far, slice(2, 4))
    near.bias.table.copy_(both.bias.table)
    y = both(x)
    added = distance(y, near(x) + far(x) - x - both.out.bias)
    plain = distance(y, _dense(both, x, lambda heads: _mixed_chunks(both, heads, causal)))
    return exact(max(added, plain), f"parts alone {added:.1e}, n x n formula {plain:.1e}, chunks of {CHUNK}", n=2)


def _dense(unit: Any, x: Tensor, attention: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """A unit's output from its weights; `attention` makes A [rows seq seq] from queries and keys in turn."""
    h = x * unit.norm.gain / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    wide = F.silu(h @ unit.expand.weight.T + unit.expand.bias)
    s, width = unit.gamma.shape[1], unit.out.weight.shape[1]
    gate = wide[..., : -width - s] if wide.shape[-1] > width + s else 1.0
    v, z = wide[..., -width - s : -s], wide[..., -s:]
    heads = [_turned(z * scale + move) for scale, move in zip(unit.gamma, unit.beta, strict=True)]
    return x + (gate * (attention(heads) @ v)) @ unit.out.weight.T + unit.out.bias


def _turned(x: Tensor) -> Tensor:
    """Rotary positions: features j and j + s/2 as one complex number, times exp(i · position · 10000^(-2j/s))."""
    half = x.shape[-1] // 2
    rate = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[-2])[:, None] * rate
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


def _squared_relu(unit: Any, heads: list[Tensor], n: int) -> Tensor:
    """relu(q·k / n + b)², with b looked up by distance."""
    q, k = heads[:2]
    place, table = torch.arange(q.shape[1]), unit.bias.table
    # pairs farther apart than the table reaches are for the caller to leave out
    distances = (place - place[:, None] + len(table) // 2).clamp(0, len(table) - 1)
    return (q @ k.transpose(1, 2) / n + table[distances]).relu() ** 2


def _mixed_chunks(unit: Any, heads: list[Tensor], causal: bool) -> Tensor:
    """Weights within a chunk, and the mean of q·k v over all tokens, or over those of earlier chunks."""
    place = torch.arange(SEQ)
    chunk = place // CHUNK
    near, far = chunk[:, None] == chunk, torch.ones(SEQ, SEQ, dtype=torch.bool)
    if causal:
        near, far = near & (place[:, None] >= place), chunk[:, None] > chunk
    counts = far.sum(1, keepdim=True).clamp(min=1)
    return _squared_relu(unit, heads, CHUNK) * near + heads[2] @ heads[3].transpose(1, 2) / counts * far


def _unit(model: str, causal: bool = False) -> Any:
    return stirred(factory(model, causal, dim=WIDTH)(SEQ))


def _share(both: Any, part: Any, rows: slice) -> None:
    """Give a unit of one part the weights that the unit of both has for it."""
    part.norm.load_state_dict(both.norm.state_dict())
    part.expand.load_state_dict(both.expand.state_dict())
    part.out.load_state_dict(both.out.state_dict())
    part.gamma.copy_(both.gamma[rows])
    part.beta.copy_(both.beta[rows])
