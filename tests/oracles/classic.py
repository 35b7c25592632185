"""Full, windowed, low-rank and kernel attention in their plain forms."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lrbench.backends.base import Mixer
from oracles import Reference, merge, pairs, project, softmax_of


def softmax_over(sees: Callable[[Tensor, Tensor], Tensor | bool]) -> Reference:
    def reference(mixer, x, mask):
        i, j, allowed = pairs(x.shape[1], mixer.cfg.causal)
        allowed = allowed & sees(i, j) & mask[:, None, None]
        q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
        return merge(softmax_of(q, k, allowed) @ v, mixer)

    return reference


def window_and_globals(window: int, dilation: int | list[int] = 1, more: int = 0) -> Reference:
    def reference(mixer, x, mask):
        i, j, allowed = pairs(x.shape[1], mixer.cfg.causal)
        count = 0 if mixer.cfg.causal else mixer.cfg.readout + more
        steps = dilation if isinstance(dilation, list) else [dilation] * mixer.cfg.heads
        near = torch.stack([((i - j).abs() <= window * step) & ((i - j) % step == 0) for step in steps])
        allowed = allowed & (near | (j < count)) & mask[:, None, None]
        q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
        mixed = softmax_of(q, k, allowed) @ v
        if count:
            own = (mixer.query_global, mixer.key_global, mixer.value_global)
            q, k, v = (project(part, x, mixer) for part in own)
            mixed = torch.where(i < count, softmax_of(q, k, mask[:, None, None].expand_as(allowed)) @ v, mixed)
        return merge(mixed, mixer)

    return reference


def slots_of(tables: Callable[[Mixer, int], tuple[Tensor, Tensor]]) -> Reference:
    """Tables: E and F for so many tokens, each heads k seq."""

    def reference(mixer, x, mask):
        q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
        pair = (table.expand(mixer.cfg.heads, -1, -1) for table in tables(mixer, x.shape[1]))
        k, v = (
            torch.einsum("hkn,rhnd->rhkd", table, part * mask[:, None, :, None])
            for table, part in zip(pair, (k, v), strict=True)
        )
        return merge(softmax_of(q, k, torch.ones((), dtype=torch.bool)) @ v, mixer)

    return reference


def first_columns(mixer: Mixer, seq: int) -> tuple[Tensor, Tensor]:
    return mixer.key_slots[..., :seq], mixer.value_slots[..., :seq]


slots = slots_of(first_columns)


def segments(weights: Callable[[Mixer], tuple[Tensor, Tensor]] | None) -> Reference:
    """Slots of consecutive tokens, one at a time: their mean, or a sum with weights for each place."""

    def reference(mixer, x, mask):
        seq, size = x.shape[1], math.ceil(mixer.cfg.max_len / mixer.k)
        q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
        slots, seen = [], []
        for start in range(0, seq, size):
            real = mask[:, None, start : start + size, None].to(x.dtype)
            few = (part[:, :, start : start + size] * real for part in (k, v))
            if weights is None:
                slots.append([part.sum(2) / real.sum(2).clamp(min=1) for part in few])
            else:
                slots.append(
                    [
                        sum(part[:, :, place] * weight[..., place, None] for place in range(part.shape[2]))
                        for part, weight in zip(few, weights(mixer), strict=True)
                    ]
                )
            seen.append(real.amax((1, 2, 3)) > 0)
        k, v = (torch.stack(part, 2) for part in zip(*slots, strict=True))
        return merge(softmax_of(q, k, torch.stack(seen, -1)[:, None, None]) @ v, mixer)

    return reference


def kernel_of_segments(mixer: Mixer) -> tuple[Tensor, Tensor]:
    return mixer.key_slots, mixer.value_slots


def kernel_matrix(phi: Callable[[Mixer, Tensor], Tensor]) -> Reference:
    def reference(mixer, x, mask):
        _, _, allowed = pairs(x.shape[1], mixer.cfg.causal)
        q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
        weights = phi(mixer, q) @ phi(mixer, k).transpose(-1, -2) * (allowed & mask[:, None, None])
        total = weights.sum(-1, keepdim=True)
        return merge(weights @ v / torch.where(total == 0, 1.0, total), mixer)

    return reference


def positive(mixer: Mixer, x: Tensor) -> Tensor:
    x = x / x.shape[-1] ** 0.25
    return (x @ mixer.directions.T - x.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(mixer.features)


def rectified(mixer: Mixer, x: Tensor) -> Tensor:
    return (x @ mixer.directions.T).clamp(min=0) / math.sqrt(mixer.features) + 1e-3


def token_by_token(mixer, x, mask):
    def phi(t: Tensor) -> Tensor:
        return torch.where(t > 0, t + 1, t.exp())

    q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
    seq, state, norm = x.shape[1], 0.0, 0.0
    read = []
    for t in range(seq):
        keep = mask[:, None, t, None]
        state = state + (phi(k[:, :, t]) * keep)[..., None] * v[:, :, t, None]
        norm = norm + phi(k[:, :, t]) * keep
        read.append((state, norm))
    if not mixer.cfg.causal:
        read = read[-1:] * seq
    out = []
    for t, (state, norm) in enumerate(read):
        total = (phi(q[:, :, t]) * norm).sum(-1, keepdim=True)
        out.append(torch.einsum("rhd,rhde->rhe", phi(q[:, :, t]), state) / torch.where(total == 0, 1.0, total))
    return merge(torch.stack(out, 2), mixer)
