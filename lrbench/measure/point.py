"""The memory pass of one point, and a point's record put together."""

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from lrbench.measure import energy, memory
from lrbench.measure.children import Children
from lrbench.measure.failures import Failure
from lrbench.measure.host import Limits
from lrbench.measure.race import GRACE_S, Times
from lrbench.points import Flops, MemoryBytes, PointSpec, ScalePoint, TimeMs
from lrbench.stats import over_seeds

PROBE = "lrbench.measure.memory:MemoryProbe"
CONTENDED_SHARE = 0.2  # of blocks
RAN_OUT = ("oom", "timeout", "skipped")  # statuses of points that a prediction of memory still says something about


@dataclass
class Prediction:
    """What fake tensors, or smaller lengths, say; None where neither could."""

    extra: int | None = None
    total: int | None = None
    executed: int | None = None
    model: int | None = None


@dataclass
class Found:
    """What is known of a point so far."""

    prediction: Prediction = field(default_factory=Prediction)
    memory: MemoryBytes | None = None
    call_s: float | None = None  # of one call, as the memory pass saw it
    times: Times | None = None
    failure: Failure | None = None
    foreseen: bool = False
    flags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    measured_s: float = 0.0

    @property
    def seconds(self) -> float | None:
        """Of one call."""
        return self.times.median_ms / 1e3 if self.times and self.times.rounds else self.call_s


def measure_memory(children: Children, spec: PointSpec, limits: Limits, limit_s: float, found: Found) -> None:
    """Fill in the memory of a point, from one child.

    Raises:
        Failure
    """
    child = children.start(PROBE, spec.model_dump(mode="json"), limits)
    try:
        first = child.call("first", limit_s + GRACE_S)
        traced = child.call("traced", limit_s + GRACE_S)
        found.call_s = traced["spent_s"]
        # without a resident figure to be had from it, the call would be for nothing
        unknown: dict[str, Any] = {"resident": None, "reset": True, "spent_s": 0.0}
        resident = child.call("resident", limit_s + GRACE_S) if spec.device == "cpu" else unknown
        found.call_s = resident["spent_s"] or found.call_s
    finally:
        child.close()
    found.measured_s += sum(part["spent_s"] for part in (first, traced, resident))
    figure, agree, flags = memory.judge(traced["extra"], resident["resident"], resident["reset"])
    found.flags += flags + (["alloc_retries"] if traced.get("retries") else [])
    found.notes += traced["notes"]
    found.memory = MemoryBytes(
        extra=traced["extra"],
        total=traced["total"],
        resident=figure,
        saved=first["saved"],
        reserved=traced["reserved"],
        predicted=found.prediction.extra,
        agree=agree,
        method=memory.method(spec.device),
    )


def assemble(
    spec: PointSpec,
    found: Found,
    peak_flops: float | None,
    precision: float,
    control: bool,
    idle_w: float | None = None,
) -> ScalePoint:
    """The record of a point: measured fields only if all went well. `idle_w`: power that is no point's doing."""
    failure = found.failure or (found.times.failure if found.times else None)
    blank: dict[str, Any] = {
        "model": spec.attention.name,
        "settings": spec.attention.settings,
        **{name: getattr(spec, name) for name in SHARED},
        "control": control,
        "spec": spec,
    }
    if failure is not None:
        return ScalePoint(
            **blank,
            status=failure.status,
            reason=failure.reason,
            predicted=found.foreseen,
            memory_bytes=only_predicted(found.prediction) if failure.status in RAN_OUT else None,
        )
    times = found.times
    seconds = times.median_ms / 1e3 if times else None
    tokens = spec.batch * spec.length
    joules, why = energy.per_call(times.energy if times else [], idle_w)
    count, extra = found.prediction.model, found.memory.extra if found.memory else None
    return ScalePoint(
        **blank,
        status="ok",
        time_ms=summary(times, spec.compile) if times else None,
        memory_bytes=found.memory,
        flops=Flops(model=count, executed=found.prediction.executed),
        fraction_of_matmul_peak=count / seconds / peak_flops if count and seconds and peak_flops else None,
        tokens_per_s=tokens / seconds if seconds else None,
        bytes_per_token=None if extra is None else extra / tokens,
        energy_j=joules,
        flags=[*found.flags, *(time_flags(times, precision) if times else [])],
        notes=list(dict.fromkeys([*found.notes, *(times.notes if times else []), *([why] if why else [])])),
    )


SHARED = ("length", "batch", "width", "heads", "causal", "mode", "level", "dtype", "device", "seed")


def only_predicted(prediction: Prediction) -> MemoryBytes | None:
    """The memory of a point without a figure, where fake tensors told it; guesses from shorter lengths do not count."""
    if prediction.extra is None:
        return None
    return MemoryBytes(
        extra=None,
        total=None,
        resident=None,
        saved=None,
        reserved=None,
        predicted=prediction.extra,
        agree=None,
        method="fake tensors: not run to its end",
    )


def summary(times: Times, compiled: bool) -> TimeMs:
    """Median, its interval over generations, and what it stands on. The interval holds within this study only."""
    generations = [median(blocks) for blocks in times.rounds]
    blocks = [block for rounds in times.rounds for block in rounds]
    interval = over_seeds([math.log(value) for value in generations])
    several = len(generations) > 1
    return TimeMs(
        median=median(generations),
        ci_low=math.exp(interval.low) if several else None,
        ci_high=math.exp(interval.high) if several else None,
        p10=float(np.quantile(blocks, 0.1)),
        p90=float(np.quantile(blocks, 0.9)),
        minimum=times.minimum_ms,
        first=median(times.first_ms),
        compile=median(times.first_ms) - median(generations) if compiled else None,
        repeats=times.calls,
        rounds=times.rounds,
    )


def time_flags(times: Times, precision: float) -> list[str]:
    """What a reader must know of the times."""
    flags = ["contended"] if times.contended > CONTENDED_SHARE else []
    if times.denormals:
        flags.append("denormals")
    if len(times.rounds) < 2:
        flags.append("single_generation")
    if not times.half_width <= precision:
        flags.append("precision_missed")
    return flags
