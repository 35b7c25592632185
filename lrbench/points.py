"""A point of a scaling study: what is asked for, and what is written about it (schema `lrbench.scale/1`)."""

from typing import Any, Literal

from pydantic import Field

from lrbench.records import Status
from lrbench.specs import AttentionSpec, Count, Dtype, Frozen
from lrbench.specs import Level as Level
from lrbench.specs import Mode as Mode


class PointSpec(Frozen):
    """One backend at one length, nothing left to resolve."""

    attention: AttentionSpec
    length: Count
    batch: Count = 1
    width: Count = 512
    heads: Count = 8
    causal: bool = False
    mode: Mode = "train"  # forward: inference; train: forward and backward; stream: `step` over segments
    level: Level = "layer"  # layer: the mixer with its projections; model: an encoder of two blocks around it
    dtype: Dtype = "fp32"
    device: str = "cpu"
    threads: Count | None = None
    compile: bool = False
    seed: int = 0


class TimeMs(Frozen):
    """Wall-clock of one region in milliseconds. `rounds` keeps the median of every block, by generation."""

    median: float
    ci_low: float | None
    ci_high: float | None
    p10: float
    p90: float
    minimum: float
    first: float  # of the first call in a fresh process
    compile: float | None = None
    repeats: int  # calls behind the figure
    rounds: list[list[float]]


class MemoryBytes(Frozen):
    """Bytes; null with its reason among the point's flags where one cannot be had, never 0.

    `extra` is the headline: peak of the tensor allocator above what was live at the start of the region.
    """

    extra: int | None
    total: int | None
    resident: int | None
    saved: int | None
    reserved: int | None
    predicted: int | None
    agree: bool | None
    method: str


class Flops(Frozen):
    """Floating-point operations of one region: by the convention that all backends share, and as executed."""

    model: int | None
    executed: int | None


class ScalePoint(Frozen):
    """One line of `points.jsonl`. Measured fields are null unless the status is ok.

    What ran out of memory or time, or was skipped for it, keeps `memory_bytes.predicted`.
    """

    schema_: Literal["lrbench.scale/1"] = Field("lrbench.scale/1", alias="schema")
    model: str
    settings: dict[str, Any]
    length: int
    batch: int
    width: int
    heads: int
    causal: bool
    mode: Mode
    level: Level
    dtype: Dtype
    device: str
    status: Status
    reason: str = ""
    predicted: bool = False  # oom or timeout foreseen, and not run
    control: bool = False  # the second copy of an A/A pair
    time_ms: TimeMs | None = None
    memory_bytes: MemoryBytes | None = None
    flops: Flops | None = None
    fraction_of_matmul_peak: float | None = None
    tokens_per_s: float | None = None
    bytes_per_token: float | None = None
    energy_j: float | None = None  # of a call above idle power, whatever else ran on the package; see the environment
    flags: list[str] = []
    notes: list[str] = []
    seed: int
    spec: PointSpec
