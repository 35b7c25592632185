"""The gated attention unit, and what its kin share: weights without heads, rotary positions, relative biases.

Hua et al. 2022 (arXiv:2202.10447): U, V, Z = silu(h W), queries and keys are Z scaled and shifted, out = (U ⊙ A V) W.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lrbench.backends import ops, positions
from lrbench.backends.base import Block, LayerConfig, check_option
from lrbench.backends.squared import Squared, Toeplitz
from lrbench.errors import Unsupported

Function = Literal["relu2", "ns", "softmax", "laplace"]
Bias = Literal["auto", "toeplitz", "rotary", "t5", "none"]
Norm = Literal["scalenorm", "layernorm"]
TABLE_UP_TO = 512  # `auto`: longer reaches take the rotary bias


class Opened(NamedTuple):
    """A normalised input, projected. Gate and values of padded tokens are zeros."""

    gate: Float[Tensor, "rows seq width"] | None  # before its activation
    values: Float[Tensor, "rows seq width"]
    heads: tuple[Tensor, ...]  # each rows seq s: queries and keys in turn


class GatedUnit(Block):
    """Norm, projection, gate and residual; subclasses mix.

    Args:
        pairs: how many queries and keys are made of the one Z.
    """

    per_layer: ClassVar[int] = 2

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        pairs: int,
        s: int,
        expansion: float,
        gate: bool,
        rotary: bool,
        norm: Norm,
        shift: bool,
        init: Literal["unit", "paper"],
    ) -> None:
        super().__init__(cfg)
        check_option("s", s, s >= 1, "of at least 1")
        check_option("expansion", expansion, expansion * cfg.dim >= 1, "so that expansion · dim is at least 1")
        self.s, self.width, self.rotary, self.shift = s, round(expansion * cfg.dim), rotary, shift
        self.parts = [self.width] * (1 + gate) + [s]
        self.norm = ScaleNorm() if norm == "scalenorm" else nn.LayerNorm(cfg.dim)
        self.expand = nn.Linear(cfg.dim, sum(self.parts))
        self.gamma = nn.Parameter(torch.ones(2 * pairs, s))
        self.beta = nn.Parameter(torch.zeros(2 * pairs, s))
        self.out = nn.Linear(self.width, cfg.dim)
        for linear in (self.expand, self.out):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5 if init == "unit" else 0.02)
            nn.init.zeros_(linear.bias)
        if init == "paper":
            nn.init.normal_(self.gamma, std=0.02)

    def normed(
        self, x: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None
    ) -> Float[Tensor, "rows seq dim"]:
        """h, before any shift."""
        h = self.norm(x)
        # a norm of zeros need not be zero, and the shift would hand it on
        return h if mask is None or not self.shift else h.masked_fill(~mask[..., None], 0.0)

    def shifted(
        self, h: Float[Tensor, "rows seq dim"], before: Float[Tensor, "rows 1 dim"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """With `shift` half of the features come from the token before; that of the first one is `before`, or zeros."""
        if not self.shift:
            return h
        half = h.shape[-1] // 2
        late = F.pad(h[:, :-1], (0, 0, 1, 0)) if before is None else torch.cat([before, h[:, :-1]], dim=1)
        return torch.cat([late[..., :half], h[..., half:]], dim=-1)

    def opened(self, h: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None, start: int = 0) -> Opened:
        """Project and part; `start` is the position of the first token."""
        projected = self.expand(h)
        if mask is not None:
            projected.masked_fill_(~mask[..., None], 0.0)
        *gate, v, z = projected.split(self.parts, dim=-1)
        heads = torch.addcmul(self.beta[:, None, None], F.silu(z), self.gamma[:, None, None])
        if self.rotary:
            heads = rotated(heads, torch.arange(start, start + h.shape[1], device=h.device))
        return Opened(gate[0] if gate else None, F.silu(v), heads.to(v.dtype).unbind(0))

    def closed(
        self,
        x: Float[Tensor, "rows seq dim"],
        opened: Opened,
        mixed: Float[Tensor, "rows seq width"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows seq dim"]:
        """Gate, project, add."""
        mixed = mixed.to(opened.values.dtype)
        out = self.out(mixed if opened.gate is None else Gate.apply(opened.gate, mixed))
        y = x + F.dropout(out, self.cfg.hidden_dropout, self.training)
        return y if mask is None else y.masked_fill_(~mask[..., None], 0.0)


class Gate(torch.autograd.Function):
    """silu(gate) ⊙ y. By hand, since autograd would keep silu(gate) too."""

    @staticmethod
    def forward(
        ctx: Any, gate: Float[Tensor, "rows seq width"], y: Float[Tensor, "rows seq width"]
    ) -> Float[Tensor, "rows seq width"]:
        """Multiply."""
        ctx.save_for_backward(gate, y)
        return F.silu(gate).mul_(y)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "rows seq width"]) -> tuple[Tensor, Tensor]:
        """Of each times the other."""
        gate, y = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * y, gate), F.silu(gate).mul_(grad)


class ScaleNorm(nn.Module):
    """x over its root mean square, times one learned number. Nguyen and Salazar 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Float[Tensor, "rows seq dim"]) -> Float[Tensor, "rows seq dim"]:
        """Normalise."""
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt().mul(self.gain)


def attend(
    q: Float[Tensor, "batch few s"],
    k: Float[Tensor, "batch seq s"],
    v: Float[Tensor, "batch seq width"],
    *,
    function: Function,
    n: int | Int[Tensor, "#batch few 1"],
    bias: Float[Tensor, " offsets"] | None = None,
    causal: bool = False,
    visible: Bool[Tensor, "#batch seq"] | None = None,
    dropout: float = 0.0,
    keep: bool = False,
) -> Float[Tensor, "batch few width"]:
    """One head of width s. Queries stand at the last positions of the keys; hidden values must be zeros.

    relu2: relu(q·k / n + b)²; laplace the same in place of relu²; ns: relu(q·k / √s + b)² / n; softmax(q·k / √s + b).

    Args:
        bias: its centre is the offset 0; it may reach farther than the keys do.
        visible: keys that a softmax may see; the others need no mask but values of zero.
        dropout: on the weights.
        keep: keep the weights for the way back rather than compute them again.
    """
    kept = v.dtype
    with ops.full_precision(v):
        q, k, v = (x.to(ops.compact(kept)) for x in (q, k, v))
        inverse = 1 / n if isinstance(n, int) else n.to(ops.wide(q.dtype)).reciprocal().to(q.dtype)
        q = q * (q.shape[-1] ** -0.5 if function in ("ns", "softmax") else inverse)
        bias = None if bias is None else bias.to(q.dtype)
        if function in ("relu2", "ns") and not dropout and not keep:
            y = Squared.apply(q, k, v, bias, causal)
        else:
            y = F.dropout(weights(q, k, bias, function, causal, visible), dropout) @ v
        return (y * inverse if function == "ns" else y).to(kept)


def weights(
    q: Tensor, k: Tensor, bias: Tensor | None, function: Function, causal: bool, visible: Tensor | None
) -> Float[Tensor, "batch few seq"]:
    """The weights themselves."""
    few, seq = q.shape[1], k.shape[1]
    scores = q @ k.transpose(1, 2)
    if bias is not None:
        scores = scores.add_(Toeplitz.apply(bias, few, seq))
    if function != "softmax":
        # masked after the function: that of zero need not be zero
        found = laplace(scores) if function == "laplace" else scores.relu_().square()
        return found.tril_(seq - few) if causal else found
    if causal:
        future = torch.ones(few, seq, dtype=torch.bool, device=q.device).triu_(seq - few + 1)
        scores = scores.masked_fill_(future, -torch.inf)
    if visible is not None:
        # not -inf: a row of nothing else would be nan; as it is it averages hidden values, which are zeros
        scores = scores.masked_fill_(~visible[:, None], torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def laplace(x: Tensor) -> Tensor:
    """A bounded stand-in for relu²: like it 1/2, with slope √2, at √(1/2). Ma et al. 2022."""
    return 0.5 * (1 + torch.erf((x - 0.5**0.5) * (2 * torch.pi) ** 0.5))


def rotated(x: Float[Tensor, "*lead seq width"], at: Tensor | None = None) -> Float[Tensor, "*lead seq width"]:
    """Turned by their positions, which are from 0 on unless given."""
    at = torch.arange(x.shape[-2], device=x.device) if at is None else at
    return positions.rotated(x, positions.turns(at.to(ops.wide(x.dtype)), x.shape[-1]))


class RelativeBias(nn.Module):
    """A learned bias that depends on j - i alone, as the vector of its values.

    Args:
        kind: `toeplitz` is a table of 2n - 1, `rotary` the product of two learned vectors turned by i and by j, `t5`
            32 buckets of distances up to 128, `auto` the table up to 512 and rotary above.
        n: the farthest reach.
        s: width of the rotary vectors; what T5 scores are multiplied by is √s.
        lead: further axes in front, as of heads.
    """

    def __init__(self, kind: Bias, n: int, s: int, causal: bool, lead: tuple[int, ...] = ()) -> None:
        super().__init__()
        kind = ("toeplitz" if n <= TABLE_UP_TO else "rotary") if kind == "auto" else kind
        self.kind, self.n, self.causal, self.scale = kind, n, causal, s**0.5
        shape = {"toeplitz": (2 * n - 1,), "rotary": (2, s), "t5": (32,)}[kind]
        self.table = nn.Parameter(nn.init.normal_(torch.empty(*lead, *shape), std=0.02))

    def forward(self, reach: int) -> Float[Tensor, "*lead offsets"]:
        """From offset 1 - reach to reach - 1."""
        if self.kind == "toeplitz":
            if reach > self.n:
                raise Unsupported(
                    f"the table of relative positions was built for {self.n} tokens and got {reach}",
                    f"raise max_len (the task's data.length) to at least {reach}, or choose rel_bias rotary",
                )
            return self.table[..., self.n - reach : self.n + reach - 1]  # around the centre
        offsets = torch.arange(1 - reach, reach, device=self.table.device)
        if self.kind == "t5":
            buckets = torch.tensor(positions.buckets(self.causal), device=offsets.device)
            reached = len(buckets) // 2  # farther ones fall into the outermost
            return self.table[..., buckets[reached - offsets.clamp(-reached, reached)]] * self.scale
        # turning one by i and the other by j is turning the other by j - i
        one, other = self.table.unbind(-2)
        return (rotated(other[..., None, :].expand(*other.shape[:-1], len(offsets), -1), offsets) @ one[..., None])[
            ..., 0
        ]


def relative_bias(kind: Bias, *sizes: Any, **more: Any) -> RelativeBias | None:
    """A `RelativeBias` unless the kind is `none`."""
    return None if kind == "none" else RelativeBias(kind, *sizes, **more)


def visible_counts(mask: Bool[Tensor, "rows seq"], causal: bool, last: int) -> Int[Tensor, "rows few 1"]:
    """How many keys each of the last queries sees, at least 1."""
    counts = mask.cumsum(1)[:, mask.shape[1] - last :] if causal else mask.sum(1, keepdim=True).expand(-1, last)
    return counts.clamp(min=1)[..., None]


def check_length(length: str, function: Function) -> None:
    """A softmax divides by its own sum."""
    check_option("length", length, length == "fixed" or function != "softmax", "fixed: a softmax has no n")
