"""Linear attention that masks values but leaves padded keys in the normaliser."""

import torch.nn.functional as F

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer


class ValueMasker(HeadMixer):
    order = "n"

    def attend(self, q, k, v, mask):
        return ops.kernel_attention(F.elu(q) + 1, F.elu(k) + 1, v)  # padded values are zeros already
