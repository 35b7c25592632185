"""Shared maths: softmax attention in a band, and attention through feature maps."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

LONG = 32_768  # tokens that a sliding window is taken over at once


def full_precision(x: Tensor) -> torch.autocast:
    """A block in which autocast is off, for sums and exponentials that half precision cannot hold."""
    return torch.autocast(x.device.type, enabled=False)


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: what exponentials and running sums are computed in."""
    return torch.promote_types(dtype, torch.float32)


def compact(dtype: torch.dtype) -> torch.dtype:
    """What features are multiplied in. Products of bfloat16 are summed in float32; those of float16 could overflow."""
    return dtype if dtype == torch.bfloat16 else wide(dtype)


def widened(
    x: Float[Tensor, "rows heads seq head_dim"],
    value: Tensor | float,
    pad: tuple[int, int] = (0, 0),
    front: Sequence[Tensor | float] = (),
) -> Float[Tensor, "rows heads padded wide"]:
    """x with `pad` zeros before and after the sequence, and `value` in one more coordinate; `front` comes first.

    A key is hidden by its own coordinate (`hiding`) rather than by a mask, so that no mask grows with n² or with heads,
    and `is_causal` stays free. The width goes up to a multiple of 8, which fused kernels like.
    """
    last = len(front) + x.shape[-1]
    wide = F.pad(x, (len(front), 8 - last % 8, *pad)).contiguous()
    with torch.no_grad():  # constants: their gradient is cut off with the padding
        for place, constant in (*enumerate(front), (last, value)):
            wide[..., place] = constant
    return wide


def hiding(visible: Bool[Tensor, "rows seq"], dtype: torch.dtype) -> Float[Tensor, "rows 1 seq"]:
    """What `widened` keys carry against a query's √head_dim: 0, or so low a score that the weight is exactly 0."""
    low = -min(torch.finfo(dtype).max / 4, 1e30)
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, low)[:, None]


def banded(
    q: Float[Tensor, "rows heads seq head_dim"],
    k: Float[Tensor, "rows heads seq head_dim"],
    v: Float[Tensor, "rows heads seq head_dim"],
    *,
    window: int,
    causal: bool,
    visible: Bool[Tensor, "rows seq"] | None,
    shared: tuple[Tensor, ...] | None = None,
    dropout: float = 0.0,
    bias: Callable[[Tensor, int, int], Tensor | None] | None = None,
) -> Float[Tensor, "rows heads seq head_dim"]:
    """Softmax attention of each token i to j with |i - j| <= window (causal: 0 <= i - j <= window).

    Queries are cut into blocks of C; each sees one span of C + 2·window keys, a strided view, in one fused call.
    Beltagy et al. 2020, section 3.1, without their skewed layout. Time n · (C + 2·window) · head_dim; memory n.

    Args:
        visible: keys that may be seen at all.
        shared: keys, values [rows heads few head_dim] and visibility [rows few] that every query sees besides.
        bias: from queries [rows heads blocks C head_dim], the place of a block's first query in its span and the span
            to what is added to scores, which broadcasts to [rows heads blocks C span], or None. Not with `shared`.

    More than `LONG` tokens are taken in parts, each with the keys around it, so that the gradients of spans, three
    times as large as what they are of, are never there for all at once.
    """
    seq, ahead = q.shape[2], 0 if causal else window
    mix = partial(_banded, window=window, causal=causal, shared=shared, dropout=dropout, bias=bias)
    if seq <= LONG or window > LONG // 4:
        return mix(q, k, v, visible=visible)
    mixed = []
    for number, parts in enumerate(zip(*(overlapping(x, LONG, window, ahead) for x in (q, k, v)), strict=True)):
        before = min(window, number * LONG)
        first = number * LONG - before
        seen = None if visible is None else visible[:, first : first + parts[0].shape[2]]
        mixed.append(mix(*parts, visible=seen)[:, :, before : before + LONG])
    return torch.cat(mixed, dim=2)


def overlapping(
    x: Float[Tensor, "rows heads seq head_dim"], length: int, behind: int, ahead: int
) -> list[Float[Tensor, "rows heads part head_dim"]]:
    """Pieces of a sequence, each with so much of its neighbours. The gradient of each is as small as the piece."""
    pieces = x.split(length, dim=2)
    tails = [piece[:, :, max(0, piece.shape[2] - behind) :] for piece in pieces]
    heads = [piece[:, :, :ahead] for piece in pieces]
    return [
        torch.cat([*tails[place - 1 : place], piece, *heads[place + 1 : place + 2]], dim=2)
        for place, piece in enumerate(pieces)
    ]


def _banded(
    q: Float[Tensor, "rows heads seq head_dim"],
    k: Float[Tensor, "rows heads seq head_dim"],
    v: Float[Tensor, "rows heads seq head_dim"],
    *,
    window: int,
    causal: bool,
    visible: Bool[Tensor, "rows seq"] | None,
    shared: tuple[Tensor, ...] | None,
    dropout: float,
    bias: Callable[[Tensor, int, int], Tensor | None] | None,
) -> Float[Tensor, "rows heads seq head_dim"]:
    """`banded` of one part."""
    rows, heads, seq, head_dim = q.shape
    behind = min(window, seq - 1)
    ahead = 0 if causal else behind
    block = min(-(-min(max(behind, 1), 128) // 64) * 64, seq)
    blocks = -(-seq // block)
    span = behind + block + ahead
    pad = (behind, ahead + blocks * block - seq)
    if visible is None:
        visible = torch.ones(1, seq, dtype=torch.bool, device=q.device)

    def spans(x: Tensor) -> Tensor:
        return Spans.apply(x.flatten(0, 1), span, block)

    def beside(view: Tensor, more: Tensor) -> Tensor:
        return torch.cat([more.flatten(0, 1)[:, None].expand(-1, blocks, -1, -1), view], dim=2)

    queries = widened(q, head_dim**0.5, (0, blocks * block - seq)).flatten(0, 1).unflatten(1, (blocks, block))
    keys = spans(widened(k, hiding(F.pad(visible, pad), k.dtype), pad))
    values = spans(widened(v, 0.0, pad))
    offset = behind + torch.arange(block, device=q.device)[:, None] - torch.arange(span, device=q.device)
    band = (offset <= behind) & (offset >= -ahead)  # block span
    if shared is not None:
        keys = beside(keys, widened(shared[0], hiding(shared[2], k.dtype)))
        values = beside(values, widened(shared[1], 0.0))
        band = F.pad(band, (shared[0].shape[2], 0), value=True)
    allowed = band[None, None]
    added = None if bias is None else bias(queries[..., :head_dim].unflatten(0, (rows, heads)), behind, span)
    if added is not None:
        added = added.to(queries.dtype).masked_fill(~band, -torch.inf)
        allowed = added.expand(rows, *added.shape[1:]).flatten(0, 1)  # rows·heads blocks C span
    mixed = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=allowed, dropout_p=dropout, scale=head_dim**-0.5
    )
    return mixed.reshape(rows, heads, blocks * block, -1)[:, :, :seq, :head_dim]


class Spans(torch.autograd.Function):
    """Overlapping pieces of a sequence as a strided view; the gradient adds them up shifted, a block at a time.

    Autograd's own way back from `unfold` takes several times as long.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "batch padded width"], span: int, block: int
    ) -> Float[Tensor, "batch blocks span width"]:
        """Pieces of `span`, `block` apart."""
        ctx.length, ctx.block = x.shape[1], block
        return x.unfold(1, span, block).transpose(-1, -2)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "batch blocks span width"]) -> tuple[Tensor, None, None]:
        """Overlap and add."""
        batch, blocks, span, width = grad.shape
        block = ctx.block
        total = grad.new_zeros(batch, blocks - 1 + -(-span // block), block, width)
        for step, piece in enumerate(grad.split(block, dim=2)):
            total[:, step : step + blocks, : piece.shape[2]] += piece
        return total.flatten(1, 2)[:, : ctx.length], None, None


def kernel_attention(
    phi_q: Float[Tensor, "rows heads seq features"],
    phi_k: Float[Tensor, "rows heads seq features"],
    v: Float[Tensor, "rows heads seq head_dim"],
) -> Float[Tensor, "rows heads seq head_dim"]:
    """Σ_s (φq·φk_s) v_s / Σ_s φq·φk_s over all s, by φq (φkᵀ [v, 1]).

    Time n · features · head_dim; memory n · features. Hidden keys have φk = 0.
    """
    sums = phi_k.transpose(-1, -2) @ F.pad(v, (0, 1), value=1.0)  # rows heads features head_dim+1
    return Ratio.apply(phi_q @ sums)


def causal_kernel_attention(
    phi_q: Float[Tensor, "rows heads seq features"],
    phi_k: Float[Tensor, "rows heads seq features"],
    v: Float[Tensor, "rows heads seq head_dim"],
    level: Float[Tensor, "rows heads seq"] | None = None,
) -> Float[Tensor, "rows heads seq head_dim"]:
    """`kernel_attention` over s <= t: chunks of C by a masked product, what lies before them by a running sum.

    Args:
        level: never falling along seq; φk_s was multiplied by exp(-level_s), and the pair (t, s) is brought to the
            common scale by exp(level_s - level_t) <= 1, so that no later key touches an earlier sum.

    Time n · C · (features + head_dim) + n · features · head_dim; memory n · features + n / C · features · head_dim.
    """
    seq = v.shape[2]
    chunk = 128 if phi_q.shape[-1] > 128 else 64
    tail = -seq % chunk
    q, k = (F.pad(phi, (0, 0, 0, tail)) if tail else phi for phi in (phi_q, phi_k))
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (q, k, F.pad(v, (0, 1, 0, tail), value=1.0)))
    weights = q @ k.transpose(-1, -2)  # rows heads chunks chunk chunk
    if level is None:
        past = q @ Before.apply(k.transpose(-1, -2) @ v, None)
        return Ratio.apply((weights.tril_() @ v).add_(past).flatten(2, 3)[:, :, :seq])
    if tail:
        level = torch.cat([level, level[:, :, -1:].expand(-1, -1, tail)], dim=-1)
    level = level.unflatten(2, (-1, chunk))  # rows heads chunks chunk
    end = level[..., -1:]
    start = torch.cat([level[:, :, :1, :1], end[:, :, :-1]], dim=2)  # level at the end of the chunk before
    to_end, from_start = (part.exp_().to(v.dtype)[..., None] for part in (level - end, start - level))
    past = q @ Before.apply(k.transpose(-1, -2) @ (v * to_end), (start - end).exp_()[..., None])
    fade = (level[..., None, :] - level[..., None]).clamp_(max=0.0).exp_().to(v.dtype)
    return Ratio.apply((weights.mul_(fade).tril_() @ v).add_(past.mul_(from_start)).flatten(2, 3)[:, :, :seq])


class KernelSums(NamedTuple):
    """The state of causal kernel attention: what the tokens so far add up to."""

    sums: Float[Tensor, "rows heads features wide"]  # of φk and [v, 1]
    level: Float[Tensor, "rows heads"] | None  # the φk of the sums were multiplied by exp(-level)


def kernel_attention_step(
    phi_q: Float[Tensor, "rows heads seq features"],
    phi_k: Float[Tensor, "rows heads seq features"],
    v: Float[Tensor, "rows heads seq head_dim"],
    level: Float[Tensor, "rows heads seq"] | None = None,
    past: KernelSums | None = None,
) -> tuple[Float[Tensor, "rows heads seq head_dim"], KernelSums]:
    """`causal_kernel_attention` of one more chunk. Its level must begin no lower than that of the past.

    Time and memory as for one chunk of all of seq. Sums are kept in at least float32.
    """
    v = F.pad(v, (0, 1), value=1.0)
    if past is None:
        empty = v.new_zeros(*v.shape[:2], phi_k.shape[-1], v.shape[-1], dtype=wide(v.dtype))
        past = KernelSums(empty, None if level is None else level[..., 0])
    weights, carried, added, end = phi_q @ phi_k.transpose(-1, -2), past.sums, v, None
    before = phi_q @ carried.to(v.dtype)
    if level is not None and past.level is not None:
        end = level[..., -1]
        weights = weights * (level[..., None, :] - level[..., None]).clamp_(max=0.0).exp_().to(v.dtype)
        before = before * (past.level[..., None] - level).exp_().to(v.dtype)[..., None]
        carried = carried * (past.level - end).exp_()[..., None, None]
        added = v * (level - end[..., None]).exp_().to(v.dtype)[..., None]
    return Ratio.apply(weights.tril() @ v + before), KernelSums(carried + phi_k.transpose(-1, -2) @ added, end)


class Before(torch.autograd.Function):
    """For each chunk the sum over the chunks before it; what passes chunk c is multiplied by `fade` of c.

    By hand, since autograd would keep every state twice. `fade` is a constant.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sums: Float[Tensor, "rows heads chunks features width"],
        fade: Float[Tensor, "rows heads chunks 1 1"] | None,
    ) -> Float[Tensor, "rows heads chunks features width"]:
        """A running sum that starts at zero."""
        ctx.fade = fade
        states = torch.zeros_like(sums, dtype=wide(sums.dtype))
        for chunk in range(1, sums.shape[2]):
            state = states[:, :, chunk - 1] if fade is None else states[:, :, chunk - 1] * fade[:, :, chunk - 1]
            torch.add(sums[:, :, chunk - 1], state, out=states[:, :, chunk])
        return states.to(sums.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "rows heads chunks features width"]) -> tuple[Tensor, None]:
        """The same from the end."""
        sums = torch.zeros_like(grad, dtype=wide(grad.dtype))
        for chunk in range(grad.shape[2] - 2, -1, -1):
            later = sums[:, :, chunk + 1] if ctx.fade is None else sums[:, :, chunk + 1] * ctx.fade[:, :, chunk + 1]
            sums[:, :, chunk] = grad[:, :, chunk + 1] + later
        return sums.to(grad.dtype), None


class Ratio(torch.autograd.Function):
    """The columns over the last one, and 0 where that is nothing: no key was visible.

    No constant is added, for an honest sum may be far below any usual one. The floor keeps gradients from overflowing.
    By hand, since autograd's division squares the weight and takes twice the passes over memory.
    """

    @staticmethod
    def forward(ctx: Any, sums: Float[Tensor, "rows heads seq wide"]) -> Float[Tensor, "rows heads seq head_dim"]:
        """Divide."""
        inverse = inverse_weight(sums)
        mixed = (sums[..., :-1] * inverse).to(sums.dtype)
        ctx.save_for_backward(mixed, inverse)
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "rows heads seq head_dim"]) -> Tensor:
        """1 / weight for the columns, minus their mean for the weight."""
        return undivided(grad, *ctx.saved_tensors)


def inverse_weight(sums: Float[Tensor, "rows heads seq wide"]) -> Float[Tensor, "rows heads seq 1"]:
    """One over the last column, and 0 where that is nothing."""
    weight = sums[..., -1:].to(wide(sums.dtype))
    return weight.reciprocal().masked_fill_(weight < torch.finfo(weight.dtype).tiny ** 0.8, 0.0)


def undivided(grad: Tensor, mixed: Tensor, inverse: Tensor) -> Float[Tensor, "rows heads seq wide"]:
    """From the gradient of a ratio that of its columns, and minus their mean for the weight."""
    grad = grad * inverse
    return torch.cat([grad, -(grad * mixed).sum(-1, keepdim=True)], dim=-1).to(mixed.dtype)
