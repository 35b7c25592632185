"""MC-TFM++: a Transformer++ whose heads mix within chunks, plus a mean.

MC-TFM++ (Hua et al. 2022, arXiv:2202.10447), which asks whether mixed chunks do without the gate of `flash`. Each head
projects one q and one k; scales and shifts make of them a local and a global pair, turned by their positions. Local:
softmax(q kᵀ / √head_dim + b) v within chunks of C, b a learned bias by j - i. Global, added: q S / count with
S = Σ kᵀ v over all visible tokens, or when causal over those of earlier chunks. Time n · (C + head_dim) · dim; memory
n · C · heads, and when causal n / C · head_dim · dim.

Deviations: a softmax in the local part is our reading, the paper does not say; dropout falls on the weights of the
local part and on the values of the global one; else those of `transformer-pp`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrbench.backends import chunks, gated
from lrbench.backends.base import HeadMixer, LayerConfig, check_option
from lrbench.backends.squared import Toeplitz
from lrbench.backends.transformer_pp import Activation, TransformerPp


class McTfmPp(TransformerPp):
    """A whole layer with mixed chunk attention.

    Args:
        chunk: C.
        rel_bias: b, for each head; `auto` is a table for C up to 512 and rotary above.
        glu_act: of the gate of the feed-forward.
    """

    paper, order, can_be_causal = "2202.10447", "n", True

    def __init__(
        self, cfg: LayerConfig, *, chunk: int = 256, rel_bias: gated.Bias = "auto", glu_act: Activation = "silu"
    ) -> None:
        super(TransformerPp, self).__init__(cfg)
        self.assemble(_MixedChunkHeads(cfg, chunk, rel_bias), glu_act)


class _MixedChunkHeads(HeadMixer):
    """Heads that see their own chunk, and a mean."""

    can_be_causal = True

    def __init__(self, cfg: LayerConfig, chunk: int, rel_bias: gated.Bias) -> None:
        super().__init__(cfg)
        check_option("chunk", chunk, chunk >= 1, "of at least 1")
        self.chunk = chunk
        # in a single causal chunk there is nothing before: no parameters that would get no gradient
        self.far = not (cfg.causal and cfg.max_len <= chunk)
        shape = (2 * (1 + self.far), cfg.heads, 1, cfg.head_dim)
        self.gamma, self.beta = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.bias = gated.relative_bias(rel_bias, chunk, cfg.head_dim, cfg.causal, lead=(cfg.heads,))

    @property
    def notes(self) -> list[str]:
        """Whether there is more than one chunk."""
        return chunks.one_chunk(self.chunk, self.cfg)

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Mix v within chunks, and add the mean."""
        rows, heads, seq, _ = q.shape
        size = min(self.chunk, seq)
        shown = torch.ones(rows, seq, dtype=torch.bool, device=v.device) if mask is None else mask
        shown = chunks.padded(shown, size)
        asked = gated.rotated(torch.addcmul(self.beta[::2, None], q, self.gamma[::2, None]))
        found = gated.rotated(torch.addcmul(self.beta[1::2, None], k, self.gamma[1::2, None]))
        flat = (x.to(v.dtype).flatten(0, 1) for x in (*asked, *found, v))  # each rows·heads seq head_dim
        *parts, values = (chunks.padded(x, size) for x in flat)
        pairs = len(parts) // 2
        near = (parts[0], parts[pairs], values)
        q, k, v = (x.unflatten(1, (-1, size)).unflatten(0, (rows, heads)) for x in near)
        mixed = self.local(q, k, v, shown if mask is not None or shown.shape[1] > seq else None)
        mixed = mixed.flatten(0, 1).flatten(1, 2)
        if self.far:
            mixed = chunks.add_global(
                mixed,
                parts[1],
                parts[3],
                values,
                shown.repeat_interleave(heads, 0),
                chunk=size,
                causal=self.cfg.causal,
                dropout=self.cfg.dropout if self.training else 0.0,
            )
        return mixed[:, :seq].unflatten(0, (rows, heads))

    def local(
        self,
        q: Float[Tensor, "rows heads chunks chunk head_dim"],
        k: Float[Tensor, "rows heads chunks chunk head_dim"],
        v: Float[Tensor, "rows heads chunks chunk head_dim"],
        visible: Bool[Tensor, "rows padded"] | None,
    ) -> Float[Tensor, "rows heads chunks chunk head_dim"]:
        """A softmax over each chunk."""
        size = q.shape[3]
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
        if self.bias is not None:
            scores = scores.add_(Toeplitz.apply(self.bias(size), size, size)[:, None])
        if self.cfg.causal:
            future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu_(1)
            scores = scores.masked_fill_(future, -torch.inf)
        if visible is not None:
            hidden = ~visible.unflatten(1, (-1, size))[:, None, :, None]
            scores = scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
        return F.dropout(scores.softmax(-1), self.cfg.dropout, self.training) @ v
