"""Text: is a film review positive? IMDb (Maas et al. 2011), byte by byte, as in Long Range Arena (Tay et al. 2021).

Ids are bytes plus one, 0 pads, the first `length` bytes count. The release has no validation split and its files are
sorted by label: a tenth of train is held out, classes in proportion, copies of a review together, always the same.
Where the preset asks for no validation, train is whole. A preset's number of examples is the most that is taken.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from lrbench.loaders import baselines, hub, text_files, text_standin
from lrbench.loaders.base import SPLITS, DataRequest, Example, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.bytetokens import block, shown
from lrbench.loaders.cache import prepared
from lrbench.loaders.checks import Check, balance, common_checks, shared
from lrbench.loaders.common import digest_of, source_of, state_of, task_data
from lrbench.loaders.holdout import SEED, SHARE, hold_out, shuffled
from lrbench.loaders.text_files import Review

READER = "text 1"  # raised whenever the same files give other examples
CLASSES = ("negative", "positive")
ROWS = 1000  # of a block


def load(request: DataRequest, cache: Path) -> TaskData:
    """The three splits from the hub, from files, or generated as a stand-in.

    Raises `SpecError` for a faulty file, `Missing` for data that are not there.
    """
    sizes = {"length": request.length, "examples": list(request.examples)}
    source = source_of(request, "stand-in", "hub", "local")
    if source == "stand-in":
        notes = ["the reviews are generated: a stand-in for IMDb, of which scores say nothing"]
        content = {"generator": text_standin.GENERATOR, "seed": request.seed, **sizes}
        found = prepared(cache, request.name, content, lambda: _generated(request), _measure)
    elif source == "hub":
        notes = hub.notes(request)
        content = {"reader": READER, "cut": SEED, **sizes, **hub.content(request)}
        found = prepared(cache, request.name, content, lambda: _cut(request, *text_files.from_hub(request)), _measure)
    else:
        place, notes = text_files.find(request.source), []
        files = text_files.files_of(place)
        state = digest_of(files) if place.name != "aclImdb" and len(files) < 100 else state_of(files)
        content = {"reader": READER, "cut": SEED, **sizes, "files": state}
        found = prepared(cache, request.name, content, lambda: _cut(request, *text_files.read(place)), _measure)
    return task_data(found, source, request.limit, _measure, notes)


def describe(example: Example) -> str:
    """An example for people: the bytes as text, and the class."""
    return f"{shown(example)[0]}\nanswer: {CLASSES[example.label]}"


def verify(data: TaskData, request: DataRequest) -> list[Check]:
    """Everything that can be checked of reviews."""
    checks = [_copies(data, check) if check.name == "duplicates" else check for check in common_checks(data, request)]
    return [*checks, *balance(data)]


def _generated(request: DataRequest) -> Iterator[tuple[str, Block]]:
    for number, (name, count) in enumerate(zip(SPLITS, request.examples, strict=True)):
        reviews = text_standin.reviews(request.seed, number, count)
        yield name, block([((text,), label) for text, label in reviews], request.length)


def _cut(request: DataRequest, train: list[Review], test: list[Review]) -> Iterator[tuple[str, Block]]:
    """The splits: validation held out of train if the preset has any, test in an order that a limit may cut."""
    keys = [text[: request.length] for text, _ in train]
    stay, held = hold_out(keys, np.array([label for _, label in train]), SHARE if request.examples[1] else 0.0)
    chosen = {
        "train": [train[index] for index in stay],
        "validation": [train[index] for index in held],
        "test": [test[index] for index in shuffled(len(test))],
    }
    for (name, rows), most in zip(chosen.items(), request.examples, strict=True):
        rows = rows[:most]
        for start in range(0, max(1, len(rows)), ROWS):
            yield name, block([((text,), label) for text, label in rows[start : start + ROWS]], request.length)


def _measure(splits: Mapping[str, Split]) -> dict[str, float]:
    train, test = splits["train"], splits["test"]
    return {
        "majority": baselines.majority(train, test),
        "bag of bytes": baselines.linear(train, test, baselines.bag_of_bytes),
    }


def _copies(data: TaskData, check: Check) -> Check:
    """Copies that IMDb itself has in train and test are listed; what our own cut tears apart is wrong."""
    if data.source == "stand-in":
        return check
    return Check(check.name, not shared(data.splits)["train and validation"], check.found)
