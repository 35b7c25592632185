"""What `lrbench doctor` tells: what was found, what it means for a run, and the way out."""

import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import platformdirs
import psutil

from lrbench.environment.accelerator import gpus
from lrbench.environment.probes import Unreadable
from lrbench.environment.processor import affinity
from lrbench.environment.speed import bf16_gain
from lrbench.environment.storage import memory_limit
from lrbench.specs import Frozen

OLDEST, NEWEST = (3, 10), (3, 13)
GIB = 2**30
ENOUGH_SPACE = 5 * GIB
ENOUGH_MEMORY = 4 * GIB
# package: what its absence rules out
OPTIONAL = {
    "ray": "--on ray",
    "submitit": "--on slurm",
    "tensorboard": "--track tensorboard",
    "wandb": "--track wandb",
    "mlflow": "--track mlflow",
    "trackio": "--track trackio",
}


class Check(Frozen):
    """One thing that was looked at. `meaning` says what it entails and, unless all is well, the way out."""

    name: str
    status: Literal["ok", "warn", "missing"]
    found: str
    meaning: str


def doctor(cache: Path | None = None, results: Path | None = None, *, offline: bool = False) -> list[Check]:
    """Look at everything a run depends on. Takes some seconds, for it imports torch and times matrix products.

    Args:
        cache: the folder for data; by default LRBENCH_CACHE, else the user's cache folder.
        results: the folder for results; by default LRBENCH_RESULTS, else `results`.
        offline: whether `--offline` was given.
    """
    cache = cache or Path(os.environ.get("LRBENCH_CACHE") or platformdirs.user_cache_path("lrbench"))
    results = results or Path(os.environ.get("LRBENCH_RESULTS") or "results")
    return [
        _python(),
        _torch(),
        _instructions(),
        _bf16(),
        _threads(),
        _memory(),
        _accelerator(),
        _folder("cache folder", cache.expanduser(), "--cache-dir or LRBENCH_CACHE", ENOUGH_SPACE),
        _folder("results folder", results.expanduser(), "--out or LRBENCH_RESULTS", GIB),
        _offline(offline),
        _compiler(),
        *(_package(name, rules_out) for name, rules_out in OPTIONAL.items()),
    ]


def _python() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return Check(name="python", status="ok", found=found, meaning="a tested version")
    meaning = "not a tested version; Python 3.10 to 3.13 are"
    return Check(name="python", status="warn", found=found, meaning=meaning)


def _torch() -> Check:
    import torch

    build = torch.version.cuda or torch.version.hip
    found = f"torch {torch.__version__}, {f'built for {build}' if build else 'a build without CUDA'}"
    return Check(name="torch", status="ok", found=found, meaning="runs on GPUs" if build else "runs on the CPU")


def _instructions() -> Check:
    import torch

    found = torch.backends.cpu.get_cpu_capability()
    if found == "DEFAULT":
        meaning = "no vector instructions that torch uses: training on this CPU is several times slower"
        return Check(name="cpu", status="warn", found=found, meaning=meaning)
    return Check(name="cpu", status="ok", found=found, meaning="vector instructions that torch uses")


def _bf16() -> Check:
    gain = bf16_gain()
    found = f"matrix products take {1 / gain:.2f} of fp32's time ({gain:.2f}x as fast)"
    if gain < 1:
        meaning = "this CPU has no fast bf16: --dtype bf16 saves memory and costs time"
        return Check(name="bf16 on the cpu", status="warn", found=found, meaning=meaning)
    return Check(name="bf16 on the cpu", status="ok", found=found, meaning="--dtype bf16 gains where products dominate")


def _threads() -> Check:
    import torch

    threads = torch.get_num_threads()
    try:
        usable = len(affinity())
    except Unreadable:
        usable = os.cpu_count() or 1
    found = f"{threads} torch threads on {usable} usable CPUs"
    if threads > usable:
        meaning = f"threads wait for each other: use --threads {usable}"
        return Check(name="threads", status="warn", found=found, meaning=meaning)
    return Check(name="threads", status="ok", found=found, meaning="change with --threads")


def _memory() -> Check:
    memory = psutil.virtual_memory()
    try:
        usable, limited = memory_limit(), "limited by its container or ulimit"
    except Unreadable:
        usable, limited = memory.total, "no limit below that"
    found = f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}; {usable / GIB:.1f} usable, {limited}"
    if min(usable, memory.available) < ENOUGH_MEMORY:
        meaning = "presets beyond tiny may run out: close other programs, raise the limit, or use --preset tiny"
        return Check(name="memory", status="warn", found=found, meaning=meaning)
    return Check(name="memory", status="ok", found=found, meaning="enough for the presets tiny and small")


def _accelerator() -> Check:
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Check(name="gpu", status="ok", found=names, meaning="--device cuda, and what auto takes")
    if torch.backends.mps.is_available():
        return Check(name="gpu", status="ok", found="MPS", meaning="--device mps, and what auto takes")
    try:
        names = ", ".join(str(gpu["name"]) for gpu in gpus())
    except Unreadable:
        return Check(name="gpu", status="missing", found="none", meaning="everything runs on the CPU")
    meaning = "torch cannot use it: install a torch build for CUDA and a driver that is new enough for it"
    return Check(name="gpu", status="warn", found=names, meaning=meaning)


def _folder(name: str, folder: Path, flag: str, enough: int) -> Check:
    """Whether files can be made in the folder, or in the nearest one above it that exists."""
    existing = next(above for above in (folder, *folder.absolute().parents) if above.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        meaning = f"nothing can be written there ({error.strerror}): choose another one with {flag}"
        return Check(name=name, status="missing", found=str(folder), meaning=meaning)
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {free / GIB:.1f} GiB free"
    if free < enough:
        meaning = f"little space: free some, or choose another one with {flag}"
        return Check(name=name, status="warn", found=found, meaning=meaning)
    return Check(name=name, status="ok", found=found, meaning=f"writable; change with {flag}")


def _offline(flag: bool) -> Check:
    switches = [
        name for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE") if os.environ.get(name) not in (None, "0", "")
    ]
    switches += ["--offline"] if flag else []
    if switches:
        found = ", ".join(switches)
        return Check(name="network", status="ok", found=found, meaning="only generated, cached and local data are used")
    return Check(name="network", status="ok", found="no offline switch", meaning="data may be fetched from the hub")


def _compiler() -> Check:
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "cl"]
    compiler = next((name for name in wanted if shutil.which(name)), None)
    if compiler is None:
        meaning = "rules out --compile on the CPU: install a C++ compiler such as g++"
        return Check(name="compiler", status="missing", found="none", meaning=meaning)
    return Check(name="compiler", status="ok", found=Path(compiler).name, meaning="--compile can build CPU code")


def _package(name: str, rules_out: str) -> Check:
    if find_spec(name) is None:
        meaning = f"rules out {rules_out}; `pip install {name}` brings it"
        return Check(name=name, status="missing", found="not installed", meaning=meaning)
    return Check(name=name, status="ok", found=version(name), meaning=f"allows {rules_out}")
