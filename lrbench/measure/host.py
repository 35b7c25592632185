"""What runs inside a child: it takes its limits, builds one object and answers calls of its methods."""

import ctypes
import gc
import importlib
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lrbench.measure.channel import Channel, Closed
from lrbench.measure.failures import classify

M_MMAP_THRESHOLD = -3
PINNED_BYTES = 65536
PR_SET_PDEATHSIG = 1


class Limits(BaseModel):
    """What a child may do.

    Args:
        threads: of torch.
        data_bytes: by how much its data may grow; None: as much as there is.
        pinned: keep freed blocks out of the heap, so that the resident size follows what is live. It slows small points
            by half: for memory only.
    """

    threads: int = 1
    data_bytes: int | None = None
    pinned: bool = False


taken = Limits()  # those of this process


def serve(channel: Channel) -> None:
    """Answer until the other side is gone. The first message is `{target, payload, limits}`, later ones calls."""
    # hundreds of thousands of objects of libraries: a collection need not look at them, nor copy their pages
    gc.freeze()
    try:
        order = channel.receive()
        hosted = _answer(channel, lambda: build(order))
        while True:
            call = channel.receive()
            _answer(channel, partial(_run, hosted, call), reply=True)
    except Closed:
        return


def _run(hosted: Any, call: dict[str, Any]) -> Any:
    return getattr(hosted, call["method"])(**call["arguments"])


def build(order: dict[str, Any]) -> Any:
    """Take the limits, then make `target(payload)`."""
    limit(Limits.model_validate(order["limits"]))
    module, _, name = order["target"].partition(":")
    return getattr(importlib.import_module(module), name)(order["payload"])


def _answer(channel: Channel, action: Any, reply: bool = False) -> Any:
    try:
        result = action()
    except BaseException as error:  # a plug-in may well raise SystemExit
        failure = classify(error).to_json() | {"trace": traceback.format_exc(limit=-5)}
        traceback.clear_frames(error.__traceback__)  # they may hold the very memory that was missing
        channel.send({"failure": failure})
        return None
    channel.send({"result": result if reply else None})
    return result


def limit(limits: Limits) -> None:
    """Take on the limits. The pool of threads is started first: its stacks are no part of a point."""
    global taken
    taken = limits
    if limits.pinned:
        pin_malloc()
    start_threads(limits.threads)
    if limits.data_bytes is not None and sys.platform == "linux":
        import resource  # which Windows has not got

        allowed = data_bytes() + limits.data_bytes
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(
            resource.RLIMIT_DATA, (allowed if hard == resource.RLIM_INFINITY else min(allowed, hard), hard)
        )


def start_threads(threads: int) -> None:
    """Give torch so many threads, and start them."""
    import torch

    torch.set_num_threads(threads)
    torch.ones(1 << 16).add_(1.0)
    a = torch.ones(64, 64)
    a @ a


def pin_malloc() -> bool:
    """Let every block from 64 KiB on be a mapping of its own, gone once freed. False where there is no such knob."""
    mallopt = getattr(_libc(), "mallopt", None)
    return bool(mallopt and mallopt(M_MMAP_THRESHOLD, PINNED_BYTES))


def trim_malloc() -> None:
    """Give what is free in the heap back to the system."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim:
        trim(0)


def data_bytes() -> int:
    """VmData of this process."""
    return status_bytes("VmData")


def status_bytes(field: str) -> int:
    """A field of /proc/self/status in bytes. Resident figures there are up to date, those of `statm` may lag.

    Raises:
        OSError, KeyError: the system does not tell.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def end_with_parent() -> None:
    """Die with the process that started this one, and be the first that the kernel kills for want of memory."""
    prctl = getattr(_libc(), "prctl", None)
    if prctl:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _libc() -> Any:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # no such thing on Windows
        return None
