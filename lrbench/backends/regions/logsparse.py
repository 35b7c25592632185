"""Blocks that double with distance: the last one or two tokens directly, everything before them as log n regions.

Token i sees, for each bit l >= 1 that is set in i, the block [h - 2^l, h), where h is i without its l lowest bits; for
bit 0 that is the token before. Seen in pairs of blocks of 2^l, each odd block meets the even one before it, so that
nothing is gathered. Not causal, the rest is cut the same way from the other end. Time and memory n · log n.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lrbench.backends.regions.tokens import Regions, Tokens, chances, dropped, expected, lowest, unshown


class Level(NamedTuple):
    """What the odd blocks of one size see of the even ones before them."""

    size: int
    scores: Float[Tensor, "rows heads seq"]  # as low as can be where the block is an even one
    value: Float[Tensor, "rows heads pairs head_dim"]


def logsparse(t: Tokens, causal: bool) -> Float[Tensor, "rows heads seq head_dim"]:
    """All blocks in one softmax with the token itself."""
    itself = (t.q * t.k).sum(-1)
    behind = levels(t)
    ends = None if causal else last(t)
    ahead = [] if ends is None else levels(turned(t, ends))
    columns = [itself, *(level.scores for level in behind)]
    if ends is not None and ahead:
        columns += mirrored(torch.stack([level.scores for level in ahead], -1), ends).unbind(-1)
    scores = torch.stack(columns, -1)
    weights = chances(scores, scores > lowest(scores))
    own, before, after = weights.split([1, len(behind), len(ahead)], -1)
    mixed = dropped(own, t.dropout) * t.v
    if behind:
        mixed = mixed + spread(before, behind, t.dropout)
    if ends is not None and ahead:
        mixed = mixed + mirrored(spread(mirrored(after, ends), ahead, t.dropout), ends)
    return mixed


def levels(t: Tokens) -> list[Level]:
    """From blocks of one token to blocks of half the length."""
    seq, found = t.q.shape[2], []
    count = (seq - 1).bit_length()
    pools = Regions(unshown(t.offering, t.seen), unshown(t.asking, t.seen), t.seen)
    for level in range(count):
        # the large blocks need a longer tail; a few steps of it cost less than one at every level
        t = t.padded(max(2 << level, (1 << count) >> 3))
        pools = paired(pools, t.q.shape[2] >> level)
        found.append(one_level(t, pools, 1 << level, seq))
        pools = pools.changed(lambda x: x.unflatten(2, (-1, 2)).amax(3), pools.some.unflatten(2, (-1, 2)).any(3))
    return found


def paired(pools: Regions, blocks: int) -> Regions:
    """As many blocks as there are in the padded tokens; those that are added hold nothing."""
    missing = blocks - pools.key.shape[2]
    if not missing:
        return pools
    low = lowest(pools.key)
    return pools.changed(lambda x: F.pad(x, (0, 0, 0, missing), value=low), F.pad(pools.some, (0, missing)))


def one_level(t: Tokens, pools: Regions, size: int, seq: int) -> Level:
    """Blocks of one size. `pools` hold the maxima of keys, and of queries, over each."""
    if size == 1:
        key, value, some = t.k[:, :, ::2], t.v[:, :, ::2], t.seen[:, :, ::2]
    else:
        some = pools.some[:, :, ::2]
        key, query = (x[:, :, ::2].masked_fill(~some[..., None], 0.0) for x in pools[:2])
        even = t.folded(size)
        even = even.changed(lambda x: x[:, :, ::2], even.seen[:, :, ::2])
        value = expected(query[..., None, :], even, even.seen[..., None, :])[..., 0, :]
    odd = t.q.unflatten(2, (-1, 2, size))[:, :, :, 1]
    scores = (odd @ key[..., None])[..., 0]  # rows heads pairs size
    scores = scores.masked_fill(~some[..., None], lowest(scores))
    scores = F.pad(scores[:, :, :, None], (0, 0, 1, 0), value=lowest(scores))
    return Level(size, scores.flatten(2)[:, :, :seq], value)


def spread(
    weights: Float[Tensor, "rows heads seq levels"], found: list[Level], dropout: float
) -> Float[Tensor, "rows heads seq head_dim"]:
    """The values of all levels, each times the weight that a token gives it."""
    seq, total = weights.shape[2], 0.0
    for weight, level in zip(weights.unbind(-1), found, strict=True):
        pairs = level.value.shape[2]
        weight = F.pad(weight, (0, 2 * level.size * pairs - seq)).unflatten(2, (pairs, -1))
        if level.size == 1:  # a token by itself, not a region
            weight = dropped(weight, dropout)
        total = total + (weight[..., None] * level.value[:, :, :, None]).flatten(2, 3)[:, :, :seq]
    assert isinstance(total, Tensor)
    return total


def last(t: Tokens) -> Int[Tensor, "#rows 1"]:
    """The place of each row's last real token."""
    return (t.seen[:, 0] * torch.arange(t.seen.shape[-1], device=t.seen.device)).amax(-1, keepdim=True)


def mirrored(x: Shaped[Tensor, "rows heads seq width"], ends: Int[Tensor, "#rows 1"]) -> Tensor:
    """Each row backwards from its last real token, padding behind it; the same again undoes it."""
    places = (ends - torch.arange(x.shape[2], device=x.device)) % x.shape[2]
    return x.take_along_dim(places[:, None, :, None], 2)


def turned(t: Tokens, ends: Int[Tensor, "#rows 1"]) -> Tokens:
    """All of it mirrored."""
    return t.changed(lambda x: mirrored(x, ends), mirrored(t.seen[..., None], ends)[..., 0])
