"""Methods that stream: steps, folded over segments, must equal the forward pass."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from lrbench.backends.base import Mixer, fold_segments, parted
from lrbench.probes.base import Factory, Probe, gap, judged, objective, real_tokens, skipped, worst

NAME = "step is forward"


def step_is_forward(make: Factory) -> Probe:
    """Segment by segment, with the state handed on, comes out what one call gives: outputs, losses, gradients."""
    mixer, found = make(128).train(), {}
    if not hasattr(mixer, "step"):
        return skipped(NAME, "it has no `step`: it does not stream")
    if hasattr(mixer, "segment") and not mixer.streams:
        return skipped(NAME, "it says that it does not stream when built like this")
    segment = getattr(mixer, "segment", None)
    if not isinstance(segment, int) or segment < 1:
        return judged(NAME, 1, 0, f"it has a `step`, and `segment`, the tokens of one, is {segment!r}")
    mixer = make(4 * segment + 3).train()
    for seq in sorted({1, segment - 1, segment, segment + 1, 3 * segment + 2} - {0}):
        for mask in (None, real_tokens(seq, seq, max(1, seq // 2))):
            place = f"n={seq}, segment={segment}, {'no mask' if mask is None else 'mask'}"
            found[place] = _difference(mixer, make.inputs(seq), segment, mask)
    return worst(NAME, found, 1e-5)


def _difference(mixer: Mixer, x: Tensor, segment: int, mask: Tensor | None) -> float:
    """The largest of those of outputs, losses and gradients."""
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    step = cast(Callable[..., Any], mixer.step)
    whole, folded = mixer(one, mask=mask), fold_segments(step, other, segment, mask)
    (y, loss), (again, summed) = parted(whole), parted(folded)
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    objective(whole, real[..., None]).backward()
    objective(folded, real[..., None]).backward()
    assert one.grad is not None and other.grad is not None
    pairs = [(again[real], y[real]), (other.grad, one.grad)]
    if loss is not None or summed is not None:
        pairs.append((torch.zeros(()) if summed is None else summed, torch.zeros(()) if loss is None else loss))
    return max(gap(*pair) for pair in pairs)
