"""Joules of a call, from counters of the processor's packages (RAPL) or of an NVIDIA GPU (NVML).

The counters are of whole packages or boards: what other processes do there meanwhile is in them. Idle power is taken
off, and intervals under a second in all are too short to tell.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple, Protocol

from lrbench.environment.probes import Unreadable, why

POWERCAP = Path("/sys/class/powercap")
PACKAGE = re.compile(r"intel-rapl:\d+")
LEAST_S = 1.0  # of all blocks together
IDLE_S = 1.0


class Spent(NamedTuple):
    """What a counter went up by in a block."""

    joules: float
    calls: int
    seconds: float


class Meter(Protocol):
    """A counter of energy. `coarse_s`: shorter blocks say nothing, for it is seldom brought up to date."""

    source: str
    coarse_s: float

    def read(self) -> list[int]:
        """Where it stands."""

    def joules(self, before: Sequence[int], after: Sequence[int]) -> float:
        """Between two readings."""


class Rapl:
    """All packages of the processor. A counter starts again at its range, which takes minutes.

    Raises:
        Unreadable, OSError: there is none, or this user may not read it.
    """

    source, coarse_s = "RAPL", 0.02

    def __init__(self, folder: Path = POWERCAP) -> None:
        zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if PACKAGE.fullmatch(zone.name)]
        # whole platforms (psys) hold the packages once more
        self._packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        if not self._packages:
            raise Unreadable("no energy counters of the processor here")
        self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in self._packages]
        self.read()

    def read(self) -> list[int]:
        """Microjoules of each package."""
        return [int((zone / "energy_uj").read_text()) for zone in self._packages]

    def joules(self, before: Sequence[int], after: Sequence[int]) -> float:
        """Of all packages; a counter that went down has started again once."""
        spans = zip(before, after, self._ranges, strict=True)
        return sum(end - start + (whole + 1 if end < start else 0) for start, end, whole in spans) / 1e6


class Nvml:
    """A GPU, from Volta on, where the package pynvml is installed. The driver updates it some ten times a second.

    Raises:
        Unreadable: it is not installed, or the driver does not tell.
    """

    source, coarse_s = "NVML", 1.0

    def __init__(self, device: str) -> None:
        import torch

        try:
            import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise Unreadable("the package pynvml is not installed") from None
        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        self.read()

    def read(self) -> list[int]:
        """Millijoules since the driver was loaded."""
        return [int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu))]

    def joules(self, before: Sequence[int], after: Sequence[int]) -> float:
        """Of the board."""
        return (after[0] - before[0]) / 1e3


def meter(device: str) -> Meter:
    """The counter of a device.

    Raises:
        Unreadable: there is none to read, and why.
    """
    try:
        if device == "cpu":
            return Rapl(POWERCAP)
        if device.startswith("cuda"):
            return Nvml(device)
    except Exception as error:  # drivers raise what they like
        raise Unreadable(why(error)) from None
    raise Unreadable("no energy counter of this device is known")


def about(device: str) -> dict[str, Any]:
    """`source` and `idle_w` of this machine, or the `reason` why energy cannot be had. Takes a second where it can."""
    try:
        counter = meter(device)
        started, before = perf_counter(), counter.read()
        sleep(max(IDLE_S, counter.coarse_s))
        spent = counter.joules(before, counter.read())
        return {"source": counter.source, "idle_w": spent / (perf_counter() - started), "reason": None}
    except (Unreadable, OSError, ValueError) as error:
        return {"source": None, "idle_w": None, "reason": why(error)}


def per_call(blocks: Sequence[Spent], idle_w: float | None) -> tuple[float | None, str]:
    """Joules of a call above idle power; or None and the reason, which is empty where nothing was counted."""
    if not blocks:
        return None, ""
    seconds, calls = sum(block.seconds for block in blocks), sum(block.calls for block in blocks)
    if idle_w is None:
        return None, "energy: the idle power is not known"
    if seconds < LEAST_S:
        return None, f"energy: {seconds:.1f} s of blocks are too few to tell"
    joules = sum(block.joules for block in blocks) - idle_w * seconds
    return (joules / calls, "") if joules > 0 else (None, "energy: no more was used than when idle")
