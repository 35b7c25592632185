"""Segments with memories kept as lists, row by row and slot by slot; each distance looked up by its number."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lrbench.backends.base import Mixer
from oracles import Reference


class Slot(NamedTuple):
    content: Tensor
    real: bool


def sinusoid(distance: int, dim: int) -> Tensor:
    """Sines of all frequencies, then cosines, as many as fit."""
    angles = [distance / 10000 ** (2 * j / dim) for j in range((dim + 1) // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)[:dim]


def attended(mixer: Mixer, slots: list[Slot], own: int) -> tuple[Tensor, Tensor]:
    """The outputs of the last `own` slots and the weights over all, by head."""
    heads, head_dim = mixer.cfg.heads, mixer.cfg.head_dim
    stacked = torch.stack([slot.content for slot in slots])
    count, past = len(slots), len(slots) - own
    q, k, v = (
        (x @ part.weight.T).view(-1, heads, head_dim)
        for part, x in ((mixer.query, stacked[past:]), (mixer.key, stacked), (mixer.value, stacked))
    )
    numbers = range(-own, count + 1)
    r = torch.stack([sinusoid(number, mixer.cfg.dim) for number in numbers]) @ mixer.relative.weight.T
    r = r.view(-1, heads, head_dim)
    distance = torch.tensor([[past + i - j for j in range(count)] for i in range(own)])
    r = r[distance + own]  # own count heads head_dim
    u, w = mixer.content_bias[:, 0], mixer.position_bias[:, 0]
    scores = torch.einsum("ihd,jhd->hij", q + u, k) + torch.einsum("ihd,ijhd->hij", q + w, r)
    allowed = torch.tensor([slot.real for slot in slots])[None].expand(own, -1)
    if mixer.cfg.causal:
        allowed = allowed & (distance >= 0)
    weights = (scores / math.sqrt(head_dim)).exp() * allowed
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total == 0, 1.0, total)
    return torch.einsum("hij,jhd->ihd", weights, v).flatten(1) @ mixer.out.weight.T, weights


def row_by_row(mixer: Mixer, x: Tensor, mask: Tensor, remember) -> Tensor:
    out = torch.zeros_like(x)
    for row in range(len(x)):
        past: list[Slot] = []
        for start in range(0, x.shape[1], mixer.segment):
            places = range(start, min(start + mixer.segment, x.shape[1]))
            own = [Slot(x[row, t] if mask[row, t] else torch.zeros_like(x[row, t]), bool(mask[row, t])) for t in places]
            if not any(slot.real for slot in own):
                continue
            y, weights = attended(mixer, [*past, *own], len(own))
            out[row, places.start : places.stop] = y
            cut = [Slot(slot.content.detach(), slot.real) for slot in (*past, *own)]
            past = remember(mixer, cut, len(past), weights.detach())
    return out * mask[..., None]


def last(slots: list, count: int) -> list:
    return slots[len(slots) - count :] if len(slots) > count else slots


def remembered() -> Reference:
    def reference(mixer, x, mask):
        return row_by_row(mixer, x, mask, lambda mixer, slots, past, weights: last(slots, mixer.memory))

    return reference


def compressed() -> Reference:
    def remember(mixer, slots, past, weights):
        """One slot leaves the memory after the other; each `rate` of them become one."""
        older = max(0, past - mixer.memory)
        deep, leaving, kept = slots[:older], [], slots[older:]
        asking = [i for i, slot in enumerate(slots[past:]) if slot.real]
        use = weights[:, asking].mean((0, 1)).tolist()[older:]
        while len(kept) > mixer.memory:
            leaving.append((kept.pop(0), use.pop(0)))
        return last([*deep, *squeezed(mixer, leaving)], mixer.compressed) + kept

    def reference(mixer, x, mask):
        return row_by_row(mixer, x, mask, remember)

    return reference


def squeezed(mixer: Mixer, leaving: list[tuple[Slot, float]]) -> list[Slot]:
    rate, count = mixer.rate, len(leaving) // mixer.rate
    if mixer.compression == "most-used":
        ranked = sorted(range(len(leaving)), key=lambda i: leaving[i][1] if leaving[i][0].real else -1, reverse=True)
        return [leaving[place][0] for place in sorted(ranked[:count])]
    slots = [slot for slot, _ in leaving]
    if mixer.compression == "dilated":
        for conv, apart in zip(mixer.compress.wide, (1, 2, 4), strict=True):
            slots = [
                Slot(neighbours(slots, place, apart, conv.weight[:, 0]) if slot.real else slot.content, slot.real)
                for place, slot in enumerate(slots)
            ]
    made = []
    for group in (slots[rate * number : rate * (number + 1)] for number in range(count)):
        real = [slot.content for slot in group if slot.real]
        whole = torch.cat([slot.content for slot in group])
        if not real:
            content = torch.zeros_like(group[0].content)
        elif mixer.compression == "mean":
            content = sum(real) / len(real)
        elif mixer.compression == "max":
            content = torch.stack(real).max(0).values
        else:
            content = mixer.compress.conv.weight @ whole + mixer.compress.conv.bias
        made.append(Slot(content.detach(), bool(real)))
    return made


def neighbours(slots: list[Slot], place: int, apart: int, taps: Tensor) -> Tensor:
    found = torch.zeros_like(slots[0].content)
    for tap, other in enumerate((place - apart, place, place + apart)):
        if 0 <= other < len(slots):
            found = found + taps[:, tap] * slots[other].content
    return found
