"""Linear attention that masks values but leaves padded keys in the normaliser."""

import torch.nn.functional as F

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer


class ValueMasker(HeadMixer):
    order = "n"

    def attend(self, q, k, v, mask):
        phi_q, phi_k = F.elu(q) + 1, F.elu(k) + 1
        sums = phi_k.transpose(-1, -2) @ F.pad(v, (0, 1), value=1.0)  # padded values are zeros already
        return ops.Ratio.apply(phi_q @ sums)
