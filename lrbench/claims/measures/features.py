"""How well random features stand for the softmax kernel: how their error falls, and whether they are biased.

FAVOR+ (Choromanski et al. 2020, arXiv:2009.14794), the backend `performer`. No training: normal inputs, fresh weights.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lrbench.backends import performer
from lrbench.backends.base import LayerConfig
from lrbench.claims.intervals import averaged
from lrbench.claims.measured import Measured
from lrbench.claims.measures.training import seeded
from lrbench.registry import backends

HEADS, HEAD_DIM = 2, 16


@torch.no_grad()
def error_slope(
    *,
    features: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024),
    seeds: int = 60,
    length: int = 64,
    scale: float = 0.3,
) -> Measured:
    """The power of the number of features by which the error of `performer` against `full` falls; -1/2 expected.

    A seed draws inputs, projections and features; its error is the norm of the difference of both layers' outputs,
    relative to that of the exact one.

    Args:
        scale: of inputs. Of large ones, and so of large scores, a few features estimate nothing.
    """
    errors = np.array([[_error(count, seed, length, scale) for count in features] for seed in range(seeds)])
    slopes = [float(np.polyfit(np.log(features), np.log(row), 1)[0]) for row in errors]
    ends = np.exp(np.log(errors).mean(0))
    told = f"error {ends[0]:.2%} with {features[0]} features, {ends[-1]:.2%} with {features[-1]}"
    return averaged(slopes, f"{told}; {HEADS} heads of {HEAD_DIM}, length {length}, inputs of scale {scale:g}")


@torch.no_grad()
def bias(
    *,
    part: Literal["numerator", "denominator"] = "denominator",
    features: int = 16,
    draws: int = 1000,
    length: int = 32,
    scale: float = 0.5,
) -> Measured:
    """(estimate - exact) / exact of the sums that attention divides, averaged over draws of features; 0 expected.

    denominator: Σ_ij exp(q_i·k_j / √d). numerator: Σ_j exp(q_i·k_j / √d) v_j, projected on the exact one. Queries, keys
    and values are normal, the first two of that scale, and the same for all draws.
    """
    q, k, v = _inputs(length, scale)
    v = v if part == "numerator" else torch.ones(length, 1, dtype=v.dtype)
    exact = (q @ k.T * HEAD_DIM**-0.5).exp() @ v
    found = [_relative(_kernel(q, k, features, seed) @ v, exact) for seed in range(draws)]
    error = float(np.std(found, ddof=1)) / math.sqrt(draws)
    told = f"{part}, {features} features, {draws} draws: {np.mean(found) / error:+.1f} standard errors from 0"
    return averaged(found, f"{told}; heads of {HEAD_DIM}, length {length}, queries and keys of scale {scale:g}")


def _error(count: int, seed: int, length: int, scale: float) -> float:
    """Of one draw of everything."""
    cfg = LayerConfig(dim=HEADS * HEAD_DIM, heads=HEADS, head_dim=HEAD_DIM, max_len=length)
    with seeded(seed):
        x = scale * torch.randn(1, length, cfg.dim, dtype=torch.float64)
        exact = backends.get("full").cls(cfg).double()
        near = backends.get("performer").cls(cfg, features=count).double()
    near.load_state_dict(exact.state_dict(), strict=False)  # the features of its own stay
    y = exact(x)
    return float((near(x) - y).norm() / y.norm())


def _inputs(length: int, scale: float) -> Sequence[Tensor]:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(length, HEAD_DIM, generator=draw, dtype=torch.float64) for _ in range(3))
    return scale * q, scale * k, v


def _kernel(q: Tensor, k: Tensor, features: int, seed: int) -> Tensor:
    """One draw's estimate of exp(q·k / √d) for each query and key: the mean over features of their products."""
    cfg = LayerConfig(dim=HEAD_DIM, heads=1, head_dim=HEAD_DIM, max_len=len(k))
    with seeded(seed):
        mixer = performer.Performer(cfg, features=features)
    phi = performer._Exponential(mixer.directions, q.dtype)
    # the backend leaves out a query's norm, which cancels in the ratio; alone, each sum needs it
    phi_q, phi_k = (phi.raw(x, key=True).exp() for x in (q, k))
    return phi_q @ phi_k.T / features


def _relative(estimate: Tensor, exact: Tensor) -> float:
    return float(((estimate - exact) * exact).sum() / exact.square().sum())
