"""Text as bytes: byte b is id b + 1, 0 is left for padding, so 257 ids. No start, no end, no repair of what is cut."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.base import Example
from lrbench.loaders.blocks import Block

SHIFT = 1


def encode(text: bytes, length: int) -> NDArray[np.uint16]:
    """The ids of the first `length` bytes."""
    return np.frombuffer(text[:length], np.uint8).astype(np.uint16) + np.uint16(SHIFT)


def decode(ids: NDArray[np.integer]) -> bytes:
    """The bytes of ids without padding."""
    return (ids - SHIFT).astype(np.uint8).tobytes()


def block(rows: Sequence[tuple[tuple[bytes, ...], int]], length: int, views: int = 1) -> Block:
    """Examples given as texts and a label, which may be none."""
    ids = [[encode(texts[view], length) for texts, _ in rows] for view in range(views)]
    empty = np.zeros(0, np.uint16)
    return Block(
        tuple(np.concatenate([empty, *view]) for view in ids),
        tuple(np.array([each.size for each in view], np.int64) for view in ids),
        np.array([label for _, label in rows], np.int64),
    )


def shown(example: Example) -> list[str]:
    """The texts of an example for people: one line each, what is no text as an escape."""
    return [printable(decode(view).decode(errors="backslashreplace")) for view in example.views]


def printable(text: str) -> str:
    """A text without line ends and control characters."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
