"""Bytes of a Markov chain of order two: a stand-in for text whose entropy is known exactly.

27 letters (a to z and the blank); which letter follows which two is drawn once, skewed like a language's.
"""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.streams import Stream

GENERATOR = "lrbench markov 1"  # raised whenever a seed gives other bytes
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8)
SKEW = 6  # how unlike the chances of a context's letters are
ROUNDS = 200  # of the iteration for how often each state occurs


def chain(seed: int) -> NDArray[np.float64]:
    """Chances of the next letter, state x letter; state: letter before last · 27 + last letter."""
    size = len(LETTERS)
    weights = Stream(seed, 1_000_000).uniform(size * size, size) ** SKEW + 1e-3
    chances: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
    return chances


def entropy(chances: NDArray[np.float64]) -> float:
    """Bits a letter of the chain, in the long run: what no model can be below."""
    size = chances.shape[1]
    share = np.full((size, size), 1 / size**2)  # letter before last x last letter
    steps = chances.reshape(size, size, size)
    for _ in range(ROUNDS):
        share = np.einsum("ab,abc->bc", share, steps)
    each = -(chances * np.log2(chances)).sum(1)
    return float(share.reshape(-1) @ each)


def letters(seed: int, number: int, count: int) -> NDArray[np.uint8]:
    """So many bytes of the chain of a seed; `number` tells documents apart. Some 2 million a second."""
    chances = chain(seed)
    size = chances.shape[1]
    bounds = np.cumsum(chances, axis=1)[:, :-1].tolist()
    random = Stream(seed, number)
    state = int(random.below(size * size))
    found = np.empty(count, np.uint8)
    for place, draw in enumerate(random.uniform(count).tolist()):
        letter = bisect_right(bounds[state], draw)
        found[place] = letter
        state = state % size * size + letter
    return LETTERS[found]
