"""Peak memory of a region, two ways that are blind to different things.

`extra`, the headline: highest running total of the tensor allocator's events above the start of the region. Exact to a
few bytes at any length; blind to what tensors are not (numpy, raw malloc) and to other Python threads.
`resident`: the kernel's high-water mark of the process, set back at the start of the region. It needs malloc's mmap
threshold pinned and a warm-up at full size; blind to pages that nobody touches, and it has a floor of 0.13 MiB.
Never `ru_maxrss`, which is inherited from the parent, nor a sampling thread, nor the sum of allocations.
"""

import gc
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from lrbench.backends.base import parted
from lrbench.measure.host import status_bytes, trim_malloc
from lrbench.measure.region import Region, storage_bytes
from lrbench.points import PointSpec

MIB = 1 << 20
FLOOR_BYTES = 5 * MIB  # below it the resident figure says nothing
SLACK_BYTES, SLACK_SHARE = MIB // 2, 0.02
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class MemoryProbe:
    """Hosted by a child of its own: `first`, then `traced`, then `resident`, each of them some or one call.

    The traced call is the full-size warm-up of the resident one; its own figure needs none, for what first calls take
    besides (imports, scratch of libraries) is no tensor.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.region = Region(PointSpec.model_validate(spec))
        self._held: Tensor | None = None

    def first(self) -> dict[str, Any]:
        """What is kept for backward, from one forward pass; None in inference."""
        if self.region.spec.mode != "train":
            return {"saved": None, "spent_s": 0.0}
        started = perf_counter()
        saved = Saved(self.region)
        with saved.hooks(), self.region.context():
            y, _ = parted(self.region.module(self.region.x))
        self.region.gradient_like(y)
        return {"saved": None if self.region.spec.compile else saved.bytes, "spent_s": perf_counter() - started}

    def traced(self) -> dict[str, Any]:
        """Allocator events of one call; on CUDA the allocator's own peak, after a call at full size."""
        self._clean()
        live = storage_bytes(self.region.tensors())
        started = perf_counter()
        found: dict[str, Any]
        if self.region.device.type == "cuda":
            self._held = self.region.run()
            self._clean()
            found = cuda_peak(self.region)
        elif self.region.device.type == "cpu":
            found = {"extra": highest(allocator_events(self.region)), "reserved": None}
        else:
            self._held = self.region.run()
            found = {"extra": None, "reserved": None}  # whose allocator keeps no peak: no figure, never 0
        total = None if found["extra"] is None else found["extra"] + live
        return found | {"spent_s": perf_counter() - started, "total": total, "notes": self.region.notes}

    def resident(self) -> dict[str, Any]:
        """High-water mark of the process in one call; None where the system keeps none."""
        self._clean()
        start = resident_bytes()
        reset = reset_high_water_mark()
        started = perf_counter()
        self._held = self.region.run()
        spent_s = perf_counter() - started
        peak = high_water_mark()
        grown = None if peak is None or start is None else max(peak - start, 0)
        return {"resident": grown, "reset": reset, "spent_s": spent_s}

    def _clean(self) -> None:
        self._held = None
        self.region.prepare()
        gc.collect()
        trim_malloc()


class Saved:
    """Bytes that autograd keeps for backward: each storage once, inputs and parameters left out."""

    def __init__(self, region: Region) -> None:
        self._given = {tensor.untyped_storage().data_ptr() for tensor in region.tensors()}
        self._seen: dict[int, int] = {}

    def hooks(self) -> saved_tensors_hooks:
        """Under which to run."""
        return saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._given:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that is kept by its own node would keep itself for ever

    @property
    def bytes(self) -> int:
        """So far."""
        return sum(self._seen.values())


def allocator_events(region: Region) -> list[tuple[int, int]]:
    """(time, signed bytes) of all that the CPU's tensor allocator did in one call; the output is held to the end."""
    with torch.autograd.profiler.profile(use_kineto=True, profile_memory=True):
        torch.ones(8).add_(1.0)  # the profiler's own first steps
    with torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profiler:
        held = region.run()
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    del held
    return [(event.start_ns(), event.nbytes()) for event in events]


def highest(events: Iterable[tuple[int, int]]) -> int:
    """The highest running total."""
    live = peak = 0
    for _, nbytes in sorted(events, key=lambda event: event[0]):
        live += nbytes
        peak = max(peak, live)
    return peak


def cuda_peak(region: Region) -> dict[str, int]:
    """The caching allocator's peak above its start, and what it had reserved. The warm-up must be over."""
    torch.cuda.synchronize(region.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(region.device)
    start = torch.cuda.memory_allocated(region.device)
    held = region.run()
    torch.cuda.synchronize(region.device)
    stats = torch.cuda.memory_stats(region.device)
    del held
    return {
        "extra": torch.cuda.max_memory_allocated(region.device) - start,
        "reserved": torch.cuda.max_memory_reserved(region.device),
        "requested": stats.get("requested_bytes.all.peak", 0) - start,
        "retries": stats.get("num_alloc_retries", 0),
    }


def judge(extra: int | None, resident: int | None, reset: bool) -> tuple[int | None, bool | None, list[str]]:
    """The resident figure as published, whether both agree, and flags.

    The kernel adds up its counters of each CPU late: with many CPUs the absolute term grows.
    """
    flags = [] if reset or resident is None else ["rss_unreset"]
    if resident is None or extra is None:
        return None, None, flags
    if max(extra, resident) < FLOOR_BYTES:
        return None, None, [*flags, "below_resolution"]
    slack = max(SLACK_BYTES, (os.cpu_count() or 1) ** 2 * 4096) + SLACK_SHARE * extra
    if abs(resident - extra) <= slack:
        return resident, True, flags
    return resident, False, [*flags, "untracked" if resident > extra else "untouched"]


def method(device: str) -> str:
    """How the figures are obtained here."""
    if device.startswith("cuda"):
        return "torch.cuda.max_memory_allocated above memory_allocated"
    if device != "cpu":
        return "none: this device's allocator keeps no peak"
    if STATUS.exists():
        return "allocator events; VmHWM after reset, mmap threshold pinned"
    return "allocator events; resident peak of the process is advisory"


def resident_bytes() -> int | None:
    """VmRSS, or what else the system tells."""
    try:
        return status_bytes("VmRSS")
    except (OSError, KeyError):
        import psutil

        return int(psutil.Process().memory_info().rss)


def reset_high_water_mark() -> bool:
    """Set VmHWM back to VmRSS. False where that is not allowed: an earlier, higher peak then hides the region."""
    try:
        CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def high_water_mark() -> int | None:
    """VmHWM; elsewhere the peak of the whole process, which is advisory."""
    try:
        return status_bytes("VmHWM")
    except (OSError, KeyError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
