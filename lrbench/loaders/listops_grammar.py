"""ListOps trees by the thousand: the grammar of Nangia & Bowman 2018 with the settings of Long Range Arena.

A node above the last level is an operator with probability 1/4, else a digit; on the last level it is a
digit. An operator is MIN, MAX, MED (the median, rounded down) or SM (the sum modulo 10), each with
probability 1/4, and has 2 to 10 arguments, all numbers alike. A digit counts one token, an operator two
(itself and its closing bracket) beside its arguments. Trees outside a window of lengths are thrown away.

The original draws tree by tree; here a forest grows level by level in numpy arrays, which is the same
distribution. Nodes of a level lie in reading order, so a tree's nodes, and a node's arguments, are
neighbours. The random words are the raw 64-bit output of Philox (Salmon et al. 2011), whose stream numpy
keeps stable, and only shifts, masks and integer products are applied to them: a seed gives the same trees on
every platform. 100,000 trees of 501 to 1999 tokens take some ten seconds on one core.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.blocks import Block, starts_of
from lrbench.loaders.listops_tokens import CLOSE, DIGIT_0, MIN

GENERATOR = "lrbench listops 1"  # raised whenever a seed gives other trees
DEPTH = 10
FEWEST, MOST = 2, 10  # arguments of an operator
FOREST = 4096  # trees grown at once: the arrays of a level stay in a processor's cache
_LOW = np.uint64(2**60 - 1)


class _Level(NamedTuple):
    """The nodes of all trees at one depth."""

    codes: NDArray[np.uint8]  # the token of each node: a digit or an operator
    arity: NDArray[np.int64]  # number of arguments of each operator


def forests(seed: int, shortest: int, longest: int) -> Iterator[Block]:
    """Blocks of trees of `shortest` to `longest` tokens with their values, without end; some may be empty.

    The trees of all blocks are in the order of drawing, and one may come more than once.
    """
    words = np.random.Philox(key=seed % 2**64)
    while True:
        yield _laid_out(_grow(words, shortest, longest))


def _grow(words: np.random.Philox, shortest: int, longest: int) -> list[_Level]:
    """One forest, without the trees whose length is outside the window."""
    tree = np.arange(FOREST)  # of each node of the level, ascending
    length = np.zeros(FOREST, np.int64)
    levels, trees_of_levels = [], []
    for _ in range(DEPTH - 1):
        drawn = words.random_raw(tree.size)
        is_operator = drawn < 2**62
        codes = np.where(is_operator, MIN + (drawn >> np.uint64(60)), DIGIT_0 + _uniform(drawn, 10)).astype(np.uint8)
        arity = (FEWEST + _uniform(drawn[is_operator], MOST - FEWEST + 1)).astype(np.int64)
        owner = tree[is_operator]
        levels.append(_Level(codes, arity))
        trees_of_levels.append((tree, owner))
        length += _counts(tree) + _counts(owner)
        tree = np.repeat(owner, arity)
        # a tree that is too long already is not grown on: with a low window most work would go there
        pending = _counts(tree)
        length[length + pending > longest] = longest + 1
        tree = tree[(length <= longest)[tree]]
    length += _counts(tree)  # the last level is all digits, so the lengths are known before those are drawn
    kept = (length >= shortest) & (length <= longest)
    levels = [
        _Level(level.codes[kept[nodes]], level.arity[kept[owners]])
        for level, (nodes, owners) in zip(levels, trees_of_levels, strict=True)
    ]
    last = DIGIT_0 + _uniform(words.random_raw(int(kept[tree].sum())), 10)
    return [*levels, _Level(last.astype(np.uint8), np.zeros(0, np.int64))]


def _uniform(words: NDArray[np.uint64], choices: int) -> NDArray[np.uint64]:
    """A number below `choices`, from the low 60 bits: uneven by less than one part in 10^16."""
    return ((words & _LOW) * np.uint64(choices)) >> np.uint64(60)


def _counts(tree: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of these nodes each tree has; `tree` is ascending."""
    return np.diff(np.searchsorted(tree, np.arange(FOREST + 1)))


def _laid_out(levels: list[_Level]) -> Block:
    """The tokens of each tree in reading order, and its value."""
    sizes, values = _bottom_up(levels)
    tokens = np.empty(int(sizes[0].sum()), np.uint8)
    place = starts_of(sizes[0])
    for depth, (codes, arity) in enumerate(levels):
        tokens[place] = codes
        operators = np.flatnonzero(codes >= MIN)
        if not operators.size:
            break
        tokens[place[operators] + sizes[depth][operators] - 1] = CLOSE
        before = starts_of(sizes[depth + 1])
        first = starts_of(arity)
        place = np.repeat(place[operators] + 1 - before[first], arity) + before
    return Block((tokens,), (sizes[0],), values[0].astype(np.int64))


def _bottom_up(levels: list[_Level]) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int32]]]:
    """Token counts and values of all subtrees, level by level from the leaves."""
    sizes: list[NDArray[np.int64]] = []
    values: list[NDArray[np.int32]] = []
    for codes, arity in reversed(levels):
        size = np.ones(codes.size, np.int64)
        value = codes.astype(np.int32) - DIGIT_0
        operators = np.flatnonzero(codes >= MIN)
        if operators.size:
            size[operators] = 2 + _sums(sizes[-1], arity)
            value[operators] = _apply(codes[operators] - MIN, values[-1], arity)
        sizes.append(size)
        values.append(value)
    return sizes[::-1], values[::-1]


def _sums(numbers: NDArray[np.integer], arity: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums over runs of `arity` neighbours."""
    ends = np.cumsum(arity)
    running = np.concatenate([[0], np.cumsum(numbers, dtype=np.int64)])
    sums: NDArray[np.int64] = running[ends] - running[ends - arity]
    return sums


def _apply(kinds: NDArray[np.uint8], arguments: NDArray[np.int32], arity: NDArray[np.int64]) -> NDArray[np.int64]:
    """The value of each operator: 0 MIN, 1 MAX, 2 MED, 3 SM, over runs of `arity` arguments."""
    first = starts_of(arity)
    # one sort of (operator, argument) pairs ranks the arguments of every operator: least, greatest, middle
    ranked = np.sort(np.repeat(np.arange(arity.size, dtype=np.int32) * 16, arity) + arguments) & 15
    least, greatest = ranked[first], ranked[first + arity - 1]
    median = (ranked[first + (arity - 1) // 2] + ranked[first + arity // 2]) // 2
    return np.choose(kinds, (least, greatest, median, _sums(arguments, arity) % 10))
