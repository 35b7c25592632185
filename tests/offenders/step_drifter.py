"""A causal running mean whose steps forget how many tokens earlier segments had."""

import torch
from torch import nn

from lrbench.backends.base import Mixer


class StepDrifter(Mixer):
    order, can_be_causal = "n", True
    segment = 16

    def __init__(self, cfg):
        super().__init__(cfg)
        self.value = nn.Linear(cfg.dim, cfg.dim, bias=False)

    def forward(self, x, *, mask=None):
        return self.mean(x, mask)[0]

    def step(self, x, state, *, mask=None):
        y, total = self.mean(x, mask, 0.0 if state is None else state)
        return y, total

    def mean(self, x, mask, before=0.0):
        if mask is None:
            count = torch.arange(1, x.shape[1] + 1)[None, :, None]
        else:
            x = x.masked_fill(~mask[..., None], 0.0)
            count = mask.cumsum(1).clamp_min(1)[..., None]
        total = self.value(x).cumsum(1) + before
        y = total / count
        y = y if mask is None else y.masked_fill(~mask[..., None], 0.0)
        return y, total[:, -1:]
