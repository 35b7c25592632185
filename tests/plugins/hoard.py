"""Needs `mib` MiB, where an allocator's events or the resident size may not look."""

import threading

import numpy as np
import torch

from lrbench.backends.base import Mixer


class Hoard(Mixer):
    def __init__(self, cfg, *, kind: str, mib: int = 64):
        super().__init__(cfg)
        self.make = getattr(self, kind)
        self.size = mib << 18  # float32

    def tensor(self):
        return torch.ones(self.size)

    def numpy(self):
        return np.ones(self.size, dtype=np.float32)

    def untouched(self):
        return torch.empty(self.size)

    def thread(self):
        made = []
        worker = threading.Thread(target=lambda: made.append(torch.ones(self.size)))
        worker.start()
        worker.join()
        return made

    def forward(self, x, *, mask=None):
        held = self.make()
        return x + 1.0 * bool(len(held))
