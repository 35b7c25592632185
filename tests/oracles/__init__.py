"""Oracles of backends: plain n x n maths in float64, from the equations and not from our code."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lrbench.backends.base import Mixer

Reference = Callable[[Mixer, Tensor, Tensor], Tensor]


def project(linear: torch.nn.Linear, x: Tensor, mixer: Mixer) -> Tensor:
    rows, seq, _ = x.shape
    return (x @ linear.weight.T).view(rows, seq, mixer.cfg.heads, mixer.cfg.head_dim).transpose(1, 2)


def merge(mixed: Tensor, mixer: Mixer) -> Tensor:
    rows, heads, seq, head_dim = mixed.shape
    return mixed.transpose(1, 2).reshape(rows, seq, heads * head_dim) @ mixer.out.weight.T


def pairs(seq: int, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    i, j = torch.arange(seq)[:, None], torch.arange(seq)[None]
    return i, j, (j <= i) if causal else torch.ones(seq, seq, dtype=torch.bool)


def softmax_of(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).exp() * allowed
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)
