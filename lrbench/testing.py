"""What every attention backend must hold, as functions: for our tests, for plug-ins, and for `lrbench check`.

    probes = conformance(MyAttention, {"window": 16}, causal=True)
    print([probe for probe in probes if not probe.passed])

Each probe disturbs an input and measures what moves. Disturbances are large, and made by changing inputs rather than by
gradients alone: a leak through a detached maximum or through sorting has a gradient of exactly zero.
"""

import copy
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lrbench.backends.base import LayerConfig, Mixer

LENGTHS = (1, 7, 8, 9, 10, 15, 17, 127, 128, 129, 1000, 1025)
LOUD = 50.0  # scale of a disturbance


@dataclass(frozen=True, slots=True)
class Probe:
    """What one probe found. It passes when `measured` is at most `bound`; `detail` says where it was worst."""

    name: str
    passed: bool
    measured: float
    bound: float
    detail: str = ""


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

    def __call__(self, max_len: int = 128, **changes: Any) -> Mixer:
        """An instance in eval mode, for inputs up to `max_len`."""
        sizes = {name: getattr(self, name) for name in ("dim", "heads", "head_dim", "causal", "readout")}
        devices = list(range(torch.cuda.device_count()))
        with torch.random.fork_rng(devices):
            torch.manual_seed(0)
            return self.cls(LayerConfig(max_len=max_len, **{**sizes, **changes}), **self.settings).eval()

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


def worst(name: str, found: Mapping[str, float], bound: float) -> Probe:
    """The largest of several measurements; a nan counts as the largest."""
    place = max(found, key=lambda key: math.inf if math.isnan(found[key]) else found[key])
    return judged(name, found[place], bound, place)


def gap(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the larger of 1 and the largest value."""
    one, other = one.detach(), other.detach()
    return float((one - other).abs().max() / other.abs().max().clamp_min(1.0))


def real_tokens(seq: int, *counts: int, left: bool = False) -> Tensor:
    """A mask whose rows have so many real tokens, at the start or at the end."""
    mask = torch.arange(seq) < torch.tensor(counts)[:, None]
    return mask.flip(1) if left else mask


@torch.no_grad()
def shape_and_dtype(make: Factory) -> Probe:
    """The output is like the input, in float32 and in float64."""
    mixer, x = make(), make.inputs(17)
    wrong = [str(x.dtype) for x, y in ((x, mixer(x)), (x.double(), mixer.double()(x.double())))
             if y.shape != x.shape or y.dtype != x.dtype]  # fmt: skip
    return judged("shape and dtype", len(wrong), 0, ", ".join(wrong))


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
    """Nothing flows back into the padding, not even a rounding error."""
    mixer, found = make(), {}
    for side in ("right", "left"):
        mask = real_tokens(64, 50, 20, left=side == "left")
        x = make.inputs(64).requires_grad_()
        mixer(x, mask=mask)[mask].square().sum().backward()
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
    return Probe("mask matters", moved > 1e-6, moved, 1e-6, "least change over rows; must be more than the bound")


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
    """A row of nothing but padding comes out as one constant, and spoils neither its neighbours nor gradients."""
    mixer = make()
    mask = real_tokens(64, 0, 40)
    x = make.loud(64).requires_grad_()
    y = mixer(x, mask=mask)
    y.square().sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in mixer.parameters())]
    found = {"spread of the hidden row": float((y[0] - y[0, 0]).detach().abs().max())}
    found["row beside it"] = gap(y[1][mask[1]], mixer(x[1:], mask=mask[1:])[0][mask[1]])
    found["not finite"] = float(sum((~tensor.isfinite()).sum() for tensor in (y, *gradients) if tensor is not None))
    return worst("hidden row", found, 1e-5)


def lengths(make: Factory) -> Probe:
    """Every length works, forwards and backwards, and one more padded token changes nothing."""
    mixer, found = make(1026), {}
    window = getattr(mixer, "window", None)
    around = (window - 1, window, window + 1) if isinstance(window, int) and 1 < window < 1000 else ()
    for seq in sorted({*LENGTHS, *around}):
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


def gradients(make: Factory) -> Probe:
    """Each parameter gets a gradient that is finite and not zero."""
    mixer = make(64).train()
    (mixer(make.inputs(64)) * make.inputs(64, seed=3)).sum().backward()
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
    mixer, x = make(), make.inputs(65)
    with torch.random.fork_rng([]):
        torch.manual_seed(7)
        other = make.cls(mixer.cfg, **make.settings).eval()
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


def half_precision(make: Factory) -> Probe:
    """Under bfloat16 autocast outputs and gradients are finite, and outputs near those of float64."""
    mixer, x = make(), make.inputs(65).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = mixer(x)
    y.float().square().sum().backward()
    tensors = [y, x.grad, *(parameter.grad for parameter in mixer.parameters())]
    finite = all(tensor.isfinite().all() for tensor in tensors if tensor is not None)
    with torch.no_grad():
        exact = make().double()(x.double())
    scale = float(exact.abs().max())
    return judged("half precision", float((y.detach() - exact).abs().max()) / scale if finite else math.inf, 0.05)


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return out


def largest_tensor(mixer: Mixer, x: Tensor) -> int:
    """Elements of the largest tensor of a forward and backward pass. Views count as what they show."""
    with LargestTensor() as watch:
        mixer(x).sum().backward()
    return watch.elements


def growth(make: Factory, lengths: tuple[int, int] = (2048, 4096)) -> float:
    """By which power of the length the largest tensor grows."""
    sizes = [largest_tensor(make(seq), make.inputs(seq, rows=1)) for seq in lengths]
    return math.log(sizes[1] / sizes[0]) / math.log(lengths[1] / lengths[0])


def memory_growth(make: Factory) -> Probe:
    """No tensor grows by a higher power of the length than the backend's `order` says."""
    bound = power(make.cls.order)
    return judged("memory growth", growth(make) if bound < 2 else 0.0, bound + 0.15, make.cls.order)


def power(order: str) -> float:
    """The power of n in such a text as "n", "n log n", "n^1.5" or "n sqrt(n)"; unknown texts promise nothing."""
    if "sqrt" in order:
        return 1.5
    match = re.match(r"n(?:\^([\d.]+))?\b", order)
    return float(match[1] or 1) if match else 2.0


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
    determinism,
    state_round_trip,
    turns,
    half_precision,
    memory_growth,
)


def probe(check: Check, make: Factory) -> Probe:
    """Run one probe; what it raises is a failure that says what was raised."""
    try:
        return check(make)
    except Exception as error:  # a plug-in may raise anything
        return Probe(check.__name__.replace("_", " "), False, math.inf, 0, f"{type(error).__name__}: {error}")


def conformance(cls: type[Mixer], settings: Mapping[str, Any], causal: bool = False) -> list[Probe]:
    """All probes on one backend; causality only where it is asked for.

    Raises:
        Unsupported: the backend cannot be built that way at all.
    """
    make = Factory(cls, settings, causal)
    make()
    return [probe(check, make) for check in (*PROBES, *((causality,) if causal else ()))]
