"""Sleeps `ms`, and longer the first times if asked to."""

from time import sleep

from lrbench.backends.base import Mixer


class Sleeper(Mixer):
    def __init__(self, cfg, *, ms: float = 20.0, warming: bool = False):
        super().__init__(cfg)
        self.left = [4 * ms, 3 * ms, 2 * ms] if warming else []
        self.ms = ms

    def forward(self, x, *, mask=None):
        sleep((self.left.pop(0) if self.left else self.ms) / 1e3)
        return x
