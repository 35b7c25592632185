"""Processes in which one thing is measured each: forked from a server on Linux, else new interpreters.

`Children.start(target, payload, limits)` gives a `Child` that hosts one object; `child.call(method, …)` runs one of its
methods there. Whatever goes wrong inside comes back as a `Failure`, and the child is gone.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any, Protocol

import psutil

from lrbench.errors import Missing
from lrbench.measure.channel import Channel, Closed
from lrbench.measure.failures import Failure, classify
from lrbench.measure.host import Limits, build
from lrbench.measure.server import ONE_THREAD

START_S = 120.0  # for imports on a busy machine
BUILD_S = 60.0
END_S = 2.0
POLL_S = 0.02


class Child(Protocol):
    """One hosted object."""

    def call(self, method: str, timeout_s: float, **arguments: Any) -> Any:
        """Run a method of the hosted object.

        Raises:
            Failure: and the child is gone.
        """

    def close(self) -> None:
        """End it."""


class Children(Protocol):
    """Where children come from. A context manager: leaving it ends them all."""

    def __enter__(self) -> "Children": ...
    def __exit__(self, *_: object) -> None: ...
    def start(self, target: str, payload: Any, limits: Limits, timeout_s: float = BUILD_S) -> Child:
        """A child that hosts `target(payload)`, target being `module:Class`.

        Raises:
            Failure: it could not be built.
        """


def children(device: str, in_process: bool = False) -> Children:
    """The kind that suits the device: a process that has touched CUDA cannot be forked.

    Raises:
        Missing: this system can hand no socket to a child.
    """
    if in_process:
        return Inline()
    if sys.platform == "win32":
        raise Missing("measuring in processes of their own needs Linux or macOS", "add --in-process")
    return Forked() if sys.platform == "linux" and device == "cpu" else Spawned()


# whatever a plug-in prints goes nowhere, and answers take another way
SILENT: dict[str, Any] = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}


class Forked:
    """Children forked from a preloaded single-threaded server: some 20 ms each.

    Args:
        modules: for the server to import besides.

    Raises:
        Missing: the server refuses to serve.
    """

    def __init__(self, *modules: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "lrbench.measure.server", str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                **SILENT,
                env=os.environ | ONE_THREAD,
                start_new_session=True,  # Ctrl-C reaches the study alone
            )
        self._control.settimeout(START_S)
        try:
            reply = self._reply()
        except Failure as failure:
            raise Missing(f"no process to measure in: {failure.reason}", "run again, or add --in-process") from None
        if "refused" in reply:
            self.__exit__()
            raise Missing(f"cannot measure: {reply['refused']}", "leave out what starts threads when imported")

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        try:
            self._server.wait(END_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def start(self, target: str, payload: Any, limits: Limits, timeout_s: float = BUILD_S) -> Child:
        """Fork one."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [json.dumps({"fork": True}).encode()], [theirs.fileno()])
            reply = self._reply()
        if "refused" in reply:
            ours.close()
            raise Failure("error", reply["refused"])
        return _Process(Channel(ours), reply["pid"], self._reap, target, payload, limits, timeout_s)

    def _reap(self, pid: int, grace_s: float) -> int:
        try:
            self._control.send(json.dumps({"reap": pid, "grace_s": grace_s}).encode())
            return int(self._reply()["code"])
        except (OSError, Failure):
            return -signal.SIGTERM  # the server is gone, and its children with it

    def _reply(self) -> dict[str, Any]:
        try:
            message = self._control.recv(4096)
        except (TimeoutError, ConnectionError):
            message = b""
        if not message:
            raise Failure("error", "the fork server does not answer")
        return dict(json.loads(message))


class Spawned:
    """Children that are new interpreters: seconds each."""

    def __enter__(self) -> "Spawned":
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self, target: str, payload: Any, limits: Limits, timeout_s: float = BUILD_S) -> Child:
        """Start one."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "lrbench.measure.spawned", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                **SILENT,
                start_new_session=True,
            )

        def reap(_: int, grace_s: float) -> int:
            try:
                return process.wait(grace_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return process.wait()

        return _Process(Channel(ours), process.pid, reap, target, payload, limits, START_S + timeout_s)


class _Process:
    """The near side of a child process."""

    def __init__(
        self, channel: Channel, pid: int, reap: Any, target: str, payload: Any, limits: Limits, timeout_s: float
    ) -> None:
        self._channel, self._pid, self._reap = channel, pid, reap
        # where the system does not hold a process to its data limit, this one watches
        self._watched = limits.data_bytes if sys.platform != "linux" else None
        self._open = True
        self._ask({"target": target, "payload": payload, "limits": limits.model_dump()}, timeout_s)
        self._base = self._resident() if self._watched else 0

    def call(self, method: str, timeout_s: float, **arguments: Any) -> Any:
        """Run a method over there."""
        return self._ask({"method": method, "arguments": arguments}, timeout_s)

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        self._end(END_S)

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end(0.0 if error else END_S)

    def _ask(self, message: Any, timeout_s: float) -> Any:
        try:
            self._channel.send(message)
            answer = self._channel.receive(timeout_s, POLL_S if self._watched else None, self._watch)
        except TimeoutError:
            self._end(0.0)
            raise Failure("timeout", f"took longer than {timeout_s:.0f} s") from None
        except Closed:
            raise self._death(self._end(END_S)) from None
        except BaseException:
            self._end(0.0)
            raise
        if "failure" in answer:
            self._end(0.0)
            fields = answer["failure"]
            raise Failure(fields["status"], fields["reason"], fields["kind"], fields["request"])
        return answer["result"]

    def _end(self, grace_s: float) -> int:
        if not self._open:
            return 0
        self._open = False
        self._channel.close()
        return int(self._reap(self._pid, grace_s))

    def _death(self, code: int) -> Failure:
        if code == -signal.SIGKILL:
            return Failure("oom", "killed by signal 9, most often for want of memory", "killed")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Failure("error", f"the process {how}")

    def _watch(self) -> None:
        if self._watched and self._resident() - self._base > self._watched:
            self._end(0.0)
            raise Failure("oom", f"grew by more than {self._watched} bytes", "killed")

    def _resident(self) -> int:
        try:
            return int(psutil.Process(self._pid).memory_info().rss)
        except psutil.Error:
            return 0


class Inline:
    """No child at all: for debuggers. Only the number of threads is honoured."""

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self, target: str, payload: Any, limits: Limits, timeout_s: float = BUILD_S) -> Child:
        """Build the object here."""
        free = Limits(threads=limits.threads)
        return _Here(_failing(lambda: build({"target": target, "payload": payload, "limits": free.model_dump()})))


class _Here:
    def __init__(self, hosted: Any) -> None:
        self._hosted = hosted

    def call(self, method: str, timeout_s: float, **arguments: Any) -> Any:
        """Run a method here."""
        return _failing(lambda: getattr(self._hosted, method)(**arguments))

    def close(self) -> None:
        """Forget it."""
        self._hosted = None


def _failing(action: Any) -> Any:
    try:
        return action()
    except Exception as error:
        raise classify(error) from error
