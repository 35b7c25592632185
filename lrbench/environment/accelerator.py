"""The GPUs, asked through the driver's own tool: asking torch would start CUDA in a process that may not use it."""

import csv
import io

from lrbench.environment.probes import Probe, Unreadable, ask

# our name of a field: the name in nvidia-smi's query
QUERY = {
    "name": "name",
    "uuid": "uuid",
    "memory_mib": "memory.total",
    "driver": "driver_version",
    "clock_mhz": "clocks.sm",
    "clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_limit_w": "power.limit",
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
    "persistence": "persistence_mode",
}


def parse(text: str) -> list[dict[str, str | None]]:
    """One dict a GPU from nvidia-smi's lines; None for what the GPU does not support."""
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    return [dict(zip(QUERY, map(_known, row), strict=True)) for row in rows if row]


def _known(value: str) -> str | None:
    return None if value.startswith("[") else value


def gpus() -> list[dict[str, str | None]]:
    """All NVIDIA GPUs of the machine."""
    found = parse(ask(["nvidia-smi", f"--query-gpu={','.join(QUERY.values())}", "--format=csv,noheader,nounits"]))
    if not found:
        raise Unreadable("nvidia-smi lists no GPU")
    return found


PROBES: dict[str, Probe] = {"gpus": gpus}
