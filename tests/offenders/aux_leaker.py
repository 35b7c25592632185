"""Trains with a loss of its own, a mean over all tokens, padding too."""

from lrbench.backends.base import HeadMixer, Mixed
from lrbench.backends.full import fused_attention


class AuxLeaker(HeadMixer):
    def forward(self, x, *, mask=None):
        y = super().forward(x, mask=mask)
        return Mixed(y, x.square().mean()) if self.training else y

    def attend(self, q, k, v, mask):
        return fused_attention(q, k, v, mask, False, 0.0)
