"""Comes out with numbers below the smallest normal one."""

from lrbench.backends.base import Mixer


class Tiny(Mixer):
    def forward(self, x, *, mask=None):
        return x * 1e-40
