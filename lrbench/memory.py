"""Peak memory of a run: the resident high-water mark of its process, or the GPU allocator's.

On Linux the kernel's mark is set back at the start (`5` into clear_refs), so that what the process held before does not
count. `ru_maxrss` is used only where there is nothing else: it can be inherited from the parent process.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lrbench.records import Memory

if TYPE_CHECKING:
    import torch

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMemory:
    """Watches while its `with` block runs; `result` tells the peak.

    Args:
        device: "cpu", or whatever torch calls a device; a GPU's memory is that of torch's allocator there.
    """

    def __init__(self, device: "str | torch.device" = "cpu") -> None:
        self._device = str(device)
        self._found: Memory | None = None

    def __enter__(self) -> "PeakMemory":
        self._found = None
        self._watch = _CudaWatch(self._device) if self._device.startswith("cuda") else _ResidentWatch()
        return self

    def __exit__(self, *_: object) -> None:
        self._found = self._watch.read()

    def result(self) -> Memory:
        """The peak of the block (so far, while it runs), what was there at its start, and how both were obtained."""
        if self._device.startswith("mps"):
            return Memory(peak_bytes=None, baseline_bytes=None, method="none: MPS keeps no peak")
        return self._found or self._watch.read()


class _CudaWatch:
    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._baseline = torch.cuda.memory_allocated(self._device)

    def read(self) -> Memory:
        import torch

        torch.cuda.synchronize(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        return Memory(peak_bytes=peak, baseline_bytes=self._baseline, method="torch.cuda.max_memory_allocated")


class _ResidentWatch:
    def __init__(self) -> None:
        self._reset = _reset_high_water_mark()
        self._baseline = psutil.Process().memory_info().rss

    def read(self) -> Memory:
        peak, method = _peak()
        if method == "VmHWM":
            method += " after reset" if self._reset else " of the whole process (no reset here)"
        return Memory(peak_bytes=peak, baseline_bytes=self._baseline, method=method)


def _reset_high_water_mark() -> bool:
    try:
        CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def _peak() -> tuple[int | None, str]:
    if (mark := _high_water_mark()) is not None:
        return mark, "VmHWM"
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset, "peak_wset of the whole process"
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if not peak:
        return None, "none: the system tells no peak"
    return peak if sys.platform == "darwin" else peak * 1024, "ru_maxrss of the whole process"


def _high_water_mark() -> int | None:
    """VmHWM in bytes; None where the kernel does not keep it."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    marks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(marks[0]) * 1024 if marks else None
