"""Each token attends to its neighbours within a window.

The band of Longformer (Beltagy et al. 2020) without its global tokens. Time and memory n · window.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer, LayerConfig, check_option, covers_all


class Local(HeadMixer):
    """Sliding window.

    Args:
        window: token i sees j with |i - j| <= window; causal 0 <= i - j <= window.
    """

    paper, order, can_be_causal = "2004.05150", "n", True
    positions = ("rotary", "pia", "alibi", "t5", "xl")

    def __init__(self, cfg: LayerConfig, *, window: int = 128) -> None:
        super().__init__(cfg)
        check_option("window", window, window >= 0, "of at least 0")
        self.window = window

    @property
    def notes(self) -> list[str]:
        """Whether there is anything outside the window; a learned bias has no fused kernel on a CPU."""
        unfused = self.place.learned and self.out.weight.device.type == "cpu"
        kind = self.cfg.positions
        built = [f"{kind} positions have no fused kernel on the CPU: the weights of the window are built"]
        return covers_all(self.window, self.cfg) + (built if unfused else [])

    def attend(
        self,
        q: Float[Tensor, "rows heads seq head_dim"],
        k: Float[Tensor, "rows heads seq head_dim"],
        v: Float[Tensor, "rows heads seq head_dim"],
        mask: Bool[Tensor, "rows seq"] | None,
    ) -> Float[Tensor, "rows heads seq head_dim"]:
        """Mix v by a softmax over the window."""
        dropout = self.cfg.dropout if self.training else 0.0
        return ops.banded(
            q,
            k,
            v,
            window=self.window,
            causal=self.cfg.causal,
            visible=mask,
            dropout=dropout,
            bias=self.place.bias,
        )
