"""A request for scaling studies carried out: planned, measured, fitted, compared and recorded."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from lrbench import scaledrift, scalefits, scaleplan
from lrbench import scalerecords as records
from lrbench._version import __version__
from lrbench.errors import SpecError, Unsupported
from lrbench.files import lock_of
from lrbench.plan import checked_device
from lrbench.points import ScalePoint
from lrbench.registry import backends
from lrbench.scaleplan import StudyPlan
from lrbench.scaling.landmarks import landmarks
from lrbench.specs import ScaleGrid

if TYPE_CHECKING:
    from lrbench.study import Listener, Study

METHODS = {
    "memory": "peak of the tensor allocator above the region's start; resident peak as a cross-check",
    "time": "rounds of blocks over all backends in random order, in generations of fresh processes",
    "energy": "counters of whole processor packages, or of the GPU, around blocks, less idle power; shared with others",
    "fit": "log-log and offset power laws, least squares on logarithms; residual t intervals, which hold"
    " the exponent in seconds and that in the machine's own matrix products; no resampling",
}
AGAIN = {"error", "interrupted"}  # statuses that are measured again


@dataclass(frozen=True)
class Request:
    """How studies are carried out, and what they are compared with. `cache` holds their locks."""

    out: Path
    cache: Path
    resume: bool = True
    in_process: bool = False
    force: bool = False
    compare: Path | None = None
    control: bool = True


@dataclass(frozen=True)
class Measured:
    """A finished study, and whether it was measured just now."""

    plan: StudyPlan
    record: records.StudyRecord
    points: list[ScalePoint]
    fresh: bool


def run_studies(grid: ScaleGrid, request: Request, listener: "Listener | None" = None) -> list[Measured]:
    """Measure what is missing, one study for each mode.

    Raises:
        SpecError, Missing: the request or the machine is wrong; before the first point.
        Unsupported: the only model that was asked for cannot do it.
    """
    return run_each([grid], request, listener)


def run_each(grids: Sequence[ScaleGrid], request: Request, listener: "Listener | None" = None) -> list[Measured]:
    """The same of several grids; a study that two of them ask for is measured once. Raises as `run_studies`."""
    plans = list({plan.study_id: plan for grid in grids for plan in _plans(grid, request)}.values())
    old = [_old(request, plan) for plan in plans]
    return [_study(plan, request, before, listener) for plan, before in zip(plans, old, strict=True)]


def _plans(grid: ScaleGrid, request: Request) -> list[StudyPlan]:
    """The studies of a grid after a look at its device and models."""
    checked_device(grid.device)
    plans = scaleplan.studies(grid.model_copy(update={"device": _device(grid)}), request.out)
    _check_models(plans[0])
    return plans


def _device(grid: ScaleGrid) -> str:
    """The device that `auto` comes to here, after a look whether it is there."""
    from lrbench.train import devices

    devices.check(grid.device, grid.dtype)
    if grid.device != "auto":
        return grid.device
    return "cpu" if devices.on_cpu("auto") else devices.accelerator()


def _check_models(plan: StudyPlan) -> None:
    """Load what ships or is installed, for the sake of its options. A user's file is loaded by children alone."""
    specs = {scaleplan.identity(point.attention): point.attention for point in plan.points}.values()
    classes = [backends.load(spec).cls for spec in specs if spec.digest is None]
    if plan.grid.causal and len(specs) == 1 and not all(getattr(cls, "can_be_causal", True) for cls in classes):
        raise Unsupported(
            f"{plan.points[0].attention.label} cannot be causal",
            "choose a backend that `lrbench list models --json` marks causal",
        )


def _old(request: Request, plan: StudyPlan) -> scaledrift.Old | None:
    """The study to compare with, read before anything is written; what is resumed is none to compare itself with."""
    if request.compare is None:
        return None
    return scaledrift.find(request.compare, plan.points, besides=plan.folder if request.resume else None)


def _study(plan: StudyPlan, request: Request, old: scaledrift.Old | None, listener: "Listener | None") -> Measured:
    try:
        with FileLock(_lock(plan, request), timeout=0):
            found = finished(plan) if request.resume else None
            measured = found or _measure(plan, request, listener)
            if old is None:
                return measured
            return _compared(measured, old)
    except Timeout:
        raise SpecError(
            f"{plan.folder} is being measured by another process", "wait for it, or choose another --out"
        ) from None


def _lock(plan: StudyPlan, request: Request) -> Path:
    try:
        return lock_of(plan.folder, request.cache)
    except OSError as error:
        raise SpecError(
            f"{request.cache}: {error.strerror}", "set LRBENCH_CACHE to a folder that can be written to"
        ) from None


def finished(plan: StudyPlan) -> Measured | None:
    """The study, if all of it is there."""
    record = records.read(plan.folder / "record.json")
    if record is None or AGAIN & set(record.points):
        return None
    return Measured(plan, record, records.read_points(plan.folder / "points.jsonl"), fresh=False)


def _measure(plan: StudyPlan, request: Request, listener: "Listener | None") -> Measured:
    from lrbench.study import StudyOptions, run_study

    grid, started = plan.grid, time.time()
    options = StudyOptions(
        folder=plan.folder,
        memory_limit_bytes=grid.memory_limit,
        time_limit_s=grid.time_limit,
        precision=grid.precision,
        budget_s=grid.budget,
        control=request.control,
        in_process=request.in_process,
        force=request.force,
        resume=request.resume,
    )
    study = run_study(plan.points, options, listener)
    _refuse_alone(study.points)
    record = _record(plan, study, started)
    records.write(record, study.environment, plan.folder)
    return Measured(plan, record, study.points, fresh=True)


def _refuse_alone(points: Sequence[ScalePoint]) -> None:
    """A model that was asked for alone and can do none of it is an error, not a table of refusals."""
    real = [point for point in points if not point.control]
    models = {scaleplan.identity(point.spec.attention) for point in real}
    if len(models) == 1 and all(point.status == "unsupported" for point in real):
        raise Unsupported(real[0].reason or f"{real[0].model} cannot do that", "choose another model or setting")


def _record(plan: StudyPlan, study: "Study", started: float) -> records.StudyRecord:
    grid = plan.grid
    real = [point for point in study.points if not point.control]
    floor = study.noise.floor if study.noise else None
    budgets = sorted({*scalefits.BUDGETS, *([grid.memory_limit] if grid.memory_limit else [])})
    return records.StudyRecord(
        schema="lrbench.study/1",
        study_id=plan.study_id,
        mode=plan.mode,
        level=grid.level,
        causal=grid.causal,
        width=grid.width,
        heads=grid.heads,
        batch=None if grid.tokens else grid.batch or 1,
        tokens=grid.tokens,
        dtype=grid.dtype,
        device=grid.device,
        threads=grid.threads,
        compile=grid.compile,
        seed=grid.seed,
        lengths=grid.lengths,
        reference=study.reference,
        models=scalefits.fits(
            study.points, floor, budgets, landmarks(study.environment, grid.device), study.pace_flops
        ),
        noise=_noise(study),
        precision=_precision(real, grid.precision),
        matmul_peak_flops=study.peak_flops,
        matmul_pace_flops=study.pace_flops,
        points=dict(Counter(point.status for point in real)),
        flags=dict(Counter(flag for point in real for flag in point.flags)),
        seconds=study.seconds,
        warnings=study.warnings,
        methods=METHODS,
        settings=grid.model_dump(mode="json"),
        started_at=_utc(started),
        finished_at=_utc(time.time()),
        lrbench_version=__version__,
    )


def _noise(study: "Study") -> records.NoiseFloor | None:
    found = study.noise
    return records.NoiseFloor(model=found.model, floor=found.floor, ratios=found.ratios) if found else None


def _precision(points: Sequence[ScalePoint], asked: float) -> records.Precision:
    halves = [
        (point.time_ms.ci_high - point.time_ms.ci_low) / 2 / point.time_ms.median
        for point in points
        if point.time_ms and point.time_ms.ci_low is not None and point.time_ms.ci_high is not None
    ]
    missed = sum("precision_missed" in point.flags for point in points)
    return records.Precision(asked=asked, reached=max(halves, default=None), missed=missed)


def _compared(measured: Measured, old: scaledrift.Old) -> Measured:
    """The study with its drift, on disk as well."""
    environment = scaledrift.environment(measured.plan.folder)
    floor = measured.record.noise.floor if measured.record.noise else None
    found = scaledrift.drift(measured.points, old, floor or 0.0, environment)
    record = measured.record.model_copy(update={"drift": found})
    records.write(record, environment, measured.plan.folder)
    return Measured(measured.plan, record, measured.points, measured.fresh)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
