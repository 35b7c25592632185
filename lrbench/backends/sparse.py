"""Each token sees a fixed few others, near ones and some far ones.

The patterns that Combiner (Ren et al. 2021) starts from and compares with, each exact: softmax over what the pattern
shows, and nothing of the rest. The backend `combiner` sees the rest through regions. Time and memory:

    fixed      own span, last token of every other span       n · (span + n / span)   Child et al. 2019
    logsparse  oneself, tokens 1, 2, 4, 8, … places away       n · log n               Li et al. 2019
    axial      own row and own column of a grid                n · (rows + columns)    Ho et al. 2019

Causal, of all that only what is not later. `order` is that of spans and columns near √n, as by default; logsparse is
below it, and a span kept while n grows leaves n² / span.

Deviations: one softmax over all that a token sees, in every head of every layer, where Child et al. also give the two
parts to different heads and Ho et al. give rows and columns to different layers. Places count from a row's first real
token, so that padding changes nothing; the last token of a span is not seen where it is padding. On a grid a readout
token has a row of its own, not to shift the image.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from lrbench.backends.base import LayerConfig
from lrbench.backends.regions.axial import crossed
from lrbench.backends.regions.placed import Placed, usual_size
from lrbench.backends.regions.spans import ends
from lrbench.backends.regions.tokens import Tokens, chances, dropped


class Sparse(Placed):
    """Attention by a fixed pattern. None stands for a default; an option of other patterns is refused.

    Args:
        pattern: what a token sees.
        span: tokens of a span, for `fixed`; by default the power of two nearest √max_len.
        width: columns of the grid, for `axial`; the same default. For an image, its width.
    """

    paper, order, can_be_causal = "1904.10509", "n^1.5", True
    kind = "pattern"

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        pattern: Literal["fixed", "logsparse", "axial"] = "fixed",
        span: int | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__(cfg)
        self.pattern, usual = pattern, usual_size(cfg.max_len)
        self.span = self.size("span", span, usual, "fixed")
        self.width = self.size("width", width, usual, "axial")

    @property
    def notes(self) -> list[str]:
        """Whether there is anything that the pattern leaves out."""
        longest = self.cfg.max_len
        if self.pattern == "fixed" and (self.span == 1 or self.span >= longest):
            return [f"a span of {self.span} for inputs of at most {longest} tokens: full attention"]
        if self.pattern == "axial" and (self.width == 1 or self.width >= longest + self.front):
            return [f"a width of {self.width} for inputs of at most {longest} tokens: full attention"]
        return []

    def planned(self, t: Tokens, x: Tensor | None, padded: bool) -> Float[Tensor, "rows heads padded head_dim"]:
        """The pattern at work."""
        if self.pattern == "fixed":
            return ends(t, self.span, self.cfg.causal)
        if self.pattern == "logsparse":
            return doubling(t, self.cfg.causal)
        grid = t.padded(self.width, self.front).folded(self.width)
        return crossed(grid, self.cfg.causal).flatten(2, 3)[:, :, self.front :]


def doubling(t: Tokens, causal: bool) -> Float[Tensor, "rows heads seq head_dim"]:
    """Tokens 0, 1, 2, 4, 8, … places before; not causal, as many behind.

    One pass over shifted views for each distance: nothing is gathered, and no copies of keys and values are kept.
    """
    steps = distances(t.q.shape[2], causal)
    scores = [put((met(t.q, step) * met(t.k, -step)).sum(-1, keepdim=True), step) for step in steps]
    allowed = [put(met(t.seen[..., None], -step), step) for step in steps]
    weights = dropped(chances(torch.cat(scores, -1), torch.cat(allowed, -1)), t.dropout)
    mixed = torch.zeros_like(t.v)
    for weight, step in zip(weights.split(1, -1), steps, strict=True):
        mixed = mixed + put(met(weight, step) * met(t.v, -step), step)
    return mixed


def distances(seq: int, causal: bool) -> list[int]:
    """How far before a token those that it sees are: 0, powers of two below the length, and those behind negative."""
    powers = [1 << level for level in range((seq - 1).bit_length())]
    return [0, *powers] if causal else [0, *powers, *(-power for power in powers)]


def met(x: Shaped[Tensor, "rows heads seq width"], step: int) -> Shaped[Tensor, "rows heads fewer width"]:
    """The tokens that have another `step` places before them, or behind them where that is negative."""
    return x.narrow(2, max(step, 0), x.shape[2] - abs(step))


def put(x: Shaped[Tensor, "rows heads fewer width"], step: int) -> Shaped[Tensor, "rows heads seq width"]:
    """These where they were, and zeros for those that have none."""
    return F.pad(x, (0, 0, max(step, 0), max(-step, 0)))
