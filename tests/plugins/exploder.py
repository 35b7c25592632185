"""Allocates until there is no more."""

import torch

from lrbench.backends.base import Mixer


class Exploder(Mixer):
    def forward(self, x, *, mask=None):
        held = []
        while float(x[0, 0, 0]) == float(x[0, 0, 0]):  # a number that fake tensors do not have
            held.append(torch.ones(64 << 18))
        return x
