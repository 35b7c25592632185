"""Jobs on this machine: a thread for each slot, each waiting on a fresh child process.

Not a process pool: one killed worker takes a pool's other jobs with it, and a reused process inherits peaks.
"""

import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor

from lrbench.executors.base import Died, Job


class LocalExecutor:
    """At most `workers` children at a time.

    Args:
        workers: how many jobs run side by side.
        verbose: let the children's stderr through.
    """

    def __init__(self, workers: int = 1, verbose: bool = False) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._verbose = verbose
        self._children: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def submit(self, job: Job) -> "Future[str]":
        """Queue the job."""
        return self._pool.submit(self._run, job)

    def stop(self) -> None:
        """Cancel what waits, ask what runs to end; asked again, end it."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in list(self._children):
            child.send_signal(signal.SIGKILL if self._stopping else signal.SIGTERM)
        self._stopping = True

    def shutdown(self) -> None:
        """Wait for all jobs."""
        self._pool.shutdown(wait=True)

    def _run(self, job: Job) -> str:
        child = subprocess.Popen(
            [sys.executable, "-m", "lrbench.executors.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self._verbose else subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then asks each child to end
        )
        self._children.add(child)
        try:
            return self._converse(child, job)
        finally:
            self._children.discard(child)

    def _converse(self, child: "subprocess.Popen[bytes]", job: Job) -> str:
        assert child.stdin is not None
        try:
            # stdin stays open: its end tells the child that this process is gone
            child.stdin.write(job.model_dump_json().encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # a child that died before reading; its exit status says the rest
        answer, errors = _drain(child)
        if child.returncode != 0:
            killed = child.returncode == -signal.SIGKILL
            raise Died(_reason(child.returncode, errors), killed, asked_to=self._stopping)
        return answer


def _drain(child: "subprocess.Popen[bytes]") -> tuple[str, str]:
    """Read both pipes to their end, then wait."""
    with ThreadPoolExecutor(1) as side:
        errors = side.submit(child.stderr.read) if child.stderr else None
        assert child.stdout is not None
        answer = child.stdout.read()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                pipe.close()
        return answer.decode("utf-8", "replace"), errors.result().decode("utf-8", "replace") if errors else ""


def _reason(code: int, errors: str) -> str:
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the process {how}{last}"
