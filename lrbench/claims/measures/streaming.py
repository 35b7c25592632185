"""Methods that read a sequence in parts."""

from typing import Any

import torch
from torch import Tensor

from lrbench import testing
from lrbench.claims.built import factory, normal, stirred
from lrbench.claims.measured import Measured, exact
from lrbench.errors import SpecError


@torch.no_grad()
def gap(*, model: str = "flash", tokens: int | None = None) -> Measured:
    """F17: the largest difference of a causal method read step by step from the same in one pass, in float64.

    Relative to the largest output where that is above 1.

    Args:
        tokens: of a step; by default a segment of the method.

    Raises:
        SpecError: it does not stream.
    """
    mixer: Any = factory(model, causal=True)(16)
    if not mixer.streams:
        raise SpecError(f"model {model!r} does not stream", "choose one that does, such as flash or transformer-xl")
    length = 3 * mixer.segment + 5
    mixer, x = stirred(factory(model, causal=True)(length)), normal(2, length, mixer.cfg.dim)
    size = tokens or mixer.segment
    told = f"{length} tokens, {size} a step, segments of {mixer.segment}"
    return exact(testing.gap(_folded(mixer, x, size), mixer(x)), told)


def _folded(mixer: Any, x: Tensor, size: int) -> Tensor:
    """The outputs of steps, each given what the one before it left."""
    state, outs = None, []
    for start in range(0, x.shape[1], size):
        y, state = mixer.step(x[:, start : start + size], state)
        outs.append(y)
    return torch.cat(outs, 1)
