"""Language modelling in bytes: enwik8 (Mahoney), PG-19 (Rae et al. 2020), Wiki-40B (Guo et al. 2020), or any text.

Ids are the bytes themselves, 0 to 255; a window never spans two documents. A single file is cut 90/5/5 by bytes, which
for enwik8 is the usual cut to the byte. A preset's number of examples, in windows, is the most that is read: a corpus
that is larger than a disk is read no further than that.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from math import exp, log
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import SpecError
from lrbench.loaders import hub, markov, ngrams, texts, topics
from lrbench.loaders.base import SPLITS, DataRequest, Example, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.bytetokens import printable
from lrbench.loaders.cache import kept, prepared
from lrbench.loaders.checks import Check, sequence_checks
from lrbench.loaders.common import digest_of, source_of, task_data
from lrbench.loaders.windows import blocks, checked_stride, how_cut, windows

READER = "bytes 1"  # raised whenever the same files give other examples
VOCABULARY = 256
SPACES = np.isin(np.arange(VOCABULARY), np.frombuffer(b" \t\n\v\f\r", np.uint8))
REACHES = {"bytes alone": (), "after 1 byte": (1,), "after 2 bytes": (1, 2), "after 3 bytes": (1, 2, 3)}
Document = NDArray[np.uint8]
Text = Literal["markov", "topics"]
GENERATORS: dict[Text, str] = {"markov": markov.GENERATOR, "topics": topics.GENERATOR}


def load(
    request: DataRequest,
    cache: Path,
    *,
    stride: int | None = None,
    eval_length: int | None = None,
    words: bool = False,
    text: Text = "markov",
) -> TaskData:
    """The three splits from files, from the hub, or generated as a stand-in.

    Args:
        stride: by how many tokens the windows of validation and test move on; None: by a whole window.
        eval_length: tokens of those windows, if not as many as are trained on. Through a longer one an attention with
            a memory streams, segment after segment; a document is as long a window as there is.
        words: whether the metric is a perplexity by words, as whitespace parts them.
        text: what a stand-in is: a Markov chain, or documents of few signs each, in which range pays.

    Raises `SpecError` for a faulty file, `Missing` for data that are not there.
    """
    source = source_of(request, "stand-in", "hub", "local")
    size = request.length if eval_length is None else eval_length
    step = checked_stride(stride, size)
    measure = partial(_measure, words=words)
    content: dict[str, Any] = {"length": request.length, "examples": list(request.examples)}
    content |= {"stride": step, "eval_length": size}
    notes = [how_cut(size, step)]
    if source == "stand-in":
        kind, rate = STAND_INS[text](request.seed)
        notes += [f"the text is {kind}, {rate:.4f} bits a byte at best: a stand-in, of which scores say nothing"]
        content |= {"generator": GENERATORS[text], "seed": request.seed, "words": words}
        build = partial(_blocks, request, size, step, partial(generated, request, text))
    elif source == "hub":
        notes += hub.notes(request)
        content |= {"reader": READER, "words": words, **hub.content(request)}
        documents = partial(streamed, request, kept(cache, request.name, content))
        build = partial(_blocks, request, size, step, documents)
    else:
        corpus = texts.find(request.source)
        content |= {"reader": READER, "words": words, "files": digest_of(corpus.files)}
        build = partial(_blocks, request, size, step, partial(read, corpus))
    found = prepared(cache, request.name, content, build, measure)
    data = task_data(found, source, request.limit, measure, notes)
    if not words:
        return data
    scored = {"validation": data.validation, "test": data.test}
    return dataclasses.replace(data, units={name: words_of(split) for name, split in scored.items()})


def _markov(seed: int) -> tuple[str, float]:
    return "a Markov chain", markov.entropy(markov.chain(seed))


def _topics(seed: int) -> tuple[str, float]:
    return (
        f"in documents of {topics.DOCUMENT} bytes, each of {topics.KNOWN} of {len(topics.SIGNS)} signs",
        topics.floor(seed),
    )


STAND_INS = {"markov": _markov, "topics": _topics}


def describe(example: Example) -> str:
    """An example for people: the text, with what is only context in brackets."""
    text, given = example.views[0].astype(np.uint8).tobytes(), example.label
    before = f"[{printable(text[:given].decode(errors='backslashreplace'))}]" if given else ""
    return before + printable(text[given:].decode(errors="backslashreplace"))


def verify(data: TaskData, request: DataRequest, **options: Any) -> list[Check]:
    """Everything that can be checked of bytes. Windows that a corpus has twice are listed."""
    longest = max(request.length, options.get("eval_length") or 0)
    checks = sequence_checks(data, dataclasses.replace(request, length=longest), VOCABULARY)
    return [Check(check.name, check.name == "duplicates" or check.ok, check.found) for check in checks]


def words_of(split: Split) -> int:
    """How many words begin among what is scored: a byte that is no space after one that is, or at a text's start."""
    count = 0
    for index in range(len(split)):
        view, given = split[index].views[0], split[index].label
        space = SPACES[view]
        before = np.concatenate([[True], space[:-1]])  # a window that begins within a word counts it once more
        count += int((~space & before)[given:].sum())
    return max(1, count)


def _blocks(request: DataRequest, size: int, stride: int, documents: Any) -> Iterator[tuple[str, Block]]:
    for name, most in zip(SPLITS, request.examples, strict=True):
        lengths = (request.length, request.length) if name == "train" else (size, stride)
        cut = windows(documents(name), *lengths)
        yield from ((name, block) for block in blocks(cut, most))


def generated(request: DataRequest, text: Text, name: str) -> Iterator[Document]:
    """As many bytes as the split's windows hold: of one document of a Markov chain, or of documents about something."""
    number = SPLITS.index(name)
    count = request.examples[number] * request.length
    if text == "topics":
        yield from topics.documents(request.seed, number, count)
    else:
        yield markov.letters(request.seed, number, count)


def streamed(request: DataRequest, kept: Path, name: str) -> Iterator[Document]:
    """The hub's documents, as far as they are asked for; `kept` holds them for another try."""
    for row, text in enumerate(hub.stream(request, name, "text", kept)):
        if not text:
            raise SpecError(f"the hub's {name} split: row {row}: the document is empty")
        yield np.frombuffer(text.encode(), np.uint8)


def read(corpus: texts.Corpus, name: str) -> Iterator[Document]:
    """The documents of files."""
    if corpus.whole is None:
        found = chain.from_iterable(map(texts.documents, corpus.parts[name]))
        yield from (np.frombuffer(document, np.uint8) for document in found)
        return
    content = np.frombuffer(texts.whole(corpus.whole), np.uint8)
    first, second = texts.bounds(len(content))
    if not first or second == len(content) or first == second:
        raise SpecError(f"{corpus.whole}: {len(content)} bytes cannot be cut 90/5/5", "name a longer text")
    yield {"train": content[:first], "validation": content[first:second], "test": content[second:]}[name]


def _measure(splits: Mapping[str, Split], words: bool) -> dict[str, float]:
    train, test = splits["train"], splits["test"]
    found = {name: ngrams.nats(train, test, VOCABULARY, reach) for name, reach in REACHES.items()}
    if not words:
        return {name: nats / log(2) for name, nats in found.items()}
    scored = int(test.lengths.sum() - test.labels.sum())
    return {name: exp(min(700.0, nats * scored / words_of(test))) for name, nats in found.items()}
