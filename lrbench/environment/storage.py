"""Main memory: how much there is, how much of it this process may have, and what shapes its allocation."""

import os
import sys
from pathlib import Path

import psutil

from lrbench.environment.probes import Probe, Unreadable, read

CGROUPS = Path("/sys/fs/cgroup")
# the kernel of cgroup v1 writes "no limit" as the largest multiple of a page
NO_LIMIT = 2**60
ALLOCATOR_VARIABLES = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)


def memory_limit() -> int:
    """The tightest limit that a container, a control group or `ulimit` puts on this process, in bytes.

    Raises:
        Unreadable: nothing limits it short of the machine's memory.
    """
    limits = [*_control_group_limits(), *_process_limits()]
    tightest = min(limits, default=NO_LIMIT)
    if tightest >= psutil.virtual_memory().total:
        raise Unreadable("nothing limits it below the machine's memory")
    return tightest


def _control_group_limits() -> list[int]:
    """Limits of this process's group and of every group above it, in both versions of control groups."""
    limits = []
    for file in _control_group_files():
        try:
            text = read(str(file))
        except OSError:
            continue  # not this version, or a group that lies outside the container
        if text.isdigit() and int(text) < NO_LIMIT:
            limits.append(int(text))
    return limits


def _control_group_files() -> list[Path]:
    try:
        lines = read("/proc/self/cgroup").splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        root, name = CGROUPS, "memory.max"
        if "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        folder = root / group.lstrip("/")
        files += [above / name for above in (folder, *folder.parents) if above.is_relative_to(root)]
    return files


def _process_limits() -> list[int]:
    if sys.platform == "win32":
        return []
    import resource

    hard = (resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return [limit for limit in hard if limit != resource.RLIM_INFINITY]


def _huge_pages() -> str:
    text = read("/sys/kernel/mm/transparent_hugepage/enabled")
    return text.partition("[")[2].partition("]")[0]


def _allocator() -> dict[str, str]:
    settings = {name: os.environ[name] for name in ALLOCATOR_VARIABLES if name in os.environ}
    if preloaded := os.environ.get("LD_PRELOAD"):
        # the names tell which allocator it is; the folders are nobody's business
        settings["LD_PRELOAD"] = " ".join(Path(part).name for part in preloaded.replace(":", " ").split())
    return settings


PROBES: dict[str, Probe] = {
    "memory_total_bytes": lambda: psutil.virtual_memory().total,
    "memory_available_bytes": lambda: psutil.virtual_memory().available,
    "swap_total_bytes": lambda: psutil.swap_memory().total,
    "memory_limit_bytes": memory_limit,
    "transparent_huge_pages": _huge_pages,
    "allocator_settings": _allocator,
}
