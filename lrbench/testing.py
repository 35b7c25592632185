"""What every attention backend must hold, as functions: for our tests, for plug-ins, and for `lrbench check`.

    probes = conformance(MyAttention, {"window": 16}, causal=True)
    print([probe for probe in probes if not probe.passed])

Each probe disturbs an input and measures what moves. Disturbances are large, and made by changing inputs rather than by
gradients alone: a leak through a detached maximum or through sorting has a gradient of exactly zero.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lrbench.backends.base import Block, Mixer
from lrbench.errors import LrbenchError
from lrbench.probes.approximations import approximation
from lrbench.probes.base import (
    LOUD,
    Check,
    Factory,
    Probe,
    gap,
    judged,
    objective,
    real_tokens,
    skipped,
    worst,
)
from lrbench.probes.costs import LargestTensor, growth, largest_tensor, memory_growth, operations_growth, power, work
from lrbench.probes.elsewhere import state_elsewhere
from lrbench.probes.precision import bfloat16, float16, single_precision
from lrbench.probes.streams import step_is_forward

__all__ = [
    "LOUD",
    "PROBES",
    "Check",
    "Factory",
    "LargestTensor",
    "Probe",
    "causality",
    "conformance",
    "gap",
    "growth",
    "judged",
    "largest_tensor",
    "lengths",
    "notes",
    "power",
    "probe",
    "real_tokens",
    "skipped",
    "work",
    "worst",
]

LENGTHS = (1, 7, 8, 9, 10, 15, 17, 127, 128, 129, 1000, 1025)
AROUND = ("window", "segment", "block", "chunk")  # options whose boundaries are tried too


@torch.no_grad()
def shape_and_dtype(make: Factory) -> Probe:
    """The output is one tensor like the input, in float32 and in float64."""
    mixer, x = make(), make.inputs(17)
    wrong = []
    for given, y in ((x, mixer(x)), (x.double(), mixer.double()(x.double()))):
        if not isinstance(y, Tensor):
            wrong.append(f"in eval a {type(y).__name__}")
        elif y.shape != given.shape or y.dtype != given.dtype:
            wrong.append(f"{tuple(given.shape)} {given.dtype} gives {tuple(y.shape)} {y.dtype}")
    return judged("shape and dtype", len(wrong), 0, "; ".join(wrong))


@torch.no_grad()
def padding_content(make: Factory) -> Probe:
    """What stands in the padding, on either side, reaches no real token."""
    mixer, found = make(), {}
    for side in ("right", "left"):
        mask = real_tokens(64, 50, 64, 3, left=side == "left")
        x = make.inputs(64, rows=3)
        quiet, loud = (torch.where(mask[..., None], x, fill) for fill in (torch.zeros(()), make.loud(64, rows=3)))
        nans = torch.where(mask[..., None], x, torch.nan)
        expected = mixer(quiet, mask=mask)[mask]
        found[f"{side}, loud"] = gap(mixer(loud, mask=mask)[mask], expected)
        found[f"{side}, nan"] = gap(mixer(nans, mask=mask)[mask], expected)
    return worst("padding content", found, 1e-6)


@torch.no_grad()
def padding_amount(make: Factory) -> Probe:
    """Real tokens come out as without padding.

    Padding on the left moves tokens; methods with parameters for positions, or with global ones, are excused from that.
    """
    mixer, x, found = make(128, readout=0), make.inputs(20), {}
    expected = mixer(x)
    movable = parameter_shapes(make(128)) == parameter_shapes(make(127)) and not getattr(mixer, "globals", 0)
    for side in ("right", "left") if movable else ("right",):
        mask = real_tokens(100, 20, 20, left=side == "left")
        padded = torch.where(mask[..., None], torch.zeros(()), make.loud(100))
        padded[mask] = x.flatten(0, 1)
        found[side] = gap(mixer(padded, mask=mask)[mask], expected.flatten(0, 1))
    return worst("padding amount", found, 1e-4)


def parameter_shapes(mixer: Mixer) -> list[torch.Size]:
    """Shapes of all parameters and buffers."""
    return [tensor.shape for tensor in mixer.state_dict().values()]


def padding_gradient(make: Factory) -> Probe:
    """While it trains nothing flows back into the padding, not even a rounding error."""
    mixer, found = make().train(), {}
    for side in ("right", "left"):
        mask = real_tokens(64, 50, 20, left=side == "left")
        x = make.inputs(64).requires_grad_()
        objective(mixer(x, mask=mask), mask[..., None]).backward()
        assert x.grad is not None
        found[side] = float(x.grad[~mask].abs().max())
    return worst("padding gradient", found, 0)


@torch.no_grad()
def mask_matters(make: Factory) -> Probe:
    """Hiding one token changes some other: the mask is not ignored."""
    mixer, x = make(), make.inputs(64)
    mask = real_tokens(64, 50, 64)
    hidden = mask.clone()
    hidden[:, 20] = False
    moved = min(float((mixer(x, mask=mask) - mixer(x, mask=hidden))[row][hidden[row]].abs().max()) for row in (0, 1))
    return Probe("mask matters", moved >= 1e-6, moved, 1e-6, "least change over rows", least=True)


@torch.no_grad()
def full_mask(make: Factory) -> Probe:
    """A mask that hides nothing changes nothing."""
    mixer, found = make(129), {}
    for seq in (64, 129):
        x = make.inputs(seq)
        found[f"n={seq}"] = gap(mixer(x, mask=real_tokens(seq, seq, seq)), mixer(x))
    return worst("full mask", found, 1e-5)


@torch.no_grad()
def row_independence(make: Factory) -> Probe:
    """Other rows of the batch change nothing, neither by their content nor by their padding."""
    mixer, x = make(), make.inputs(64, rows=3)
    mask = real_tokens(64, 40, 64, 64)
    other = torch.cat([x[:1], make.loud(64)])
    found = {"content": gap(mixer(other)[0], mixer(x)[0]), "alone": gap(mixer(x[:1])[0], mixer(x)[0])}
    found["padding"] = gap(mixer(x, mask=mask)[1:], mixer(x)[1:])
    return worst("row independence", found, 1e-5)


@torch.no_grad()
def causality(make: Factory) -> Probe:
    """Loud changes after t leave everything up to t as it was, with and without a mask."""
    mixer, found = make(1000), {}
    for seq in (2, 17, 64, 127, 128, 129, 1000):
        x, loud, mask = make.inputs(seq, rows=1), make.loud(seq, rows=1), real_tokens(seq, seq)
        expected = mixer(x)
        for last in {0, seq // 2 - 1, seq - 2}:
            changed = torch.cat([x[:, : last + 1], loud[:, last + 1 :]], dim=1)
            for given in (None, mask):
                place = f"n={seq}, t={last}, {'no mask' if given is None else 'mask'}"
                found[place] = gap(mixer(changed, mask=given)[:, : last + 1], expected[:, : last + 1])
    return worst("causality", found, 1e-5)


def hidden_row(make: Factory) -> Probe:
    """A row of nothing but padding comes out as one constant, and spoils neither its neighbours nor gradients.

    Of a whole residual layer, which hands on what stands in that row, it need only be finite.
    """
    mixer = make()
    mask = real_tokens(64, 0, 40)
    x = make.loud(64).requires_grad_()
    y = mixer(x, mask=mask)
    y.square().sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in mixer.parameters())]
    found = {}
    if not isinstance(mixer, Block):
        found["spread of the hidden row"] = float((y[0] - y[0, 0]).detach().abs().max())
    found["row beside it"] = gap(y[1][mask[1]], mixer(x[1:], mask=mask[1:])[0][mask[1]])
    found["not finite"] = float(sum((~tensor.isfinite()).sum() for tensor in (y, *gradients) if tensor is not None))
    return worst("hidden row", found, 1e-5)


def lengths(make: Factory) -> Probe:
    """Every length works, forwards and backwards, and one more padded token changes nothing."""
    mixer, found = make(1026), {}
    for seq in sorted({*LENGTHS, *around(mixer)}):
        x = make.inputs(seq, rows=1).requires_grad_()
        y = mixer(x)
        y.square().mean().backward()
        assert x.grad is not None
        finite = bool(y.isfinite().all() and x.grad.isfinite().all())
        with torch.no_grad():
            padded = torch.cat([x, make.loud(1, rows=1)], dim=1)
            again = mixer(padded, mask=real_tokens(seq + 1, seq))[:, :seq]
            found[f"n={seq}"] = gap(again, y) if finite and y.shape == x.shape else math.inf
    return worst("lengths", found, 1e-4)


def around(mixer: Mixer) -> Iterator[int]:
    """Lengths next to the boundaries of its windows and blocks."""
    for name in AROUND:
        size = getattr(mixer, name, None)
        if isinstance(size, int) and 1 < size < 1000:
            yield from (size - 1, size, size + 1)


def gradients(make: Factory) -> Probe:
    """Each parameter gets a gradient that is finite and not zero, be it from a loss of the mixer's own."""
    seq = max(LENGTHS)  # long enough for what only the distant past uses
    mixer = make(seq).train()
    objective(mixer(make.inputs(seq)), make.inputs(seq, seed=3)).backward()
    dead = [
        name
        for name, parameter in mixer.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all() or not parameter.grad.any()
    ]
    return judged("gradients", len(dead), 0, ", ".join(dead))


@torch.no_grad()
def determinism(make: Factory) -> Probe:
    """In eval two calls agree to the bit, and no buffer changes."""
    mixer, x = make(), make.inputs(65)
    state = copy.deepcopy(mixer.state_dict())
    first = mixer(x)
    found = {f"call {call}": float((mixer(x) - first).abs().max()) for call in range(2, 5)}
    found |= {name: float(not torch.equal(value, state[name])) for name, value in mixer.state_dict().items()}
    return worst("determinism", found, 0)


@torch.no_grad()
def state_round_trip(make: Factory) -> Probe:
    """An instance with other random numbers computes the same after loading the state."""
    mixer, other, x = make(), make(seed=7), make.inputs(65)
    other.load_state_dict(mixer.state_dict())
    return judged("state round trip", gap(other(x), mixer(x)), 0)


@torch.no_grad()
def turns(make: Factory) -> Probe:
    """Lengths called in turn come out as from a new instance: nothing is remembered."""
    mixer, found = make(), {}
    for turn, seq in enumerate((64, 128, 65, 64)):
        x = make.inputs(seq)
        found[f"turn {turn}, n={seq}"] = gap(mixer(x), make()(x))
    return worst("turns", found, 1e-6)


PROBES: tuple[Check, ...] = (
    shape_and_dtype,
    padding_content,
    padding_amount,
    padding_gradient,
    mask_matters,
    full_mask,
    row_independence,
    hidden_row,
    lengths,
    gradients,
    single_precision,
    bfloat16,
    float16,
    determinism,
    state_round_trip,
    state_elsewhere,
    turns,
    step_is_forward,
    memory_growth,
    operations_growth,
    approximation,
)


def probe(check: Check, make: Factory) -> Probe:
    """Run one probe; what it raises is a failure that says what was raised."""
    try:
        return check(make)
    except Exception as error:  # a plug-in may raise anything
        return raised(check.__name__.replace("_", " "), error)


def raised(name: str, error: Exception) -> Probe:
    """The failure of a probe that got no answer, in one line."""
    told = " ".join(str(error).split())
    return Probe(name, False, math.inf, 0, f"{type(error).__name__}: {told}")


def conformance(cls: type[Mixer], settings: Mapping[str, Any], causal: bool = False) -> list[Probe]:
    """All probes on one backend; causality only where it is asked for.

    Raises:
        Unsupported: the backend cannot be built that way at all.
    """
    make = Factory(cls, settings, causal)
    try:
        make()
    except LrbenchError:
        raise
    except Exception as error:
        return [raised("construction", error)]
    return [probe(check, make) for check in (*PROBES, *((causality,) if causal else ()))]


def notes(cls: type[Mixer], settings: Mapping[str, Any], causal: bool = False) -> list[str]:
    """What a backend says of fallbacks and approximations after inputs of a thousand tokens, with and without dropout.

    A method that changes by itself at some length knows it only once it was called.
    """
    make, found = Factory(cls, settings, causal), dict[str, None]()
    for dropout in (0.0, 0.1):
        mixer = make(1000, dropout=dropout)
        with torch.no_grad():
            mixer(make.inputs(1000, rows=1))
        found |= dict.fromkeys(mixer.notes)
    return list(found)
