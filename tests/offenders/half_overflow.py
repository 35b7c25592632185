"""Scales values by more than half precision holds, and back again."""

from lrbench.backends.base import HeadMixer
from lrbench.backends.full import fused_attention


class HalfOverflow(HeadMixer):
    def attend(self, q, k, v, mask):
        return fused_attention(q, k, v * 1e5, mask, False, 0.0) * 1e-5
