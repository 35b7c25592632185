"""What a loader hands over: examples by number, three splits, and what they are worth without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Source = Literal["generated", "hub", "local", "stand-in"]


class Example(NamedTuple):
    """One example: token ids (two views for document matching, else one) and its label."""

    views: tuple[NDArray[np.integer], ...]
    label: int


class Split(Protocol):
    """A split of a task: a sequence that also knows its lengths, so that batches can be planned without reading it."""

    lengths: NDArray[np.int64]  # tokens of the longest view of each example
    labels: NDArray[np.int64]

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Example: ...


@dataclass(frozen=True)
class DataRequest:
    """What a task asks of its loader: the card's data section after all overrides."""

    name: str  # of the task: a folder in the cache
    length: int  # the longest input in tokens
    examples: tuple[int, int, int]  # train, validation, test
    source: str = "generated"  # "generated", "hub", "stand-in" or the path of a folder or file
    offline: bool = False
    limit: int | float | None = None  # per split: a count, or a fraction below 1
    seed: int = 0  # of the generator, not of the training


@dataclass(frozen=True)
class TaskData:
    """The data of a task, and the scores of rules that need no model, on the same test set."""

    train: Split
    validation: Split
    test: Split
    source: Source
    fingerprint: str  # sha256 over the content of all three splits
    baselines: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()


class Loader(Protocol):
    """`load` of a module of this folder, or of a file beside a user's card. Its own options are keyword-only."""

    def __call__(self, request: DataRequest, cache: Path) -> TaskData: ...
