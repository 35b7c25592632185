"""Says that it comes near to softmax attention with more features, and has another temperature."""

from lrbench.backends.base import HeadMixer
from lrbench.backends.full import fused_attention


class ApproximationLiar(HeadMixer):
    approximates, refined_by = "softmax", "features"

    def __init__(self, cfg, *, features: int = 8):
        super().__init__(cfg)

    def attend(self, q, k, v, mask):
        return fused_attention(2 * q, k, v, mask, False, 0.0)
