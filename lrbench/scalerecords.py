"""What a scaling study writes: `points.jsonl`, a line a point, and `record.json` with everything fitted to them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lrbench.files import told, write_atomic
from lrbench.points import Level, Mode, ScalePoint
from lrbench.records import LeftOut, Status, dumps, warn, why
from lrbench.specs import Dtype, Frozen

POINT_SCHEMA, STUDY_SCHEMA = "lrbench.scale/1", "lrbench.study/1"


class Exponent(Frozen):
    """An exponent of length with its 95 % interval (null: too few lengths), and the lengths it stands on."""

    exponent: float
    ci_low: float | None
    ci_high: float | None
    lengths: list[int]


class OffsetExponent(Exponent):
    """Of value = offset + factor · n^exponent; `offset` in milliseconds or bytes."""

    offset: float
    share: float  # of the offset in the value at the smallest length


class Local(Frozen):
    """The exponent between two neighbouring lengths and its standard error, where the noise is known."""

    shorter: int
    longer: int
    exponent: float
    error: float | None


class Cliff(Frozen):
    """A step in the curve: the first length behind it. `f` and `critical` are null for an alarm of local exponents."""

    at: int
    factor: float | None
    f: float | None
    critical: float | None


class Fit(Frozen):
    """A curve of times or bytes. `headline` names the fit that `exponent` comes from.

    `side`: a cliff was found, and the exponent is that of the lengths behind it (null: fewer than three).
    """

    exponent: float | None
    ci_low: float | None
    ci_high: float | None
    headline: Literal["loglog", "offset", "side"]
    interval: Literal["residual t", "t over sweeps"]
    lengths: list[int]
    loglog: Exponent
    offset: OffsetExponent | None
    local: list[Local]
    tail: Exponent | None  # log-log, of the lengths among the longest four of the study
    consistent_with: list[str]  # of n, n log n, n^1.5, n^2
    cliff: Cliff | None
    sides: list[Exponent]


class Crossing(Frozen):
    """From which length on the model is cheaper than `against`; `length` is null where it was not reached."""

    against: str
    kind: Literal["at", "below", "above", "indistinguishable", "several", "unknown"]
    length: float | None
    ci_low: float | None
    ci_high: float | None
    cheaper_after: Literal["model", "against"] | None
    text: str


class RatioAt(Frozen):
    """Time of the model over time of `against` at a length, taken within rounds, with a t interval.

    `clear`: the interval excludes 1, and the difference exceeds the noise floor.
    """

    against: str
    length: int
    ratio: float
    ci_low: float | None
    ci_high: float | None
    generations: int
    logs: list[float]  # ln ratio of each generation
    clear: bool


class Within(Frozen):
    """The longest length whose memory stays within a budget; see `lrbench.scaling.beyond.Longest`."""

    budget_bytes: int
    length: int | None
    over: int | None
    estimate: int | None
    extrapolated: bool


class Beyond(Frozen):
    """A time or memory at a length that was not measured, with the range the truth may lie in."""

    length: int
    value: float
    low: float
    high: float


class Outgrown(Frozen):
    """The peak of memory exceeds a cache, or half of the memory, from `at` on; `fits` is the length before, if any."""

    what: str
    size_bytes: int
    fits: int | None
    at: int


class ModelFits(Frozen):
    """All that was found out about one model."""

    name: str
    settings: dict[str, Any]
    source: str
    order: str | None  # that the backend declares
    statuses: dict[int, Status]
    reasons: dict[int, str]
    time: Fit | None  # of the median, milliseconds
    memory: Fit | None  # of the peak above the start, bytes
    crossover: list[Crossing]  # in time
    memory_crossover: list[Crossing]
    ratios: list[RatioAt]
    longest_fitted: int | None
    longest_within: list[Within]
    outgrown: list[Outgrown] = []
    extrapolated_ms: Beyond | None
    remarks: list[str]


class NoiseFloor(Frozen):
    """Two copies of one backend: their ratios, truth 1, and the difference below which nothing is a difference."""

    model: str
    floor: float | None
    ratios: dict[int, list[float]]


class Precision(Frozen):
    """The half-width, relative, that was asked for, and the worst that was reached."""

    asked: float
    reached: float | None
    missed: int  # points


class Change(Frozen):
    """How a ratio to the same reference, or a peak of memory, differs from that of an older study."""

    model: str
    length: int
    what: Literal["time", "memory"]
    factor: float
    ci_low: float | None
    ci_high: float | None
    beyond_noise: bool


class Drift(Frozen):
    """A comparison with an older study. Times are compared as ratios to `reference` only."""

    study_id: str
    reference: str
    differs: list[str]  # of the machines; where there is any, times are shown and prove nothing
    changes: list[Change]


class StudyRecord(Frozen):
    """`record.json` of a study."""

    schema_: Literal["lrbench.study/1"] = Field("lrbench.study/1", alias="schema")
    study_id: str
    mode: Mode
    level: Level
    causal: bool
    width: int
    heads: int
    batch: int | None
    tokens: int | None
    dtype: Dtype
    device: str
    threads: int | None
    compile: bool
    seed: int
    lengths: list[int]
    reference: str
    models: dict[str, ModelFits]
    noise: NoiseFloor | None
    precision: Precision
    matmul_peak_flops: dict[str, float | None]  # FLOP/s at the start and at the end
    matmul_pace_flops: dict[int, float] = {}  # of one product, while a length was measured
    points: dict[str, int]  # how many of each status
    flags: dict[str, int]  # how many points of each flag
    seconds: dict[str, float]
    drift: Drift | None = None
    warnings: list[str]
    methods: dict[str, str]
    settings: dict[str, Any]
    started_at: str
    finished_at: str
    lrbench_version: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return self.model_dump(mode="json", by_alias=True)


def write(record: StudyRecord, environment: dict[str, Any], folder: Path) -> None:
    """Write `environment.json`, then `record.json`: who sees the record has all of the study."""
    write_atomic(folder / "environment.json", dumps(environment, indent=1) + "\n")
    write_atomic(folder / "record.json", dumps(record.to_json(), indent=1) + "\n")


def read(path: Path, left_out: LeftOut = warn) -> StudyRecord | None:
    """A study's record, or None with a warning that names the file if it is damaged or newer than this program."""
    try:
        return StudyRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        left_out(told(path), why(error, STUDY_SCHEMA))
        return None


def read_points(path: Path, left_out: LeftOut = warn) -> list[ScalePoint]:
    """The points of a `points.jsonl`. A torn last line is what a kill leaves; any other bad line is named."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(ScalePoint.model_validate(json.loads(line.decode("utf-8"))))
        except ValueError as error:
            torn = " (torn)" if number == len(lines) else ""
            left_out(f"{told(path)}:{number}{torn}", why(error, POINT_SCHEMA))
    return found


def folders(places: Iterable[Path | str]) -> list[Path]:
    """All study folders below the given ones, whether or not they were finished."""
    roots = [Path(place).expanduser() for place in places]
    return sorted({path.parent for root in roots for path in root.rglob("points.jsonl")})


def load(places: Iterable[Path | str]) -> list[StudyRecord]:
    """All study records below the given folders."""
    return [record for folder in folders(places) if (record := read(folder / "record.json")) is not None]
