"""Adds what all tokens have in common, future ones too, as a constant to autograd."""

from lrbench.backends.base import HeadMixer
from lrbench.backends.full import fused_attention


class Leaker(HeadMixer):
    can_be_causal = True

    def attend(self, q, k, v, mask):
        return fused_attention(q, k, v, mask, self.cfg.causal, 0.0) + 1e-3 * v.detach().sum(2, keepdim=True)
