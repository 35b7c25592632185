"""Where a job runs. Executors know jobs, not trials: code travels by name, data as JSON."""

from concurrent.futures import Future
from typing import Protocol

from lrbench.specs import Frozen


class Job(Frozen):
    """One call in a fresh process: `entry` is module:function, taking and returning a string."""

    entry: str
    payload: str


class Died(Exception):
    """The process of a job ended without an answer."""

    def __init__(self, reason: str, killed: bool, asked_to: bool) -> None:
        super().__init__(reason)
        self.killed = killed  # by signal 9: on Linux most often the kernel, for want of memory
        self.asked_to = asked_to  # after `stop`


class Executor(Protocol):
    """Runs jobs; `concurrent.futures.as_completed` works on what `submit` returns."""

    def submit(self, job: Job) -> "Future[str]":
        """Start the job as soon as there is room."""
        ...

    def stop(self) -> None:
        """Cancel jobs that wait, ask those that run to save their state and end. Asked again, end them."""
        ...

    def shutdown(self) -> None:
        """Wait for all jobs and free what was held."""
        ...
