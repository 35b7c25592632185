"""By which power of the length a backend's memory and operations grow, counted rather than timed."""

import math
import re
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lrbench.backends.base import Mixer
from lrbench.measure.flops import counter
from lrbench.probes.base import Factory, Probe, judged, objective

LENGTHS = (2048, 4096)
SHORT = (512, 1024)  # for what says that it grows by the square: longer ones would take seconds and GiB
SLACK = 0.15  # a factor log n, and what is left of constants


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements that an operation returns, and how many all return together."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        self.total += sum(sizes)
        return out


def largest_tensor(mixer: Mixer, x: Tensor) -> int:
    """Elements of the largest tensor of a forward and backward pass. Views count as what they show."""
    with LargestTensor() as watch:
        objective(mixer(x)).backward()
    return watch.elements


def operations(mixer: Mixer, x: Tensor) -> int:
    """Of a forward and backward pass: two for a multiply-add of products, and one for an element of any result."""
    with counter() as products, LargestTensor() as watch:
        objective(mixer(x)).backward()
    return int(products.get_total_flops()) + watch.total


def exponent(low: float, high: float, lengths: tuple[int, int]) -> float:
    """The power of the length by which a quantity grew."""
    return math.log(high / low) / math.log(lengths[1] / lengths[0])


def growth(make: Factory, lengths: tuple[int, int] = LENGTHS) -> float:
    """By which power of the length the largest tensor grows."""
    low, high = (largest_tensor(make(seq).train(), make.inputs(seq, rows=1)) for seq in lengths)
    return exponent(low, high, lengths)


def work(make: Factory, lengths: tuple[int, int] = LENGTHS) -> float:
    """By which power of the length operations grow."""
    low, high = (operations(make(seq).train(), make.inputs(seq, rows=1)) for seq in lengths)
    return exponent(low, high, lengths)


def memory_growth(make: Factory) -> Probe:
    """No tensor grows by a higher power of the length than the backend's `order` says."""
    bound, lengths = _promise(make)
    return judged("memory growth", growth(make, lengths), bound + SLACK, _told(make, lengths))


def operations_growth(make: Factory) -> Probe:
    """Operations grow by no higher power of the length than the backend's `order` says."""
    bound, lengths = _promise(make)
    return judged("operations growth", work(make, lengths), bound + SLACK, _told(make, lengths))


def _promise(make: Factory) -> tuple[float, tuple[int, int]]:
    bound = power(make.cls.order)
    return bound, LENGTHS if bound < 2 else SHORT


def _told(make: Factory, lengths: tuple[int, int]) -> str:
    return f"order {make.cls.order!r}, n={lengths[0]} to {lengths[1]}"


def power(order: str) -> float:
    """The power of n in such a text as "n", "n log n", "n^1.5" or "n sqrt(n)"; unknown texts promise nothing."""
    if "sqrt" in order:
        return 1.5
    match = re.match(r"n(?:\^([\d.]+))?\b", order)
    return float(match[1] or 1) if match else 2.0
