"""Tokens, regions of them, and the one softmax over both."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops


class Tokens(NamedTuple):
    """What a plan mixes, cut into as many `place` axes as it likes. Queries come scaled."""

    q: Float[Tensor, "rows heads *place head_dim"]
    k: Float[Tensor, "rows heads *place head_dim"]
    v: Float[Tensor, "rows heads *place head_dim"]
    asking: Float[Tensor, "rows heads *place head_dim"]  # what queries of regions are pooled from
    offering: Float[Tensor, "rows heads *place head_dim"]  # what keys of regions are pooled from
    seen: Bool[Tensor, "#rows 1 *place"]  # one row where nothing is padded
    dropout: float = 0.0  # on weights of single tokens

    def changed(self, change: Callable[[Tensor], Tensor], seen: Tensor) -> "Tokens":
        """The same change to all but `seen`; what was one tensor stays one."""
        once = {id(part): part for part in self[:5]}
        new = {key: change(part) for key, part in once.items()}
        q, k, v, asking, offering = (new[id(part)] for part in self[:5])
        return Tokens(q, k, v, asking, offering, seen, self.dropout)

    def padded(self, multiple: int, front: int = 0) -> "Tokens":
        """Unseen tokens before, and after until the length is a multiple."""
        tail = -(front + self.q.shape[2]) % multiple
        if not front and not tail:
            return self
        return self.changed(lambda x: F.pad(x, (0, 0, front, tail)), F.pad(self.seen, (front, tail)))

    def folded(self, size: int) -> "Tokens":
        """One place axis as two, the last of them of `size`."""
        return self.changed(lambda x: x.unflatten(2, (-1, size)), self.seen.unflatten(2, (-1, size)))

    def transposed(self) -> "Tokens":
        """Rows of a grid as columns."""
        return self.changed(lambda x: x.transpose(2, 3), self.seen.transpose(2, 3))

    def reversed(self) -> "Tokens":
        """The last place axis backwards."""
        return self.changed(lambda x: x.flip(-2), self.seen.flip(-1))


class Regions(NamedTuple):
    """What queries see of regions instead of their tokens."""

    key: Float[Tensor, "rows heads *place head_dim"]
    value: Float[Tensor, "rows heads *place head_dim"]
    some: Bool[Tensor, "#rows 1 *place"]  # whether any token of the region is real

    def changed(self, change: Callable[[Tensor], Tensor], some: Tensor) -> "Regions":
        """The same change to keys and values."""
        return Regions(change(self.key), change(self.value), some)


def lowest(x: Tensor) -> float:
    """What stands in for minus infinity: finite, or a row of nothing else would be nan."""
    return torch.finfo(x.dtype).min


def chances(scores: Float[Tensor, "*place terms"], allowed: Bool[Tensor, "*#place terms"]) -> Tensor:
    """The softmax over the allowed terms, in float32 at least. Where none is, any: such a row must be hidden later."""
    filled = scores.to(ops.wide(scores.dtype)).masked_fill(~allowed, torch.finfo(ops.wide(scores.dtype)).min)
    return filled.softmax(-1).to(scores.dtype)


def dropped(weights: Float[Tensor, "*place terms"], dropout: float) -> Float[Tensor, "*place terms"]:
    """Dropout, where there is any: with a rate of 0 it would still copy."""
    return F.dropout(weights, dropout) if dropout else weights


def unshown(x: Float[Tensor, "rows heads *place head_dim"], seen: Bool[Tensor, "#rows 1 *place"]) -> Tensor:
    """x so low wherever it is padding that it is no maximum."""
    return x.masked_fill(~seen[..., None], lowest(x))


def summarised(t: Tokens) -> Regions:
    """One region for each stretch of the last place axis.

    Its key is the elementwise maximum of the keys; its value the mean of the values by the softmax that the elementwise
    maximum of the queries makes over the keys.
    """
    some = t.seen.any(-1)
    query, key = (
        unshown(x, t.seen).amax(-2).masked_fill(~some[..., None], 0.0) for x in (t.asking, t.offering)
    )  # fmt: skip
    return Regions(key, expected(query[..., None, :], t, t.seen[..., None, :])[..., 0, :], some)


def expected(
    query: Float[Tensor, "rows heads *place queries head_dim"],
    t: Tokens,
    allowed: Bool[Tensor, "#rows 1 *place #queries keys"],
) -> Float[Tensor, "rows heads *place queries head_dim"]:
    """The mean of the values by the softmax of region queries over the allowed keys."""
    return dropped(chances(query @ t.k.transpose(-1, -2), allowed), t.dropout) @ t.v


def upto(size: int, device: torch.device, first: int = 0) -> Bool[Tensor, "size size"]:
    """Which j are at most i - first."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril_(-first)


def others(size: int, device: torch.device) -> Bool[Tensor, "size size"]:
    """Which j are not i."""
    return ~torch.eye(size, dtype=torch.bool, device=device)
