"""The process of one job: reads it from stdin, answers on stdout, ends when its parent does."""

import importlib
import os
import signal
import sys
import threading

from lrbench.executors.base import Job


def call(job: Job) -> str:
    """Look up the job's function and call it."""
    module, _, function = job.entry.partition(":")
    return str(getattr(importlib.import_module(module), function)(job.payload))


def end_with_parent() -> None:
    """Turn the end of stdin, which a dead parent leaves, into the signal that asks for a checkpoint."""
    # not through sys.stdin, whose lock this thread would hold to the end: an exit that finds it held aborts
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run one job."""
    # whatever a plug-in prints must not end up in the answer
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = Job.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    answer.write(call(job))
    for stream in (answer, sys.stdout, sys.stderr):
        stream.flush()
    # what a plug-in left running must not hold up the end
    os._exit(0)


if __name__ == "__main__":
    main()
