"""Density: how likely is an image, byte after byte? CIFAR-10 and ImageNet at 64 x 64 (van den Oord et al. 2016).

Rows, then columns, then red, green, blue; ids are the 256 levels of a colour. All of an image is predicted, its first
byte too, and nothing is added to it: no noise, no flips. Validation is the end of train, in the order of the files. A
preset's number of examples is the most that is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import log
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import SpecError
from lrbench.loaders import hub, image_files, image_standin, imagenet_files, ngrams
from lrbench.loaders.base import SPLITS, DataRequest, Example, Source, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.cache import prepared
from lrbench.loaders.checks import Check, sequence_checks
from lrbench.loaders.common import digest_of, source_of, state_of, task_data
from lrbench.loaders.holdout import SHARE
from lrbench.loaders.pictures import block, colour_block, drawn, image_of
from lrbench.loaders.pictures import grey as luma

READER = "density 1"  # raised whenever the same files give other examples
LEVELS = 256
ROWS = 1000  # stand-in images of a block
Images = NDArray[np.uint8]  # image, y, x, colour
Parts = tuple[int, Iterable[Images]]  # how many images, and they in pieces
SIDES = {"cifar10": 32, "imagenet64": 64, "imagenet64-box": 64}


def load(
    request: DataRequest,
    cache: Path,
    *,
    images: Literal["cifar10", "imagenet64", "imagenet64-box"] = "cifar10",
    drawing: Literal["shapes", "noise", "constant"] = "shapes",
    grey: bool = False,
) -> TaskData:
    """The three splits from files, from the hub, or generated as a stand-in.

    Args:
        images: whose files are read, which decides their layout.
        drawing: what a stand-in shows: shapes, independent bytes (8 bits each), or one colour an image.
        grey: a byte a pixel, its luma, in place of three.

    Raises `SpecError` for a faulty file, `Missing` for data that are not there.
    """
    side = SIDES[images]
    size = (1 if grey else 3) * side * side
    if request.length != size:
        raise SpecError(f"data.length {request.length}: images have {size} bytes", f"choose data.length={size}")
    source = source_of(request, "stand-in", "hub", "local")
    if source == "stand-in":
        content: dict[str, Any] = {"generator": image_standin.GENERATOR, "seed": request.seed, "drawing": drawing}
        notes = [f"the images are generated ({drawing}): a stand-in for {images}, of which scores say nothing"]
        return _data(request, cache, source, notes, content, lambda: _generated(request, drawing, side), grey)
    if source == "hub":
        content = {"reader": READER, **hub.content(request)}
        parts = (_known(image_files.from_hub(request, split)) for split in ("train", "test"))
        return _data(request, cache, source, hub.notes(request), content, lambda: _cut(request, *parts), grey)
    if images == "cifar10":
        place = image_files.find(request.source)
        files = image_files.files_of(place)
        content = {"reader": READER, "files": digest_of(files)}
        train, test = map(_known, image_files.read(place))
        return _data(request, cache, source, [], content, lambda: _cut(request, train, test), grey)
    found = imagenet_files.find(request.source, images)
    content = {"reader": READER, "files": state_of(found.files)}
    return _data(request, cache, source, found.notes, content, lambda: _cut(request, found.train, found.test), grey)


def describe(example: Example) -> str:
    """An example for people: the image in characters."""
    image = image_of(example.views[0])
    return drawn((luma(image) if image.ndim == 3 else image).reshape(-1))


def picture(tokens: NDArray[np.integer]) -> Images:
    """An image from its ids: y, x, and colour if it has any."""
    return image_of(tokens)


def verify(data: TaskData, request: DataRequest, **options: str) -> list[Check]:
    """Everything that can be checked of images. Copies that a corpus has itself are listed."""
    checks = sequence_checks(data, request, LEVELS)
    if data.source != "stand-in":
        return [Check(check.name, check.name == "duplicates" or check.ok, check.found) for check in checks]
    return checks


def _data(
    request: DataRequest,
    cache: Path,
    source: Source,
    notes: list[str],
    content: Mapping[str, Any],
    parts: Callable[[], Iterator[tuple[str, Images]]],
    grey: bool,
) -> TaskData:
    whole = {**content, "length": request.length, "examples": list(request.examples)}
    found = prepared(
        cache, request.name, whole, lambda: ((name, _block(images, grey)) for name, images in parts()), _measure
    )
    return task_data(found, source, request.limit, _measure, notes)


def _block(images: Images, grey: bool) -> Block:
    return block(luma(images), np.zeros(len(images), np.int64)) if grey else colour_block(images)


def _generated(request: DataRequest, drawing: str, side: int) -> Iterator[tuple[str, Images]]:
    for number, (name, count) in enumerate(zip(SPLITS, request.examples, strict=True)):
        for start in range(0, max(1, count), ROWS):
            some = min(ROWS, count - start)
            yield name, image_standin.pictures(drawing, side, request.seed, (number, start), some)


def _known(parts: Iterable[tuple[Images, NDArray[np.int64]]]) -> Parts:
    images = [images for images, _ in parts]
    return sum(map(len, images)), images


def _cut(request: DataRequest, train: Parts, test: Parts) -> Iterator[tuple[str, Images]]:
    """The splits: the end of train is validation, as many as the preset asks for and at most a tenth."""
    most = dict(zip(SPLITS, request.examples, strict=True))
    count, pieces = train
    held = min(most["validation"], round(SHARE * count))
    yield from _part("train", pieces, 0, min(most["train"], count - held))
    yield from _part("validation", pieces, count - held, count)
    yield from _part("test", test[1], 0, min(most["test"], test[0]))


def _part(name: str, pieces: Iterable[Images], start: int, end: int) -> Iterator[tuple[str, Images]]:
    """Images `start` to `end` of the pieces; no image where there are none."""
    first, none = 0, True
    for images in pieces:
        some = images[max(0, start - first) : max(0, end - first)]
        first += len(images)
        if len(some):
            none = False
            yield name, some
        if first >= end:
            break
    if none:
        yield name, np.zeros((0, 1, 1, 3), np.uint8)


def _measure(splits: Mapping[str, Split]) -> dict[str, float]:
    train, test = splits["train"], splits["test"]
    _, side, *colours = image_of(test[0].views[0]).shape
    step = colours[0] if colours else 1
    reaches = {"levels alone": (), "pixel to the left": (step,), "left and above": (step, step * side)}
    return {name: ngrams.nats(train, test, LEVELS, reach) / log(2) for name, reach in reaches.items()}
