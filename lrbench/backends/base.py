"""The contract of an attention backend: x in, y of the same shape out.

Axes: `rows seq dim` outside, `rows heads seq head_dim` inside; rows = batch × views.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

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
    first: "Mixer | None" = None  # the mixer of layer 0, for methods that share across layers


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

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__()
        if cfg.causal and not self.can_be_causal:
            raise Unsupported(
                f"{type(self).__name__.lower()} cannot be causal",
                "choose a backend that `lrbench list models` marks causal",
            )
        self.cfg = cfg

    @property
    def notes(self) -> list[str]:
        """What a reader of the results must know: fallbacks taken, approximations made."""
        return []

    def before_step(self) -> None:
        """Called by the trainer before each optimiser step: the only place where state may change.

        Before and not after, so that what is scored between two steps is what was trained last.

        Calls of `forward` measure no progress: accumulation makes several a step, and checkpointing repeats them.
        """

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """Mix. In `mask` True marks a real token; None says that nothing is padded."""
        raise NotImplementedError


class HeadMixer(Mixer):
    """Multi-head base: projections without bias, as in the Long-Range Arena; subclasses write `attend` only.

    Cost of the projections: 4 · dim · heads · head_dim multiply-adds a token.
    """

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        width = cfg.heads * cfg.head_dim
        self.query, self.key, self.value = (nn.Linear(cfg.dim, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, cfg.dim, bias=False)
        for linear in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(linear.weight)

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

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """Project, attend, project back."""
        if mask is not None:
            # 0 · nan is nan: what stands in the padding must be gone before it meets a weight of zero
            x = x.masked_fill(~mask[..., None], 0.0)
        # no names for q, k and v: what attend does not keep is freed before the last projection
        mixed = self.attend(self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x)), mask)
        return self.out(mixed.transpose(1, 2).flatten(-2))


def covers_all(window: int, cfg: LayerConfig) -> list[str]:
    """The note of a sliding window that no input is longer than."""
    full = window >= cfg.max_len - 1
    return [f"a window of {window} covers inputs of at most {cfg.max_len} tokens: full attention"] if full else []


def check_divisible(dim: int, heads: int) -> int:
    """The width of one head, or an error that names both numbers."""
    if dim % heads:
        raise SpecError(f"dim {dim} is not divisible by heads {heads}", "choose heads that divide dim, or set head_dim")
    return dim // heads


def check_option(option: str, value: object, ok: bool, expected: str) -> None:
    """Refuse a value of an option, naming both."""
    if not ok:
        raise SpecError(f"option {option} is {value!r}", f"choose {option} {expected}")
