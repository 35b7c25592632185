"""Sparse patterns as formulas of two places, which count from a row's first real token."""

from torch import Tensor

from lrbench.backends.base import Mixer
from oracles import merge, pairs, project, softmax_of


def shown(mixer: Mixer, i: Tensor, j: Tensor) -> Tensor:
    """Whether i sees j, later or not."""
    if mixer.pattern == "fixed":
        span = mixer.span
        return (i // span == j // span) | (j % span == span - 1)
    if mixer.pattern == "logsparse":
        apart = (i - j).abs()
        return apart & (apart - 1) == 0  # 0, or a single bit
    width, front = mixer.width, -mixer.cfg.readout % mixer.width
    return ((i + front) // width == (j + front) // width) | ((i + front) % width == (j + front) % width)


def reference(mixer: Mixer, x: Tensor, mask: Tensor) -> Tensor:
    i, j, allowed = pairs(x.shape[1], mixer.cfg.causal)
    first = mask.to(int).argmax(1)[:, None, None]
    allowed = allowed & shown(mixer, i - first, j - first) & mask[:, None] & mask[:, :, None]
    q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
    return merge(softmax_of(q, k, allowed[:, None]) @ v, mixer)
