"""The software: versions, the checkout it runs from, and torch's switches that change numbers or speed."""

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

from lrbench._version import __version__
from lrbench.environment.probes import Probe, Unreadable, ask

CHECKOUT = Path(__file__).resolve().parents[2]


def _git(*arguments: str) -> str:
    if not (CHECKOUT / ".git").exists():
        raise Unreadable("installed, not run from a checkout")
    return ask(["git", "--no-optional-locks", "-C", str(CHECKOUT), *arguments])


def _diff_hash() -> str:
    """Of all that differs from the commit; a clean tree has none."""
    difference = _git("diff", "HEAD")
    if not difference:
        raise Unreadable("no tracked file differs from the commit")
    return hashlib.sha256(difference.encode()).hexdigest()[:16]


def _libc() -> str:
    name = " ".join(platform.libc_ver()).strip()
    if not name:
        raise Unreadable("the system does not tell")
    return name


def _variable(name: str) -> str:
    if name not in os.environ:
        raise Unreadable(f"{name} is not set")
    return os.environ[name]


def _cuda() -> str:
    import torch

    if torch.version.cuda is None:
        raise Unreadable("torch was built without CUDA")
    return torch.version.cuda


def _cudnn() -> int:
    import torch

    number = torch.backends.cudnn.version() if torch.version.cuda else None
    if number is None:
        raise Unreadable("torch was built without cuDNN")
    return number


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _interop_threads() -> int:
    import torch

    return torch.get_num_interop_threads()


def _capability() -> str:
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _flush_denormal() -> bool:
    """Torch has no getter; a subnormal number that does not survive a product tells."""
    import torch

    return bool((torch.tensor(1e-40) * torch.tensor(1.0)).item() == 0.0)


def _matmul_precision() -> str:
    import torch

    return torch.get_float32_matmul_precision()


def _tf32_matmul() -> bool:
    import torch

    return torch.backends.cuda.matmul.allow_tf32


def _tf32_cudnn() -> bool:
    import torch

    return torch.backends.cudnn.allow_tf32


def _deterministic() -> bool:
    import torch

    return torch.are_deterministic_algorithms_enabled()


def _cudnn_benchmark() -> bool:
    import torch

    return torch.backends.cudnn.benchmark


def _triton() -> str:
    try:
        return version("triton")
    except ModuleNotFoundError:
        raise Unreadable("not installed") from None


PROBES: dict[str, Probe] = {
    "cpu_capability": _capability,
    "torch_threads": _threads,
    "torch_interop_threads": _interop_threads,
    "omp_threads": lambda: _variable("OMP_NUM_THREADS"),
    "mkl_threads": lambda: _variable("MKL_NUM_THREADS"),
    "flush_denormal": _flush_denormal,
    "matmul_precision": _matmul_precision,
    "tf32_matmul": _tf32_matmul,
    "tf32_cudnn": _tf32_cudnn,
    "deterministic": _deterministic,
    "cudnn_benchmark": _cudnn_benchmark,
    "torch": lambda: version("torch"),
    "cuda": _cuda,
    "cudnn": _cudnn,
    "triton": _triton,
    "python": platform.python_version,
    "python_implementation": platform.python_implementation,
    "numpy": lambda: version("numpy"),
    "os": platform.system,
    "kernel": platform.release,
    "libc": _libc,
    "lrbench": lambda: __version__,
    "git_sha": lambda: _git("rev-parse", "HEAD"),
    "git_dirty": lambda: bool(_git("status", "--porcelain")),
    "git_diff_hash": _diff_hash,
}
