"""Where a job runs. Executors know jobs, not trials: code travels by name, data as JSON."""

from concurrent.futures import Future
from typing import Protocol

from lrbench.specs import Frozen


class Job(Frozen):
    """One call in a fresh process: `entry` is module:function, taking and returning a string."""

    entry: str
    payload: str
    cpus: int = 1  # cores and GPUs that a cluster sets aside
    gpus: int = 0


class Died(Exception):
    """The process of a job ended without an answer."""

    def __init__(self, reason: str, killed: bool, asked_to: bool) -> None:
        super().__init__(reason)
        self.killed = killed  # by signal 9: on Linux most often the kernel, for want of memory
        self.asked_to = asked_to  # after `stop`


class Ending(Frozen):
    """How the process of a job ended, in a form that travels between machines."""

    answer: str | None = None
    reason: str = ""  # why there is no answer
    killed: bool = False

    def settle(self, asked_to: bool) -> str:
        """The answer.

        Raises:
            Died: there is none.
        """
        if self.answer is None:
            raise Died(self.reason, self.killed, asked_to)
        return self.answer


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
