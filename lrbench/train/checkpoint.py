"""One checkpoint of a run: whole or absent, its digest kept beside it, tensors and plain types only."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lrbench.files import digest, write_atomic
from lrbench.records import dumps

POINTER = "latest.json"


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the state of `step`, then point to it, then drop the one before: a kill leaves either."""
    folder.mkdir(exist_ok=True)
    file = folder / f"step-{step:09d}.pt"
    aside = file.with_suffix(f".{os.getpid()}")
    torch.save(state, aside)
    sha256 = digest(aside)
    os.replace(aside, file)
    write_atomic(folder / POINTER, dumps({"file": file.name, "sha256": sha256, "step": step}))
    for old in folder.glob("step-*"):
        if old != file:
            old.unlink(missing_ok=True)


def load(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The state to go on from and an empty text, or None and what was wrong (empty if there never was one)."""
    if not (folder / POINTER).exists():
        return None, ""
    try:
        pointer = json.loads((folder / POINTER).read_text(encoding="utf-8"))
        file = folder / pointer["file"]
        if digest(file) != pointer["sha256"]:
            return None, f"checkpoint {file.name} was damaged and not used: trained again from the start"
        return torch.load(file, map_location="cpu", weights_only=True), ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"checkpoint unreadable ({type(error).__name__}) and not used: trained again from the start"


def drop(folder: Path) -> None:
    """Forget the checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)


def generators() -> dict[str, Any]:
    """The state of every random generator of this process, as tensors and plain types."""
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_generators(state: dict[str, Any]) -> None:
    """The inverse of `generators`."""
    random.setstate(state["python"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
