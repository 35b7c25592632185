"""The process that children are forked from: torch is imported once, and a child costs milliseconds.

It MUST stay single-threaded: a child forked from a process that has ever used two OpenMP threads hangs in its first
matrix product. So it runs what every point would import lazily once, on one thread, counts its own threads, and refuses
to serve if there are more.

Run as `python -m lrbench.measure.server FD [MODULE…]`; FD is a SOCK_SEQPACKET socket on which it takes one request at a
time: `{"fork": true}` with the child's end of a socket pair, or `{"reap": pid, "grace_s": …}`.
"""

import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from lrbench.measure.channel import Channel
from lrbench.measure.host import end_with_parent, serve

# what a first backward, profile or count would import: some 500 modules, 40 MiB and half a second each time
PRELOADED = ("sympy", "torch.profiler", "torch.utils.flop_counter", "torch._subclasses.fake_tensor")
OURS = ("lrbench.measure.memory", "lrbench.measure.timing", "lrbench.measure.predict", "lrbench.measure.peak")
MESSAGE_BYTES = 4096
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def preload(modules: tuple[str, ...]) -> None:
    """Import, and do on one thread what takes seconds the first time: a backward pass and a run of fake tensors."""
    import torch

    torch.set_num_threads(1)
    for module in (*PRELOADED, *OURS, *modules):
        importlib.import_module(module)
    x = torch.ones(16, 16, requires_grad=True)
    (x @ x).sum().backward()
    from lrbench.measure.predict import Predictor
    from lrbench.points import PointSpec
    from lrbench.specs import AttentionSpec

    small = PointSpec(attention=AttentionSpec(name="full"), length=16, width=16, heads=1)
    Predictor().predict(small.model_dump(mode="json"))


def refusal() -> str | None:
    """Why nothing may be forked from this process, or None."""
    import torch

    if torch.get_num_threads() != 1:
        return f"the fork server is set to {torch.get_num_threads()} threads"
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        return f"the fork server has run {threads} threads: its children would hang"
    if torch.cuda.is_initialized():
        return "the fork server has touched CUDA: its children could not"
    return None


def loop(control: socket.socket) -> None:
    """Serve requests until the study is gone."""
    children: set[int] = set()
    while True:
        message, ends, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not message:
            break
        request = json.loads(message)
        if "fork" in request:
            reason = refusal()
            reply: dict[str, Any] = {"refused": reason} if reason else {"pid": _fork(control, ends[0])}
            children.add(reply.get("pid", 0))
            for end in ends:
                os.close(end)
        else:
            reply = {"code": _reap(request["reap"], request["grace_s"])}
            children.discard(request["reap"])
        control.send(json.dumps(reply).encode())
    for pid in children - {0}:
        _kill(pid)


def _fork(control: socket.socket, end: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()  # what a plug-in starts can then be ended with it
        end_with_parent()
        control.close()
        serve(Channel(socket.socket(fileno=end)))
    finally:
        os._exit(0)


def _reap(pid: int, grace_s: float) -> int:
    """The exit code of a child, negative for a signal; it is killed if it does not end by itself."""
    until = monotonic() + grace_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _kill(pid, group_only=True)
            return os.waitstatus_to_exitcode(status)
        if monotonic() >= until:
            _kill(pid)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sleep(0.001)


def _kill(pid: int, group_only: bool = False) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not group_only:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Preload, say so or why not, and serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        preload(tuple(sys.argv[2:]))
        reason = refusal()
    except Exception as error:
        reason = f"the fork server could not be prepared: {type(error).__name__}: {error}"
    control.send(json.dumps({"refused": reason} if reason else {"ready": os.getpid()}).encode())
    if not reason:
        loop(control)
    os._exit(0)  # taking the libraries down in order takes a second


if __name__ == "__main__":
    main()
