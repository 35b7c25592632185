"""Has a projection that nothing uses."""

from torch import nn

from lrbench.backends.base import HeadMixer
from lrbench.backends.full import fused_attention


class DeadParameter(HeadMixer):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.spare = nn.Linear(cfg.dim, cfg.dim)

    def attend(self, q, k, v, mask):
        return fused_attention(q, k, v, mask, False, 0.0)
