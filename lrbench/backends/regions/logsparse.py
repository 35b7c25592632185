"""Blocks that double with distance: the last one or two tokens directly, everything before them as log n regions.

Token i sees, for each bit l >= 1 that is set in i, the block [h - 2^l, h), where h is i without its l lowest bits; for
bit 0 that is the token before. So each odd block of 2^l tokens meets the even one before it. Some levels at a time are
one product: of the queries in a large block with the even blocks in it, most of which each query may not see. That
takes 2^4 / 4 times the terms that count, but neither gathers nor a pass over memory for each level. Not causal, the
rest is cut the same way from the other end. Time and memory n · log n.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lrbench.backends.regions.tokens import Regions, Tokens, chances, dropped, expected, lowest, unshown

LEVELS = 4  # in one product


class Group(NamedTuple):
    """What tokens see at some consecutive levels. Those of one block share the regions."""

    scores: Float[Tensor, "rows heads seq regions"]
    allowed: Bool[Tensor, "#rows 1 seq regions"]
    value: Float[Tensor, "rows heads blocks regions head_dim"]
    block: int
    direct: int  # so many of the regions, the first, are single tokens


def logsparse(t: Tokens, causal: bool, padded: bool) -> Float[Tensor, "rows heads seq head_dim"]:
    """All blocks in one softmax with the token itself."""
    behind, ends = groups(t), last(t) if padded else None
    ahead = [] if causal else groups(turned(t, ends))
    scores = [(t.q * t.k).sum(-1, keepdim=True), *(group.scores for group in behind)]
    allowed = [t.seen[..., None], *(group.allowed for group in behind)]
    scores += [mirrored(group.scores, ends) for group in ahead]
    allowed += [mirrored(group.allowed, ends) for group in ahead]
    weights = chances(torch.cat(scores, -1), torch.cat(allowed, -1))
    own, *rest = weights.split([part.shape[-1] for part in scores], -1)
    mixed = dropped(own, t.dropout) * t.v
    for weight, group in zip(rest[: len(behind)], behind, strict=True):
        mixed = mixed + spread(weight, group, t.dropout)
    for weight, group in zip(rest[len(behind) :], ahead, strict=True):
        mixed = mixed + mirrored(spread(mirrored(weight, ends), group, t.dropout), ends)
    return mixed


def groups(t: Tokens) -> list[Group]:
    """From blocks of one token to blocks of half the length, some levels at a time."""
    seq, found = t.q.shape[2], []
    count = (seq - 1).bit_length()
    pools = Regions(unshown(t.offering, t.seen), unshown(t.asking, t.seen), t.seen)
    for first in range(0, count, LEVELS):
        levels = range(first, min(first + LEVELS, count))
        block = 1 << levels.stop
        t = t.padded(block)
        pools = extended(pools, t.q.shape[2] >> first)
        evens = []
        for level in levels:
            whole = of_size(t, pools, 1 << level)
            evens.append([part.unflatten(2, (-1, block >> level))[:, :, :, ::2] for part in whole])
            pools = pools.changed(lambda x: x.unflatten(2, (-1, 2)).amax(3), pools.some.unflatten(2, (-1, 2)).any(3))
        key, value, some = (torch.cat(parts, 3) for parts in zip(*evens, strict=True))
        scores = t.q.unflatten(2, (-1, block)) @ key.transpose(-1, -2)
        meets = met(len(levels), t.q.device).repeat_interleave(1 << first, 0)  # block regions
        allowed = (some[..., None, :] & meets).flatten(2, 3)[:, :, :seq]
        direct = block // 2 if first == 0 else 0
        found.append(Group(scores.flatten(2, 3)[:, :, :seq], allowed, value, block, direct))
    return found


def met(levels: int, device: torch.device) -> Bool[Tensor, "children regions"]:
    """Which even blocks, of all levels one after the other, come right before the odd block that holds the child."""
    child = torch.arange(1 << levels, device=device)[:, None]
    return torch.cat([child >> level == child[1 : (1 << levels) >> level : 2].T for level in range(levels)], -1)


def extended(pools: Regions, blocks: int) -> Regions:
    """As many blocks as there are in the padded tokens; those that are added hold nothing."""
    missing = blocks - pools.key.shape[2]
    if not missing:
        return pools
    low = lowest(pools.key)
    return pools.changed(lambda x: F.pad(x, (0, 0, 0, missing), value=low), F.pad(pools.some, (0, missing)))


def of_size(t: Tokens, pools: Regions, size: int) -> Regions:
    """All blocks of one size; single tokens are themselves. `pools` hold each one's maxima of keys, and of queries."""
    if size == 1:
        return Regions(t.k, t.v, t.seen)
    key, query = (x.masked_fill(~pools.some[..., None], 0.0) for x in pools[:2])
    folded = t.folded(size)
    return Regions(key, expected(query[..., None, :], folded, folded.seen[..., None, :])[..., 0, :], pools.some)


def spread(
    weight: Float[Tensor, "rows heads seq regions"], group: Group, dropout: float
) -> Float[Tensor, "rows heads seq head_dim"]:
    """The values of a group's regions by the weights that tokens give them."""
    seq = weight.shape[2]
    if dropout and group.direct:
        weight = torch.cat([dropped(weight[..., : group.direct], dropout), weight[..., group.direct :]], -1)
    tail = group.value.shape[2] * group.block - seq
    weight = F.pad(weight, (0, 0, 0, tail)) if tail else weight
    return (weight.unflatten(2, (-1, group.block)) @ group.value).flatten(2, 3)[:, :, :seq]


def last(t: Tokens) -> Int[Tensor, "#rows 1"]:
    """The place of each row's last real token."""
    return (t.seen[:, 0] * torch.arange(t.seen.shape[-1], device=t.seen.device)).amax(-1, keepdim=True)


def mirrored(x: Shaped[Tensor, "rows heads seq width"], ends: Int[Tensor, "#rows 1"] | None) -> Tensor:
    """Each row backwards from its last real token, padding behind it; the same again undoes it."""
    if ends is None:
        return x.flip(2)
    places = (ends - torch.arange(x.shape[2], device=x.device)) % x.shape[2]
    return x.take_along_dim(places[:, None, :, None], 2)


def turned(t: Tokens, ends: Int[Tensor, "#rows 1"] | None) -> Tokens:
    """All of it mirrored."""
    return t.changed(lambda x: mirrored(x, ends), mirrored(t.seen[..., None], ends)[..., 0])
