"""The processor: its model, shape, instruction sets, and how it is being run."""

import os
import platform
from pathlib import Path

import psutil

from lrbench.environment.probes import Probe, Unreadable, ask, read, read_fields

CPUS = "/sys/devices/system/cpu"
# those that change how fast a matrix product or a vector loop is
TELLING_FLAGS = (
    *("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "bf16", "sve", "sve2", "sme"),
)


def _model() -> str:
    if platform.system() == "Darwin":
        return ask(["sysctl", "-n", "machdep.cpu.brand_string"])
    if platform.system() == "Linux":
        fields = read_fields("/proc/cpuinfo")
        for key in ("model name", "Model", "Hardware", "CPU part"):
            if fields.get(key):
                return fields[key]
    if named := platform.processor():
        return named
    raise Unreadable("the system does not name it")


def _flags() -> list[str]:
    fields = read_fields("/proc/cpuinfo")
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    if not flags:
        raise Unreadable("the system does not list them")
    return [flag for flag in TELLING_FLAGS if flag in flags]


def _microcode() -> str:
    return _field("/proc/cpuinfo", "microcode")


def _field(path: str, key: str) -> str:
    fields = read_fields(path)
    if key not in fields:
        raise Unreadable("the system does not list it")
    return fields[key]


def _sockets() -> int:
    ids = {path.read_text().strip() for path in Path(CPUS).glob("cpu[0-9]*/topology/physical_package_id")}
    if not ids:
        raise Unreadable("the system does not list them")
    return len(ids)


def _physical_cores() -> int:
    cores = psutil.cpu_count(logical=False)
    if cores is None:
        raise Unreadable("the system does not count them")
    return cores


def _threads_per_core() -> int:
    return (os.cpu_count() or 1) // _physical_cores()


def _caches() -> dict[str, str]:
    """Size of each cache as one core sees it, as the kernel writes it: `{"L1 data": "48K"}`."""
    caches = {}
    for folder in sorted(Path(CPUS, "cpu0/cache").glob("index[0-9]*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        caches[f"L{level}" if kind == "Unified" else f"L{level} {kind.lower()}"] = size
    if not caches:
        raise Unreadable("the system does not list them")
    return caches


def affinity() -> list[int]:
    """The CPUs that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        raise Unreadable("this system has no affinity masks")
    return sorted(os.sched_getaffinity(0))


def _governor() -> str:
    return read(f"{CPUS}/cpu0/cpufreq/scaling_governor")


def _turbo() -> bool:
    if Path(CPUS, "intel_pstate/no_turbo").exists():
        return read(f"{CPUS}/intel_pstate/no_turbo") == "0"
    return read(f"{CPUS}/cpufreq/boost") == "1"


def _numa_nodes() -> int:
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    if not nodes:
        raise Unreadable("the system does not list them")
    return nodes


def _hypervisor() -> bool:
    fields = read_fields("/proc/cpuinfo")
    if "flags" not in fields:
        raise Unreadable("this processor does not tell")
    return "hypervisor" in fields["flags"].split()


def _load_average() -> list[float]:
    if not hasattr(os, "getloadavg"):
        raise Unreadable("this system keeps no load average")
    return [round(load, 2) for load in os.getloadavg()]


def _steal_ticks() -> int:
    """Clock ticks, since the start of the machine, in which the host ran something else."""
    return int(read("/proc/stat").splitlines()[0].split()[8])


PROBES: dict[str, Probe] = {
    "cpu_model": _model,
    "cpu_architecture": platform.machine,
    "cpu_flags": _flags,
    "microcode": _microcode,
    "sockets": _sockets,
    "physical_cores": _physical_cores,
    "logical_cores": os.cpu_count,
    "threads_per_core": _threads_per_core,
    "caches": _caches,
    "affinity": affinity,
    "governor": _governor,
    "turbo": _turbo,
    "numa_nodes": _numa_nodes,
    "hypervisor": _hypervisor,
    "load_average": _load_average,
    "steal_ticks": _steal_ticks,
}
