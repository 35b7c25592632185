"""Cutting validation from train: the same examples whenever it is done, classes in proportion, copies together."""

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.streams import Stream

SEED = 20210507  # of every cut, whatever the seed of a run: a validation set is part of a task
SHARE = 0.1


def hold_out(keys: list[bytes], labels: NDArray[np.int64], share: float = SHARE) -> tuple[NDArray[np.int64], ...]:
    """Numbers of the examples that stay in train and of those that are held out, either in random order.

    `keys` tells copies: examples of one key stay together, so no text is in both. Of each class that share is held
    out, to the last example where copies allow it.
    """
    order = Stream(SEED).permutation(len(labels)) if len(labels) else np.zeros(0, np.int64)
    copies: dict[bytes, list[int]] = {}
    for index in order.tolist():
        copies.setdefault(keys[index], []).append(index)
    wanted = {int(label): round(share * int((labels == label).sum())) for label in np.unique(labels)}
    held = set()
    for group in copies.values():
        label = int(labels[group[0]])
        if len(group) <= wanted[label] and all(labels[each] == label for each in group):
            held.update(group)
            wanted[label] -= len(group)
    chosen = np.array([int(index) in held for index in order], bool)
    return order[~chosen], order[chosen]


def shuffled(count: int) -> NDArray[np.int64]:
    """The numbers below `count` in a fixed random order: what is sorted by label must not be cut by a limit."""
    return Stream(SEED, 1).permutation(count)
