"""A sliding window, and a few global tokens that see all and are seen.

Longformer (Beltagy et al. 2020). The global tokens are the leading positions that the model reads its answer from, and
as many after them as asked for. A token that is not global takes one softmax over its window and the global keys; a
global one attends to all tokens with projections of its own, which start as copies. Windows may differ by layer,
dilations by layer and head. Exact for its pattern; time n · window; memory n.

Deviation: global tokens are leading ones in every row, not any. The causal form has none, as in the paper's language
models.
"""

from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer, LayerConfig, check_option, covers_all, of_layer
from lrbench.errors import SpecError, Unsupported


class Longformer(HeadMixer):
    """Sliding window and global tokens.

    Args:
        window: token i sees j with |i - j| <= window; causal 0 <= i - j <= window. A list has one for each layer.
        dilation: with g > 1 every g-th of the tokens within window · g. A list has one for each head; a list with
            lists in it has one entry for each layer, for all its heads or for each.
        globals: tokens that are global besides those that the answer is read from, which come first.
    """

    paper, order, can_be_causal = "2004.05150", "n", True
    positions = ("rotary", "pia")

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        window: int | list[int] = 128,
        dilation: int | list[int | list[int]] = 1,
        globals: int = 0,
    ) -> None:
        super().__init__(cfg)
        self.window, self.dilations = of_layer("window", window, cfg), of_heads(dilation, cfg)
        check_option("window", self.window, self.window >= 0, "of at least 0")
        check_option("dilation", dilation, min(self.dilations) >= 1, "of at least 1")
        check_option("globals", globals, globals >= 0, "of at least 0")
        if cfg.causal and globals:
            raise Unsupported(
                f"longformer cannot be causal with globals {globals}: a global token sees all, and all see it",
                "leave globals out, or choose a task that is not causal",
            )
        self.globals = 0 if cfg.causal else cfg.readout + globals
        if self.globals:  # parameters that get no gradient would stop distributed training
            names = ("query", "key", "value")
            copies = {f"{name}_global": nn.Linear(cfg.dim, cfg.heads * cfg.head_dim, bias=False) for name in names}
            for name in names:
                copies[f"{name}_global"].load_state_dict(getattr(self, name).state_dict())
            self.query_global, self.key_global, self.value_global = copies.values()

    @property
    def notes(self) -> list[str]:
        """The causal form loses its global tokens; and whether there is anything outside the window."""
        lost = ["causal: no global tokens"] if self.cfg.causal and self.cfg.readout else []
        return lost + (covers_all(self.window, self.cfg) if {*self.dilations} == {1} else [])

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """Window for all, then the global rows in place of theirs."""
        if not self.globals:
            return super().forward(x, mask=mask)
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # 0 · nan is nan
        near = self.attend(*self.projected(x, mask), mask)
        mixed = torch.cat([self.attend_globally(x, self.placed(x, mask), mask), near[:, :, self.globals :]], dim=2)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """One softmax over the window and the global keys, neighbouring heads of equal dilation together.

        The rows of global tokens are not yet theirs.
        """
        mixed, first = [], 0
        for step, run in groupby(self.dilations):
            heads = slice(first, first := first + len([*run]))
            mixed.append(self.attend_dilated(q[:, heads], k[:, heads], v[:, heads], mask, min(step, q.shape[2])))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)

    def attend_dilated(
        self,
        q: Float[Tensor, "rows few seq head_dim"],
        k: Float[Tensor, "rows few seq head_dim"],
        v: Float[Tensor, "rows few seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
        step: int,
    ) -> Float[Tensor, "rows few seq head_dim"]:
        """Tokens of equal remainder by `step` are a row of their own, in which the window is an undilated one."""
        rows, _, seq, _ = q.shape
        visible, shared = mask, None
        if mask is None and (self.globals or step > 1):
            visible = torch.ones(rows, seq, dtype=torch.bool, device=q.device)
        if self.globals and visible is not None:
            few, seen = (k[:, :, : self.globals], v[:, :, : self.globals]), visible[:, : self.globals]
            shared = (*(part.repeat_interleave(step, 0) for part in (*few, seen)),)
            # else a global key near by would count twice
            visible = torch.cat([torch.zeros_like(seen), visible[:, self.globals :]], dim=1)
        if visible is not None:
            visible = self.comb(visible[:, None, :, None], step)[:, 0, :, 0]
        mixed = ops.banded(
            *(self.comb(part, step) for part in (q, k, v)),
            window=self.window,
            causal=self.cfg.causal,
            visible=visible,
            shared=shared,
            dropout=self.cfg.dropout if self.training else 0.0,
        )
        if step == 1:
            return mixed
        return mixed.unflatten(0, (rows, step)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :seq]

    @staticmethod
    def comb(x: Float[Tensor, "rows heads seq width"] | Tensor, step: int) -> Tensor:
        """Every step-th token to a row of its own: rows·step heads seq/step width."""
        if step == 1:
            return x
        return F.pad(x, (0, 0, 0, -x.shape[2] % step)).unflatten(2, (-1, step)).permute(0, 3, 1, 2, 4).flatten(0, 1)

    def attend_globally(
        self,
        x: Float[Tensor, "rows seq dim"],
        placed: Float[Tensor, "rows seq dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads globals head_dim"]:
        """The few rows that see everything. Queries and keys are made from `placed`.

        (Kg q) and (P Vg) are taken as x (Wkᵀ q) and (P x) Wv: n · heads · dim a row instead of 2 · n · dim · width.
        Rotary keys are each turned by an angle of their own, so those are made.
        """
        heads, head_dim = self.cfg.heads, self.cfg.head_dim
        seen = None if mask is None else mask[:, None, None]
        dropout = self.cfg.dropout if self.training else 0.0
        q = self.split(self.query_global(placed[:, : self.globals]))  # rows heads globals head_dim
        if self.cfg.positions == "rotary":
            q, k = self.place.turned(q, self.split(self.key_global(placed)))
            return F.scaled_dot_product_attention(q, k, self.split(self.value_global(x)), seen, dropout)
        to_key, to_value = (
            linear.weight.unflatten(0, (heads, head_dim)) for linear in (self.key_global, self.value_global)
        )
        asked = (q @ to_key).flatten(1, 2)[:, None]  # rows 1 heads·globals dim
        keys = placed[:, None].to(asked.dtype)
        values = keys if placed is x else x[:, None].to(asked.dtype)
        mixed = F.scaled_dot_product_attention(asked, keys, values, seen, dropout, scale=head_dim**-0.5)
        return mixed[:, 0].unflatten(1, (heads, -1)) @ to_value.transpose(-1, -2)


def of_heads(dilation: int | list[int | list[int]], cfg: LayerConfig) -> list[int]:
    """The dilation of each head of a layer."""
    by_layer = isinstance(dilation, list) and any(isinstance(entry, list) for entry in dilation)
    own: Any = of_layer("dilation", dilation, cfg) if by_layer else dilation
    if not isinstance(own, list):
        return [own] * cfg.heads
    if len(own) != cfg.heads:
        raise SpecError(
            f"option dilation has {len(own)} values for {cfg.heads} heads", "give one dilation a head, or one for all"
        )
    return own
