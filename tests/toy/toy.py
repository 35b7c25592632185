"""A loader beside its card: random tokens, labelled by whether the first comes again."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lrbench.loaders.base import DataRequest, Example, TaskData, fingerprint


@dataclass
class ToySplit:
    """Lists of arrays are enough for a split."""

    rows: list[np.ndarray]

    def __post_init__(self) -> None:
        self.lengths = np.array([len(row) for row in self.rows])
        self.labels = np.array([int(row[0] in row[1:]) for row in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        return Example((self.rows[index],), int(self.labels[index]))


def load(request: DataRequest, cache: Path, *, shortest: int) -> TaskData:
    random = np.random.Generator(np.random.Philox(request.seed))

    def split(count: int) -> ToySplit:
        lengths = random.integers(shortest, request.length + 1, count)
        return ToySplit([random.integers(1, 9, length) for length in lengths])

    train, validation, test = (split(count) for count in request.examples)
    splits = {"train": train, "validation": validation, "test": test}
    majority = float(max(np.bincount(test.labels)) / len(test))
    return TaskData(train, validation, test, "generated", fingerprint(splits), {"majority": majority})
