"""Attention in which a token's place decides what it sees. Places count from a row's first real token."""

import math
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lrbench.backends.base import HeadMixer, check_option
from lrbench.backends.regions.tokens import Tokens
from lrbench.errors import SpecError


class Placed(HeadMixer):
    """Multi-head base that brings each row's first real token to the front; subclasses write `planned` only.

    The projections are those of `HeadMixer`. `width` is of the grid that the sequence lies on row by row, where a
    subclass has one, and `kind` is the option that says which plan is at work: options of other plans are refused.
    """

    width: int
    kind: ClassVar[str] = "plan"

    @property
    def front(self) -> int:
        """Unseen places of the grid before a readout token, for the next one to start a row."""
        return -self.cfg.readout % self.width

    def only_for(self, option: str, value: object, *plans: str) -> None:
        """Refuse an option that the plan has no use for."""
        plan = getattr(self, self.kind)
        if value is not None and plan not in plans:
            raise SpecError(
                f"option {option} is {value!r}, and {self.kind} {plan} has no use for it",
                f"leave {option} out, or choose {self.kind} {' or '.join(plans)}",
            )

    def size(self, option: str, value: int | None, usual: int, *plans: str) -> int:
        """A number of tokens or clusters."""
        self.only_for(option, value, *plans)
        check_option(option, value, value is None or value >= 1, "of at least 1")
        return usual if value is None else value

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """Bring the first real token to the front, project, attend, and bring it back."""
        if mask is not None:
            start = mask.to(torch.uint8).argmax(1, keepdim=True)
            x = rolled(x.masked_fill(~mask[..., None], 0.0), start)  # 0 · nan is nan
            mask = rolled(mask[..., None], start)[..., 0]
        q, k, v = (self.split(linear(x)) for linear in (self.query, self.key, self.value))
        y = self.out(self.attend(q, k, v, mask, x).transpose(1, 2).flatten(-2))
        return y if mask is None else rolled(y, -start)

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
        x: Float[Tensor, "rows seq dim"] | None = None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Mix v by the plan. Places count from the first token; x is the layer's input, where a plan reads it."""
        seq, q = q.shape[2], q * self.cfg.head_dim**-0.5
        seen = torch.ones(1, seq, dtype=torch.bool, device=q.device) if mask is None else mask
        t = Tokens(q, k, v, q, k, seen[:, None], self.cfg.dropout if self.training else 0.0)
        mixed = self.planned(t, x, mask is not None)[:, :, :seq]
        return mixed if mask is None else mixed.masked_fill(~mask[:, None, :, None], 0.0)

    def planned(self, t: Tokens, x: Tensor | None, padded: bool) -> Float[Tensor, "rows heads padded head_dim"]:
        """The plan at work. Where nothing is real, anything may come out; what is behind the sequence is cut off."""
        raise NotImplementedError


def usual_size(longest: int) -> int:
    """The power of two nearest √n, by its exponent."""
    return 2 ** int(math.log2(longest) / 2 + 0.5)


def rolled(x: Float[Tensor, "rows seq width"] | Tensor, start: Int[Tensor, "rows 1"]) -> Tensor:
    """Each row turned, so that what was at its `start` comes first."""
    rows, seq = x.shape[:2]
    places = (torch.arange(seq, device=x.device) + start) % seq
    flat = places + seq * torch.arange(rows, device=x.device)[:, None]
    return x.flatten(0, 1).index_select(0, flat.flatten()).unflatten(0, (rows, seq))
