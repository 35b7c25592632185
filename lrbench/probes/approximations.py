"""How near a method comes to the softmax attention that it stands for, and how fast."""

import math

import torch

from lrbench.backends.base import HeadMixer
from lrbench.backends.full import math_attention
from lrbench.probes.base import Factory, Probe, judged, skipped

NAME = "approximation"
AMOUNTS = (16, 64, 256, 1024)
SEEDS = 32  # an estimate's error is itself random, with a heavy tail
SIZES = {"dim": 16, "heads": 2, "head_dim": 16}
SCALE = 0.3  # of queries and keys: estimates of exp(q·k) are of use for small ones only
BOUND = -0.35  # Monte Carlo falls as m^-1/2


def approximation(make: Factory) -> Probe:
    """The error against exact attention falls, as the option `refined_by` grows, at least as m^-0.35."""
    mixer = make()
    if not mixer.approximates:
        return skipped(NAME, "it says of no other attention that it approximates it")
    if mixer.approximates != "softmax" or not isinstance(mixer, HeadMixer):
        return skipped(NAME, f"no reference for a {type(mixer).__name__} that approximates {mixer.approximates!r}")
    errors = [relative_error(make, amount) for amount in AMOUNTS]
    told = ", ".join(f"{error:.1%} at {amount}" for amount, error in zip(AMOUNTS, errors, strict=True))
    return judged(NAME, slope(errors), BOUND, f"error by {mixer.refined_by}: {told}; power of it")


@torch.no_grad()
def relative_error(make: Factory, amount: int, seq: int = 64) -> float:
    """Root mean square over draws, relative to that of exact attention's output."""
    draw = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, SIZES["heads"], seq, SIZES["head_dim"], generator=draw).double() for _ in range(3))
    exact = math_attention(SCALE * q, SCALE * k, v, None, make.causal, 0.0)
    squares = []
    for seed in range(SEEDS):
        config = make.config(seq, **SIZES)
        mixer = make.built(config, seed, **{make().refined_by: amount}).double()
        assert isinstance(mixer, HeadMixer)
        squares.append((mixer.attend(SCALE * q, SCALE * k, v, None) - exact).square().mean())
    return float((torch.stack(squares).mean() / exact.square().mean()).sqrt())


def slope(errors: list[float]) -> float:
    """The power of the amount by which errors change."""
    low = 1e-12  # a method that becomes exact
    return math.log(max(errors[-1], low) / max(errors[0], low)) / math.log(AMOUNTS[-1] / AMOUNTS[0])
