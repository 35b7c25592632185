"""The fingerprint of a machine and its software, as it goes into every record."""

from lrbench.environment import accelerator, processor, software, storage
from lrbench.environment.probes import gather
from lrbench.specs import Frozen


class Environment(Frozen):
    """Machine and software. A field that could not be read is None and `reasons` says why.

    Holds no host name, no user name and no path.
    """

    cpu_model: str | None
    cpu_architecture: str | None
    cpu_flags: list[str] | None  # those that matter for arithmetic
    microcode: str | None
    sockets: int | None
    physical_cores: int | None
    logical_cores: int | None
    threads_per_core: int | None
    caches: dict[str, str] | None
    affinity: list[int] | None  # CPUs that the process may use
    governor: str | None
    turbo: bool | None
    numa_nodes: int | None
    hypervisor: bool | None
    load_average: list[float] | None  # over 1, 5 and 15 minutes
    steal_ticks: int | None  # since the machine's start
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    swap_total_bytes: int | None
    memory_limit_bytes: int | None
    transparent_huge_pages: str | None
    allocator_settings: dict[str, str] | None
    gpus: list[dict[str, str | None]] | None
    cpu_capability: str | None  # the instruction set that torch chose
    torch_threads: int | None
    torch_interop_threads: int | None
    omp_threads: str | None
    mkl_threads: str | None
    flush_denormal: bool | None
    matmul_precision: str | None
    tf32_matmul: bool | None
    tf32_cudnn: bool | None
    deterministic: bool | None
    cudnn_benchmark: bool | None
    torch: str | None
    cuda: str | None
    cudnn: int | None
    triton: str | None
    python: str | None
    python_implementation: str | None
    numpy: str | None
    os: str | None
    kernel: str | None
    libc: str | None
    lrbench: str | None
    git_sha: str | None
    git_dirty: bool | None
    git_diff_hash: str | None
    reasons: dict[str, str]


def fingerprint() -> Environment:
    """Of this machine, this software and this moment. Imports torch; starts no CUDA."""
    probes = {**processor.PROBES, **storage.PROBES, **accelerator.PROBES, **software.PROBES}
    found, reasons = gather(probes)
    return Environment(**found, reasons=reasons)
