"""Backends as a user names them, small and in float64, for measures that look at them from outside."""

from typing import Any

import torch
from torch import Tensor

from lrbench.backends.base import Mixer
from lrbench.registry import backends
from lrbench.testing import Factory


def factory(model: str, causal: bool = False, **sizes: Any) -> Factory:
    """What builds a model such as `local[window=4]` alone, without a readout token unless `sizes` has one.

    Raises:
        UnknownName, SpecError: there is no such model, or no such option of it.
    """
    backend = backends.get(model)
    return Factory(backend.cls, backend.options, causal, **{"readout": 0, **sizes})


@torch.no_grad()
def stirred(mixer: Mixer, seed: int = 0) -> Mixer:
    """In float64, with numbers of its own for each parameter: some start alike, or at zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in mixer.double().parameters():
        parameter.add_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator), alpha=0.3)
    return mixer


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers in float64 that depend on nothing but the arguments."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference; nan where either is nan."""
    return float((one - other).detach().abs().max())
