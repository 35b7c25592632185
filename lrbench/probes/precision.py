"""Errors of each precision against float64."""

import math

import torch

from lrbench.probes.base import Factory, Probe, judged, objective, skipped

SEQ = 65
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


def single_precision(make: Factory) -> Probe:
    """In float32 outputs and gradients are finite, and outputs near those of float64."""
    return _precision(make, torch.float32)


def bfloat16(make: Factory) -> Probe:
    """The same under bfloat16 autocast."""
    return _precision(make, torch.bfloat16)


def float16(make: Factory) -> Probe:
    """The same under float16 autocast."""
    return _precision(make, torch.float16)


def _precision(make: Factory, dtype: torch.dtype) -> Probe:
    name = f"{str(dtype).removeprefix('torch.')} error"
    if dtype != torch.float32 and not runs_on_cpu(dtype):
        return skipped(name, "this PyTorch has no autocast of that type on the CPU")
    mixer, x = make(), make.inputs(SEQ).requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        y = mixer(x)
    (objective(y) / x[..., 0].numel()).backward()  # a mean over tokens, as in training: a sum alone may exceed float16
    named = {"output": y, "input": x.grad, **{name: weight.grad for name, weight in mixer.named_parameters()}}
    broken = [name for name, tensor in named.items() if tensor is not None and not tensor.isfinite().all()]
    if broken:
        return judged(name, math.inf, BOUNDS[dtype], f"not finite: {', '.join(broken)}")
    with torch.no_grad():
        exact = make().double()(make.inputs(SEQ).double())
    error = (y.detach() - exact).abs().amax((0, 2)) / exact.abs().max()
    return judged(name, float(error.max()), BOUNDS[dtype], f"relative, at t={int(error.argmax())} of {SEQ}")


def runs_on_cpu(dtype: torch.dtype) -> bool:
    """Whether products are computed in that type here."""
    try:
        with torch.autocast("cpu", dtype=dtype):
            one = torch.ones(2, 2)
            return (one @ one).dtype == dtype
    except (RuntimeError, UserWarning):  # a warning where those are errors
        return False
