"""Wall-clock of a region: a worker process that times blocks of calls when it is told to.

The unit of a comparison is a block, and workers of several backends take turns: times drift together, so that a ratio
within a round holds where the times do not. The worker has the system's own malloc and no profiler: either would slow
small points by half.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lrbench.environment.probes import Unreadable
from lrbench.measure import energy, host
from lrbench.measure.region import Region
from lrbench.points import PointSpec

WARM_CALLS, WARM_S = 5, 0.2
BLOCK_CALLS, BLOCK_S = 3, 0.1
DISCARDED = 2  # after another process ran, the first call takes up to 1.7x
SLOW_S = 1.0  # a call so slow is its own warm-up and its own block
TASKS = Path("/proc/self/task")


class TimeWorker:
    """Hosted by a child of its own: `first`, `warm_up`, then `block` as often as asked, and `finish`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.region = Region(PointSpec.model_validate(spec))
        self._held: Tensor | None = None
        self._call_s = 0.0
        self._calls = 0
        try:
            self._meter: energy.Meter | None = energy.meter(self.region.spec.device)
        except Unreadable:
            self._meter = None

    def first(self) -> dict[str, float]:
        """The first call in this process, in milliseconds."""
        self._call_s = self._call()
        return {"ms": self._call_s * 1e3, "spent_s": self._call_s}

    def warm_up(self) -> dict[str, float]:
        """Until 5 calls and 0.2 s, the first included; one more call where calls are slow."""
        return {"spent_s": warm_up(self._timed, self._call_s), "call_s": self._call_s}

    def block(self) -> dict[str, Any]:
        """Median of a block's calls in ms, all of them, and the share of it that a thread waited for a CPU.

        `energy`: joules, calls and seconds of all of it, where a counter can be read.
        """
        before, counted = self._energy(), self._calls
        waited, started = waits_ns(), perf_counter()
        with quiet():
            calls = block(self._timed, self._call_s)
        wall_s = perf_counter() - started
        after = self._energy()
        return {
            "ms": median(calls) * 1e3,
            "calls": [call * 1e3 for call in calls],
            "delay": share_waited(waited, waits_ns(), wall_s),
            "spent_s": wall_s,
            "energy": self._spent(before, after, self._calls - counted, wall_s),
        }

    def finish(self) -> dict[str, Any]:
        """Subnormal numbers among outputs and gradients, the backend's notes, and what could have disturbed."""
        tensors = [self._held] if self._held is not None else []
        found = sum(subnormals(tensor) for tensor in [*tensors, *self.region.gradients()])
        return {"denormals": found, "notes": self.region.notes, "disturbed": disturbed()}

    def _energy(self) -> list[int] | None:
        try:
            return self._meter.read() if self._meter else None
        except Exception:  # of a driver: it costs this block its energy, not its time
            return None

    def _spent(
        self, before: list[int] | None, after: list[int] | None, calls: int, wall_s: float
    ) -> energy.Spent | None:
        if self._meter is None or before is None or after is None or wall_s < self._meter.coarse_s:
            return None
        return energy.Spent(self._meter.joules(before, after), calls, wall_s)

    def _timed(self) -> float:
        self._call_s = self._call()
        return self._call_s

    def _call(self) -> float:
        """Seconds of one call. The previous output is freed and gradients are cleared outside of it."""
        self._calls += 1
        self._held = None
        self.region.prepare()
        self.region.synchronize()
        if self.region.device.type == "cuda":
            return self._events()
        started = perf_counter()
        self._held = self.region.run()
        self.region.synchronize()
        return perf_counter() - started

    def _events(self) -> float:
        """By the device's own clock."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._held = self.region.run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def warm_up(call: Callable[[], float], first_s: float) -> float:
    """Call until 5 calls and 0.2 s are over, one call being over already; after two if the second is slow."""
    calls, spent = 1, first_s
    while calls < WARM_CALLS or spent < WARM_S:
        latest = call()
        calls, spent = calls + 1, spent + latest
        if latest > SLOW_S:
            break
    return spent - first_s


def block(call: Callable[[], float], last_s: float) -> list[float]:
    """Seconds of the calls of one block, after two that do not count.

    A call of more than a second is a block by itself, and none is thrown away before it: what caches hold is gone in
    its first hundredth.
    """
    if last_s <= SLOW_S:
        for _ in range(DISCARDED):
            last_s = call()
    calls: list[float] = []
    while len(calls) < BLOCK_CALLS or sum(calls) < BLOCK_S:
        calls.append(call())
        if calls[-1] > SLOW_S:
            break
    return calls


class quiet:
    """No garbage collection inside; one before."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()


def waits_ns() -> dict[str, int]:
    """For each thread of this process, how long it has waited for a CPU; empty where the system does not tell."""
    found: dict[str, int] = {}
    try:
        for task in TASKS.iterdir():
            found[task.name] = int((task / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return {}
    return found


def share_waited(before: dict[str, int], after: dict[str, int], wall_s: float) -> float | None:
    """Of the thread that waited longest: the others wait for it."""
    if not before or not after or wall_s <= 0:
        return None
    return max(after[task] - before.get(task, 0) for task in after) / 1e9 / wall_s


def subnormals(tensor: Tensor) -> int:
    """How many numbers are smaller than the smallest normal one, and not zero."""
    tiny = torch.finfo(tensor.dtype).tiny
    size = tensor.detach().abs()
    return int(((size > 0) & (size < tiny)).sum())


def disturbed() -> list[str]:
    """What must not be in a process that is timed, and is."""
    found = [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]
    if host.taken.pinned:
        found.append("pinned malloc")
    if torch.autograd.profiler._is_profiler_enabled:
        found.append("profiler")
    if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
        found.append("dispatch mode")
    return found
