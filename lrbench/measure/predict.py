"""What a point will need, without running it: the same code under fake tensors, which have shapes and no memory.

Exact for what consists of tensors; scratch inside fused kernels is missed (3 to 10 %), so `guard` adds a margin.
6 to 110 ms a point at any length.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from scipy.optimize import nnls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lrbench.measure import flops
from lrbench.measure.region import Region
from lrbench.points import PointSpec

MIB = 1 << 20
MARGIN, SLACK_BYTES = 1.15, 64 * MIB


class LiveStorage(TorchDispatchMode):
    """Running total of the storages made inside, and its highest value, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def know(self, tensors: Sequence[torch.Tensor]) -> None:
        """Leave these out: they were there before."""
        for tensor in tensors:
            self._seen.add(tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at what comes out."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        nbytes = storage.nbytes()
        weakref.finalize(storage, self._remove, nbytes)
        self.live += nbytes
        self.peak = max(self.peak, self.live)

    def _remove(self, nbytes: int) -> None:
        self.live -= nbytes


class Predictor:
    """Hosted by a child that lives for a whole study, for fake tensors take a second to import."""

    def __init__(self, payload: Any = None) -> None:
        pass

    def predict(self, spec: dict[str, Any]) -> dict[str, int | None]:
        """`extra` and `total` bytes, and `executed` and `model` operations, of a JSON `PointSpec`."""
        point = PointSpec.model_validate(spec).model_copy(update={"compile": False})
        fake = FakeTensorMode()
        region = Region(point, fake)
        with fake:
            region.first_output()
            extra, counted = dry_run(region)
            live = {storage: storage.nbytes() for storage in (tensor.untyped_storage() for tensor in region.tensors())}
            return {
                "extra": extra,
                "total": extra + sum(live.values()),
                "executed": flops.executed(counted),
                "model": flops.by_convention(counted, point),
            }


def dry_run(region: Region) -> tuple[int, FlopCounterMode]:
    """Highest total of the storages that one call makes, and its operations."""
    storages, counted = LiveStorage(), flops.counter()
    storages.know(region.tensors())
    with storages, counted:
        held = region.run()
    region.prepare()
    del held
    return storages.peak, counted


def guard(total_bytes: int, base_bytes: int) -> int:
    """What a point of so many predicted bytes may need in the worst case, its process included."""
    return int(MARGIN * total_bytes) + SLACK_BYTES + base_bytes


def extrapolated(lengths: Sequence[int], peaks: Sequence[int], length: int) -> int | None:
    """Least squares of a + b·n + c·n², none negative, through three or more smaller peaks; else None."""
    if len(lengths) < 3:
        return None
    # columns of like size: n² is a billion times the constant
    scale = float(max(lengths))
    rows = [[1.0, n / scale, (n / scale) ** 2] for n in lengths]
    (a, b, c), _ = nnls(rows, [float(peak) for peak in peaks])
    return int(a + b * length / scale + c * (length / scale) ** 2)
