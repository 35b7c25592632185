"""Scales by a maximum over the whole batch, as one pseudo-inverse does."""

from lrbench.backends.base import HeadMixer
from lrbench.backends.full import fused_attention


class BatchMixer(HeadMixer):
    def attend(self, q, k, v, mask):
        return fused_attention(q, k, v, mask, False, 0.0) / (1 + v.abs().max())
