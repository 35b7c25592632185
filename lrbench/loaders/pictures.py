"""Images as tokens: decoded from files, grey or in colour, and drawn with characters."""

import io
from collections.abc import Sequence
from math import ceil, isqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from lrbench.errors import SpecError
from lrbench.loaders.blocks import Block

SHOWN = 96  # pixels that an image on a sheet has at least
WIDEST = 64  # characters of a drawing
SHADES = " .:-=+*#%@"


def decode(content: bytes, mode: str, side: int, where: str) -> NDArray[np.uint8]:
    """The pixels of a square PNG: y, x for mode "L", y, x, colour for "RGB". Raises `SpecError` that names `where`."""
    if not content:
        raise SpecError(f"{where}: the image is empty", "fetch it again")
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            # looked at before anything is unpacked: a small file may promise an enormous image
            if image.size != (side, side):
                raise SpecError(
                    f"{where}: an image of {image.size[0]} x {image.size[1]} pixels in place of {side} x {side}"
                )
            if image.mode != mode:
                raise SpecError(f"{where}: an image of mode {image.mode} in place of {mode}")
            return np.array(image, np.uint8)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError) as error:
        raise SpecError(f"{where}: no whole PNG: {' '.join(str(error).split())[:120]}", "fetch it again") from None


def grey(colour: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Luma as Pillow computes it: (19595 R + 38470 G + 7471 B + 32768) >> 16. The last axis is R, G, B."""
    parts = colour.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32)
    return ((parts + 32768) >> 16).astype(np.uint8)


def block(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Block:
    """Grey images as sequences of their pixels, row after row: ids 0 to 255, black is 0 and as real as white."""
    count, length = len(images), int(np.prod(images.shape[1:]))
    return Block((images.reshape(-1),), (np.full(count, length, np.int64),), labels.astype(np.int64))


def colour_block(images: NDArray[np.uint8]) -> Block:
    """Colour images as sequences of bytes: row after row, pixel after pixel, red, green, blue."""
    count, length = len(images), int(np.prod(images.shape[1:]))
    return Block((images.reshape(-1),), (np.full(count, length, np.int64),), np.zeros(count, np.int64))


def image_of(tokens: NDArray[np.integer]) -> NDArray[np.uint8]:
    """The inverse for one image: y, x, and in colour a third axis; three squares are no square."""
    side = isqrt(len(tokens))
    shape = (side, side) if side**2 == len(tokens) else (isqrt(len(tokens) // 3), -1, 3)
    return tokens.reshape(shape).astype(np.uint8)


def save_sheet(images: Sequence[NDArray[np.uint8]], file: Path) -> None:
    """Write images of one size side by side, in a square of them, to a PNG file; small ones are enlarged.

    Raises `SpecError` where it cannot be written.
    """
    columns = ceil(len(images) ** 0.5)
    side = images[0].shape[0]
    scale = max(1, SHOWN // side)
    padded = [np.pad(image, [(1, 1), (1, 1), (0, 0)][: image.ndim]) for image in images]
    gap = np.zeros_like(padded[0])
    padded += [gap] * (-len(images) % columns)
    rows = [np.concatenate(padded[start : start + columns], axis=1) for start in range(0, len(padded), columns)]
    sheet = np.concatenate(rows, axis=0).repeat(scale, 0).repeat(scale, 1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        Image.fromarray(sheet).save(content, format="PNG")
        file.write_bytes(content.getvalue())
    except OSError as error:
        raise SpecError(f"{file}: {error.strerror}", "name a file that can be written") from None


def drawn(pixels: NDArray[np.integer]) -> str:
    """A square image of characters, two rows of pixels a line; a large one shrunk to what a terminal holds."""
    side = int(len(pixels) ** 0.5)
    image = pixels.reshape(side, side).astype(float)
    step = -(-side // WIDEST)
    whole = side // step * step
    # the brightest of each piece: thin lines would fade in a mean
    small = image[:whole, :whole].reshape(whole // step, step, whole // step, step).max((1, 3))
    rows = small[: len(small) // 2 * 2].reshape(-1, 2, small.shape[1]).mean(1)
    levels = np.minimum((rows / 256 * len(SHADES)).astype(int), len(SHADES) - 1)
    return "\n".join("".join(SHADES[level] for level in row).rstrip() for row in levels)
