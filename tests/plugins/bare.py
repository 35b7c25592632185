"""Attention of queries, keys and values that are given, without projections: what its memory must be can be told.

With S = heads · n² · 4 and N = heads · n · head_dim · 4 bytes, naive needs 2S forward and 3S + 2N with backward.
`calls` of them, each forward and backward, are a unit of known ratio to another such unit.
"""

import torch
import torch.nn.functional as F
from torch import nn

from lrbench.backends.base import Mixer


class Bare(Mixer):
    def __init__(self, cfg, *, kind: str = "naive", calls: int = 1):
        super().__init__(cfg)
        shape = (1, cfg.heads, cfg.max_len, cfg.head_dim)
        self.q, self.k, self.v = (nn.Parameter(torch.randn(shape)) for _ in range(3))
        self.attend, self.calls = getattr(self, kind), calls

    def naive(self):
        scores = self.q @ self.k.transpose(-1, -2)
        scores = scores * self.cfg.head_dim**-0.5
        weights = scores.softmax(-1)
        del scores
        return weights @ self.v

    def sdpa(self):
        return F.scaled_dot_product_attention(self.q, self.k, self.v)

    def linear(self):
        q, k = F.elu(self.q) + 1, F.elu(self.k) + 1
        sums = torch.einsum("rhsd,rhse->rhde", k, self.v)
        return torch.einsum("rhsd,rhde->rhse", q, sums) / torch.einsum("rhsd,rhd->rhs", q, k.sum(2))[..., None]

    def forward(self, x, *, mask=None):
        for _ in range(self.calls - 1):
            y = self.attend()
            torch.autograd.grad(y, (self.q, self.k, self.v), y.detach())
        return self.attend()
