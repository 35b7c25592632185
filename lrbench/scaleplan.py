"""From a request for scaling studies to their points, without torch."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from lrbench._version import __version__
from lrbench.plan import checked_device
from lrbench.points import Mode, PointSpec
from lrbench.registry import backends
from lrbench.specs import AttentionSpec, ScaleGrid

TEXTBOOK = "full[impl=math]"  # what papers compare with


@dataclass(frozen=True)
class StudyPlan:
    """One study: every model at every length in one mode, and where its results go."""

    study_id: str
    folder: Path
    grid: ScaleGrid
    mode: Mode
    points: list[PointSpec]


@dataclass(frozen=True)
class Bound:
    """What a point would cost if its backend were full attention that keeps its scores: an upper bound for most."""

    flops: float
    memory_bytes: int


def studies(grid: ScaleGrid, out: Path) -> list[StudyPlan]:
    """One study for each mode.

    Raises:
        SpecError: a model, device or mode that nobody knows.
    """
    checked_device(grid.device)
    models = [backends.spec(text) for text in expanded(grid.models)]
    return [_study(grid, mode, models, out) for mode in dict.fromkeys(grid.modes)]


def expanded(models: list[str]) -> list[str]:
    """Models as typed, each once; `all` stands for every backend, and full attention in both forms goes first."""
    known = backends.usable() if "all" in models else []
    everything = ["full", TEXTBOOK, *(name for name in known if name != "full")]
    return list(dict.fromkeys(name for item in models for name in (everything if item == "all" else [item])))


def names(specs: list[AttentionSpec]) -> dict[str, str]:
    """How each model is named in tables and records: its label, or where two share that, all that was typed."""
    distinct = {identity(spec): spec for spec in specs}
    labels = [spec.label for spec in distinct.values()]
    return {
        key: spec.label if labels.count(spec.label) == 1 else backends.typed(spec) for key, spec in distinct.items()
    }


def identity(spec: AttentionSpec) -> str:
    """What makes two models the same."""
    return spec.model_dump_json()


def bound(point: PointSpec) -> Bound:
    """Operations and bytes of full attention at this point: four products of n × n and width, four of the width."""
    pairs = point.batch * point.length**2
    forward = 4.0 * pairs * point.width + 8.0 * point.batch * point.length * point.width**2
    scores = 4 * point.heads * pairs
    kept = {"forward": 2, "train": 3, "stream": 2}[point.mode]
    return Bound(forward * (3 if point.mode == "train" else 1), kept * scores)


def _study(grid: ScaleGrid, mode: Mode, models: list[AttentionSpec], out: Path) -> StudyPlan:
    points = [
        PointSpec(
            attention=model,
            length=length,
            batch=grid.batch_at(length),
            width=grid.width,
            heads=grid.heads,
            causal=grid.causal,
            mode=mode,
            level=grid.level,
            dtype=grid.dtype,
            device=grid.device,
            threads=grid.threads,
            compile=grid.compile,
            seed=grid.seed,
        )
        for model in models
        for length in grid.lengths
    ]
    study_id = f"{mode}-{grid.level}-{_key(grid, points)}"
    return StudyPlan(study_id, out / "scale" / study_id, grid, mode, points)


def _key(grid: ScaleGrid, points: list[PointSpec]) -> str:
    """Ten hex digits of all that was asked for: limits and precision too, for they decide what is in a study."""
    limits = grid.model_dump(include={"memory_limit", "time_limit", "precision", "budget"})
    text = json.dumps([__version__, limits, [point.model_dump(mode="json") for point in points]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
