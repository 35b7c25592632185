"""Sizes at which memory becomes slower or scarce, and the lengths at which a curve of peaks outgrows them."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

CACHES = ("L2", "L3")
HALF = "half of memory"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class Outgrown(NamedTuple):
    """A curve exceeds `size` from length `at` on; `fits` is the length before (None: it never was within)."""

    what: str
    size: int
    fits: int | None
    at: int


def landmarks(environment: Mapping[str, Any], device: str) -> dict[str, int]:
    """Bytes of L2 and L3 as one core sees them and of half the memory; of an accelerator half of its memory.

    What the environment does not tell is left out, and so are accelerators of several sizes.
    """
    if device != "cpu":
        sizes = {gpu.get("memory_mib") for gpu in environment.get("gpus") or []}
        known = [int(size) * 2**20 for size in sizes if size]
        return {HALF: known[0] // 2} if len(sizes) == len(known) == 1 else {}
    caches = environment.get("caches") or {}
    found = {level: size for level in CACHES if (size := _bytes(caches.get(level, "")))}
    total = environment.get("memory_total_bytes")
    return found | ({HALF: total // 2} if total else {})


def outgrown(peaks: Mapping[int, float], sizes: Mapping[str, int]) -> list[Outgrown]:
    """Which of the sizes a curve of bytes by length exceeds, and from where on."""
    found = []
    for what, size in sizes.items():
        at = min((length for length, peak in peaks.items() if peak > size), default=None)
        if at is not None:
            found.append(Outgrown(what, size, max((length for length in peaks if length < at), default=None), at))
    return found


def _bytes(text: str) -> int | None:
    """The kernel's `2048K`."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) * UNITS[match[2]] if match else None
