"""Gated attention within chunks, and a linear mean of all chunks.

FLASH (Hua et al. 2022): the unit of `flash-quad`, whose A V is a sum of two parts with queries and keys of their own.
Local: relu(Q Kᵀ / C + b)² V within chunks of C. Global: Q S / count with S = Σ kᵀ v over all visible tokens, or when
causal over those of earlier chunks; neither feature map nor denominator, and zero in the first causal chunk. Time
n · C · (s + 2 · dim) + 4 · n · s · dim; memory n, and when causal n / C · s · 2 · dim for the sums before each chunk.

Not an approximation of `flash-quad`: it equals it in the causal case with one chunk only. Deviations: absolute
positions come from the encoder, added at its input as for all; attention dropout falls on the weights of the local part
and on the values of the global one; documents packed into one row are not kept apart.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lrbench.backends import chunks, gated, ops
from lrbench.backends.base import LayerConfig, check_option
from lrbench.errors import Unsupported


class State(NamedTuple):
    """What a causal unit keeps of the past: nothing of it grows beyond a chunk."""

    position: int  # of the next token
    sums: Float[Tensor, "rows s width"]  # kᵀ v over the chunks before
    seen: Int[Tensor, " rows"]  # visible tokens of those
    near: tuple[Tensor, ...]  # of the chunk at hand: keys and values, rows few s or width
    shown: Bool[Tensor, "rows few"]
    last: Tensor | None  # the last h, rows 1 dim


class Flash(gated.GatedUnit):
    """Mixed chunk attention.

    Args:
        chunk: C.
        parts: both, or one of them alone.
        global_norm: a causal global part over the count of tokens seen (`mean`), or over C (`chunk`), which grows along
            the sequence.
        first_to_all: the first token attends to all by a softmax instead; not causal.
        s: width of queries and keys; models of width 128 take 64.
        expansion: width of gate and values over that of the model.
        function: of a local score to a weight; `ns` is relu(q·k / √s + b)² / n.
        length: n of the local part is C (`fixed`), or the number of keys that a query sees (`valid`).
        rel_bias: b; `auto` is a table for C up to 512 and rotary above.
        rotary: turn queries and keys of both parts.
        gate: without it U = 1.
        norm: before the unit; scalenorm is a root mean square with one gain.
        shift: half of the features of h come from the token before.
        init: `paper` draws projections, scales and bias from N(0, 0.02); weights then start as a function of position.
    """

    paper, order, can_be_causal = "2202.10447", "n", True

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        chunk: int = 256,
        parts: Literal["both", "local", "global"] = "both",
        global_norm: Literal["mean", "chunk"] = "mean",
        first_to_all: bool = False,
        s: int = 128,
        expansion: float = 2.0,
        function: gated.Function = "relu2",
        length: Literal["fixed", "valid"] = "fixed",
        rel_bias: gated.Bias = "auto",
        rotary: bool = True,
        gate: bool = True,
        norm: gated.Norm = "scalenorm",
        shift: bool = False,
        init: Literal["unit", "paper"] = "unit",
    ) -> None:
        check_option("chunk", chunk, chunk >= 1, "of at least 1")
        self.near = parts != "global"
        # in a single causal chunk there is nothing before: no parameters that would get no gradient
        self.far = parts != "local" and not (cfg.causal and cfg.max_len <= chunk)
        super().__init__(
            cfg,
            pairs=self.near + self.far,
            s=s,
            expansion=expansion,
            gate=gate,
            rotary=rotary,
            norm=norm,
            shift=shift,
            init=init,
        )
        gated.check_length(length, function)
        chunks.check_global_norm(global_norm, self.far and cfg.causal)
        check_option("parts", parts, self.near or self.far, f"both: nothing is before a chunk of {chunk}")
        possible = self.near and not cfg.causal
        check_option("first_to_all", first_to_all, possible or not first_to_all, "false: it needs local and later keys")
        self.chunk, self.parts_of, self.global_norm, self.first_to_all = chunk, parts, global_norm, first_to_all
        self.function, self.length = function, length
        self.bias = gated.relative_bias(rel_bias, chunk, s, cfg.causal) if self.near else None
        self.segment = chunk

    @property
    def streams(self) -> bool:
        """Only where no token sees a later one."""
        return self.cfg.causal

    @property
    def notes(self) -> list[str]:
        """Whether there is more than one chunk."""
        return chunks.one_chunk(self.chunk, self.cfg)

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """One unit, all chunks at once."""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # 0 · nan is nan
        opened = self.opened(self.shifted(self.normed(x, mask)), mask)
        return self.closed(x, opened, self.mix(opened.heads, opened.values, mask), mask)

    def mix(
        self,
        heads: tuple[Tensor, ...],
        v: Float[Tensor, "rows seq width"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows seq width"]:
        """A V of both parts: a query and a key for each that there is."""
        rows, seq = v.shape[:2]
        if self.parts_of == "both" and not self.far and seq > self.chunk:
            raise Unsupported(
                f"flash was built for {self.cfg.max_len} tokens, a single chunk, and got {seq}",
                f"raise max_len (the task's data.length) to at least {seq}",
            )
        size = min(self.chunk, seq)
        shown = torch.ones(rows, seq, dtype=torch.bool, device=v.device) if mask is None else mask
        *wide, values, shown = (chunks.padded(x, size) for x in (*heads, v, shown))
        mixed = None
        if self.near:
            q, k, near = (chunks.cut(x, size) for x in (wide[0], wide[1], values))
            mixed = self.local(q, k, near, shown.reshape(-1, size)).view(values.shape)
        if self.far:
            mixed = chunks.add_global(
                mixed,
                wide[-2],
                wide[-1],
                values,
                shown,
                chunk=size,
                causal=self.cfg.causal,
                divisor=self.chunk if self.global_norm == "chunk" else None,
                dropout=self.dropout,
            )
        assert mixed is not None
        if self.first_to_all:
            mixed[:, :1] = gated.attend(
                heads[0][:, :1], heads[1], v, function="softmax", n=1, visible=mask, dropout=self.dropout
            )
        return mixed[:, :seq]

    def local(
        self,
        q: Float[Tensor, "pieces few s"],
        k: Float[Tensor, "pieces chunk s"],
        v: Float[Tensor, "pieces chunk width"],
        shown: Bool[Tensor, "pieces chunk"],
    ) -> Float[Tensor, "pieces few width"]:
        """The last queries of a chunk against its keys."""
        few, size = q.shape[1], k.shape[1]
        return gated.attend(
            q,
            k,
            v,
            function=self.function,
            n=self.chunk if self.length == "fixed" else gated.visible_counts(shown, self.cfg.causal, few),
            bias=None if self.bias is None else self.bias(size),
            causal=self.cfg.causal,
            visible=shown if self.function == "softmax" else None,
            dropout=self.dropout,
        )

    @property
    def dropout(self) -> float:
        """Of the weights, while training."""
        return self.cfg.dropout if self.training else 0.0

    def step(
        self,
        x: Float[Tensor, "rows few dim"],
        state: State | None = None,
        *,
        mask: Bool[Tensor, "rows few"] | None = None,
    ) -> tuple[Tensor, State]:
        """The next tokens of a causal unit, one or many, and what the ones after them need."""
        if not self.streams:
            raise Unsupported("flash cannot stream unless it is causal", "build it with causal=True")
        state = state or self.start(x)
        room = self.chunk - state.shown.shape[1]
        if x.shape[1] <= room:
            return self.within(x, state, mask)
        y, state = self.within(x[:, :room], state, None if mask is None else mask[:, :room])
        more, state = self.step(x[:, room:], state, mask=None if mask is None else mask[:, room:])
        return torch.cat([y, more], dim=1), state

    def start(self, x: Float[Tensor, "rows few dim"]) -> State:
        """Nothing seen yet."""
        rows = len(x)
        sums = x.new_zeros(rows, self.s, self.width, dtype=ops.wide(x.dtype))
        widths = (self.s,) * (self.near + self.far) + (self.width,)
        return State(
            position=0,
            sums=sums,
            seen=torch.zeros(rows, dtype=torch.int64, device=x.device),
            near=tuple(x.new_zeros(rows, 0, width) for width in widths),
            shown=torch.ones(rows, 0, dtype=torch.bool, device=x.device),
            last=None,
        )

    def within(
        self, x: Float[Tensor, "rows few dim"], state: State, mask: Bool[Tensor, "rows few"] | None
    ) -> tuple[Tensor, State]:
        """Tokens of one chunk. When it is full its sum is taken and the rest forgotten."""
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)
        h = self.normed(x, mask)
        opened = self.opened(self.shifted(h, state.last), mask, state.position)
        now = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        shown = torch.cat([state.shown, now], dim=1)
        near = tuple(
            torch.cat([old.to(new.dtype), new], dim=1)
            for old, new in zip(state.near, (*opened.heads[1::2], opened.values), strict=True)
        )
        mixed = self.read(opened.heads, near, shown, state)
        sums, seen = state.sums, state.seen
        if shown.shape[1] == self.chunk:
            if self.far:
                sums = sums + (near[-2].transpose(1, 2) @ near[-1]).to(sums.dtype)
            seen = seen + shown.sum(1)
            near, shown = tuple(part[:, :0] for part in near), shown[:, :0]
        after = State(state.position + x.shape[1], sums, seen, near, shown, h[:, -1:] if self.shift else None)
        return self.closed(x, opened, mixed, mask), after

    def read(
        self, heads: tuple[Tensor, ...], near: tuple[Tensor, ...], shown: Bool[Tensor, "rows chunk"], state: State
    ) -> Float[Tensor, "rows few width"]:
        """What queries find in their own chunk and in the sums of those before it."""
        found = [self.local(heads[0], near[0], near[-1], shown)] if self.near else []
        if self.far:
            seen = state.seen if self.global_norm == "mean" else torch.full_like(state.seen, self.chunk)
            far = chunks.over(heads[-2], seen) @ state.sums.to(heads[-2].dtype)
            found.append(F.dropout(far, self.dropout))
        return found[0] if len(found) == 1 else found[0] + found[1]
