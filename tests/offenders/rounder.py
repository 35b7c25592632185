"""Computes float32 in half precision, as a careless setting for faster products does."""

import torch

from lrbench.backends.base import HeadMixer
from lrbench.backends.full import fused_attention


class Rounder(HeadMixer):
    def attend(self, q, k, v, mask):
        if v.dtype == torch.float32:
            v = v.bfloat16().float()
        return fused_attention(q, k, v, mask, False, 0.0)
