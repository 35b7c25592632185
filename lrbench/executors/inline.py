"""Jobs in this very process: for a command that `accelerate launch` or `torchrun` has started once a device."""

import os
from concurrent.futures import Future

from lrbench.executors.base import Job
from lrbench.executors.child import call


class InlineExecutor:
    """Runs each job at once, in the order in which all processes submit them."""

    def submit(self, job: Job) -> "Future[str]":
        """Run the job."""
        future: Future[str] = Future()
        future.set_result(call(job))
        return future

    def stop(self) -> None:
        """Nothing waits here."""

    def shutdown(self) -> None:
        """Nothing is held."""


def launched_once_a_device() -> bool:
    """Whether a launcher has started several of this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the one of them that writes and prints; so is one that was started alone."""
    return not launched_once_a_device() or int(os.environ.get("RANK", "0")) == 0
