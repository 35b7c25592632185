"""Draws new random numbers at every call, in eval too."""

import torch

from lrbench.backends.base import HeadMixer
from lrbench.backends.full import fused_attention


class Nondeterministic(HeadMixer):
    def attend(self, q, k, v, mask):
        return fused_attention(q, k, v, mask, False, 0.0) * (1 + 3e-7 * torch.rand_like(q))
