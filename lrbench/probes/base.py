"""What probes share: what one found, the backend that it looks at, and how outputs are compared."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lrbench.backends.base import LayerConfig, Mixed, Mixer, parted

LOUD = 50.0  # scale of a disturbance


@dataclass(frozen=True, slots=True)
class Probe:
    """What one probe found; `detail` says where it was worst.

    It passes when `measured` is at most `bound`, or with `least` at least that. One that does not apply is `skipped`:
    nothing was measured, nothing speaks against the backend, and `detail` says why.
    """

    name: str
    passed: bool
    measured: float
    bound: float
    detail: str = ""
    least: bool = False
    skipped: bool = False

    def __str__(self) -> str:
        """In one line."""
        if self.skipped:
            return f"{self.name} skipped: {self.detail}"
        sign = (">=" if self.passed else "<") if self.least else ("<=" if self.passed else ">")
        place = f" ({self.detail})" if self.detail else ""
        return (
            f"{self.name} {'passed' if self.passed else 'failed'}: {self.measured:.3g} {sign} {self.bound:.3g}{place}"
        )


@dataclass(frozen=True, slots=True)
class Factory:
    """Builds one backend again and again, always with the same weights for the same sizes."""

    cls: type[Mixer]
    settings: Mapping[str, Any]
    causal: bool = False
    dim: int = 13  # primes, and heads · head_dim is not dim: a mistaken axis cannot pass
    heads: int = 3
    head_dim: int = 5
    readout: int = 1
    positions: str = "none"

    def __call__(self, max_len: int = 128, seed: int = 0, **changes: Any) -> Mixer:
        """An instance in eval mode, for inputs up to `max_len`."""
        return self.built(self.config(max_len, **changes), seed)

    def config(self, max_len: int = 128, **changes: Any) -> LayerConfig:
        """What the backend is built from."""
        told = ("dim", "heads", "head_dim", "causal", "readout", "positions")
        sizes = {name: getattr(self, name) for name in told}
        return LayerConfig(max_len=max_len, **{**sizes, **changes})

    def built(self, config: LayerConfig, seed: int = 0, **settings: Any) -> Mixer:
        """An instance from random numbers of its own, which disturb no other."""
        devices = list(range(torch.cuda.device_count()))
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            return self.cls(config, **{**self.settings, **settings}).eval()

    def inputs(self, seq: int, rows: int = 2, seed: int = 1) -> Tensor:
        """Normal inputs that depend on nothing but the arguments."""
        return torch.randn(rows, seq, self.dim, generator=torch.Generator().manual_seed(seed))

    def loud(self, seq: int, rows: int = 2) -> Tensor:
        """What replaces inputs that must not matter."""
        return LOUD * self.inputs(seq, rows, seed=2)


Check = Callable[[Factory], Probe]


def judged(name: str, measured: float, bound: float, detail: str = "") -> Probe:
    """A probe from its measurement; a nan fails."""
    return Probe(name, measured <= bound, measured, bound, detail)


def skipped(name: str, reason: str) -> Probe:
    """A probe that does not apply."""
    return Probe(name, True, math.nan, math.nan, reason, skipped=True)


def worst(name: str, found: Mapping[str, float], bound: float) -> Probe:
    """The largest of several measurements; a nan counts as the largest."""
    place = max(found, key=lambda key: math.inf if math.isnan(found[key]) else found[key])
    return judged(name, found[place], bound, place)


def gap(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the larger of 1 and the largest value."""
    one, other = one.detach(), other.detach()
    return float((one - other).abs().max() / other.abs().max().clamp_min(1.0))


def objective(out: Tensor | Mixed, weight: Tensor | None = None) -> Tensor:
    """What training would minimise: a sum over outputs, and the loss of the method's own where it has one."""
    y, loss = parted(out)
    total = (y.float().square() if weight is None else y * weight).sum()
    return total if loss is None else total + loss


def real_tokens(seq: int, *counts: int, left: bool = False) -> Tensor:
    """A mask whose rows have so many real tokens, at the start or at the end."""
    mask = torch.arange(seq) < torch.tensor(counts)[:, None]
    return mask.flip(1) if left else mask
