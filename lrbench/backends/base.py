"""The contract of an attention backend: x in, y of the same shape out.

Axes: `rows seq dim` outside, `rows heads seq head_dim` inside; rows = batch × views.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrbench.backends import positions
from lrbench.errors import SpecError, Unsupported


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What the model tells each of its mixers. A backend's own options are arguments of its class."""

    dim: int
    heads: int
    head_dim: int
    max_len: int  # the longest input, readout token included
    causal: bool = False
    dropout: float = 0.0  # on attention weights where there are any, else on the mixed values
    readout: int = 0  # leading positions that the model reads its answer from (1 with a CLS token)
    index: int = 0  # number of the layer, for methods that alternate
    layers: int = 0  # how many there are; 0: not known, or a layer alone
    first: "Mixer | None" = None  # the mixer of layer 0, for methods that share across layers
    mlp_dim: int = 0  # hidden width of the feed-forward, for blocks that bring their own; 0: four times dim
    hidden_dropout: float = 0.0  # what a block drops of its outputs; around a mixer the model does that
    positions: str = "none"  # a kind that acts inside attention; what the model adds to its embedding is its own affair


class Mixed(NamedTuple):
    """What a method that trains with a loss of its own returns, and only while it trains."""

    y: Float[Tensor, "rows seq dim"]
    aux_loss: Float[Tensor, ""]  # to be added to the task's loss, already weighted; a mean over rows


def parted(out: Tensor | Mixed) -> tuple[Tensor, Tensor | None]:
    """The output and the loss of its own, if there is one."""
    return out if isinstance(out, Mixed) else (out, None)


def joined(y: Tensor, losses: list[Tensor | None]) -> Tensor | Mixed:
    """The inverse, over several calls: losses add up."""
    found = [loss for loss in losses if loss is not None]
    return Mixed(y, torch.stack(found).sum()) if found else y


class Mixer(nn.Module):
    """Mixes information along the sequence and keeps the shape. Subclass this for anything attention-like.

    Args:
        cfg: sizes and the causal switch. Subclasses add options as keyword-only, typed parameters with defaults.

    Raises:
        Unsupported: the backend cannot do what `cfg` or an option asks for.
    """

    paper: ClassVar[str] = ""
    order: ClassVar[str] = "n^2"  # growth of cost with length
    can_be_causal: ClassVar[bool] = False
    positions: ClassVar[tuple[str, ...]] = ()  # kinds of `LayerConfig.positions` that it honours
    any_length: ClassVar[bool] = True  # takes inputs longer than max_len
    approximates: str = ""  # "softmax": what it comes nearer to as the option `refined_by` grows; else nothing
    refined_by: ClassVar[str] = ""

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__()
        if cfg.causal and not self.can_be_causal:
            raise Unsupported(
                f"{type(self).__name__.lower()} cannot be causal",
                "choose a backend that `lrbench list models` marks causal",
            )
        self.cfg = cfg
        self.check_positions(self.positions)

    def check_positions(self, supported: tuple[str, ...], when: str = "") -> None:
        """Refuse positions that are not among these; `when` says what leaves so few."""
        kind, name = self.cfg.positions, type(self).__name__.lower()
        if kind not in (*positions.OUTSIDE, *supported):
            raise Unsupported(
                f"{name} cannot use {kind} positions{when and ' '}{when}",
                f"choose {', '.join((*positions.OUTSIDE, *supported))}, or another backend",
            )

    @property
    def notes(self) -> list[str]:
        """What a reader of the results must know: fallbacks taken, approximations made."""
        return []

    @property
    def streams(self) -> bool:
        """Whether this instance can read a sequence in parts: `step(x, state, mask=mask)` of `segment` tokens each."""
        return hasattr(self, "step") and hasattr(self, "segment")

    def before_step(self) -> None:
        """Called by the trainer before each optimiser step: the only place where state may change.

        Before and not after, so that what is scored between two steps is what was trained last.

        Calls of `forward` measure no progress: accumulation makes several a step, and checkpointing repeats them.
        """

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"] | Mixed:
        """Mix. In `mask` True marks a real token; None says that nothing is padded."""
        raise NotImplementedError


class Block(Mixer):
    """A whole residual layer, norms and feed-forward included: x in, x and what it adds out.

    `per_layer` of them stand for one layer of the model: two for a gated unit, which is attention and feed-forward in
    one.
    """

    per_layer: ClassVar[int] = 1


def fold_segments(
    step: Callable[..., tuple[Tensor | Mixed, Any]],
    x: Float[Tensor, "rows seq dim"],
    segment: int,
    mask: Bool[Tensor, "rows seq"] | None,
) -> Tensor | Mixed:
    """The forward pass of a method that streams: `step(x, state, mask=mask)` over segments, the state handed on."""
    outs, losses, state = [], [], None
    masks = [None] * len(x.split(segment, 1)) if mask is None else mask.split(segment, 1)
    for part, seen in zip(x.split(segment, 1), masks, strict=True):
        out, state = step(part, state, mask=seen)
        y, loss = parted(out)
        outs.append(y)
        losses.append(loss)
    return joined(torch.cat(outs, 1), losses)


class HeadMixer(Mixer):
    """Multi-head base: projections without bias, as in the Long-Range Arena; subclasses write `attend` only.

    A subclass that names `rotary` or `pia` among its `positions` has them here; other kinds `attend` asks `place` for.

    Cost of the projections: 4 · dim · heads · head_dim multiply-adds a token.
    """

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        width = cfg.heads * cfg.head_dim
        self.query, self.key, self.value = (nn.Linear(cfg.dim, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, cfg.dim, bias=False)
        for linear in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(linear.weight)
        self.place = positions.place(
            cfg.positions,
            max_len=cfg.max_len,
            dim=cfg.dim,
            heads=cfg.heads,
            head_dim=cfg.head_dim,
            causal=cfg.causal,
            first=getattr(cfg.first, "place", None),
        )

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Mix v. Keys and values of padded tokens arrive as zeros; a token that sees nothing gets zeros."""
        raise NotImplementedError

    def split(self, x: Float[Tensor, "rows seq width"]) -> Float[Tensor, "rows heads seq head_dim"]:
        """Fold the heads out of the width."""
        return x.unflatten(-1, (self.cfg.heads, self.cfg.head_dim)).transpose(1, 2)

    def placed(
        self, x: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None
    ) -> Float[Tensor, "rows seq dim"]:
        """What queries and keys are made from, zeros where padded as in x."""
        placed = self.place.inputs(x)
        return placed if placed is x or mask is None else placed.masked_fill(~mask[..., None], 0.0)

    def projected(
        self, x: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v [rows heads seq head_dim] that know their positions, from an x whose padding is zeros."""
        placed = self.placed(x, mask)
        q, k = self.place.turned(self.split(self.query(placed)), self.split(self.key(placed)))
        return q, k, self.split(self.value(x))

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """Project, attend, project back."""
        if mask is not None:
            # 0 · nan is nan: what stands in the padding must be gone before it meets a weight of zero
            x = x.masked_fill(~mask[..., None], 0.0)
        # no names for q, k and v: what attend does not keep is freed before the last projection
        mixed = self.attend(*self.projected(x, mask), mask)
        return self.out(mixed.transpose(1, 2).flatten(-2))


def covers_all(window: int, cfg: LayerConfig) -> list[str]:
    """The note of a sliding window that no input is longer than."""
    full = window >= cfg.max_len - 1
    return [f"a window of {window} covers inputs of at most {cfg.max_len} tokens: full attention"] if full else []


def of_layer(option: str, value: Any, cfg: LayerConfig) -> Any:
    """A layer's own value of an option that is one for all layers, or a list with one for each."""
    if not isinstance(value, list):
        return value
    hint = f"give one {option} a layer, or one for all"
    if cfg.layers and len(value) != cfg.layers:
        raise SpecError(f"option {option} has {len(value)} values for {cfg.layers} layers", hint)
    if cfg.index >= len(value):
        raise SpecError(f"option {option} has {len(value)} values, none for layer {cfg.index + 1}", hint)
    return value[cfg.index]


def check_divisible(dim: int, heads: int) -> int:
    """The width of one head, or an error that names both numbers."""
    if dim % heads:
        raise SpecError(f"dim {dim} is not divisible by heads {heads}", "choose heads that divide dim, or set head_dim")
    return dim // heads


def check_option(option: str, value: object, ok: bool, expected: str) -> None:
    """Refuse a value of an option, naming both."""
    if not ok:
        raise SpecError(f"option {option} is {value!r}", f"choose {option} {expected}")
