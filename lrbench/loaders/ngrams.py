"""What counting scores: each token given a few that stand before it, counted on train, scored on test."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.base import Split

MOST = 8_000_000  # tokens of train that are counted: more would cost memory and change little
CHUNK = 1_000_000  # tokens of test that are scored at once

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class _Counts(NamedTuple):
    """How often each code was seen; codes rise."""

    codes: Ints
    counts: Ints

    def of(self, codes: Ints) -> Floats:
        """How often each of these was seen."""
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.where(self.codes[places] == codes, self.counts[places], 0).astype(float)


def nats(train: Split, test: Split, vocabulary: int, reaches: Sequence[int]) -> float:
    """The mean loss on the scored tokens of test, in nats.

    A token is predicted from those that stand `reaches` places before it: (1, 2) are the last two, () none. Counts of
    a context are smoothed by what the next shorter one says, from uniform on: (count + kinds · p) / (total + kinds),
    with the number of kinds of token that were seen in the context (Witten and Bell 1991).
    """
    tables = _fitted(train, vocabulary, reaches)
    total, scored = 0.0, 0
    for tokens, before in _chunks(test, vocabulary, reaches):
        chances = np.full(len(tokens), 1 / vocabulary)
        for size, (pairs, contexts, kinds) in enumerate(tables):
            context = _code(before[:size], vocabulary + 1, len(tokens))
            seen, shorter = pairs.of(context * vocabulary + tokens), np.maximum(1.0, kinds.of(context))
            chances = (seen + shorter * chances) / (contexts.of(context) + shorter)
        total -= float(np.log(chances).sum())
        scored += len(tokens)
    return total / max(1, scored)


def _fitted(train: Split, vocabulary: int, reaches: Sequence[int]) -> list[tuple[_Counts, _Counts, _Counts]]:
    """For each size of context, counts of it with its token, of it alone, and of kinds of token in it."""
    parts, have = [], 0
    for part in _chunks(train, vocabulary, reaches):
        parts.append(part)
        have += len(part[0])
        if have >= MOST:
            break
    tokens = np.concatenate([part[0] for part in parts])[:MOST]
    before = np.concatenate([part[1] for part in parts], axis=1)[:, :MOST]
    tables = []
    for size in range(len(reaches) + 1):
        context = _code(before[:size], vocabulary + 1, len(tokens))
        pairs, contexts = (_counted(codes) for codes in (context * vocabulary + tokens, context))
        tables.append((pairs, contexts, _counted(pairs.codes // vocabulary)))
    return tables


def _counted(codes: Ints) -> _Counts:
    return _Counts(*np.unique(codes, return_counts=True))


def _code(before: Ints, base: int, count: int) -> Ints:
    """One number for each context."""
    code = np.zeros(count, np.int64)
    for row in before:
        code = code * base + row
    return code


def _chunks(split: Split, vocabulary: int, reaches: Sequence[int]) -> Iterator[tuple[Ints, Ints]]:
    """Scored tokens, and for each of the reaches what stands so far before them: `vocabulary` where nothing does."""
    tokens: list[Ints] = []
    before: list[Ints] = []
    have = 0
    for index in range(len(split)):
        example = split[index]
        view, given = example.views[0].astype(np.int64), example.label
        tokens.append(view[given:])
        rows = [_shifted(view, reach, vocabulary)[given:] for reach in reaches]
        before.append(np.array(rows, np.int64).reshape(len(reaches), len(view) - given))
        have += len(view) - given
        if have >= CHUNK or index == len(split) - 1:
            yield np.concatenate(tokens), np.concatenate(before, axis=1)
            tokens, before, have = [], [], 0


def _shifted(view: Ints, reach: int, nothing: int) -> Ints:
    return np.concatenate([np.full(min(reach, len(view)), nothing), view[: max(0, len(view) - reach)]])
