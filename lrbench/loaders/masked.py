"""Masked language modelling in bytes: what stood where a mask stands now? C4 (Raffel et al. 2020), or any text.

15 in 100 bytes of a window, drawn once for each window and so the same for every model and at every step, are replaced
by the mask, id 256; they alone are scored. Ids are the bytes themselves; a window never spans two documents. A
preset's number of examples, in windows, is the most that is read: a corpus larger than a disk is read no further.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders import hub, language, texts
from lrbench.loaders.base import SPLITS, DataRequest, Example, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.bytetokens import printable
from lrbench.loaders.cache import kept, prepared
from lrbench.loaders.checks import Check, sequence_checks
from lrbench.loaders.common import digest_of, source_of, task_data
from lrbench.loaders.streams import Stream
from lrbench.loaders.windows import windows

READER = "masked 1"  # raised whenever the same files give other examples
MASK, VOCABULARY = 256, 257
SHARE = 0.15
SEED = 20210712  # of every mask
ROWS = 1000  # windows of a block


def load(request: DataRequest, cache: Path, *, text: language.Text = "markov") -> TaskData:
    """The three splits from files, from the hub, or generated as a stand-in.

    Args:
        text: what a stand-in is, as in `language`.

    Raises `SpecError` for a faulty file, `Missing` for data that are not there.
    """
    source = source_of(request, "stand-in", "hub", "local")
    content: dict[str, Any] = {"length": request.length, "examples": list(request.examples), "masks": SEED}
    notes = [f"{SHARE:.0%} of the bytes of a window are masked and scored, always the same"]
    if source == "stand-in":
        kind, _ = language.STAND_INS[text](request.seed)
        notes += [f"the text is {kind}: a stand-in, of which scores say nothing"]
        content |= {"generator": language.GENERATORS[text], "seed": request.seed}
        documents = partial(language.generated, request, text)
    elif source == "hub":
        notes += hub.notes(request)
        content |= {"reader": READER, **hub.content(request)}
        documents = partial(language.streamed, request, kept(cache, request.name, content))
    else:
        corpus = texts.find(request.source)
        content |= {"reader": READER, "files": digest_of(corpus.files)}
        documents = partial(language.read, corpus)
    found = prepared(cache, request.name, content, lambda: _blocks(request, documents), _measure)
    return task_data(found, source, request.limit, _measure, notes)


def describe(example: Example) -> str:
    """An example for people: the text with blocks for masks, and what they hide."""
    tokens, targets = example.views
    letters = [printable(chr(each)) if each < 128 else "?" for each in np.where(tokens == MASK, 0, tokens).tolist()]
    text = "".join("█" if token == MASK else letter for token, letter in zip(tokens.tolist(), letters, strict=True))
    hidden = targets[targets >= 0].astype(np.uint8).tobytes()
    return f"{text}\nhidden: {printable(hidden.decode(errors='backslashreplace'))}"


def verify(data: TaskData, request: DataRequest, **options: str) -> list[Check]:
    """Everything that can be checked of masked text. Windows that a corpus has twice are listed."""
    checks = sequence_checks(data, request, VOCABULARY)
    return [Check(check.name, check.name == "duplicates" or check.ok, check.found) for check in checks]


def _blocks(request: DataRequest, documents: Any) -> Iterator[tuple[str, Block]]:
    for number, (name, most) in enumerate(zip(SPLITS, request.examples, strict=True)):
        random, part, count = Stream(SEED, number), [], 0
        for window in windows(documents(name) if most else (), request.length, request.length):
            part.append(masked(window.tokens, random))
            count += 1
            if len(part) == ROWS or count == most:
                yield name, _block(part)
                part = []
            if count == most:
                break
        if part or not count:
            yield name, _block(part)


def masked(tokens: NDArray[np.integer], random: Stream) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """A window with masks in it, and what they hide: at least one."""
    places = random.permutation(len(tokens))[: max(1, round(SHARE * len(tokens)))]
    shown, hidden = tokens.astype(np.int16), np.full(len(tokens), -1, np.int16)
    hidden[places] = shown[places]
    shown[places] = MASK
    return shown, hidden


def _block(part: Iterable[tuple[NDArray[np.int16], NDArray[np.int16]]]) -> Block:
    rows = list(part)
    lengths = np.array([len(shown) for shown, _ in rows], np.int64)
    views = tuple(np.concatenate([np.zeros(0, np.int16), *(row[view] for row in rows)]) for view in range(2))
    return Block(views, (lengths, lengths), np.zeros(len(rows), np.int64))


def _measure(splits: Mapping[str, Split]) -> dict[str, float]:
    """Perplexity of hidden bytes by how often each is hidden in train."""
    counts, asked = (_hidden(splits[name]) for name in ("train", "test"))
    chances = (counts + 1.0) / (counts.sum() + len(counts))
    return {"bytes alone": exp(-float(asked @ np.log(chances)) / max(1, int(asked.sum())))}


def _hidden(split: Split) -> NDArray[np.int64]:
    counts = np.zeros(256, np.int64)
    for index in range(len(split)):
        targets = split[index].views[1]
        counts += np.bincount(targets[targets >= 0], minlength=256)
    return counts
