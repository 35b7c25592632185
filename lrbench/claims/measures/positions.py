"""Position-infused attention: positions are in queries and keys, and in nothing that is kept."""

import math
from typing import Any

import torch
from torch import Tensor

from lrbench.claims.built import distance, factory, normal
from lrbench.claims.measured import Measured, exact

SEQ, SEGMENT, WIDTH = 23, 9, 13


def values_free() -> Measured:
    """S20: values do not know positions, so that what was kept of earlier segments is still right.

    Two numbers, of which the value is the larger: the derivative of values by the positions, and how far causal
    attention to values kept from segments read alone, each from position 0, is from that of the whole input at once.
    """
    mixer: Any = factory("full", causal=True, dim=WIDTH, positions="pia")(SEQ).double()
    x, table = normal(2, SEQ, WIDTH), mixer.place.table.requires_grad_()
    slope = _derivative(mixer.projected(x, None)[2], table)
    with torch.no_grad():
        apart = distance(_from_kept(mixer, x), mixer(x))
    return exact(max(slope, apart), f"derivative {slope:.1e}; kept against recomputed {apart:.1e}, {SEQ} tokens", n=2)


def _derivative(values: Tensor, table: Tensor) -> float:
    """The largest derivative of the sum of squares; 0 where nothing leads from one to the other."""
    (found,) = torch.autograd.grad(values.square().sum(), table, allow_unused=True, materialize_grads=True)
    return float(found.abs().max())


def _from_kept(mixer: Any, x: Tensor) -> Tensor:
    """Softmax attention whose values come from segments alone, keys from the kept inputs and positions added anew."""
    v = torch.cat([mixer.projected(part, None)[2] for part in x.split(SEGMENT, 1)], dim=2)
    placed = x + mixer.place.table
    q, k = (mixer.split(placed @ linear.weight.T) for linear in (mixer.query, mixer.key))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
    return mixed.transpose(1, 2).flatten(-2) @ mixer.out.weight.T
