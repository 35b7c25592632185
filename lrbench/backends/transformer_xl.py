"""Segments that attend to themselves and to a memory of the ones before.

Transformer-XL (Dai et al. 2019). Queries come from a segment h, keys and values from [m, h], where m holds the layer's
last `memory` inputs, through which no gradient flows. The score of query i and key j is, over √d,
(q_i + u)·k_j + (q_i + v)·r_(i-j), with r = W_r of sinusoids of the distance. u and v are shared by all layers, as in
the authors' code. Time n · (segment + memory) · d a head, scores and their position term apart; memory the same while
training, segment · (segment + memory) while streaming.

Not causal, a segment is read in both directions and its past as before (our definition, for classification). A row
whose segment is all padding pushes nothing: whole segments of padding in front change nothing, others shift the cuts.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer, LayerConfig, Mixed, check_option, fold_segments, joined


class Past(NamedTuple):
    """The state of a stream: what a layer was given before, oldest first, zeros where nothing is."""

    rows: Float[Tensor, "rows past dim"]
    seen: Bool[Tensor, "rows past"] | None  # which of them are real; None: all
    projected: Float[Tensor, "rows past keys_and_values"] | None = None  # within one forward pass; None: still to do


class Distances(NamedTuple):
    """r of all distances from the longest down."""

    r: Float[Tensor, "heads head_dim distances"]
    zero: int  # where the distance 0 is


class Read(NamedTuple):
    """What a segment was read with."""

    keys: Past  # those of the past, then its own; gradients reach the projections alone
    q: Float[Tensor, "rows heads seq head_dim"]
    weights: Float[Tensor, "rows heads seq keys"]
    mask: Bool[Tensor, "rows seq"] | None


class TransformerXL(HeadMixer):
    """Segment recurrence with relative positions.

    Args:
        segment: tokens read at once.
        memory: earlier inputs of the layer that a segment sees.
    """

    paper, order, can_be_causal = "1901.02860", "n", True
    content_bias: nn.Parameter
    position_bias: nn.Parameter

    def __init__(self, cfg: LayerConfig, *, segment: int = 256, memory: int = 256) -> None:
        super().__init__(cfg)
        check_option("segment", segment, segment >= 1, "of at least 1")
        check_option("memory", memory, memory >= 0, "of at least 0")
        self.segment, self.memory = segment, memory
        self.relative = nn.Linear(cfg.dim, cfg.heads * cfg.head_dim, bias=False)
        nn.init.xavier_uniform_(self.relative.weight)
        first = cfg.first if isinstance(cfg.first, TransformerXL) else None
        self.content_bias = first.content_bias if first else self.bias()
        self.position_bias = first.position_bias if first else self.bias()

    @property
    def reach(self) -> int:
        """The longest past."""
        return self.memory

    @property
    def notes(self) -> list[str]:
        """Whether there is a second segment, and whether the answer is read where it cannot be known."""
        longest = self.cfg.max_len
        if longest <= self.segment:
            return [f"a segment of {self.segment} holds inputs of at most {longest} tokens: full attention"]
        return ["the answer is read from the first segment, which sees no other"] if self.cfg.readout else []

    def bias(self) -> nn.Parameter:
        """u or v."""
        return nn.Parameter(nn.init.normal_(torch.empty(self.cfg.heads, 1, self.cfg.head_dim), std=0.02))

    def forward(  # type: ignore[override]  # a subclass may bring a loss
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"] | Mixed:
        """All segments in order; r is computed once for all."""
        seq = x.shape[1]
        distances = self.distances(min(seq, self.reach + self.segment), min(seq, self.segment))
        return fold_segments(partial(self.read, distances=distances), x, self.segment, mask)

    def step(
        self, x: Float[Tensor, "rows seq dim"], state: Past | None, *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> tuple[Tensor | Mixed, Past]:
        """Read one segment, given the state that the one before left; None starts anew."""
        past = 0 if state is None else state.rows.shape[1]
        y, later = self.read(x, state, mask=mask, distances=self.distances(past + x.shape[1], x.shape[1]))
        return y, later if later.projected is None else later._replace(projected=None)

    def distances(self, longest: int, seq: int) -> Distances:
        """r of what so many keys need, of which the last `seq` are the queries' own."""
        like = self.relative.weight
        last = 0 if self.cfg.causal else 1 - seq
        counted = torch.arange(longest - 1, last - 1, -1, device=like.device)
        r = self.relative(sinusoids(counted.to(ops.wide(like.dtype)), self.cfg.dim).to(like.dtype))
        return Distances(r.unflatten(1, (self.cfg.heads, self.cfg.head_dim)).permute(1, 2, 0), longest - 1)

    def read(
        self,
        x: Float[Tensor, "rows seq dim"],
        state: Past | None,
        *,
        mask: Bool[Tensor, "rows seq"] | None,
        distances: Distances,
    ) -> tuple[Tensor | Mixed, Past]:
        """The output of a segment and the state after it."""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # 0 · nan is nan
        past = Past(x.new_zeros(len(x), 0, x.shape[2]), None) if state is None else state
        both = torch.cat([self.key.weight, self.value.weight])
        before = F.linear(past.rows, both) if past.projected is None else past.projected
        past = past._replace(projected=before)
        now, later = Twice.apply(x, both)
        q = self.split(self.query(x))
        k, v = (self.split(part) for part in torch.cat([before, now], 1).chunk(2, -1))
        keys = Past(torch.cat([past.rows, x.detach()], 1), joint(past, mask, x.shape[1]), torch.cat([before, later], 1))
        weights = self.weights(q, k, keys.seen, distances)
        mixed = F.dropout(weights, self.cfg.dropout, self.training) @ v
        y = self.out(mixed.transpose(1, 2).flatten(-2))
        after, loss = self.remember(Read(keys, q.detach(), weights.detach(), mask), past)
        if mask is None:
            return joined(y, [loss]), after
        return joined(y.masked_fill(~mask[..., None], 0.0), [loss]), unless_hidden(after, past, mask)

    def remember(self, read: Read, past: Past) -> tuple[Past, Float[Tensor, ""] | None]:
        """The past of the next segment, and what a way of remembering costs."""
        return newest(read.keys, self.memory), None

    def weights(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads keys head_dim"],
        seen: Bool[Tensor, "rows keys"] | None,
        distances: Distances,
    ) -> Float[Tensor, "rows heads seq keys"]:
        """The softmax of the four terms. A query that sees nothing gets any weights: it is padding."""
        rows, heads, seq, head_dim = q.shape
        keys, ahead = k.shape[2], 0 if self.cfg.causal else seq - 1
        r = distances.r[..., distances.zero + 1 - keys : distances.zero + 1 + ahead]
        scale = head_dim**-0.5
        position = Shift.apply((q + self.position_bias) * scale @ r, keys)
        content = (q + self.content_bias) * scale
        scores = torch.baddbmm(position.flatten(0, 1), content.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
        scores = scores.unflatten(0, (rows, heads))
        with torch.no_grad():  # autograd need not know: where a weight is 0, so is its score's gradient
            lowest = torch.finfo(scores.dtype).min  # -inf would make nan of a row of nothing else
            if self.cfg.causal:
                future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu_(1)
                scores[..., keys - seq :].masked_fill_(future, lowest)
            if seen is not None:
                scores.masked_fill_(~seen[:, None, None], lowest)
        return scores.softmax(-1)


class Twice(torch.autograd.Function):
    """x Wᵀ for now, and once more for later, when no gradient reaches x. One product forwards, one back for W."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "rows seq dim"], weight: Float[Tensor, "width dim"]
    ) -> tuple[Float[Tensor, "rows seq width"], Float[Tensor, "rows seq width"]]:
        """In the precision that autocast asks for."""
        y = F.linear(x, weight)
        ctx.dtypes = x.dtype, weight.dtype
        ctx.save_for_backward(x.to(y.dtype), weight.to(y.dtype))
        return y, y.clone()

    @staticmethod
    def backward(
        ctx: Any, now: Float[Tensor, "rows seq width"], later: Float[Tensor, "rows seq width"]
    ) -> tuple[Tensor, Tensor]:
        """To x from what is asked now, to W from both."""
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.dtypes
        return (now @ weight).to(of_x), ((now + later).flatten(0, 1).T @ x.flatten(0, 1)).to(of_weight)


class Shift(torch.autograd.Function):
    """From columns of distances to columns of keys: entry (i, j) is the one of column seq - 1 - i + j.

    A view whose rows are one element shorter than they are. Causal, there are no columns of negative distances, and
    what lies above the diagonal is whatever begins the next row: it must be masked.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "rows heads seq distances"], keys: int
    ) -> Float[Tensor, "rows heads seq keys"]:
        """The view."""
        ctx.shape = x.shape
        return shifted(x.contiguous(), keys)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "rows heads seq keys"]) -> tuple[Tensor, None]:
        """The view, written to. Its first column comes last, for there it may overlap with what is masked."""
        whole = grad.new_zeros(ctx.shape)
        view = shifted(whole, grad.shape[-1])
        view[..., 1:] = grad[..., 1:]
        view[..., 0] = grad[..., 0]
        return whole, None


def shifted(x: Float[Tensor, "rows heads seq distances"], keys: int) -> Float[Tensor, "rows heads seq keys"]:
    """The view of `Shift`."""
    rows, heads, seq, distances = x.shape
    size = seq * distances
    return x.as_strided((rows, heads, seq, keys), (heads * size, size, distances - 1, 1), x.storage_offset() + seq - 1)


def sinusoids(distances: Float[Tensor, " distances"], dim: int) -> Float[Tensor, "distances dim"]:
    """sin(distance / 10000^(2j/dim)), then the cosines."""
    rate = torch.exp(torch.arange(0, dim, 2).to(distances) * (-math.log(10000.0) / dim))
    angle = distances[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], 1)[:, :dim]


def joint(past: Past, mask: Bool[Tensor, "rows seq"] | None, seq: int) -> Bool[Tensor, "rows keys"] | None:
    """Which keys are real, those of the past and those of a segment; None: all."""
    if past.seen is None and mask is None:
        return None
    return torch.cat(
        [known(past), past.rows.new_ones(len(past.rows), seq, dtype=torch.bool) if mask is None else mask], 1
    )


def known(past: Past) -> Bool[Tensor, "rows past"]:
    """Which rows of a past are real."""
    return past.rows.new_ones(past.rows.shape[:2], dtype=torch.bool) if past.seen is None else past.seen


def cut(past: Past, start: int, stop: int) -> Past:
    """Some of the rows."""
    seen, projected = (None if part is None else part[:, start:stop] for part in past[1:])
    return Past(past.rows[:, start:stop], seen, projected)


def newest(past: Past, count: int) -> Past:
    """At most so many rows, from the end."""
    length = past.rows.shape[1]
    return cut(past, max(0, length - count), length)


def unless_hidden(later: Past, past: Past, mask: Bool[Tensor, "rows seq"]) -> Past:
    """`later`, but `past` for rows that had nothing but padding."""
    if later is past:
        return past
    pushed, more = mask.any(1)[:, None], later.rows.shape[1] - past.rows.shape[1]

    def either(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(pushed[..., None], new, F.pad(old, (0, 0, more, 0)))

    seen = torch.where(pushed, known(later), F.pad(known(past), (more, 0)))
    new, old = later.projected, past.projected
    return Past(either(later.rows, past.rows), seen, None if new is None or old is None else either(new, old))


def forgotten(state: Past, rows: Bool[Tensor, " rows"]) -> Past:
    """The state with nothing left in `rows`: their documents ended."""
    return Past(state.rows.masked_fill(rows[:, None, None], 0.0), known(state) & ~rows[:, None])
