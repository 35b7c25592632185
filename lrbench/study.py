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
  `untouched`, `below_resolution`, `rss_unreset`, `precision_missed`, `single_generation`, `drifted` (the machine's
  matmul peak changed by more than 15 % during the study), `in_process`.
- `Ctrl-C` (KeyboardInterrupt) passes through; finished lengths are in the file, and children end with this process.

Raises:
    SpecError, Missing: the request or the machine is wrong; before the first point.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from lrbench.points import PointSpec, ScalePoint

Pass = Literal["memory", "time"]


@dataclass(frozen=True)
class StudyOptions:
    """How a study is run. None of it is part of what a point is.

    Args:
        folder: of `points.jsonl`; made if missing.
        memory_limit_bytes: what one point may take; by default nine tenths of what is free here.
        time_limit_s: what one call of a point may take.
        precision: half-width, relative, of the 95 % interval of a backend's ratio to the reference.
        budget_s: seconds for the whole study; what is imprecise by then is flagged `precision_missed`.
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
    environment: dict[str, Any]  # of the start; load and run-queue delay of the end in "at_end"
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
    raise NotImplementedError


def log_ratios(point: ScalePoint, other: ScalePoint) -> list[float]:
    """ln(time of `point` / time of `other`), one value for each generation that both have."""
    raise NotImplementedError
