"""Kernel attention that can be read in parts, the past being a sum of a fixed size."""

from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer
from lrbench.backends.positions import OUTSIDE
from lrbench.errors import Unsupported


class Running(HeadMixer):
    """Causal instances stream; subclasses write `running` besides `attend`.

    `forward` does not go by steps: it takes all chunks at once and gives the same numbers up to rounding.
    """

    segment: ClassVar[int] = 128  # a step takes time and memory segment² for its own tokens

    @property
    def streams(self) -> bool:
        """Only where no token sees a later one, and none needs to know how many there were before it."""
        return self.cfg.causal and self.cfg.positions in OUTSIDE

    def running(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
        past: ops.KernelSums | None,
    ) -> tuple[Float[Tensor, "rows heads seq head_dim"], ops.KernelSums]:
        """Mix v given the sums of the past; also the sums after it. Autocast is off."""
        raise NotImplementedError

    def step(
        self,
        x: Float[Tensor, "rows seq dim"],
        state: ops.KernelSums | None,
        *,
        mask: Bool[Tensor, "rows seq"] | None = None,
    ) -> tuple[Float[Tensor, "rows seq dim"], ops.KernelSums]:
        """Read one part, given the sums of those before; None starts anew."""
        if not self.streams:
            name, inside = type(self).__name__.lower(), self.cfg.positions not in OUTSIDE
            what = f"with positions {self.cfg.positions}" if inside else "unless it is causal"
            way_out = f"build it causal, with positions among {', '.join(OUTSIDE)}"
            raise Unsupported(f"{name} cannot stream {what}", way_out)
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # 0 · nan is nan
        q, k, v = (self.split(part(x)) for part in (self.query, self.key, self.value))
        with ops.full_precision(v):
            mixed, later = self.running(q, k, v, mask, state)
        mixed = F.dropout(mixed, self.cfg.dropout, self.training).to(v.dtype)
        return self.out(mixed.transpose(1, 2).flatten(-2)), later
