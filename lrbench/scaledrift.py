"""A study against an older one: ratios to a reference that both measured, and peaks of memory as they are."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrbench import scalerecords as records
from lrbench.errors import SpecError
from lrbench.points import PointSpec, ScalePoint
from lrbench.scalefits import by_model, full_attentions, log_ratios, peak_bytes
from lrbench.scaling.drift import change

SAME = ("mode", "level", "causal", "width", "heads", "dtype", "device", "threads", "compile")  # else no comparison
ENVIRONMENT = "environment.json"
DECISIVE = ("cpu_model", "torch", "gpus")  # where one differs, two studies' points do not go into one
MACHINE = ("cpu_model", "cpu_capability", "physical_cores", "affinity", "torch", "torch_threads", "gpus")
BYTES_APART = 0.01  # peaks repeat to the byte; more than this, relative, is a change


@dataclass(frozen=True)
class Old:
    """What an older study left."""

    study_id: str
    points: list[ScalePoint]
    floor: float
    environment: dict[str, Any]


def find(place: Path, points: Sequence[PointSpec], besides: Path | None = None) -> Old:
    """The newest study at or below a folder that asked for the same as `points` do. `besides`: a folder left out.

    Raises:
        SpecError: there is none, or only of other settings.
    """
    folders = [folder for folder in records.folders([place]) if besides is None or not _same(folder, besides)]
    if not folders:
        raise SpecError(f"--compare {place}: no study there", "give a results folder, or one of its scale/ folders")
    studies = [(folder, read) for folder in folders if (read := records.read_points(folder / "points.jsonl"))]
    differing = [(_differs(points, [point.spec for point in read]), folder, read) for folder, read in studies]
    fitting = [(folder, read) for differs, folder, read in differing if not differs]
    if not fitting:
        what = differing[0][0] if differing else "it holds no points"
        raise SpecError(f"--compare {place}: not comparable: {what}", "measure both with the same settings")
    folder, read = max(fitting, key=lambda found: (found[0] / "points.jsonl").stat().st_mtime)
    record = records.read(folder / "record.json")
    floor = record.noise.floor if record and record.noise and record.noise.floor else 0.0
    return Old(folder.name, read, floor, environment(folder))


def drift(new: Sequence[ScalePoint], old: Old, floor: float, machine: Mapping[str, Any]) -> records.Drift:
    """Every change at lengths that both have. `floor`: the noise of the new study, relative."""
    ours, theirs = by_model(new), by_model(old.points)
    shared = [name for name in ours if name in theirs]
    reference = next((name for name in full_attentions(ours) if name in shared), shared[0] if shared else "")
    changes = []
    for name in shared:
        before = {point.length: point for point in theirs[name] if point.status == "ok"}
        for point in ours[name]:
            if point.status == "ok" and point.length in before:
                other = before[point.length]
                changes += _memory(name, point, other)
                if name != reference:
                    changes += _time(name, point, other, ours[reference], theirs[reference], max(floor, old.floor))
    return records.Drift(
        study_id=old.study_id,
        reference=reference,
        differs=[key for key in MACHINE if _trait(machine, key) != _trait(old.environment, key)],
        changes=changes,
    )


def _time(
    name: str,
    point: ScalePoint,
    other: ScalePoint,
    reference: Sequence[ScalePoint],
    old_reference: Sequence[ScalePoint],
    floor: float,
) -> list[records.Change]:
    found = [
        [ratio for rival in rivals if rival.length == one.length for ratio in log_ratios(one, rival)]
        for one, rivals in ((point, reference), (other, old_reference))
    ]
    if not all(found):
        return []
    moved = change(*found)
    return [
        records.Change(
            model=name,
            length=point.length,
            what="time",
            factor=moved.factor,
            ci_low=moved.low if math.isfinite(moved.low) else None,
            ci_high=moved.high if math.isfinite(moved.high) else None,
            beyond_noise=moved.beyond(floor),
        )
    ]


def _memory(name: str, point: ScalePoint, other: ScalePoint) -> list[records.Change]:
    new, old = peak_bytes(point), peak_bytes(other)
    if not new or not old:
        return []
    return [
        records.Change(
            model=name,
            length=point.length,
            what="memory",
            factor=new / old,
            ci_low=None,
            ci_high=None,
            beyond_noise=abs(new / old - 1) > BYTES_APART,
        )
    ]


def _differs(ours: Sequence[PointSpec], theirs: Sequence[PointSpec]) -> str:
    """The first setting in which two studies differ, in words."""
    for name in SAME:
        here, there = getattr(ours[0], name), getattr(theirs[0], name)
        if here != there:
            return f"{name} is {there} there and {here} here"
    batches = {point.length: point.batch for point in theirs}
    for point in ours:
        there = batches.get(point.length, point.batch)
        if there != point.batch:
            return f"batch at length {point.length} is {there} there and {point.batch} here"
    return ""


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def other_machine(old: Mapping[str, Any], new: Mapping[str, Any], device: str) -> str:
    """How the machine of a study's first points differs from this one, in words; nothing where it does not.

    What either does not tell is no difference, and GPUs are none to a study on the CPU.
    """
    for key in DECISIVE if device != "cpu" else DECISIVE[:-1]:
        there, here = _trait(old, key), _trait(new, key)
        if there and here and there != here:
            return f"{key} was {_said(there)} there and is {_said(here)} here"
    return ""


def _trait(environment: Mapping[str, Any], key: str) -> Any:
    """A field of an environment; of GPUs what stays, for their clocks move by the second."""
    if key == "gpus":
        return [(gpu.get("name"), gpu.get("memory_mib")) for gpu in environment.get(key) or []]
    return environment.get(key)


def _said(trait: Any) -> str:
    return ", ".join(str(name) for name, _ in trait) if isinstance(trait, list) else str(trait)


def environment(folder: Path) -> dict[str, Any]:
    """The environment that a study left, or nothing."""
    try:
        found = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
