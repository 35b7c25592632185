"""A scaling study: backends × lengths, memory and time, each point in processes of its own.

How to call it::

    study = run_study(points, StudyOptions(folder=Path("results/scale/ID")), listener)

`points` are `PointSpec`s, all backends × all lengths, in any order; they share everything but backend and length.
`run_study` measures length by length, the shortest first: memory of each backend, then the times of all of them in
rounds. A length's points are appended to `folder/points.jsonl` as soon as they are finished; a call with the same
folder measures only what is missing there. `study.points` holds all of them in the order of `points`, then the copies
of the A/A control (`control=True`, times only).

- `ScalePoint.time_ms.rounds[g][r]` is the block median of round r in generation g. The same g and r of another backend
  at that length ran within seconds of it, so ratios are taken there: a generation's value is the mean of its log
  ratios, the unit of all statistics (`log_ratios`).
- Statuses: a failed point ends its curve, longer ones are `skipped` when it was `oom` or `timeout`.
- Flags of a point: `contended` (more than a fifth of its blocks waited for a CPU), `denormals`, `untracked`,
  `untouched`, `below_resolution`, `rss_unreset`, `alloc_retries`, `precision_missed`, `single_generation`,
  `in_process`. That the machine's matmul peak moved, or that it is too noisy, is among the study's `warnings`.
- `Ctrl-C` (KeyboardInterrupt) passes through; finished lengths are in the file, and children end with this process.

Raises:
    SpecError, Missing: the request or the machine is wrong; before the first point.
"""

import logging
import math
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from time import monotonic
from typing import Any, Literal, Protocol

import psutil

from lrbench import scaledrift
from lrbench.environment import storage
from lrbench.environment.probes import Unreadable
from lrbench.errors import SpecError
from lrbench.files import write_atomic
from lrbench.measure import budget, race
from lrbench.measure.children import Child, Children, children
from lrbench.measure.failures import Failure
from lrbench.measure.host import Limits
from lrbench.measure.point import Found, Prediction, assemble, measure_memory
from lrbench.measure.predict import MIB, extrapolated, guard
from lrbench.measure.race import Race, Rules, Times
from lrbench.points import PointSpec, ScalePoint
from lrbench.records import dumps
from lrbench.scalerecords import read_points
from lrbench.specs import AttentionSpec

log = logging.getLogger(__name__)

Pass = Literal["memory", "time"]
FILE = "points.jsonl"
MACHINE, PREDICTOR = "lrbench.measure.peak:Machine", "lrbench.measure.predict:Predictor"
OPTIONS = "lrbench.measure.options:Options"
MACHINE_S, PREDICT_S, IMPORT_S = 120.0, 20.0, 30.0
BASE_BYTES = 260 * MIB  # of a child before its point
FREE_SHARE = 0.9
DRIFT = 0.15
CONTROL = "control"


@dataclass(frozen=True)
class StudyOptions:
    """How a study is run. None of it is part of what a point is.

    Args:
        folder: of `points.jsonl`; made if missing.
        memory_limit_bytes: what one point may take; by default nine tenths of what is free here.
        time_limit_s: what one call of a point may take.
        precision: half-width, relative, of the 95 % interval of a backend's ratio to the reference.
        budget_s: seconds for the whole study, imports and memory passes included. Once they are over, a length gets its
            memory pass and one generation of one round; what is imprecise by then is flagged `precision_missed`.
        least_generations, most_generations: of fresh workers at a length; the budget may end a length earlier.
        rounds: blocks of each worker.
        memory, time: which passes to make.
        control: time a second copy of one backend.
        in_process: no children: for debuggers. Nothing is limited, and points influence each other.
        force: run what was predicted to fail.
        resume: keep the finished points of the folder.
    """

    folder: Path
    memory_limit_bytes: int | None = None
    time_limit_s: float = 60.0
    precision: float = 0.05
    budget_s: float = 480.0
    least_generations: int = 3
    most_generations: int = 20
    rounds: int = 5
    memory: bool = True
    time: bool = True
    control: bool = True
    in_process: bool = False
    force: bool = False
    resume: bool = True


@dataclass(frozen=True)
class Noise:
    """What the A/A control says: ratios of two copies of the same backend, truth 1."""

    model: str
    ratios: dict[int, list[float]]  # by length, one for each generation
    floor: float | None  # relative: differences below it are noise


@dataclass
class Study:
    """A finished study: points and what they stand on."""

    points: list[ScalePoint]
    reference: str  # label of the backend that the others are compared with while measuring
    noise: Noise | None
    peak_flops: dict[str, float | None]  # FLOP/s of matrix products at "start" and "end"
    pace_flops: dict[int, float]  # of one such product, in the middle, before and after the times of each length
    environment: dict[str, Any]  # of the start; load of the end in "at_end", median wait of blocks "run_queue_delay"
    seconds: dict[str, float]  # "total", "measured" (calls of regions), "imports", "overhead" (the rest)
    warnings: list[str] = field(default_factory=list)


class Listener(Protocol):
    """Told what happens while a study runs; called in the thread of `run_study`."""

    def plan(self, points: Sequence[PointSpec], finished: Sequence[ScalePoint]) -> None:
        """`points` will be measured, `finished` were there already."""

    def at(self, point: PointSpec, what: Pass) -> None:
        """A pass over a point begins; in the time pass once a generation."""

    def tick(self, spent_s: float, budget_s: float) -> None:
        """Called several times a second to once a block."""

    def done(self, point: ScalePoint) -> None:
        """A point is finished and written."""


class Silent:
    """A listener that says nothing."""

    def plan(self, points: Sequence[PointSpec], finished: Sequence[ScalePoint]) -> None: ...
    def at(self, point: PointSpec, what: Pass) -> None: ...
    def tick(self, spent_s: float, budget_s: float) -> None: ...
    def done(self, point: ScalePoint) -> None: ...


def run_study(points: Sequence[PointSpec], options: StudyOptions, listener: Listener | None = None) -> Study:
    """Measure what is missing of a study and return all of it."""
    check(points)
    known = read_points(options.folder / FILE) if options.resume else []
    started = monotonic()
    with children(points[0].device, options.in_process) as host:
        return _Driver(points, options, listener or Silent(), host, known, started).run()


def log_ratios(point: ScalePoint, other: ScalePoint) -> list[float]:
    """ln(time of `point` / time of `other`), one value for each generation that both have."""
    if point.time_ms is None or other.time_ms is None:
        return []
    return race.log_ratios(point.time_ms.rounds, other.time_ms.rounds)


def check(points: Sequence[PointSpec]) -> None:
    """Refuse a study that is none.

    Raises:
        SpecError
    """
    if not points:
        raise SpecError("a study of no points", "name models and lengths")
    if len({(point.device, point.dtype, point.threads, point.mode, point.level) for point in points}) > 1:
        raise SpecError("a study of unlike points", "one study has one device, dtype, mode, level and thread count")
    if len({point.model_dump_json() for point in points}) < len(points):
        raise SpecError("a study in which a point stands twice", "name each model and each length once")


class _Driver:
    """One call of `run_study`."""

    def __init__(
        self,
        points: Sequence[PointSpec],
        options: StudyOptions,
        listener: Listener,
        host: Children,
        known: list[ScalePoint],
        started: float,
    ) -> None:
        self.points, self.options, self.listener, self.host = points, options, listener, host
        self.started, self.imports_s, self.measured_s = started, monotonic() - started, 0.0
        self.rng = random.Random(points[0].seed)
        self.threads = points[0].threads or available_cores()
        self.limit = options.memory_limit_bytes or free_bytes(points[0].device)
        self.known = {(point.spec.model_dump_json(), point.control): point for point in known}
        self.predictions: dict[str, Prediction] = {}
        self.unpredictable: set[str] = set()  # curves that cannot do with fake tensors
        self.seconds: dict[str, tuple[int, float]] = {}  # of the longest length that a curve has been timed at
        self.ended: dict[str, str] = {}  # curves that ran out, and of what
        self.done: list[ScalePoint] = []
        self.delays: list[float] = []  # shares of blocks that waited for a CPU
        self.paces: dict[int, float] = {}
        self.peak: float | None = None
        self.idle_w: float | None = None
        self.machine_s = 0.0  # for the look at the machine, which is taken again at the end

    def run(self) -> Study:
        """All lengths, the shortest first."""
        lengths = sorted({point.length for point in self.points})
        todo = [length for length in lengths if not self._complete(length)]
        self._check_options(todo)
        kept = [point for length in lengths if length not in todo for point in self._of(length)]
        for point in kept:
            self._remember(point.spec, point.status, point.time_ms.median / 1e3 if point.time_ms else None)
        self.done = kept
        self.listener.plan([point for point in self.points if point.length in todo], kept)
        began = monotonic()
        environment, start = self._machine()
        self.machine_s = monotonic() - began
        self._open(environment)
        self.peak, self.idle_w = start, environment.get("energy", {}).get("idle_w")
        self._predict_all(todo)
        for length in todo:
            self._length(length, [other for other in todo if other >= length])
        at_end, end = self._machine() if todo else (environment, None)
        waited = median(self.delays) if self.delays else None
        environment |= {"at_end": moment(at_end), "run_queue_delay": waited}
        return self._study(environment, {"start": start, "end": end})

    # before the first point

    def _check_options(self, todo: Sequence[int]) -> None:
        """Refuse options that a user's file does not take. What breaks on the way there is for its points to record.

        Raises:
            SpecError
        """
        files = {curve(spec.attention): spec.attention for spec in self.points if spec.length in todo}
        for attention in (each for each in files.values() if each.digest is not None):
            try:
                child = self.host.start(OPTIONS, None, Limits())
                complaint = child.call("complaint", IMPORT_S, attention=attention.model_dump(mode="json"))
                child.close()
            except Failure as failure:
                log.debug("%s: its options could not be checked: %s", attention.label, failure.reason)
                continue
            if complaint is not None:
                raise SpecError(*complaint)

    def _open(self, environment: dict[str, Any]) -> None:
        """Make the folder ready and note which machine works in it; refuse to go on where another one began.

        Raises:
            SpecError
        """
        folder = self.options.folder
        before = scaledrift.environment(folder) if self.known else {}
        differs = scaledrift.other_machine(before, environment, self.points[0].device)
        if differs:
            raise SpecError(
                f"{folder}: begun on another machine: {differs}",
                "--no-resume measures all of it here, --out keeps both",
            )
        folder.mkdir(parents=True, exist_ok=True)
        if not self.options.resume:
            (folder / FILE).unlink(missing_ok=True)
        if environment:
            write_atomic(folder / scaledrift.ENVIRONMENT, dumps(environment, indent=1) + "\n")

    # which points there are

    def _complete(self, length: int) -> bool:
        """Whether all points of a length are known. They are measured together, so that ratios can be taken."""
        return all(
            (point := self.known.get((spec.model_dump_json(), False))) is not None and point.status != "interrupted"
            for spec in self._at(length)
        )

    def _at(self, length: int) -> list[PointSpec]:
        return [point for point in self.points if point.length == length]

    def _of(self, length: int) -> list[ScalePoint]:
        keys = [(spec.model_dump_json(), control) for control in (False, True) for spec in self._at(length)]
        return [self.known[key] for key in keys if key in self.known]

    @property
    def reference(self) -> str:
        """The curve that ratios are taken to: fused full attention, or the first."""
        curves = [point.attention for point in self.points]
        fused = [a for a in curves if a.name == "full" and a.settings.get("impl", "fused") == "fused"]
        return curve((fused or curves)[0])

    @property
    def control(self) -> str | None:
        """The curve that is timed twice: the one with the fewest operations, which costs least and varies most."""
        if not (self.options.control and self.options.time):
            return None
        longest = max(self.points, key=lambda point: point.length).length
        counts = {curve(point.attention): self._prediction(point).model for point in self._at(longest)}
        counted = {name: count for name, count in counts.items() if count}
        return min(counted, key=lambda name: counted[name]) if counted else self.reference

    # what is known beforehand

    def _machine(self) -> tuple[dict[str, Any], float | None]:
        """Environment, the source of energy with idle power, and matmul peak, from a child with the points' threads."""
        payload = {"dtype": self.points[0].dtype, "device": self.points[0].device}
        try:
            child = self.host.start(MACHINE, payload, Limits(threads=self.threads))
            environment = child.call("fingerprint", MACHINE_S)
            environment["energy"] = energy = child.call("energy", MACHINE_S)
            if energy["reason"]:
                environment["reasons"]["energy"] = energy["reason"]
            best = child.call("best", MACHINE_S)
            child.close()
        except Failure as failure:
            log.warning("the machine's matmul peak could not be measured: %s", failure.reason)
            return {}, None
        self.measured_s += best["spent_s"]
        return environment, best["flops"]

    def _pace(self) -> float | None:
        """How fast the machine is now; None without a time pass, or where it cannot be had."""
        if not self.options.time:
            return None
        try:
            payload = {"dtype": self.points[0].dtype, "device": self.points[0].device}
            child = self.host.start(MACHINE, payload, Limits(threads=self.threads))
            found = child.call("pace", MACHINE_S)
            child.close()
        except Failure as failure:
            log.debug("the machine's pace could not be measured: %s", failure.reason)
            return None
        self.measured_s += found["spent_s"]
        return float(found["flops"])

    def _predict_all(self, todo: Sequence[int]) -> None:
        """Under fake tensors, in one child, for it takes a second to get going; a new one after each failure."""
        child: Child | None = None
        for spec in sorted((point for point in self.points if point.length in todo), key=lambda point: point.length):
            if curve(spec.attention) in self.unpredictable:
                continue
            try:
                child = child or self.host.start(PREDICTOR, None, Limits())
                found = child.call("predict", PREDICT_S, spec=spec.model_dump(mode="json"))
                self.predictions[spec.model_dump_json()] = Prediction(**found)
            except Failure as failure:
                log.debug("%s at %d: no prediction: %s", spec.attention.label, spec.length, failure.reason)
                self.unpredictable.add(curve(spec.attention))
                child = None
            self._tick()
        if child is not None:
            child.close()

    def _prediction(self, spec: PointSpec) -> Prediction:
        """From fake tensors, else from shorter lengths of the same curve."""
        if (found := self.predictions.get(spec.model_dump_json())) is not None:
            return found
        shorter = [
            point
            for point in self.done
            if point.spec.attention == spec.attention and point.memory_bytes and point.memory_bytes.total is not None
        ]
        peaks = [point.memory_bytes.total or 0 for point in shorter if point.memory_bytes]
        return Prediction(total=extrapolated([point.length for point in shorter], peaks, spec.length))

    def _foreseen(self, spec: PointSpec) -> Failure | None:
        """Why a point need not be tried."""
        name = curve(spec.attention)
        if (why := self.ended.get(name)) is not None:
            return Failure("skipped", why)
        if self.options.force:
            return None
        need = self._prediction(spec).total
        # fake tensors miss scratch only: what they say is needed. A limit is kept by the child itself, so it may be
        # tried up to there; the machine's own memory must hold the margin as well
        if need is not None and (need > self.limit or guard(need, BASE_BYTES) > free_bytes(spec.device)):
            return Failure("oom", f"needs {need / MIB:.0f} MiB, the limit is {self.limit / MIB:.0f} MiB", "allocator")
        if name in self.seconds:
            # no margin: what takes longer than it should is ended at the limit, which is a result too
            likely, limit_s = self._longer_s(spec, *self.seconds[name]), self.options.time_limit_s
            if likely > limit_s:
                return Failure("timeout", f"would take {likely:.0f} s a call, the limit is {limit_s:.0f} s")
        return None

    # measuring

    def _length(self, length: int, left: Sequence[int]) -> None:
        """Memory of each backend, then the times of all, then their lines in the file."""
        found = {curve(spec.attention): (spec, Found(prediction=self._prediction(spec))) for spec in self._at(length)}
        for spec, point in found.values():
            point.failure = self._foreseen(spec)
            point.foreseen = point.failure is not None and point.failure.status != "skipped"
            if point.failure is None and self.options.memory:
                self._memory(spec, point)
        before = self._pace()
        control = self._time(found, left) if self.options.time else None
        after = self._pace()
        if before and after:
            self.paces[length] = math.sqrt(before * after)
        for spec, point in found.values():
            failure = point.failure or (point.times.failure if point.times else None)
            self._remember(spec, failure.status if failure else "ok", point.seconds)
        self._write(found, control)

    def _memory(self, spec: PointSpec, point: Found) -> None:
        self.listener.at(spec, "memory")
        limits = Limits(threads=self.threads, data_bytes=self._data_bytes(spec), pinned=True)
        try:
            measure_memory(self.host, spec, limits, self.options.time_limit_s, point)
        except Failure as failure:
            point.failure = failure
        self.measured_s += point.measured_s
        self._tick()

    def _data_bytes(self, spec: PointSpec) -> int | None:
        return self.limit if spec.device == "cpu" else None

    def _time(self, found: dict[str, tuple[PointSpec, Found]], left: Sequence[int]) -> "tuple[str, Times] | None":
        """A race of all that are still in it, and of the control; the control's times."""
        specs = {name: spec for name, (spec, point) in found.items() if point.failure is None}
        if not specs:
            return None
        twice = self.control if self.control in specs else None
        entrants = specs | ({CONTROL: specs[twice]} if twice else {})
        for spec in specs.values():
            self.listener.at(spec, "time")
        racers = Race(
            self.host,
            entrants,
            self.reference,
            Limits(threads=self.threads, data_bytes=self._data_bytes(next(iter(specs.values())))),
            self._rules(found, left),
            self.rng,
            self._tick,
        )
        times = racers.run()
        self.measured_s += racers.measured_s
        self.delays += [delay for each in times.values() for delay in each.delays]
        for name in specs:
            found[name][1].times = times[name]
        return (twice, times[CONTROL]) if twice else None

    def _rules(self, found: dict[str, tuple[PointSpec, Found]], left: Sequence[int]) -> Rules:
        """With this length's share of the time that is left."""
        length = left[0]
        calls = {name: point.seconds or self._seconds_at(name, length) for name, (_, point) in found.items()}
        alive = {name: seconds for name, seconds in calls.items() if found[name][1].failure is None}
        least = {length: budget.least_s([*alive.values()])}
        for before, longer in pairwise(left):
            alive = self._grown(alive, before, longer)
            least[longer] = budget.least_s([*alive.values()])
        options = self.options
        left_s = options.budget_s - self.machine_s - (monotonic() - self.started)
        share_s = budget.share(options.budget_s, left_s, least, length)
        return Rules(
            precision=options.precision,
            least=options.least_generations,
            most=options.most_generations,
            rounds=options.rounds,
            # what a length needs may exceed what is left: then one generation has to do
            budget_s=min(share_s, max(0.0, left_s)),
            time_limit_s=options.time_limit_s,
        )

    def _grown(self, calls_s: dict[str, float], length: int, longer: int) -> dict[str, float]:
        """What calls will take, of those curves that are likely to get there."""
        grown = {}
        for spec in self._at(longer):
            name = curve(spec.attention)
            seconds = calls_s.get(name)
            if seconds is None or (self._prediction(spec).total or 0) > self.limit:
                continue
            after_s = self._longer_s(spec, length, seconds)
            if after_s <= self.options.time_limit_s:
                grown[name] = budget.likely_s(after_s, self._prediction(spec).model, self.peak)
        return grown

    def _longer_s(self, spec: PointSpec, length: int, seconds: float) -> float:
        """What a call of a point takes if it took so long at a shorter length."""
        shorter = self._prediction(spec.model_copy(update={"length": length}))
        return budget.grown(seconds, (shorter.model, self._prediction(spec).model), (length, spec.length))

    def _seconds_at(self, name: str, length: int) -> float:
        if name not in self.seconds:
            return 0.0
        before, seconds = self.seconds[name]
        return budget.grown(seconds, (None, None), (before, length))

    def _remember(self, spec: PointSpec, status: str, seconds: float | None) -> None:
        """What a point says of longer ones of its curve."""
        name = curve(spec.attention)
        if seconds is not None:
            self.seconds[name] = (spec.length, seconds)
        if status in ("oom", "timeout"):
            self.ended.setdefault(name, f"{status} at length {spec.length}")

    def _write(self, found: dict[str, tuple[PointSpec, Found]], control: "tuple[str, Times] | None") -> None:
        """All points of a length in one go: a kill leaves all or none of them, or a torn last line."""
        precision = self.options.precision
        extra = ["in_process"] if self.options.in_process else []
        points = []
        for spec, point in found.values():
            point.flags += extra
            points.append(assemble(spec, point, self.peak, precision, control=False, idle_w=self.idle_w))
        if control is not None:
            name, times = control
            spec, point = found[name]
            copy = Found(prediction=point.prediction, times=times, flags=list(extra))
            points.append(assemble(spec, copy, self.peak, precision, control=True, idle_w=self.idle_w))
        append(self.options.folder / FILE, points)
        self.done += points
        for finished in points:
            self.listener.done(finished)

    def _tick(self) -> None:
        self.listener.tick(monotonic() - self.started, self.options.budget_s)

    # the end

    def _study(self, environment: dict[str, Any], peaks: dict[str, float | None]) -> Study:
        total = monotonic() - self.started
        seconds = {"total": total, "measured": self.measured_s, "imports": self.imports_s}
        seconds["overhead"] = total - self.measured_s - self.imports_s
        order = {spec.model_dump_json(): place for place, spec in enumerate(self.points)}
        done = sorted(self.done, key=lambda point: (point.control, order[point.spec.model_dump_json()]))
        label = next(spec.attention.label for spec in self.points if curve(spec.attention) == self.reference)
        noise = noise_of(done)
        warnings = self._warnings(done, noise, peaks)
        return Study(done, label, noise, peaks, self.paces, environment, seconds, warnings)

    def _warnings(self, done: list[ScalePoint], noise: Noise | None, peaks: dict[str, float | None]) -> list[str]:
        found = []
        start, end = peaks["start"], peaks["end"]
        if start and end and abs(math.log(end / start)) > math.log1p(DRIFT):
            found.append(f"the machine's matmul peak moved from {start / 1e9:.0f} to {end / 1e9:.0f} GFLOP/s")
        if noise and noise.floor is not None and noise.floor > self.options.precision:
            asked = f"{self.options.precision:.0%} were asked for"
            found.append(f"this machine is too noisy now: equal backends differ by {noise.floor:.0%}, {asked}")
        contended = sum("contended" in point.flags for point in done)
        if contended > len(done) / 5:
            found.append(f"{contended} of {len(done)} points waited for a CPU: something else runs here")
        return found


def noise_of(points: Sequence[ScalePoint]) -> Noise | None:
    """From all A/A pairs. The floor is twice the root mean square of what they differ by at a length."""
    ratios: dict[int, list[float]] = {}
    for copy in (point for point in points if point.control):
        for point in points:
            if not point.control and point.spec == copy.spec:
                ratios[point.length] = [math.exp(value) for value in log_ratios(copy, point)]
    if not ratios:
        return None
    means = [mean(math.log(ratio) for ratio in values) for values in ratios.values() if values]
    floor = math.expm1(2 * math.sqrt(mean(value**2 for value in means))) if means else None
    label = next(point.spec.attention.label for point in points if point.control)
    return Noise(label, ratios, floor)


def append(path: Path, points: Sequence[ScalePoint]) -> None:
    """Add lines; a torn last one is ended first."""
    torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    lines = "".join(dumps(point.model_dump(mode="json", by_alias=True)) + "\n" for point in points)
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + lines)
        file.flush()
        os.fsync(file.fileno())


def curve(attention: AttentionSpec) -> str:
    """What names a backend and its settings for good, where labels of files may coincide."""
    return attention.model_dump_json()


def moment(environment: dict[str, Any]) -> dict[str, Any]:
    """Of an environment what changes by the minute."""
    return {key: environment.get(key) for key in ("load_average", "steal_ticks", "memory_available_bytes")}


def available_cores() -> int:
    """Physical cores that this process may use."""
    return max(1, min(psutil.cpu_count(logical=False) or 1, usable_cpus()))


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes(device: str) -> int:
    """Nine tenths of what is free: of the machine, within what a container allows."""
    if device.startswith("cuda"):
        import torch

        return int(FREE_SHARE * torch.cuda.mem_get_info(torch.device(device))[0])
    free = psutil.virtual_memory().available
    with suppress(Unreadable, OSError):
        free = min(free, storage.memory_limit())
    return int(FREE_SHARE * free)
