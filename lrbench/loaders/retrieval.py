"""Retrieval: does one of two papers cite the other? Pairs of the ACL Anthology Network, byte by byte.

Radev et al. 2013; pairs as in Long Range Arena (Tay et al. 2021): an example has two views, encoded apart. Ids are
bytes plus one, 0 pads, of each text the first 10,000 bytes and then the first `length` count. A preset's number of
examples is the most that is taken, in the order of the files.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from lrbench.errors import SpecError
from lrbench.loaders import baselines, hub, retrieval_standin
from lrbench.loaders.base import SPLITS, DataRequest, Example, Split, TaskData
from lrbench.loaders.blocks import Block
from lrbench.loaders.bytetokens import block, shown
from lrbench.loaders.cache import prepared
from lrbench.loaders.checks import Check, balance, common_checks
from lrbench.loaders.common import digest_of, source_of, task_data
from lrbench.loaders.retrieval_files import FILES, MOST, Pair, find_files, is_escaped, read, row

READER = "retrieval 1"  # raised whenever the same files give other examples
ROWS = 500  # of a block


def load(request: DataRequest, cache: Path) -> TaskData:
    """The three splits from files in the layout of the release, from the hub's copy, or generated as a stand-in.

    Raises `SpecError` for a faulty file, `Missing` for data that are not there.
    """
    if request.length > MOST:
        raise SpecError(f"data.length {request.length}: of a paper the first {MOST} bytes are given", "ask for less")
    sizes = {"length": request.length, "examples": list(request.examples)}
    source = source_of(request, "stand-in", "hub", "local")
    if source == "stand-in":
        notes = ["the documents are generated: a stand-in for AAN, of which scores say nothing"]
        content: dict[str, Any] = {"generator": retrieval_standin.GENERATOR, "seed": request.seed, **sizes}
        found = prepared(cache, request.name, content, lambda: _generated(request), _measure)
    elif source == "hub":
        notes = hub.notes(request)
        content = {"reader": READER, **sizes, **hub.content(request)}
        paths = {split: f"aan/{name}" for split, name in FILES.items()}
        found = prepared(
            cache,
            request.name,
            content,
            lambda: _read(request, {split: hub.file(request, path) for split, path in paths.items()}),
            _measure,
        )
    else:
        files = find_files(request.source)
        escaped = [path.name for path in files.values() if is_escaped(path)]
        notes = [f"texts are escaped bytes, b'...', in {', '.join(escaped)}"] if escaped else []
        content = {"reader": READER, **sizes, "files": digest_of(files.values())}
        found = prepared(cache, request.name, content, lambda: _read(request, files), _measure)
    return task_data(found, source, request.limit, _measure, notes)


def describe(example: Example) -> str:
    """An example for people: both texts, and whether one cites the other."""
    first, second = shown(example)
    return f"1: {first}\n2: {second}\nanswer: {('not linked', 'linked')[example.label]}"


def verify(data: TaskData, request: DataRequest) -> list[Check]:
    """Everything that can be checked of pairs."""
    return [*common_checks(data, request), *balance(data)]


def _generated(request: DataRequest) -> Iterator[tuple[str, Block]]:
    for number, (name, count) in enumerate(zip(SPLITS, request.examples, strict=True)):
        lines = retrieval_standin.lines(request.seed, number, count, request.length)
        pairs = (row(line, f"generated {name} {place}") for place, line in enumerate(lines))
        yield from _blocks(name, pairs, request)


def _read(request: DataRequest, files: Mapping[str, Path]) -> Iterator[tuple[str, Block]]:
    for (name, path), most in zip(files.items(), request.examples, strict=True):
        yield from _blocks(name, islice(read(path), most), request)


def _blocks(name: str, pairs: Iterator[Pair], request: DataRequest) -> Iterator[tuple[str, Block]]:
    yield name, block([], request.length, views=2)
    while some := list(islice(pairs, ROWS)):
        yield name, block(some, request.length, views=2)


def _measure(splits: Mapping[str, Split]) -> dict[str, float]:
    train, test = splits["train"], splits["test"]
    return {
        "majority": baselines.majority(train, test),
        "bag of bytes": baselines.linear(train, test, baselines.bag_of_bytes),
    }
