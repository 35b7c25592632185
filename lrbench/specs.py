"""Everything that is read: task cards, suites, and the fully resolved description of one run.

All models are frozen and refuse unknown keys; `parse` turns a validation error into one line that names
the file, the field and the nearest valid name.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lrbench.errors import SpecError, nearest
from lrbench.lengths import parse_lengths
from lrbench.metrics import MetricName
from lrbench.quantities import parse_bytes, parse_seconds, parse_share

Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
PresetName = Literal["tiny", "small", "paper"]
Dtype = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["constant", "linear", "cosine", "rsqrt"]
Mode = Literal["forward", "train", "stream"]
Level = Literal["layer", "model"]
# classify: one label; match: two documents, one label; predict: each token from those before it, its own not among
# them; fill: what is hidden, from both sides; answer: what is asked at some positions, from there and before
Kind = Literal["classify", "match", "predict", "fill", "answer"]
Positions = Literal["none", "learned", "sinusoidal", "rotary", "pia", "alibi", "t5", "xl"]


class Frozen(BaseModel):
    """Immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AttentionSpec(Frozen):
    """One attention backend and its own settings, as asked for."""

    name: str
    settings: dict[str, Any] = {}
    source: str = "lrbench"  # "lrbench", "package NAME", "module NAME" or the path of a file
    digest: str | None = None  # sha256 of a user's file

    @property
    def label(self) -> str:
        """How it is typed on the command line and named in tables."""
        inner = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}[{inner}]" if inner else self.name


class DataSpec(Frozen):
    """How much of what data, in which form."""

    length: Count  # the longest input in tokens
    examples: tuple[Count, CountOrNone, Count]  # train, validation, test; no validation: the last step counts
    options: dict[str, Any] = {}  # the loader's own
    seed: int = 0  # of the generator
    source: str = ""  # on a card: what this preset prefers; empty: the first of the card's sources
    limit: int | float | None = None  # per split: a count, or a fraction below 1

    @model_validator(mode="after")
    def _limit_is_a_count_or_a_fraction(self) -> "DataSpec":
        if self.limit is not None and (self.limit <= 0 or (self.limit >= 1 and self.limit != int(self.limit))):
            raise ValueError("limit must be a count from 1, or a fraction between 0 and 1")
        return self


class ModelSpec(Frozen):
    """Sizes of the encoder around the attention."""

    layers: Count
    dim: Count
    heads: Count
    head_dim: Count | None = None  # None: dim / heads
    mlp_dim: Count
    dropout: Fraction = 0.0
    attention_dropout: Fraction = 0.0
    pooling: Literal["cls", "mean", "none"] = "cls"  # none: an answer at every position
    positions: Positions = "sinusoidal"
    head: Literal["four", "concat"] = "four"  # of two documents: [x1, x2, x1 * x2, x1 - x2], or [x1, x2] alone


class Stage(Frozen):
    """A part of the training on short inputs, for so many updates or until a plateau (Press et al. 2021)."""

    length: Count  # the most tokens of a row
    steps: Count | None = None  # updates
    patience: Count | None = None  # evaluations in a row without a better validation score

    @model_validator(mode="after")
    def _one_end(self) -> "Stage":
        if (self.steps is None) == (self.patience is None):
            raise ValueError("a stage ends after steps or by patience: give one of the two")
        return self


class Growth(Frozen):
    """From update `step` on an update is over `batch` examples (Rae et al. 2020)."""

    step: Count
    batch: Count


class TrainSpec(Frozen):
    """The recipe: AdamW with decoupled decay, a schedule, selection on validation, and strategies.

    Evaluations without a better score are counted anew at each length; in a stage with a patience of its own that one
    counts, and the stage ends, not the training.
    """

    steps: Count
    batch: Count  # examples an update, over all devices
    lr: Annotated[float, Field(gt=0)]  # peak; for rsqrt the factor c of c / sqrt(step)
    schedule: Schedule = "linear"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-9
    clip: Annotated[float, Field(gt=0)] | None = None  # norm of the gradient; None: never clipped
    eval_every: Count = 100
    micro_tokens: Count = 16384  # the most tokens, padding included, in one forward pass
    stages: list[Stage] = []  # short inputs first; what is left of the steps is at full length
    growth: list[Growth] = []  # larger batches from some step on
    checkpointing: bool = False  # layers are computed again in the backward pass, and not kept for it
    patience: Count | None = None  # evaluations in a row without a better validation score that end the training

    @field_validator("stages")
    @classmethod
    def _stages_rise_and_fit(cls, stages: list[Stage], others: ValidationInfo) -> list[Stage]:
        lengths = [stage.length for stage in stages]
        if lengths != sorted(set(lengths)):
            raise ValueError(f"each stage is longer than the one before, and these have {lengths} tokens")
        taken, steps = sum(stage.steps or 0 for stage in stages), others.data.get("steps", math.inf)
        if taken > steps:
            raise ValueError(f"stages of {taken} steps do not fit in train.steps {steps}: shorten them or raise it")
        return stages

    @field_validator("growth")
    @classmethod
    def _growth_rises_and_fits(cls, growth: list[Growth], others: ValidationInfo) -> list[Growth]:
        starts, steps = [grown.step for grown in growth], others.data.get("steps", math.inf)
        if starts != sorted(set(starts)):
            raise ValueError(f"each step is later than the one before, and these are {starts}")
        if starts and starts[-1] > steps:
            raise ValueError(f"step {starts[-1]} is never reached in train.steps {steps}: begin earlier or raise it")
        return growth

    def check_validation(self, examples: int) -> None:
        """Refuse a patience where there are so few examples to validate on: none.

        Raises:
            SpecError: nothing could be waited for.
        """
        waiting = [f"train.stages.{place}.patience" for place, stage in enumerate(self.stages) if stage.patience]
        waiting += ["train.patience"] if self.patience else []
        if waiting and not examples:
            hint = "give steps, or data with a validation split: the second of data.examples"
            raise SpecError(f"{waiting[0]}: there is no validation split to wait for", hint)


class Metric(Frozen):
    """What is reported, and what guessing scores."""

    name: MetricName
    chance: Annotated[float, Field(ge=0)]


class HubSource(Frozen):
    """Where on the Hugging Face hub a task's data lie."""

    name: str
    config: str | None = None
    revision: str | None = None  # the commit; none where it is not known


class Task(Frozen):
    """The facts of a task that no preset changes."""

    name: str
    version: Count
    kind: Kind
    loader: str
    vocabulary: Count
    classes: Count
    metric: Metric
    sources: tuple[str, ...]  # where examples may come from, preferred first; "path" stands for --data PATH
    hub: HubSource | None = None

    @property
    def views(self) -> int:
        """Arrays of one example: two documents, or a sequence and what is wanted of it."""
        return 1 if self.kind in ("classify", "predict") else 2

    @property
    def rows(self) -> int:
        """Sequences that the model reads of one example."""
        return 2 if self.kind == "match" else 1

    @property
    def everywhere(self) -> bool:
        """Whether the model answers at every position, not once an example."""
        return self.kind in ("predict", "fill", "answer")

    @property
    def causal(self) -> bool:
        """Whether a position may see only what stands before it."""
        return self.kind in ("predict", "answer")


class Preset(Frozen):
    """Data size, model size and recipe: always together."""

    data: DataSpec
    model: ModelSpec
    train: TrainSpec

    @model_validator(mode="after")
    def _strategies_go_with_the_data(self) -> "Preset":
        long = [stage.length for stage in self.train.stages if stage.length >= self.data.length]
        if long:
            raise SpecError(
                f"train.stages: a stage of {long[0]} tokens is not shorter than data.length {self.data.length}",
                "leave it out: what is left of the steps is at full length",
            )
        self.train.check_validation(self.data.examples[1])
        return self


class TaskCard(Task):
    """One page on a task: `tasks/NAME.yaml`."""

    summary: str
    presets: dict[PresetName, Preset]
    layout: str = ""  # what --data PATH has to look like
    tried: str = ""  # what was tried when the presets were chosen
    licence: str = ""
    citation: str = ""

    def facts(self) -> Task:
        """The card without what a run has resolved already."""
        return Task(**{name: getattr(self, name) for name in Task.model_fields})


class RunSpec(Frozen):
    """One cell of a grid, nothing left to resolve. Its key names its folder."""

    attention: AttentionSpec
    task: Task
    card: str  # how the task's card is found: a name or a path
    files: str | None = None  # digest of the user's own loader and examples
    preset: PresetName
    seed: Annotated[int, Field(ge=0)]
    data: DataSpec
    model: ModelSpec
    train: TrainSpec
    device: str = "auto"
    dtype: Dtype = "fp32"
    threads: Count | None = None
    compile: bool = False

    def key(self, version: str) -> str:
        """Ten hex digits of everything that may change the result, the version of the program included."""
        text = json.dumps([version, self.model_dump(mode="json")], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


class Grid(Frozen):
    """Models × tasks × seeds, with the words of the command line."""

    models: list[str]
    tasks: list[str]
    name: str = ""  # where a suite has several
    seeds: int | list[int] = 1
    preset: PresetName = "small"
    set: dict[str, Any] = {}
    data: str = ""
    limit: int | float | None = None
    device: str = "auto"
    dtype: Dtype = "fp32"
    threads: Count | None = None
    compile: bool = False


def _lengths(given: Any) -> Any:
    """Lengths as typed, or a list of numbers and of such texts."""
    parts = given if isinstance(given, (list, tuple)) else [given]
    return parse_lengths(",".join(map(str, parts)))


def _typed(parse_text: Callable[[str, str], float], where: str) -> BeforeValidator:
    """Amounts may carry their unit."""
    return BeforeValidator(lambda given: parse_text(given, where) if isinstance(given, str) else given)


class ScaleGrid(Frozen):
    """Models × lengths, with the words of the command line; one study for each mode."""

    models: list[str]
    lengths: Annotated[list[int], BeforeValidator(_lengths)]
    modes: list[Mode] = ["train"]
    batch: Count | None = None  # sequences; 1 unless `tokens` is given
    tokens: Count | None = None  # batch × length, kept at every length
    width: Count = 512
    heads: Count = 8
    causal: bool = False
    level: Level = "layer"
    dtype: Dtype = "fp32"
    device: str = "auto"
    threads: Count | None = None
    compile: bool = False
    seed: Annotated[int, Field(ge=0)] = 0
    memory_limit: Annotated[int, Field(ge=1), _typed(parse_bytes, "--memory-limit")] | None = None  # bytes
    time_limit: Annotated[float, Field(gt=0), _typed(parse_seconds, "--time-limit")] = 60.0  # seconds a call
    precision: Annotated[float, Field(gt=0, lt=1), _typed(parse_share, "--precision")] = 0.05
    budget: Annotated[float, Field(gt=0), _typed(parse_seconds, "--budget")] = 480.0  # seconds a study

    @model_validator(mode="after")
    def _sizes_go_together(self) -> "ScaleGrid":
        if self.width % self.heads:
            raise SpecError(
                f"--width {self.width} is not divisible by --heads {self.heads}", "choose heads that divide the width"
            )
        if self.batch is not None and self.tokens is not None:
            raise SpecError("--batch and --tokens exclude one another", "--tokens keeps batch × length constant")
        odd = [length for length in self.lengths if self.tokens is not None and self.tokens % length]
        if odd:
            raise SpecError(
                f"--tokens {self.tokens} is no multiple of length {odd[0]}",
                f"choose a multiple of every length, such as {math.lcm(*self.lengths)}",
            )
        return self

    def batch_at(self, length: int) -> int:
        """Sequences side by side at a length."""
        return self.tokens // length if self.tokens is not None else self.batch or 1


def _listed(given: Any) -> Any:
    """One mapping stands for a list of it, nothing for an empty one."""
    return [] if given is None else [given] if isinstance(given, Mapping) else given


class Suite(Frozen):
    """`configs/NAME.yaml`: what one command runs. `grid` is for `lrbench run`, `scale` for `lrbench scale`.

    Both hold one mapping or a list of them.
    """

    summary: str = ""
    grid: Annotated[list[Grid], BeforeValidator(_listed)] = []
    scale: Annotated[list[ScaleGrid], BeforeValidator(_listed)] = []
    claims: list[str] = []  # their ids, or `required`, or `all`


Parsed = TypeVar("Parsed", bound=BaseModel)


def parse(model: type[Parsed], data: object, where: str) -> Parsed:
    """Validate `data`, or raise a SpecError that names `where`, the field and the way out."""
    if not isinstance(data, Mapping):
        raise SpecError(f"{where}: expected fields, found {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # a misspelt field is also a missing one: the spelling is what to tell
        first = sorted(error.errors(), key=lambda found: found["type"] != "extra_forbidden")[0]
        path = [str(part) for part in first["loc"]]
        field = ".".join(_as_written(first["loc"], data))
        if first["type"] == "extra_forbidden":
            known = sorted(_fields_at(model, path[:-1]))
            raise SpecError(f"{where}: {field}: unknown field", nearest(path[-1], known)) from None
        if first["type"] == "missing":
            raise SpecError(f"{where}: {field}: missing", "add the field") from None
        if first["type"] == "literal_error":
            known = re.findall(r"'([^']*)'", first["ctx"]["expected"])
            raise SpecError(
                f"{where}: {field}: unknown {path[-1]} {first['input']!r}", nearest(str(first["input"]), known)
            ) from None
        raise SpecError(f"{where}: {field}: {_plain(first['msg'])}", f"found {first['input']!r}") from None


def _as_written(path: Sequence[str | int], data: Any) -> list[str]:
    """The path as the file has it: a mapping that stands where a list may stand has no number."""
    written = []
    for part in path:
        if isinstance(data, Mapping):
            if isinstance(part, int) and part not in data:
                continue
            data = data.get(part)
        elif isinstance(data, Sequence) and isinstance(part, int):
            data = data[part]
        written.append(str(part))
    return written


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").replace("Input should be", "should be")


def _fields_at(model: type[BaseModel], path: list[str]) -> set[str]:
    """Names of the fields of the model that stands at `path` below `model`."""
    if not path:
        return set(model.model_fields)
    head, *rest = path
    field = model.model_fields.get(head)
    if field is None:
        return set()
    inner: Any = field.annotation
    if type(None) in get_args(inner):
        inner = next(kind for kind in get_args(inner) if kind is not type(None))
    elif get_args(inner):  # a mapping or list: its key is part of the path
        inner, rest = get_args(inner)[-1], rest[1:]
    return _fields_at(inner, rest) if isinstance(inner, type) and issubclass(inner, BaseModel) else set()


class _StrictLoader(yaml.SafeLoader):
    """A key that stands twice is an error; YAML itself lets the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        # what is merged in by << may be overridden
        keys = [self.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> object:
    """The content of a YAML file, or a SpecError that names file and line."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}", "give the path of a YAML file") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
        raise SpecError(f"{path}:{line} {' '.join(str(problem).split())}", "mend the YAML") from None
