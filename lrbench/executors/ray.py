"""Jobs on a Ray cluster: a thread for each slot, each waiting on a task that runs a fresh child process.

A killed worker fails its own job alone. Every node needs lrbench and sees the same results and cache folders.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lrbench.executors.base import Ending, Job
from lrbench.executors.process import relay


class RayExecutor:
    """At most `workers` tasks at a time, and never more than the cluster has cores for.

    Args:
        workers: how many jobs run side by side.
        verbose: let the jobs' stderr through.

    The cluster is the one that this process is in already, else RAY_ADDRESS, else one that runs on this machine, else
    a new one here.
    """

    def __init__(self, workers: int = 1, verbose: bool = False) -> None:
        import ray

        self._ray = ray
        self._joined = not ray.is_initialized()
        if self._joined:
            ray.init(include_dashboard=False, log_to_driver=verbose, logging_level="ERROR")
        # a task that is run again would be a second writer; a process that is used again inherits peaks
        self._relay = ray.remote(max_calls=1, max_retries=0)(relay)
        self._pool = ThreadPoolExecutor(workers)
        self._tasks: set[Any] = set()
        self._stopping = False

    def submit(self, job: Job) -> "Future[str]":
        """Queue the job."""
        return self._pool.submit(self._run, job)

    def stop(self) -> None:
        """Cancel what waits, ask what runs to end; asked again, end it."""
        self._stopping = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for task in list(self._tasks):
            self._ray.cancel(task)

    def shutdown(self) -> None:
        """Wait for all jobs; leave the cluster, if it was joined for them."""
        self._pool.shutdown(wait=True)
        if self._joined:
            self._ray.shutdown()

    def _run(self, job: Job) -> str:
        task = self._relay.options(num_cpus=job.cpus, num_gpus=job.gpus).remote(job.model_dump_json(), os.getcwd())
        self._tasks.add(task)
        if self._stopping:  # `stop` may have looked through the tasks before this one was among them
            self._ray.cancel(task)
        try:
            return self._ending(task).settle(asked_to=self._stopping)
        finally:
            self._tasks.discard(task)

    def _ending(self, task: Any) -> Ending:
        errors = self._ray.exceptions
        try:
            return Ending.model_validate_json(task.future().result())
        except errors.TaskCancelledError:
            return Ending(reason="cancelled before it began")
        except (errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            return Ending(reason=f"the Ray worker of the job was killed: {_line(error)}", killed=True)
        except errors.RayError as error:
            return Ending(reason=f"Ray could not run the job: {_line(error)}")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
