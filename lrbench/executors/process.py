"""A child process for one job, here or on a worker elsewhere: prints, plug-ins, peaks and signals are then the same."""

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO

from lrbench.executors.base import Ending, Job
from lrbench.signals import noted

POLL_S = 0.2


class Child:
    """A fresh process that runs `job` and ends when this one does.

    Args:
        verbose: pass its stderr on.
        folder: where it works; by default where this process does.
    """

    def __init__(self, job: Job, verbose: bool = False, folder: Path | None = None) -> None:
        self._job, self._verbose = job, verbose
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lrbench.executors.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then asks each child to end
        )

    def signal(self, number: int) -> None:
        """Send a signal, unless the child has ended."""
        self._process.send_signal(number)

    def wait(self) -> Ending:
        """Hand over the job and wait for the end."""
        process = self._process
        assert process.stdin is not None
        try:
            # stdin stays open: its end tells the child that this process is gone
            process.stdin.write(self._job.model_dump_json().encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # a child that died before reading; its exit status says the rest
        answer, error = self._drain()
        if process.returncode == 0:
            return Ending(answer=answer)
        return Ending(reason=_reason(process.returncode, error), killed=process.returncode == -signal.SIGKILL)

    def _drain(self) -> tuple[str, str]:
        """Read both pipes to their end, then wait; the answer and the last that stderr said."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with process.stdin, process.stdout, process.stderr, ThreadPoolExecutor(1) as side:
            error = side.submit(_last_line, process.stderr, self._verbose)
            answer = process.stdout.read()
            process.wait()
            return answer.decode("utf-8", "replace"), error.result()


def relay(job: str, folder: str, stopping: Callable[[], bool] = lambda: False) -> str:
    """Run a job in a child of this worker; the JSON of its `Ending`. What clusters call, in a worker's main thread.

    `stopping`, or a signal to this worker, asks the child to save its state and end. Ray cancels by SIGINT, and its
    second one ends the child; Slurm sends SIGTERM, and submitit SIGUSR2 before the time is up.
    """
    if stopping():
        return Ending(reason="the run was stopped before the job began").model_dump_json()
    child = Child(Job.model_validate_json(job), verbose=True, folder=Path(folder))
    with noted("SIGINT", "SIGTERM", "SIGUSR2") as arrived, ThreadPoolExecutor(1) as side:
        ending = side.submit(child.wait)
        told = 0
        while not ending.done():
            wait([ending], timeout=POLL_S)  # in short waits, for a signal may not wake a lock
            # counted, for on a busy machine the second request may come before the first was seen
            requests = int(stopping()) + arrived.count(signal.SIGINT)
            wanted = 2 if requests > 1 else int(bool(requests or arrived))
            if wanted > told:
                child.signal(signal.SIGKILL if wanted == 2 else signal.SIGTERM)
                told = wanted
    return ending.result().model_dump_json()


def _last_line(pipe: IO[bytes], echo: bool) -> str:
    """Read to the end; the last line that is not blank."""
    last = ""
    for line in pipe:
        text = line.decode("utf-8", "replace")
        if echo:
            sys.stderr.write(text)
        last = text.strip() or last
    return last


def _reason(code: int, error: str) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the process {how}" + (f": {error}" if error else "")
