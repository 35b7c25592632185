"""Language modelling in words: WikiText-103 (Merity et al. 2017), the text with `<unk>`, or any text of that form.

Words are what blanks part, and every line ends in one `<eos>`, an empty line too. Ids go by how often a word occurs in
train, equal counts by the alphabet; what train lacks is `<unk>`. A split is one text, cut into windows. A preset's
number of examples, in windows, is the most that is taken.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from lrbench.errors import SpecError
from lrbench.loaders import hub, markov, ngrams, texts
from lrbench.loaders.base import SPLITS, DataRequest, Example, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.cache import prepared
from lrbench.loaders.checks import Check, sequence_checks
from lrbench.loaders.common import digest_of, source_of, task_data
from lrbench.loaders.tables import is_text, read_parquet
from lrbench.loaders.windows import blocks, checked_stride, how_cut, windows

READER = "words 1"  # raised whenever the same files give other examples
VOCABULARY = 267_735
END, UNKNOWN = "<eos>", "<unk>"
LETTERS_A_WORD = 8  # of a stand-in, at least; the chain's blanks part them
Lines = dict[str, list[str]]


def load(request: DataRequest, cache: Path, *, stride: int | None = None) -> TaskData:
    """The three splits from files, from the hub, or of a Markov chain of letters as a stand-in.

    Args:
        stride: by how many words the windows of validation and test move on; None: by a whole window.

    Raises `SpecError` for a faulty file, `Missing` for data that are not there.
    """
    source = source_of(request, "stand-in", "hub", "local")
    step = checked_stride(stride, request.length)
    content: dict[str, Any] = {"length": request.length, "examples": list(request.examples), "stride": step}
    notes = [how_cut(request.length, step)]
    if source == "stand-in":
        notes += ["the words are of a Markov chain of letters: a stand-in, of which scores say nothing"]
        content |= {"generator": markov.GENERATOR, "seed": request.seed}
    elif source == "hub":
        notes += hub.notes(request)
        content |= {"reader": READER, **hub.content(request)}
    else:
        content |= {"reader": READER, "files": digest_of(texts.find(request.source).files)}
    found = prepared(cache, request.name, content, lambda: _blocks(request, step, _text(request)), _measure)
    return task_data(found, source, request.limit, _measure, notes)


def reader(request: DataRequest) -> Callable[[Example], str]:
    """How people read an example: as words and lines. Takes another look at the text, as ids alone are kept of it."""
    words = list(vocabulary(split_words(_text(request)["train"])))
    return lambda example: " ".join(words[place] for place in example.views[0]).replace(f" {END} ", "\n")


def verify(data: TaskData, request: DataRequest, **options: Any) -> list[Check]:
    """Everything that can be checked of words. Windows that a corpus has twice are listed."""
    checks = sequence_checks(data, request, VOCABULARY)
    return [Check(check.name, check.name == "duplicates" or check.ok, check.found) for check in checks]


def split_words(lines: Iterable[str]) -> Iterator[str]:
    """The words of lines, with an end after each."""
    for line in lines:
        yield from line.split()
        yield END


def vocabulary(words: Iterable[str]) -> dict[str, int]:
    """Ids by falling frequency. Raises `SpecError` where there are more words than ids."""
    counts = Counter(words)
    counts.setdefault(UNKNOWN, 0)
    if len(counts) > VOCABULARY:
        raise SpecError(f"{len(counts)} different words, the vocabulary holds {VOCABULARY}", "name a text with <unk>")
    return {word: place for place, word in enumerate(sorted(counts, key=lambda word: (-counts[word], word)))}


def _blocks(request: DataRequest, stride: int, lines: Lines) -> Iterator[tuple[str, Block]]:
    ids = vocabulary(split_words(lines["train"]))
    unknown = ids[UNKNOWN]
    for name, most in zip(SPLITS, request.examples, strict=True):
        text = np.fromiter((ids.get(word, unknown) for word in split_words(lines[name])), np.int32)
        cut = windows([text], request.length, request.length if name == "train" else stride)
        yield from ((name, block) for block in blocks(cut, most))


def _text(request: DataRequest) -> Lines:
    source = source_of(request, "stand-in", "hub", "local")
    if source == "stand-in":
        return _generated(request)
    return _from_hub(request) if source == "hub" else _read(texts.find(request.source))


def _generated(request: DataRequest) -> Lines:
    return {name: _letters(request, number) for number, name in enumerate(SPLITS)}


def _letters(request: DataRequest, number: int) -> list[str]:
    """Lines of ten words, enough for the windows that are asked for."""
    wanted, size = request.examples[number] * request.length, LETTERS_A_WORD
    words: list[str] = []
    while wanted and len(words) < wanted:
        words = markov.letters(request.seed, number, wanted * size).tobytes().decode().split()
        size *= 2
    return [" ".join(words[start : start + 10]) for start in range(0, wanted, 10)]


def _from_hub(request: DataRequest) -> Lines:
    return {name: hub.table(request, name).column("text").to_pylist() for name in SPLITS}


def _read(corpus: texts.Corpus) -> Lines:
    if corpus.whole is None:
        return {name: list(chain.from_iterable(map(_lines, corpus.parts[name]))) for name in SPLITS}
    lines = _lines(corpus.whole)
    first, second = texts.bounds(len(lines))
    if not first or first == second or second == len(lines):
        raise SpecError(f"{corpus.whole}: {len(lines)} lines cannot be cut 90/5/5", "name a longer text")
    return {"train": lines[:first], "validation": lines[first:second], "test": lines[second:]}


def _lines(path: Path) -> list[str]:
    """Lines without their ends; of a table a row is a line, and may be empty."""
    if path.suffix == ".parquet":
        return [text.rstrip("\n") for text in _column(path)]
    try:
        return texts.whole(path).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not valid UTF-8 at byte {error.start}", "fetch it again") from None


def _column(path: Path) -> list[str]:
    return list(read_parquet(path, {"text": (is_text, "text")}).column("text").to_pylist())


def _measure(splits: Mapping[str, Split]) -> dict[str, float]:
    train, test = splits["train"], splits["test"]
    reaches = {"words alone": (), "after 1 word": (1,)}
    return {name: exp(ngrams.nats(train, test, VOCABULARY, reach)) for name, reach in reaches.items()}
