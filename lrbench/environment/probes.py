"""Asking a machine that may not answer: a value, or the reason why there is none."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Probe = Callable[[], Any]


class Unreadable(Exception):
    """This machine does not tell; the message says why."""


def gather(probes: Mapping[str, Probe]) -> tuple[dict[str, Any], dict[str, str]]:
    """What each probe found, and for each that found nothing (then None) the reason."""
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, probe in probes.items():
        try:
            found[name] = probe()
        except Exception as error:  # a machine that does not answer must not cost a run
            found[name] = None
            reasons[name] = why(error)
    return found, reasons


def why(error: Exception) -> str:
    """The reason in words that name no path and no user."""
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"not readable here ({type(error).__name__})"


def read(path: str) -> str:
    """The text of a kernel file, without the line's end."""
    return Path(path).read_text(encoding="utf-8", errors="replace").strip()


def read_fields(path: str) -> dict[str, str]:
    """The first block of a file made of `key : value` lines."""
    block = read(path).split("\n\n")[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def ask(command: list[str]) -> str:
    """What a program prints; Unreadable when it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except FileNotFoundError:
        raise Unreadable(f"no {command[0]} here") from None
    except (subprocess.SubprocessError, OSError) as error:
        raise Unreadable(f"{command[0]} failed ({type(error).__name__})") from None
    return done.stdout.strip()
