"""Image: what does a grey picture show? CIFAR-10 (Krizhevsky 2009), pixel by pixel, as in Long Range Arena.

Colour becomes grey with Pillow's weights; ids are the 256 grey levels, row after row. Black is a level like any other:
nothing is padded and nothing masked, where the released code takes black for padding. No augmentation. Validation is
the last tenth of train, in the order of the files. A preset's number of examples is the most that is taken.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import SpecError
from lrbench.loaders import baselines, hub, image_files, image_standin
from lrbench.loaders.base import SPLITS, DataRequest, Example, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.cache import prepared
from lrbench.loaders.checks import Check, common_checks
from lrbench.loaders.common import digest_of, source_of, task_data
from lrbench.loaders.holdout import SHARE
from lrbench.loaders.pictures import block, drawn, grey

READER = "image 1"  # raised whenever the same files give other examples
SIDE = 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
Part = tuple[NDArray[np.uint8], NDArray[np.int64]]  # colour images, image y x colour, and labels


def load(request: DataRequest, cache: Path) -> TaskData:
    """The three splits from the hub, from files, or generated as a stand-in.

    Raises `SpecError` for a faulty file, `Missing` for data that are not there.
    """
    if request.length != SIDE * SIDE:
        raise SpecError(f"data.length {request.length}: images have {SIDE * SIDE} pixels", "leave it as on the card")
    sizes = {"examples": list(request.examples)}
    source = source_of(request, "stand-in", "hub", "local")
    if source == "stand-in":
        notes = ["the images are generated shapes: a stand-in for CIFAR-10, of which scores say nothing"]
        content: dict[str, Any] = {"generator": image_standin.GENERATOR, "seed": request.seed, **sizes}
        found = prepared(cache, request.name, content, lambda: _generated(request), _measure)
    elif source == "hub":
        notes = hub.notes(request)
        content = {"reader": READER, **sizes, **hub.content(request)}
        parts = (image_files.from_hub(request, split) for split in ("train", "test"))
        found = prepared(cache, request.name, content, lambda: _cut(request, *parts), _measure)
    else:
        place, notes = image_files.find(request.source), []
        content = {"reader": READER, **sizes, "files": digest_of(image_files.files_of(place))}
        found = prepared(cache, request.name, content, lambda: _cut(request, *image_files.read(place)), _measure)
    return task_data(found, source, request.limit, _measure, notes)


def describe(example: Example) -> str:
    """An example for people: the image in characters, and the class."""
    return f"{drawn(example.views[0])}\nanswer: {example.label} ({CLASSES[example.label]} in CIFAR-10)"


def picture(tokens: NDArray[np.integer]) -> NDArray[np.uint8]:
    """An image from its ids: y, x."""
    return tokens.reshape(SIDE, SIDE).astype(np.uint8)


def verify(data: TaskData, request: DataRequest) -> list[Check]:
    """Everything that can be checked of images. Copies within CIFAR-10 itself are listed."""
    checks = common_checks(data, request)
    if data.source != "stand-in":
        checks = [Check(check.name, check.name == "duplicates" or check.ok, check.found) for check in checks]
    return [*checks, _whole(data)]


def _generated(request: DataRequest) -> Iterator[tuple[str, Block]]:
    for number, (name, count) in enumerate(zip(SPLITS, request.examples, strict=True)):
        images, labels = image_standin.images(request.seed, number, count)
        yield name, block(grey(images), labels)


def _cut(request: DataRequest, train: Iterable[Part], test: Iterable[Part]) -> Iterator[tuple[str, Block]]:
    """The splits: of train the last tenth is validation, if the preset has any."""
    images, labels = _joined(train)
    stay = len(labels) - (round(SHARE * len(labels)) if request.examples[1] else 0)
    test_images, test_labels = _joined(test)
    parts = (images[:stay], labels[:stay]), (images[stay:], labels[stay:]), (test_images, test_labels)
    for name, (some, answers), most in zip(SPLITS, parts, request.examples, strict=True):
        yield name, block(some[:most], answers[:most])


def _joined(parts: Iterable[Part]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    grey_parts = [(grey(images), labels) for images, labels in parts]
    images, labels = zip(*grey_parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _measure(splits: Mapping[str, Split]) -> dict[str, float]:
    train, test = splits["train"], splits["test"]
    return {"majority": baselines.majority(train, test), "shades": baselines.linear(train, test, _shades)}


def _shades(example: Example) -> NDArray[np.float64]:
    """How often each sixteenth of the scale occurs, wherever it is."""
    return np.bincount(example.views[0] >> 4, minlength=16) / example.views[0].size


def _whole(data: TaskData) -> Check:
    sizes = {int(length) for split in data.splits.values() for length in np.unique(split.lengths)}
    return Check("pixels", sizes == {SIDE * SIDE}, f"images of {sorted(sizes)} pixels")
