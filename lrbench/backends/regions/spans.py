"""Own span directly, every other span as a region: of the sequence as it is, or sorted by cluster.

Time and memory n · (span + n / span).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lrbench.backends.regions.tokens import Tokens, chances, dropped, others, summarised, upto


def fixed(t: Tokens, span: int, causal: bool, own: bool = False) -> Float[Tensor, "rows heads padded head_dim"]:
    """Spans of consecutive tokens. With `own` the own span is among the regions as well."""
    t = t.padded(span).folded(span)
    blocks, device = t.q.shape[2], t.q.device
    regions = summarised(t)
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
    return (dropped(inside, t.dropout) @ t.v).flatten(2, 3) + outside.flatten(2, 3) @ regions.value


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
