"""Devices and precisions: what was asked for is there, or is refused; nothing asked for is replaced."""

import torch

from lrbench.errors import Missing


def check(device: str, dtype: str) -> None:
    """Refuse what this machine cannot do.

    Raises:
        Missing: the device is not there, or cannot train in that precision.
    """
    kind, _, index = device.partition(":")
    there = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[kind]:
        raise Missing(f"--device {device}: there is none here", "use --device auto, or run where there is one")
    if index and int(index) >= torch.cuda.device_count():
        raise Missing(f"--device {device}: this machine has {torch.cuda.device_count()}", "they count from cuda:0")
    if on_cpu(device) and dtype == "fp16":
        raise Missing("--dtype fp16: training in half precision needs an accelerator", "use --dtype bf16 on a CPU")


def on_cpu(device: str) -> bool:
    """Whether `device` comes to the CPU on this machine."""
    return device == "cpu" or (device == "auto" and not _accelerated())


def accelerator() -> str:
    """The accelerator that `auto` comes to where there is one."""
    return "cuda" if torch.cuda.is_available() else "mps"


def _accelerated() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()
