"""Recall: which value stood beside this key? Multi-query associative recall (Arora et al. 2023), generated.

A sequence begins with pairs of a key and a value; after them each of the keys comes once more, among blanks, and there
its value is asked. Keys are ids 1 to 128, values 129 to 256, a blank is 0. No key occurs in two pairs, values may.
A model that forgets can do no better than one in 128.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import SpecError
from lrbench.loaders.base import SPLITS, DataRequest, Example, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.cache import prepared
from lrbench.loaders.checks import Check, sequence_checks
from lrbench.loaders.common import source_of, task_data
from lrbench.loaders.streams import Stream

GENERATOR = "lrbench recall 1"  # raised whenever a seed gives other sequences
KEYS = 128
VOCABULARY = 2 * KEYS + 1
ROWS = 1000  # sequences made at once


def load(request: DataRequest, cache: Path, *, pairs: int = 8) -> TaskData:
    """Generate the three splits, or take them from the cache.

    Raises `SpecError` for more pairs than there are keys, or than the length has room for.
    """
    source = source_of(request, "generated")
    if not 1 <= pairs <= min(KEYS, request.length // 3):
        raise SpecError(
            f"data.options.pairs {pairs}: not 1 to {min(KEYS, request.length // 3)}",
            f"{pairs} pairs need a data.length of {3 * pairs} and at most {KEYS} keys",
        )
    content: dict[str, Any] = {"generator": GENERATOR, "seed": request.seed, "pairs": pairs}
    content |= {"length": request.length, "examples": list(request.examples)}
    found = prepared(cache, request.name, content, lambda: _blocks(request, pairs), _measure)
    return task_data(found, source, request.limit, _measure)


def describe(example: Example) -> str:
    """An example for people: k3=v7 pairs, then queries with their answers."""
    tokens, targets = (view.tolist() for view in example.views)
    pairs = len([each for each in targets if each >= 0])
    told = [
        f"k{key}=v{value - KEYS}"
        for key, value in zip(tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True)
    ]
    asked = [f"k{key}?" if key else "·" for key in tokens[2 * pairs :]]
    answers = [f"v{value - KEYS}" for value in targets if value >= 0]
    return f"{' '.join(told)} {' '.join(asked)}\nanswers: {' '.join(answers)}"


def verify(data: TaskData, request: DataRequest, *, pairs: int = 8) -> list[Check]:
    """Everything that can be checked, and that each answer stands where it was told."""
    wrong = sum(_wrong(split[index], pairs) for split in data.splits.values() for index in range(len(split)))
    return [*sequence_checks(data, request, VOCABULARY), Check("answers", not wrong, f"{wrong} wrong answers")]


def sequences(random: Stream, count: int, length: int, pairs: int) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """So many sequences, and what is asked at each place, -1 where nothing is."""
    tokens, targets = np.zeros((count, length), np.int16), np.full((count, length), -1, np.int16)
    keys = 1 + np.argsort(random.uniform(count, KEYS), axis=1)[:, :pairs]
    values = 1 + KEYS + random.below(KEYS, count, pairs)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
    room = length - 2 * pairs
    places = 2 * pairs + np.argsort(random.uniform(count, room), axis=1)[:, :pairs]
    np.put_along_axis(tokens, places, keys.astype(np.int16), 1)
    np.put_along_axis(targets, places, values.astype(np.int16), 1)
    return tokens, targets


def _blocks(request: DataRequest, pairs: int) -> Iterator[tuple[str, Block]]:
    for number, (name, count) in enumerate(zip(SPLITS, request.examples, strict=True)):
        random = Stream(request.seed, number)
        for start in range(0, max(1, count), ROWS):
            some = min(ROWS, count - start)
            views = sequences(random, some, request.length, pairs)
            lengths = np.full(some, request.length, np.int64)
            yield name, Block(tuple(view.reshape(-1) for view in views), (lengths, lengths), np.zeros(some, np.int64))


def _wrong(example: Example, pairs: int) -> int:
    """Queries whose answer is not what was told of their key."""
    tokens, targets = example.views
    told = dict(zip(tokens[0 : 2 * pairs : 2].tolist(), tokens[1 : 2 * pairs : 2].tolist(), strict=True))
    asked = np.flatnonzero(targets >= 0)
    right = sum(told.get(int(tokens[place])) == int(targets[place]) for place in asked)
    return len(asked) - right + abs(len(asked) - pairs)


def _measure(splits: Mapping[str, Split]) -> dict[str, float]:
    """The most frequent answer of train, and the value told first, last, or most often in the sequence itself."""
    answers = np.concatenate([_asked(splits["train"], index) for index in range(len(splits["train"]))])
    frequent = int(np.bincount(answers).argmax())
    test = splits["test"]
    asked = [_asked(test, index) for index in range(len(test))]
    total = sum(map(len, asked))
    latest = sum(int((each == test[index].views[0][2 * len(each) - 1]).sum()) for index, each in enumerate(asked))
    return {
        "majority": sum(int((each == frequent).sum()) for each in asked) / total,
        "the last value told": latest / total,
    }


def _asked(split: Split, index: int) -> NDArray[np.integer]:
    targets = split[index].views[1]
    return targets[targets >= 0]
