"""What can be checked of any task's data: `lrbench data verify`."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from lrbench.loaders.base import DataRequest, Split, TaskData, fingerprint


class Check(NamedTuple):
    """One thing that was looked at, whether it is as it should be, and what was found."""

    name: str
    ok: bool
    found: str


def common_checks(data: TaskData, request: DataRequest) -> list[Check]:
    """Counts, cut examples, duplicates across splits, classes and fingerprint. Reads everything once or twice."""
    return [_counts(data, request), _cut(data, request), _duplicates(data), *_classes(data), _fingerprint(data)]


def sequence_checks(data: TaskData, request: DataRequest, vocabulary: int) -> list[Check]:
    """The same where there are no classes but ids to be predicted: they and the number of given ones are possible."""
    ids = _ids(data, vocabulary)
    return [_counts(data, request), _cut(data, request), _duplicates(data), ids, _fingerprint(data)]


def shared(splits: Mapping[str, Split]) -> dict[str, int]:
    """How many inputs two splits have in common, for each pair of splits."""
    inputs = {name: _inputs(split) for name, split in splits.items()}
    return {f"{a} and {b}": len(inputs[a] & inputs[b]) for a, b in combinations(inputs, 2)}


def balance(data: TaskData) -> list[Check]:
    """Whether two classes are about equally frequent in each split: 45 to 55 %, or what chance makes of a small one."""
    return [_balanced(name, split) for name, split in data.splits.items() if len(split)]


def _balanced(name: str, split: Split) -> Check:
    share = float((split.labels == 1).mean())
    room = max(0.05, 4 * 0.5 / len(split) ** 0.5)
    return Check(f"balance {name}", abs(share - 0.5) <= room, f"{100 * share:.1f} % are of class 1")


def _inputs(split: Split) -> set[bytes]:
    """A digest of each input; 16 bytes leave no room for a chance meeting."""
    digests = set()
    for index in range(len(split)):
        views = [view.tobytes() for view in split[index].views]
        sizes = repr([len(view) for view in views]).encode()  # so that two views do not run into one another
        digests.add(hashlib.blake2b(b"".join([sizes, *views]), digest_size=16).digest())
    return digests


def _counts(data: TaskData, request: DataRequest) -> Check:
    sizes = tuple(len(split) for split in data.splits.values())
    expected = data.source != "generated" or request.limit is not None or sizes == tuple(request.examples)
    found = ", ".join(f"{size} {name}" for name, size in zip(data.splits, sizes, strict=True))
    there = all(size or not asked for size, asked in zip(sizes, request.examples, strict=True))
    return Check("examples", expected and there, found)


def _cut(data: TaskData, request: DataRequest) -> Check:
    lengths = np.concatenate([split.lengths for split in data.splits.values()])
    cut = int((lengths > request.length).sum())
    return Check("cut", cut == 0, f"{cut} cut samples at {request.length} tokens (longest {lengths.max()})")


def _duplicates(data: TaskData) -> Check:
    pairs = {pair: count for pair, count in shared(data.splits).items() if count}
    found = ", ".join(f"{count} in {pair}" for pair, count in pairs.items())
    return Check("duplicates", not pairs, found or "no input is in two splits")


def _classes(data: TaskData) -> list[Check]:
    return [Check(f"classes {name}", True, ", ".join(_shares(split))) for name, split in data.splits.items()]


def _shares(split: Split) -> list[str]:
    counts = Counter(split.labels.tolist())
    return [f"{label}: {100 * count / len(split):.1f} %" for label, count in sorted(counts.items())]


def _ids(data: TaskData, vocabulary: int) -> Check:
    """Ids lie in the vocabulary, targets too or say that nothing is asked, and something of each example is scored."""
    low, high, unscored = 0, 0, 0
    for split in data.splits.values():
        for index in range(len(split)):
            example = split[index]
            low = min([low, *(int(view.min()) + (number > 0) for number, view in enumerate(example.views))])
            high = max([high, *(int(view.max()) for view in example.views)])
            scored = len(example.views[0]) - example.label if len(example.views) == 1 else (example.views[1] >= 0).sum()
            unscored += scored <= 0
    found = f"ids up to {high} of {vocabulary}" + (
        f", {unscored} examples of which nothing is scored" if unscored else ""
    )
    return Check("ids", low >= 0 and high < vocabulary and not unscored, found)


def _fingerprint(data: TaskData) -> Check:
    recomputed = fingerprint(data.splits)
    return Check("fingerprint", recomputed == data.fingerprint, recomputed)
