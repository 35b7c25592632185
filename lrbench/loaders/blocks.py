"""Many examples as a few flat arrays: how loaders hand over what they read or generate."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.base import Example


class Block(NamedTuple):
    """Some consecutive examples. Each view is one flat array of token ids, cut up by its lengths."""

    tokens: tuple[NDArray[np.integer], ...]  # one array a view, all of the same type
    lengths: tuple[NDArray[np.int64], ...]  # one array a view, one number an example
    labels: NDArray[np.int64]


class BlockSplit:
    """A split over blocks, in memory or mapped from a file. An example's views are views of the blocks' arrays."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        blocks = [block for block in blocks if block.labels.size]
        nothing = [np.zeros(0, np.int64)]
        self.labels: NDArray[np.int64] = np.concatenate(nothing + [block.labels for block in blocks])
        self.lengths: NDArray[np.int64] = np.concatenate(
            nothing + [np.maximum.reduce(block.lengths) for block in blocks]
        )
        self._indices = range(self.labels.size)
        sizes = np.array([block.labels.size for block in blocks], np.int64)
        self._firsts: list[int] = starts_of(sizes).tolist()  # the number of each block's first example
        self._views = [
            [
                (tokens, np.append(0, np.cumsum(lengths)))
                for tokens, lengths in zip(block.tokens, block.lengths, strict=True)
            ]
            for block in blocks
        ]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Example:
        index = self._indices[index]  # negative numbers count from the end, beyond it is an IndexError
        block = bisect_right(self._firsts, index) - 1
        row = index - self._firsts[block]
        views = tuple([tokens[bounds[row] : bounds[row + 1]] for tokens, bounds in self._views[block]])
        return Example(views, int(self.labels[index]))


def starts_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each run begins when runs of these lengths follow one another."""
    return np.cumsum(lengths) - lengths
