"""Copy: a random string, then the same once more, or its mirror image; every letter is predicted from those before it.

Sixteen letters, a to p, as bytes. The first half cannot be known and costs four bits a letter, the second can: a model
that looks back costs two bits a letter over all, and no model costs less. Generated.
"""

from collections.abc import Iterator, Mapping
from math import log, log2
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lrbench.errors import SpecError
from lrbench.loaders import ngrams
from lrbench.loaders.base import SPLITS, DataRequest, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.cache import prepared
from lrbench.loaders.checks import Check, sequence_checks
from lrbench.loaders.common import source_of, task_data
from lrbench.loaders.language import describe as describe
from lrbench.loaders.streams import Stream

GENERATOR = "lrbench copy 1"  # raised whenever a seed gives other strings
VOCABULARY, LETTERS, FIRST = 256, 16, ord("a")
FLOOR = log2(LETTERS) / 2
ROWS = 1000  # strings made at once


def load(request: DataRequest, cache: Path, *, order: Literal["copy", "mirror"] = "copy") -> TaskData:
    """Generate the three splits, or take them from the cache.

    Args:
        order: whether the second half is the first, or the first read backwards.

    Raises `SpecError` for a length that has no halves.
    """
    source = source_of(request, "generated")
    if request.length % 2:
        raise SpecError(f"data.length {request.length}: has no two halves", "choose an even length")
    content: dict[str, Any] = {"generator": GENERATOR, "seed": request.seed, "order": order}
    content |= {"length": request.length, "examples": list(request.examples)}
    found = prepared(cache, request.name, content, lambda: _blocks(request, order), _measure)
    floor = f"{FLOOR:.0f} bits a letter for a model that looks back, and none can do better in the long run"
    return task_data(found, source, request.limit, _measure, [floor])


def verify(data: TaskData, request: DataRequest, *, order: str = "copy") -> list[Check]:
    """Everything that can be checked, and that second halves are what they should be."""
    turn = -1 if order == "mirror" else 1
    halves = (np.split(split[index].views[0], 2) for split in data.splits.values() for index in range(len(split)))
    wrong = sum(not np.array_equal(first[::turn], second) for first, second in halves)
    return [*sequence_checks(data, request, VOCABULARY), Check("halves", not wrong, f"{wrong} second halves are wrong")]


def _blocks(request: DataRequest, order: str) -> Iterator[tuple[str, Block]]:
    for number, (name, count) in enumerate(zip(SPLITS, request.examples, strict=True)):
        random = Stream(request.seed, number)
        for start in range(0, max(1, count), ROWS):
            some = min(ROWS, count - start)
            half = (FIRST + random.below(LETTERS, some, request.length // 2)).astype(np.uint8)
            whole = np.concatenate([half, half[:, ::-1] if order == "mirror" else half], axis=1)
            lengths = np.full(some, request.length, np.int64)
            yield name, Block((whole.reshape(-1),), (lengths,), np.zeros(some, np.int64))


def _measure(splits: Mapping[str, Split]) -> dict[str, float]:
    reaches = {"letters alone": (), "after 1 letter": (1,)}
    found = {name: ngrams.nats(splits["train"], splits["test"], VOCABULARY, reach) for name, reach in reaches.items()}
    return {name: value / log(2) for name, value in found.items()}
