"""Generated pairs of documents: a stand-in that runs anywhere, and no benchmark.

Every document names its subject once, somewhere among sentences that have nothing to do with it. A pair is linked if
both have the same subject. Half of the pairs are.
"""

from collections.abc import Iterator

import numpy as np

from lrbench.loaders.streams import Stream

GENERATOR = "lrbench documents 1"  # raised whenever a seed gives other documents
SUBJECTS = (
    "parsing", "tagging", "alignment", "summaries", "dialogue", "morphology", "coreference", "lexicons", "spelling",
    "treebanks", "sentiment", "grammars",
)  # fmt: skip
NOUNS = ("model", "corpus", "feature", "sentence", "baseline", "annotator", "table", "vector", "rule", "score")
VERBS = ("improves", "follows", "covers", "replaces", "needs", "explains", "resembles", "limits")
KINDS = ("simple", "large", "second", "“gold”", "sparse", "noisy", "joint", "new")


def lines(seed: int, number: int, count: int, length: int) -> Iterator[bytes]:
    """Rows in the layout of the release for inputs of `length` bytes; `number` tells splits apart."""
    random = Stream(seed, number)
    labels = random.permutation(count) % 2
    first = random.below(len(SUBJECTS), count)
    other = (first + 1 + random.below(len(SUBJECTS) - 1, count)) % len(SUBJECTS)
    second = np.where(labels == 1, first, other)
    for place, (label, *subjects) in enumerate(zip(labels.tolist(), first.tolist(), second.tolist(), strict=True)):
        texts = [_document(SUBJECTS[subject], length, random) for subject in subjects]
        ids = [f"S{number}-{2 * place + view:06}" for view in range(2)]
        yield "\t".join([f"{label}.0", *ids, *map(repr, texts)]).encode()


def _document(subject: str, length: int, random: Stream) -> bytes:
    """Half to one and a half times as long as an input, the subject within what is read of it."""
    named = f"This paper is about {subject}.\n".encode()
    size = length // 2 + int(random.uniform(1)[0] * length)
    draws = random.below(2**16, size // 20 + 2, 6)
    sentences = [_sentence(draw) for draw in draws.tolist()]
    ends = np.cumsum([len(each) for each in sentences])
    room = int(np.searchsorted(ends, min(size, length) - len(named)))  # sentences that may stand before it
    place = int(random.below(max(1, room), 1)[0])
    return b"".join([*sentences[:place], named, *sentences[place : int(np.searchsorted(ends, size))]])


def _sentence(draw: list[int]) -> bytes:
    verb, *words = draw
    phrases = [f"the {KINDS[words[each] % 8]} {NOUNS[words[each + 1] % 10]}" for each in (0, 2)]
    return f"{phrases[0].capitalize()} {VERBS[verb % 8]} {phrases[1]}.\n".encode()
