"""Does work that no counter knows, and looks at a number on the way, which fake tensors do not have."""

from lrbench.backends.base import Mixer


class Scan(Mixer):
    def __init__(self, cfg, *, looks: bool = False):
        super().__init__(cfg)
        self.looks = looks

    def forward(self, x, *, mask=None):
        if self.looks and float(x.abs().sum()) < 0:
            return x
        return x.cumsum(1)
