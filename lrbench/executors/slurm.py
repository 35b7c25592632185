"""Jobs on a Slurm cluster, through submitit: one watcher thread submits them, looks after them and completes futures.

What a site wants to know (partition, account, time, memory) is told in sbatch's own variables: SBATCH_PARTITION,
SBATCH_ACCOUNT, SBATCH_TIMELIMIT, SBATCH_MEM_PER_NODE and the like, which go before what is asked for here.
Jobs outlive whoever submitted them: their records then lie in the results folder all the same.
"""

import os
import shutil
import tempfile
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from lrbench.executors.base import Died, Ending, Job
from lrbench.executors.process import relay

POLL_S = 0.5
STOP = "stop"
TIMEOUT_MIN = 24 * 60  # submitit's own is five minutes; SBATCH_TIMELIMIT goes before this


class SlurmExecutor:
    """At most `workers` jobs in the queue or running at a time.

    What submitit writes lies in a new folder below `<out>/slurm`, which is removed once every job has answered.

    Args:
        out: the results folder, seen by all nodes.
        workers: how many jobs are handed to Slurm side by side.
        cluster: "slurm", or "local" for submitit's own stand-in.
    """

    def __init__(self, out: Path, workers: int = 1, cluster: str = "slurm") -> None:
        import submitit

        (out / "slurm").mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=out.resolve() / "slurm"))
        self._cluster = submitit.AutoExecutor(self._folder, cluster=cluster)
        self._workers = workers
        self._waiting: deque[tuple[Job, Future[str]]] = deque()
        self._running: dict[Future[str], Any] = {}
        self._changed = threading.Condition()
        self._stopping = self._closing = self._failed = False
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def submit(self, job: Job) -> "Future[str]":
        """Queue the job."""
        future: Future[str] = Future()
        with self._changed:
            self._waiting.append((job, future))
            self._changed.notify()
        return future

    def stop(self) -> None:
        """Cancel what waits, ask what runs to end; asked again, end it."""
        with self._changed:
            # a file reaches a job on every kind of cluster and, unlike scancel, leaves it all the time it needs
            (self._folder / STOP).touch()
            for task in self._running.values():
                if self._stopping or task.state == "PENDING":
                    task.cancel(check=False)
            self._stopping = True
            while self._waiting:
                _, future = self._waiting.popleft()
                future.cancel()
                future.set_running_or_notify_cancel()

    def shutdown(self) -> None:
        """Wait for all jobs, and clean up after those that went well."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._watcher.join()
        if not self._failed:
            shutil.rmtree(self._folder, ignore_errors=True)
            if not any(self._folder.parent.iterdir()):
                self._folder.parent.rmdir()

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._running or self._closing)
                if not self._waiting and not self._running:
                    return
                while self._waiting and len(self._running) < self._workers:
                    self._start(*self._waiting.popleft())
                self._changed.wait(POLL_S)
                ended = [future for future, task in self._running.items() if task.done()]
                tasks = [self._running.pop(future) for future in ended]
            for future, task in zip(ended, tasks, strict=True):
                self._settle(future, _ending(task))

    def _start(self, job: Job, future: "Future[str]") -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._cluster.update_parameters(
            name="lrbench", cpus_per_task=job.cpus, gpus_per_node=job.gpus, timeout_min=TIMEOUT_MIN
        )
        try:
            self._running[future] = self._cluster.submit(_work, job.model_dump_json(), os.getcwd(), self._folder)
        except Exception as error:  # whatever submitit makes of a refusal by sbatch
            self._settle(future, Ending(reason=f"the job was not accepted: {error}"))

    def _settle(self, future: "Future[str]", ending: Ending) -> None:
        self._failed |= ending.answer is None
        try:
            future.set_result(ending.settle(asked_to=self._stopping))
        except Died as death:
            future.set_exception(death)


def _work(job: str, folder: str, shared: Path) -> str:
    """On a node: the job, until the file appears that says stop."""
    # asked for by a listing, which NFS answers afresh; a single name that was not there it remembers for a while
    return relay(job, folder, lambda: STOP in os.listdir(shared))


def _ending(task: Any) -> Ending:
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return Ending.model_validate_json(task.result())
    except FailedJobError:
        return Ending(reason=f"the worker of the job failed: see {task.paths.stderr}")
    except UncompletedJobError:
        # slurmstepd's own word for a job over its memory; it takes the worker along with the child
        killed = task.state.startswith("OUT_OF_ME")
        return Ending(reason=f"the job ended as {task.state}: see {task.paths.stderr}", killed=killed)
