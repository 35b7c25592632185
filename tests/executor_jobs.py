"""What the executors' tests run in processes of their own."""

import os
import signal
import sys
import time
from pathlib import Path


def echo(payload: str) -> str:
    return payload


def fail(payload: str) -> str:
    raise ValueError(payload)


def kill_itself(payload: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return payload


def shout(payload: str) -> str:
    print("rubbish")
    os.write(1, b"\xff more of it \n")
    print("and on stderr", file=sys.stderr)
    return payload


def peak(payload: str) -> str:
    """Fill so many MiB, then tell process and high-water mark in MiB."""
    bytearray(b"x" * (int(payload) << 20))
    marks = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
    return f"{os.getpid()} {int(marks[0]) >> 10}"


def tidy(payload: str) -> str:
    """Say so, wait for SIGTERM, clean up at leisure."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    Path(payload).write_text(str(os.getpid()))
    while not asked:
        time.sleep(0.05)
    time.sleep(1)
    Path(payload + ".clean").touch()
    return "tidy"


def stubborn(payload: str) -> str:
    """Say so and heed no SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(payload).write_text(str(os.getpid()))
    time.sleep(600)
    return payload
