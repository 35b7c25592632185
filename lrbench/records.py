"""Everything that is written: one `record.json` a run, replaced in one step, versioned, strict JSON."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from lrbench.files import told, write_atomic
from lrbench.specs import Frozen

log = logging.getLogger(__name__)

LeftOut = Callable[[str, str], None]  # told of every file or line that is not read, and why
Status = Literal["ok", "error", "oom", "timeout", "unsupported", "interrupted", "skipped"]


class ModelInfo(Frozen):
    """The attention that was trained: its name, all its options with their values, and where it came from."""

    name: str
    settings: dict[str, Any]
    source: str


class TaskInfo(Frozen):
    """Results of unlike card versions are not compared."""

    name: str
    card_version: int


class Score(Frozen):
    """How a model did on a whole split, at the step it was taken. Of the optional metrics the task's own is there."""

    accuracy: float  # share of what is scored
    loss: float  # mean cross-entropy in nats over what is scored
    correct: int
    examples: int
    step: int
    scored: int | None = None  # tokens, where a model answers at every position; else None: the examples
    loss_error: float | None = None  # standard error of `loss` over examples
    units: int | None = None  # what the total loss was divided by for the metric, where that is not `scored`: words
    bits_per_dim: float | None = None
    bits_per_byte: float | None = None
    perplexity: float | None = None

    def value(self, metric: str) -> float:
        """The metric of that name; nan where this score has none."""
        found = getattr(self, metric)
        return math.nan if found is None else float(found)


class Metrics(Frozen):
    """`test` is taken at the step that scored best on validation, `test_last` at the last step.

    Without a validation split the two are one.
    """

    validation: Score | None = None
    test: Score
    test_last: Score


class Parameters(Frozen):
    """Numbers of parameters. `embedding` counts tokens and positions, `positional` the positions alone."""

    total: int
    trainable: int
    embedding: int
    positional: int
    non_embedding: int


class Fairness(Frozen):
    """Whether the run kept to its card, and each way in which it did not."""

    track: Literal["apples-to-apples", "free-for-all"]
    reasons: list[str]


class Speed(Frozen):
    """Rates over the whole run. `tokens` are real ones; `padded_tokens` count the padding too."""

    train_steps_per_s: float
    train_tokens_per_s: float
    train_padded_tokens_per_s: float
    eval_tokens_per_s: float
    eval_padded_tokens_per_s: float
    forward_passes_per_step: float


class Memory(Frozen):
    """Peak memory of the process that ran the cell; None with the reason in `method` where it cannot be had."""

    peak_bytes: int | None
    baseline_bytes: int | None
    method: str


class Time(Frozen):
    """UTC, ISO 8601; durations in seconds, of all sittings together where a run was resumed."""

    started_at: str
    finished_at: str
    train_s: float | None = None
    eval_s: float | None = None


class DataInfo(Frozen):
    """What the model saw."""

    source: Literal["generated", "hub", "local", "stand-in"]
    fingerprint: str
    train_examples: int
    validation_examples: int
    test_examples: int


class RunRecord(Frozen):
    """One finished cell. Measured fields are None unless the status is ok."""

    schema_: Literal["lrbench.run/1"] = Field("lrbench.run/1", alias="schema")
    run_id: str
    status: Status
    reason: str = ""
    model: ModelInfo
    task: TaskInfo
    preset: str
    seed: int
    metrics: Metrics | None = None
    parameters: Parameters | None = None
    fairness: Fairness | None = None
    speed: Speed | None = None
    memory: Memory | None = None
    time: Time
    data: DataInfo | None = None
    baselines: dict[str, float] | None = None
    notes: list[str] = []
    environment: dict[str, Any]
    spec: dict[str, Any]
    lrbench_version: str

    def to_json(self) -> dict[str, Any]:
        """Plain values that strict JSON can hold."""
        return strict(self.model_dump(mode="json", by_alias=True))


def strict(value: Any) -> Any:
    """The value with every number that JSON does not know (nan, inf) as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value


def dumps(value: Any, indent: int | None = None) -> str:
    """Strict JSON."""
    return json.dumps(strict(value), indent=indent, ensure_ascii=False, allow_nan=False)


def write(record: RunRecord, folder: Path) -> None:
    """Write `record.json`."""
    write_atomic(folder / "record.json", dumps(record.to_json(), indent=1) + "\n")


def warn(place: str, reason: str) -> None:
    """Say in the log what is left out."""
    log.warning("%s is left out: %s", place, reason)


def read(path: Path, left_out: LeftOut = warn) -> RunRecord | None:
    """A record, or None with a warning that names the file if it is damaged or newer than this program.

    The record of a scaling study is none of a run, and no reason for a warning.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and str(content.get("schema")).startswith("lrbench.study/"):
            return None
        return RunRecord.model_validate(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        left_out(told(path), why(error, "lrbench.run/1"))
        return None


def load(places: Iterable[Path | str]) -> list[RunRecord]:
    """All run records below the given folders, in the order of their paths. Of a results folder only `runs` counts."""
    return list(found(places).values())


def found(places: Iterable[Path | str], left_out: LeftOut = warn) -> dict[Path, RunRecord]:
    """As `load`, each record under its folder."""
    roots = [
        root / "runs" if (root / "runs").is_dir() else root for root in (Path(place).expanduser() for place in places)
    ]
    paths = sorted({path for root in roots for path in root.rglob("record.json")})
    return {path.parent: record for path in paths if (record := read(path, left_out)) is not None}


def why(error: Exception, schema: str) -> str:
    """Why a file was not read, in one line; `schema` is what this version reads."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        if field == "schema":
            return f"its schema is {first['input']!r}, this version reads {schema}"
        return f"{field}: {first['msg']}"
    return f"not valid JSON ({error})" if isinstance(error, ValueError) else str(error)
