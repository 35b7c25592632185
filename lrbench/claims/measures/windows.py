"""Sliding windows against softmax attention."""

import math
from typing import Any

import torch
from torch import Tensor

from lrbench.claims.built import distance, factory, normal, stirred
from lrbench.claims.measured import Measured, exact
from lrbench.registry import backends

SEQ = 23


@torch.no_grad()
def is_softmax(*, model: str = "longformer") -> Measured:
    """S6: a window of n tokens is softmax attention with the same projections.

    The value is the largest difference, causal and not, and not causal with a global token too, whose projections are
    the same ones.
    """
    spec = backends.spec(model)
    wide = backends.typed(spec.model_copy(update={"settings": {**spec.settings, "window": SEQ}}))
    found = {
        name: _difference(wide, causal, readout)
        for name, causal, readout in (("not causal", False, 0), ("one read from", False, 1), ("causal", True, 0))
    }
    told = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
    return exact(max(found.values()), f"{SEQ} tokens: {told}", n=len(found))


def _softmax_attention(mixer: Any, x: Tensor, causal: bool) -> Tensor:
    """softmax(Q Kᵀ / √d) V W, from a layer's projections."""
    q, k, v = (mixer.split(x @ linear.weight.T) for linear in (mixer.query, mixer.key, mixer.value))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2) @ mixer.out.weight.T


def _difference(model: str, causal: bool, readout: int) -> float:
    mixer: Any = stirred(factory(model, causal, readout=readout)(SEQ))
    for name in ("query", "key", "value"):
        if hasattr(mixer, f"{name}_global"):
            getattr(mixer, f"{name}_global").load_state_dict(getattr(mixer, name).state_dict())
    x = normal(2, SEQ, mixer.cfg.dim)
    return distance(mixer(x), _softmax_attention(mixer, x, causal))
