"""Jobs on this machine: a thread for each slot, each waiting on a fresh child process.

Not a process pool: one killed worker takes a pool's other jobs with it, and a reused process inherits peaks.
"""

import signal
from concurrent.futures import Future, ThreadPoolExecutor

from lrbench.executors.base import Job
from lrbench.executors.process import Child


class LocalExecutor:
    """At most `workers` children at a time.

    Args:
        workers: how many jobs run side by side.
        verbose: let the children's stderr through.
    """

    def __init__(self, workers: int = 1, verbose: bool = False) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._verbose = verbose
        self._children: set[Child] = set()
        self._stopping = False

    def submit(self, job: Job) -> "Future[str]":
        """Queue the job."""
        return self._pool.submit(self._run, job)

    def stop(self) -> None:
        """Cancel what waits, ask what runs to end; asked again, end it."""
        number = signal.SIGKILL if self._stopping else signal.SIGTERM
        self._stopping = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in list(self._children):
            child.signal(number)

    def shutdown(self) -> None:
        """Wait for all jobs."""
        self._pool.shutdown(wait=True)

    def _run(self, job: Job) -> str:
        child = Child(job, self._verbose)
        self._children.add(child)
        if self._stopping:  # `stop` may have looked through the children before this one was among them
            child.signal(signal.SIGTERM)
        try:
            return child.wait().settle(asked_to=self._stopping)
        finally:
            self._children.discard(child)
