"""A memory of segments whose oldest part is compressed, not dropped.

Compressive Transformer (Rae et al. 2020): Transformer-XL with keys and values from [c, m, h]. What m gives up, oldest
first, is compressed `rate` rows to one and pushed to c, which holds the last `compressed` of those. Positions count c's
rows as if they were tokens. Time n · (segment + memory + compressed) · d a head, and as much again for positions.

What compression learns from: h attends to what m gives up, by content alone, and to its compressed form; the mean
squared difference is added to the loss while training. All but the compression is constant there, and to the task's
loss the compression is. A compression without parameters adds nothing.

Deviations: the rows are what the layer is given, so they are compressed after the norm of the block, and not normed
again. `most-used` looks at the attention of the last segment that sees a row. `dilated` is ours: depthwise convolutions
of 3 with dilations of 1, 2 and 4, then `conv`. Only whole segments are remembered: another length leaves the state as
it was, so that a segment can be read as it grows.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrbench.backends import ops
from lrbench.backends.base import LayerConfig, check_option
from lrbench.backends.transformer_xl import Past, Read, TransformerXL, cut, joint, known, newest


class Compressive(TransformerXL):
    """Segment recurrence with a compressed memory.

    Args:
        segment: tokens read at once; `rate` must divide it.
        memory: earlier inputs of the layer that are kept as they are; `rate` must divide it.
        compressed: compressed rows kept.
        rate: rows that become one.
        compression: `mean` or `max` of real rows, `conv` (a map of all `rate` rows), `dilated`, or `most-used`, which
            keeps the rows that get most attention.
        weight: of the loss that compression learns from.
    """

    paper, order, can_be_causal = "1911.05507", "n", True

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        segment: int = 256,
        memory: int = 256,
        compressed: int = 256,
        rate: int = 4,
        compression: Literal["max", "mean", "conv", "dilated", "most-used"] = "conv",
        weight: float = 1.0,
    ) -> None:
        super().__init__(cfg, segment=segment, memory=memory)
        check_option("compressed", compressed, compressed >= 0, "of at least 0")
        check_option("rate", rate, rate >= 1, "of at least 1")
        check_option("segment", segment, segment % rate == 0, f"that rate {rate} divides")
        check_option("memory", memory, memory % rate == 0, f"that rate {rate} divides")
        check_option("weight", weight, weight >= 0, "of at least 0")
        self.compressed, self.rate, self.compression, self.weight = compressed, rate, compression, weight
        learned = {"conv": Strided, "dilated": Dilated}
        self.compress = learned[compression](cfg.dim, rate) if compression in learned else None

    @property
    def reach(self) -> int:
        """The longest past."""
        return self.memory + self.compressed

    @property
    def notes(self) -> list[str]:
        """Also whether any input is long enough for compression."""
        filled = self.segment * (self.memory // self.segment + 1)
        if self.segment < self.cfg.max_len <= filled:
            return [*super().notes, f"inputs of at most {self.cfg.max_len} tokens: compressed memory is never read"]
        return super().notes

    def remember(self, read: Read, past: Past) -> tuple[Past, Float[Tensor, ""] | None]:
        """First in, first out, through compression."""
        if read.q.shape[2] % self.segment:
            return past, self.nothing_lost()
        keys, end = read.keys, read.keys.rows.shape[1]
        old = max(0, past.rows.shape[1] - self.memory)  # compressed ones: there are some only where memory is full
        new = max(old, end - self.memory)  # where memory begins from now on
        if new == old:
            return keys, self.nothing_lost()
        out = cut(keys, old, new)
        compact = self.compacted(out, read.weights[..., old:new], read.mask)
        loss = self.lost(out, compact, read)
        compact = compact._replace(rows=compact.rows.detach())
        deep = newest(self.chained(cut(keys, 0, old), compact), self.compressed)
        return self.chained(deep, cut(keys, new, end)), loss

    def chained(self, older: Past, newer: Past) -> Past:
        """One after the other."""
        projected = torch.cat([self.projections(older), self.projections(newer)], 1)
        seen = joint(older, newer.seen, newer.rows.shape[1])
        return Past(torch.cat([older.rows, newer.rows], 1), seen, projected)

    def projections(self, past: Past) -> Float[Tensor, "rows past keys_and_values"]:
        """Keys and values of rows, which may be known."""
        if past.projected is not None:
            return past.projected
        return torch.cat([self.key(past.rows), self.value(past.rows)], -1)

    def compacted(
        self, out: Past, weights: Float[Tensor, "rows heads seq out"], mask: Bool[Tensor, "rows seq"] | None
    ) -> Past:
        """The compressed form of some rows; a slot is real if a row of its is."""
        rows, real = out.rows, known(out)
        if self.compression == "most-used":
            asked = weights.sum(1)  # rows seq out
            used = (asked if mask is None else asked.masked_fill(~mask[..., None], 0.0)).sum(1)
            kept, some = most_used(rows, real, used, rows.shape[1] // self.rate)
            return Past(kept, None if out.seen is None else some)
        groups, some = rows.unflatten(1, (-1, self.rate)), real.unflatten(1, (-1, self.rate))
        if self.compress is not None:
            with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
                compact = self.compress(groups, some)
        elif self.compression == "mean":
            compact = groups.sum(2) / some.sum(2)[..., None].clamp(min=1)  # rows that are not real are zeros
        else:
            compact = groups.masked_fill(~some[..., None], -torch.inf).amax(2)
        some = some.any(2)
        return Past(compact.masked_fill(~some[..., None], 0.0), None if out.seen is None else some)

    def lost(self, out: Past, compact: Past, read: Read) -> Float[Tensor, ""] | None:
        """How far attention to the compressed form is from that to the rows: a mean over queries, then rows."""
        if self.compress is None or not self.training:
            return None
        with torch.no_grad():
            before = self.content(read.q, out, self.projections(out))
        both = torch.cat([self.key.weight, self.value.weight]).detach()
        after = self.content(read.q, compact, F.linear(compact.rows, both))
        squares = (after - before).to(ops.wide(after.dtype)).square().mean((1, 3))  # rows seq
        if read.mask is None:
            return self.weight * squares.mean()
        # a segment that padding fills up is one that would end early without it, and loses nothing
        return self.weight * (squares.mean(1) * read.mask.all(1)).mean()

    def content(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        past: Past,
        projected: Float[Tensor, "rows past keys_and_values"],
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Attention without positions."""
        k, v = (self.split(part) for part in projected.chunk(2, -1))
        seen = None if past.seen is None else past.seen[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, seen)

    def nothing_lost(self) -> Float[Tensor, ""] | None:
        """A loss of 0 with gradients of 0, for parameters that get none would stop distributed training."""
        if self.compress is None or not self.training:
            return None
        return torch.stack([parameter[:0].sum() for parameter in self.compress.parameters()]).sum()


class Strided(nn.Module):
    """A convolution whose kernel and stride are `rate`: one linear map of each group."""

    def __init__(self, dim: int, rate: int) -> None:
        super().__init__()
        self.conv = nn.Linear(rate * dim, dim)

    def forward(
        self, groups: Float[Tensor, "rows slots rate dim"], real: Bool[Tensor, "rows slots rate"]
    ) -> Float[Tensor, "rows slots dim"]:
        """One row for each group. What is not real arrives as zeros."""
        return self.conv(groups.flatten(2))


class Dilated(Strided):
    """Depthwise convolutions over neighbours further and further apart, then `Strided`."""

    def __init__(self, dim: int, rate: int) -> None:
        super().__init__(dim, rate)
        self.wide = nn.ModuleList(
            nn.Conv1d(dim, dim, 3, padding=apart, dilation=apart, groups=dim, bias=False) for apart in (1, 2, 4)
        )

    def forward(
        self, groups: Float[Tensor, "rows slots rate dim"], real: Bool[Tensor, "rows slots rate"]
    ) -> Float[Tensor, "rows slots dim"]:
        """One row for each group. Padding stays zeros, lest it return a neighbour's echo that no padding would not."""
        rows, hidden = groups.flatten(1, 2).transpose(1, 2), ~real.flatten(1)[:, None]
        for conv in self.wide:
            rows = conv(rows).masked_fill(hidden, 0.0)
        return super().forward(rows.transpose(1, 2).unflatten(1, groups.shape[1:3]), real)


def most_used(
    rows: Float[Tensor, "rows out dim"], real: Bool[Tensor, "rows out"], used: Float[Tensor, "rows out"], count: int
) -> tuple[Float[Tensor, "rows count dim"], Bool[Tensor, "rows count"]]:
    """The rows that got most attention, in their order."""
    ranked = used.masked_fill(~real, -1.0).sort(dim=1, descending=True, stable=True).indices
    places = ranked[:, :count].sort(1).values
    return rows.take_along_dim(places[..., None], 1), real.take_along_dim(places, 1)
