"""Generated colour images: a stand-in that runs anywhere, and no benchmark.

Of the ten shapes, the shape tells the class; place, size, colours and noise do not.
"""

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.streams import Stream

GENERATOR = "lrbench shapes 1"  # raised whenever a seed gives other images
SIDE = 32
ROWS = 1000  # images drawn at once
LEVELS = 8  # of each colour of a constant image


def images(seed: int, number: int, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """So many images, image y x colour, and their labels, all ten about as frequent; `number` tells splits apart."""
    random = Stream(seed, number)
    labels = random.permutation(count) % 10
    parts = [_drawn(labels[start : start + ROWS], random) for start in range(0, count, ROWS)]
    return np.concatenate([np.zeros((0, SIDE, SIDE, 3), np.uint8), *parts]), labels


def pictures(drawing: str, side: int, seed: int, number: tuple[int, int], count: int) -> NDArray[np.uint8]:
    """Images without labels, image y x colour: "shapes", "noise" of bytes, or one of 512 "constant" colours.

    `number`: of the split, and of the first image. Shapes of another side than 32 are those, each pixel repeated.
    """
    split, first = number
    random = Stream(seed, split + 1000 * (first + 1))
    if drawing == "noise":
        return random.below(256, count, side, side, 3).astype(np.uint8)
    if drawing == "constant":
        colours = 255 * random.below(LEVELS, count, 1, 1, 3) // (LEVELS - 1)
        return np.broadcast_to(colours, (count, side, side, 3)).astype(np.uint8)
    shapes = _drawn(random.below(10, count), random)
    return shapes.repeat(side // SIDE, 1).repeat(side // SIDE, 2)


def _drawn(labels: NDArray[np.int64], random: Stream) -> NDArray[np.uint8]:
    count = len(labels)
    y, x = (axis[None] - 10.0 - 12 * random.uniform(count, 1, 1) for axis in np.mgrid[:SIDE, :SIDE].astype(float))
    size = 5 + 5 * random.uniform(count, 1, 1)
    inside = np.zeros((count, SIDE, SIDE), bool)
    for label in range(10):
        of = labels == label
        inside[of] = _shape(label, y[of], x[of], size[of])
    paper, ink = random.below(256, 2, count, 1, 1, 3)
    ink = np.where(np.abs(ink - paper).max(-1, keepdims=True) < 80, 255 - paper, ink)
    noise = random.below(33, count, SIDE, SIDE, 1) - 16
    whole: NDArray[np.uint8] = np.clip(np.where(inside[..., None], ink, paper) + noise, 0, 255).astype(np.uint8)
    return whole


def _shape(label: int, y: NDArray[np.float64], x: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where the shape of a class lies, in coordinates of its middle."""
    far, straight = np.hypot(y, x), np.maximum(abs(y), abs(x))
    shapes = (
        lambda: far < size,  # a disc
        lambda: (far < size) & (far > size - 3),  # a ring
        lambda: straight < size,  # a square
        lambda: (straight < size) & (straight > size - 3),  # a frame
        lambda: (abs(y) < size) & (2 * abs(x) < y + size),  # a triangle
        lambda: (straight < size) & (np.minimum(abs(y), abs(x)) < 2),  # a cross
        lambda: (straight < size) & (abs(abs(y) - abs(x)) < 2),  # the same, lying
        lambda: (straight < size) & (np.floor(y / 2) % 2 == 0),  # bars across
        lambda: (straight < size) & (np.floor(x / 2) % 2 == 0),  # bars upright
        lambda: (straight < size) & ((np.floor(y / 3) + np.floor(x / 3)) % 2 == 0),  # a chessboard
    )
    return shapes[label]()
