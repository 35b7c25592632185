"""What a loader hands over: examples by number, three splits, and what they are worth without a model."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Source = Literal["generated", "hub", "local", "stand-in"]
SPLITS = ("train", "validation", "test")


class Example(NamedTuple):
    """One example, as its task's kind wants it.

    classify: the tokens, and a label. match: two documents, and a label. predict: the tokens, and how many of them are
    given and not scored. fill, answer: the tokens, and as many targets, -1 where nothing is asked; no label.
    """

    views: tuple[NDArray[np.integer], ...]
    label: int


class Split(Protocol):
    """A split of a task: a sequence that also knows its lengths, so that batches can be planned without reading it."""

    lengths: NDArray[np.int64]  # tokens of the longest view of each example
    labels: NDArray[np.int64]

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Example: ...


class Head:
    """The first examples of a split."""

    def __init__(self, split: Split, count: int) -> None:
        self.lengths = split.lengths[:count]
        self.labels = split.labels[:count]
        self._split = split
        self._indices = range(len(split))[:count]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Example:
        return self._split[self._indices[index]]


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub. Without a revision whatever is newest there is taken, and said."""

    name: str
    config: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class DataRequest:
    """What a task asks of its loader: the card's data section after all overrides."""

    name: str  # of the task: a folder in the cache
    length: int  # the longest input in tokens
    examples: tuple[int, int, int]  # train, validation, test; what files hold is up to the loader
    source: str = "generated"  # "generated", "hub", "stand-in" or the path of a folder or file
    offline: bool = False
    limit: int | float | None = None  # per split: a count, or a fraction below 1; above 0
    seed: int = 0  # of the generator, not of the training
    hub: Hub | None = None


@dataclass(frozen=True)
class TaskData:
    """The data of a task, and the scores of rules that need no model, on the same test set.

    An empty validation split says that nothing is to be chosen by it: the last step counts.
    """

    train: Split
    validation: Split
    test: Split
    source: Source
    fingerprint: str  # `fingerprint` of the three splits
    baselines: Mapping[str, float] = field(default_factory=dict)  # in the task's metric; accuracies as 0 to 1
    units: Mapping[str, int] = field(default_factory=dict)  # of a split: what its loss is divided by, if not by tokens
    notes: Sequence[str] = ()

    @property
    def splits(self) -> dict[str, Split]:
        """The three splits by name."""
        return dict(zip(SPLITS, (self.train, self.validation, self.test), strict=True))


def limited(split: Split, limit: int | float | None) -> Split:
    """The first `limit` examples, or that fraction of them (at least one) where it is below 1; all for None."""
    if limit is None:
        return split
    return Head(split, max(1, int(limit * len(split)) if limit < 1 else int(limit)))


def fingerprint(splits: Mapping[str, Split]) -> str:
    """Sha256 over names, labels, lengths, types and tokens, however they are stored; half a second for 100 MB."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        digest.update(f"{name} {len(split)}\n".encode())
        digest.update(split.labels.astype("<i8").tobytes())
        for index in range(len(split)):
            for view in split[index].views:
                stored = view.astype(view.dtype.newbyteorder("<"), copy=False)
                digest.update(f"{stored.dtype.str} {stored.size}\n".encode())
                digest.update(stored.tobytes())
    return digest.hexdigest()
