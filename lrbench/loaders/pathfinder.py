"""Pathfinder: do the two marked ends lie on one dashed path? Images of 32 to 256 pixels a side, pixel by pixel.

Linsley et al. 2018; the hard sets (paths of 14 segments) of Long Range Arena (Tay et al. 2021). Generated here by the
same construction with the same parameters, or read from folders in the layout of the release. Ids are the 256 grey
levels, row after row; nothing is padded, and the black ground is masked nowhere. Splits follow the order of the images.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import SpecError
from lrbench.loaders import baselines, pathfinder_files, pathfinder_generator
from lrbench.loaders.base import SPLITS, DataRequest, Example, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.cache import Prepared, prepared
from lrbench.loaders.checks import Check, balance, common_checks
from lrbench.loaders.common import source_of, task_data
from lrbench.loaders.pathfinder_files import SETS, Difficulty
from lrbench.loaders.pictures import block, drawn
from lrbench.loaders.streams import Stream

READER = "pathfinder 1"  # raised whenever the same files give other examples
SHARES = (0.8, 0.1)  # of train and validation in the images of a folder
ROWS = 2**22  # pixels of a block


def load(request: DataRequest, cache: Path, *, difficulty: Difficulty = "hard") -> TaskData:
    """The three splits: images drawn here, or those of the folder `request.source`.

    Raises `SpecError` for a faulty file, `Missing` for data that are not there.
    """
    side = _side(request.length)
    notes = [f"set {SETS[difficulty]}"]
    source = source_of(request, "generated", "local")
    if source == "generated":
        if difficulty != "hard":
            raise SpecError(f"difficulty {difficulty}: only the hard set is generated", "name a folder with --data")
        found = _generated(request, cache, side)
        notes.append("generated, same family as the Long Range Arena's: none of its images")
    else:
        found, more = _local(request, cache, side, difficulty)
        notes += more
    return task_data(found, source, request.limit, partial(_measure, side=side), notes)


def describe(example: Example) -> str:
    """An example for people: the image in characters, and the label."""
    return f"{drawn(example.views[0])}\nanswer: {('two paths', 'one path')[example.label]}"


def picture(tokens: NDArray[np.integer]) -> NDArray[np.uint8]:
    """An image from its ids: y, x."""
    side = _side(len(tokens))
    return tokens.reshape(side, side).astype(np.uint8)


def verify(data: TaskData, request: DataRequest, *, difficulty: Difficulty = "hard") -> list[Check]:
    """Everything that can be checked of Pathfinder images."""
    ink = data.baselines["ink"]
    count = len(data.test)
    room = 0.02 + 4 * 0.5 / count**0.5  # two points, and what chance makes of so few images
    return [
        *common_checks(data, request),
        *balance(data),
        Check("ink", abs(ink - 0.5) <= room, f"ink alone tells {100 * ink:.1f} % of {count} labels"),
        Check("markers", True, f"the distance of the markers tells {100 * data.baselines['marker distance']:.1f} %"),
    ]


def marked(pixels: NDArray[np.integer], side: int) -> NDArray[np.int64]:
    """The middles (y, x) of the two markers: the brightest squares that a marker fills and a line does not."""
    reach = max(1, round(pathfinder_generator.DESIGNS[side].marker_radius * 0.6))
    sums = np.pad(pixels.reshape(side, side).astype(np.int64), ((reach + 1, reach), (reach + 1, reach)))
    sums = sums.cumsum(0).cumsum(1)
    width = 2 * reach + 1
    bright = sums[width:, width:] - sums[:-width, width:] - sums[width:, :-width] + sums[:-width, :-width]
    found = []
    for _ in range(2):
        y, x = divmod(int(bright.argmax()), side)
        found.append((y, x))
        around = slice(max(0, y - width), y + width + 1), slice(max(0, x - width), x + width + 1)
        bright[around] = 0
    return np.array(found)


def _side(length: int) -> int:
    side = int(length**0.5)
    if side not in pathfinder_generator.DESIGNS or side * side != length:
        sizes = ", ".join(f"{each**2} ({each} x {each})" for each in pathfinder_generator.DESIGNS)
        raise SpecError(f"data.length {length}: no Pathfinder of so many pixels", f"possible: {sizes}")
    return side


def _generated(request: DataRequest, cache: Path, side: int) -> Prepared:
    content = {
        "generator": pathfinder_generator.GENERATOR,
        "seed": request.seed,
        "side": side,
        "examples": list(request.examples),
        "set": SETS["hard"],
    }
    return prepared(cache, request.name, content, lambda: _draw(request, side), partial(_measure, side=side))


def _draw(request: DataRequest, side: int) -> Iterator[tuple[str, Block]]:
    """All splits in one row of images; in each, half of the labels are 1."""
    random = Stream(request.seed, 2**32)
    labels = np.concatenate([random.permutation(count) % 2 for count in request.examples])
    names = np.repeat(np.arange(len(SPLITS)), request.examples)
    place = 0
    yield "validation", block(np.zeros((0, side, side), np.uint8), labels[:0])
    for part in pathfinder_generator.images(side, request.seed, labels):
        of = names[place : place + len(part.labels)]
        for number in np.unique(of).tolist():
            yield SPLITS[number], block(part.images[of == number], part.labels[of == number])
        place += len(part.labels)


def _local(request: DataRequest, cache: Path, side: int, difficulty: Difficulty) -> tuple[Prepared, list[str]]:
    folder = pathfinder_files.find(request.source, side, difficulty)
    content: dict[str, Any] = {
        "reader": READER,
        "examples": list(request.examples),
        "set": SETS[difficulty],
        "side": side,
        "files": pathfinder_files.state(folder),
    }
    rows, notes = pathfinder_files.rows(folder, side, difficulty)
    bounds = [0, *(round(share * len(rows)) for share in np.cumsum(SHARES)), len(rows)]
    parts = {
        name: rows[first : min(last, first + most)]
        for name, first, last, most in zip(SPLITS, bounds[:-1], bounds[1:], request.examples, strict=True)
    }

    def build() -> Iterator[tuple[str, Block]]:
        step = max(1, ROWS // side**2)
        for name, some in parts.items():
            for start in range(0, max(1, len(some)), step):
                yield name, block(*pathfinder_files.read(some[start : start + step], side))

    return prepared(cache, request.name, content, build, partial(_measure, side=side)), notes


def _measure(splits: Mapping[str, Split], side: int) -> dict[str, float]:
    train, test = splits["train"], splits["test"]
    return {
        "majority": baselines.majority(train, test),
        "ink": baselines.binned(train, test, _mean, _inked),
        "marker distance": baselines.binned(train, test, partial(_distance, side=side)),
    }


def _mean(example: Example) -> float:
    return float(example.views[0].mean())


def _inked(example: Example) -> float:
    return float(np.count_nonzero(example.views[0]))


def _distance(example: Example, side: int) -> float:
    first, second = marked(example.views[0], side)
    return float(np.hypot(*(first - second)))
