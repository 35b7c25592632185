"""Documents cut into windows, whose tokens are predicted one after the other; no window spans two documents."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import SpecError
from lrbench.loaders.blocks import Block

TOKENS = 2_000_000  # of a block, about


class Window(NamedTuple):
    """A piece of a document, and how many of its tokens are context that an earlier window has scored."""

    tokens: NDArray[np.integer]
    given: int


def windows(documents: Iterable[NDArray[np.integer]], length: int, stride: int) -> Iterator[Window]:
    """Every token of every document is scored once.

    With a stride of the whole length windows follow one another, and each begins without any context. With a shorter
    one a window begins `length - stride` tokens back, which are read and not scored.
    """
    for document in documents:
        done = 0
        while done < len(document):
            start = done - (length - stride) if done else 0
            end = min(len(document), start + length)
            yield Window(document[start:end], done - start)
            done = end


def blocks(found: Iterable[Window], most: int) -> Iterator[Block]:
    """At least one block, of the first so many windows; what comes after is not read."""
    part: list[Window] = []
    empty = True
    for window in islice(found, most):
        part.append(window)
        if len(part) * len(window.tokens) >= TOKENS:
            yield _block(part)
            part, empty = [], False
    if part or empty:
        yield _block(part)


def checked_stride(stride: int | None, length: int) -> int:
    """The stride that is meant; None is the whole window.

    Raises `SpecError` for one that windows of this length cannot have.
    """
    if stride is not None and not 1 <= stride <= length:
        raise SpecError(f"data.options.stride {stride}: windows have {length} tokens", f"choose 1 to {length}")
    if length < 1:
        raise SpecError(f"data.options.eval_length {length}: no window", "choose at least 1")
    return stride or length


def how_cut(length: int, stride: int) -> str:
    """What a record says of the windows of validation and test."""
    if stride == length:
        return f"scored in windows of {length} that do not overlap: each begins without context"
    return f"scored in windows of {length} with a stride of {stride}: {length - stride} tokens of context or more"


def _block(part: list[Window]) -> Block:
    kind = part[0].tokens.dtype if part else np.dtype(np.uint8)
    return Block(
        (np.concatenate([np.zeros(0, kind), *(window.tokens for window in part)]),),
        (np.array([len(window.tokens) for window in part], np.int64),),
        np.array([window.given for window in part], np.int64),
    )
