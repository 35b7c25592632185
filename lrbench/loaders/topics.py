"""Texts that are about something: a stand-in in which what was read long before tells what comes.

32 signs, each with its own chances of being followed by each other; a document knows only 10 of them, drawn for it
alone, and is a chain of these. The sign before tells much, which signs the document has used so far tells as much
again, and takes a memory that reaches far back.
"""

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.streams import Stream

GENERATOR = "lrbench topics 1"  # raised whenever a seed gives other bytes
SIGNS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", np.uint8)
KNOWN = 10  # signs of a document
DOCUMENT = 4096  # bytes
SKEW = 3  # how unlike the chances of a sign's followers are
SAMPLE, ROUNDS = 50, 200  # documents and iterations behind the floor


def chances(seed: int) -> NDArray[np.float64]:
    """How likely each sign follows each, before a document leaves most of them out: sign x next sign."""
    size = len(SIGNS)
    weights: NDArray[np.float64] = Stream(seed, 1_000_000).uniform(size, size) ** SKEW + 1e-3
    return weights


def chain(weights: NDArray[np.float64], random: Stream) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The signs of one document, and the chances that they follow each other."""
    known = random.permutation(len(SIGNS))[:KNOWN]
    part = weights[np.ix_(known, known)]
    return known, part / part.sum(1, keepdims=True)


def floor(seed: int) -> float:
    """Bits a byte for whoever knows a document's chain, in the mean over 50: no model can be below in the long run."""
    weights, random, found = chances(seed), Stream(seed, 2_000_000), []
    for _ in range(SAMPLE):
        _, steps = chain(weights, random)
        share = np.full(KNOWN, 1 / KNOWN)
        for _ in range(ROUNDS):
            share = share @ steps
        found.append(float(share @ -(steps * np.log2(steps)).sum(1)))
    return float(np.mean(found))


def documents(seed: int, number: int, count: int) -> Iterator[NDArray[np.uint8]]:
    """So many bytes in documents of 4,096, the last one shorter; `number` tells splits apart."""
    weights, random = chances(seed), Stream(seed, number)
    for start in range(0, count, DOCUMENT):
        known, steps = chain(weights, random)
        bounds = np.cumsum(steps, axis=1)[:, :-1].tolist()
        sign, found = 0, np.empty(DOCUMENT, np.int64)
        for place, draw in enumerate(random.uniform(DOCUMENT).tolist()):
            sign = bisect_right(bounds[sign], draw)
            found[place] = sign
        yield SIGNS[known[found]][: min(DOCUMENT, count - start)]
