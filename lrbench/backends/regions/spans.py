"""Own span directly, every other span as a region, or by its last token: in the sequence's order, or the clusters'.

Time and memory n · (span + n / span).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrbench.backends.regions.tokens import Regions, Tokens, chances, dropped, others, summarised, upto


def fixed(t: Tokens, span: int, causal: bool, own: bool = False) -> Float[Tensor, "rows heads padded head_dim"]:
    """Spans of consecutive tokens. With `own` the own span is among the regions as well."""
    t = t.padded(span).folded(span)
    return beside(t, summarised(t), causal, own)


def ends(t: Tokens, span: int, causal: bool) -> Float[Tensor, "rows heads padded head_dim"]:
    """Of every other span its last token and no more, which is nothing where that is padding."""
    t = t.padded(span).folded(span)
    last = Regions(t.k[..., -1, :], t.v[..., -1, :], t.seen[..., -1])
    return beside(t, last, causal, dropout=t.dropout)


def beside(
    t: Tokens, regions: Regions, causal: bool, own: bool = False, dropout: float = 0.0
) -> Float[Tensor, "rows heads padded head_dim"]:
    """One softmax over the own span and what stands for the others; `dropout` is on the weights of these."""
    blocks, span, device = *t.q.shape[2:4], t.q.device
    visible = torch.ones(span, span, dtype=torch.bool, device=device) if not causal else upto(span, device)
    near = t.seen[..., None, :] & visible
    rest = upto(blocks, device, 1) if causal else others(blocks, device) | own
    far = (regions.some[:, :, None, :] & rest)[..., None, :].expand(-1, -1, -1, span, -1)
    scores = [
        t.q @ t.k.transpose(-1, -2),
        (t.q.flatten(2, 3) @ regions.key.transpose(-1, -2)).unflatten(2, (blocks, span)),
    ]
    weights = chances(torch.cat(scores, -1), torch.cat([near, far], -1))
    inside, outside = weights.split([span, blocks], -1)
    elsewhere = dropped(outside, dropout).flatten(2, 3) @ regions.value
    return (dropped(inside, t.dropout) @ t.v).flatten(2, 3) + elsewhere


def clustered(
    t: Tokens, cluster: Int[Tensor, "rows heads seq"], span: int
) -> Float[Tensor, "rows heads padded head_dim"]:
    """Spans of the tokens in the order of their clusters, and of their places within one.

    Cut at equal sizes, so that every token is in exactly one region. A later token may move an earlier one to another
    span, which no gradient shows: not for causal use.
    """
    order = cluster.masked_fill(~t.seen, torch.iinfo(cluster.dtype).max).argsort(stable=True, dim=-1)
    count = t.seen.sum(-1, keepdim=True)
    ranked = t.changed(
        lambda x: x.take_along_dim(order[..., None], 2), torch.arange(order.shape[-1], device=order.device) < count
    )
    mixed = fixed(ranked, span, causal=False)
    return mixed.take_along_dim(order.argsort(-1)[..., None], 2)
