"""ListOps: what a bracketed prefix expression of digits is worth, 0 to 9.

Nangia & Bowman 2018; lengths and depth as in Long Range Arena (Tay et al. 2021). Generated here, or read from
the files of the release. Parentheses are dropped, brackets kept, no special token is added and nothing is cut.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from lrbench.errors import SpecError
from lrbench.files import digest
from lrbench.loaders.base import SPLITS, DataRequest, Example, Source, Split, TaskData, fingerprint, limited
from lrbench.loaders.blocks import Block
from lrbench.loaders.cache import Prepared, prepared
from lrbench.loaders.checks import Check, common_checks, shared
from lrbench.loaders.common import source_of
from lrbench.loaders.listops_files import find_files, read
from lrbench.loaders.listops_grammar import GENERATOR, forests
from lrbench.loaders.listops_tokens import UNKNOWN, decode, evaluate

PATIENCE = 200  # forests without a new tree, some 800,000 trees, after which a window counts as exhausted


def load(request: DataRequest, cache: Path, *, shortest: int = 501, longest: int = 1999) -> TaskData:
    """The three splits: trees of `shortest` to `longest` tokens, or the files in the folder `request.source`.

    100,000 trees of 501 to 1999 tokens take some fifteen seconds once, then half a second. Raises `SpecError` for a
    window that does not fit or a faulty file, `Missing` for files that are not there or a cache that cannot be written.
    """
    source = source_of(request, "generated", "local")
    generated = source == "generated"
    found = _generated(request, cache, shortest, longest) if generated else _local(request, cache)
    return _task_data(found, source, request.limit)


def describe(example: Example) -> str:
    """An example for people: the expression and its answer."""
    return f"{decode(example.views[0].tolist())}\nanswer: {example.label}"


def verify(data: TaskData, request: DataRequest, *, shortest: int = 501, longest: int = 1999) -> list[Check]:
    """Everything that can be checked of ListOps data; 100,000 trees take half a minute."""
    checks = common_checks(data, request)
    if data.source == "generated":
        checks.append(_window(data, shortest, longest))
    return [*checks, _labels(data)]


def _generated(request: DataRequest, cache: Path, shortest: int, longest: int) -> Prepared:
    if not 1 <= shortest <= longest <= request.length:
        raise SpecError(
            f"no ListOps trees of {shortest} to {longest} tokens for inputs of {request.length}",
            "needed: 1 <= shortest <= longest <= length",
        )
    if min(request.examples) < 1:
        raise SpecError(f"examples {list(request.examples)}: every split needs at least one")
    content = {
        "generator": GENERATOR,
        "seed": request.seed,
        "examples": list(request.examples),
        "shortest": shortest,
        "longest": longest,
    }
    return prepared(cache, request.name, content, lambda: _draw(request, shortest, longest))


def _draw(request: DataRequest, shortest: int, longest: int) -> Iterator[tuple[str, Block]]:
    """New trees in the order of drawing: first those of train, then of validation, then of test."""
    new = _new_trees(request.seed, shortest, longest)
    spare: Block | None = None
    for name, wanted in zip(SPLITS, request.examples, strict=True):
        while wanted:
            block = spare or next(new)
            taken, spare = _parted(block, wanted)
            wanted -= taken.labels.size
            yield name, taken


def _new_trees(seed: int, shortest: int, longest: int) -> Iterator[Block]:
    """Trees that were not drawn before. Raises `SpecError` when the window seems to hold no more."""
    seen: set[bytes] = set()
    idle = 0
    for block in forests(seed, shortest, longest):
        fresh = _unseen(block, seen)
        idle = 0 if fresh.labels.size else idle + 1
        if idle == PATIENCE:
            raise SpecError(
                f"found only {len(seen)} different ListOps trees of {shortest} to {longest} tokens",
                "widen the window or ask for fewer examples",
            )
        if fresh.labels.size:
            yield fresh


def _unseen(block: Block, seen: set[bytes]) -> Block:
    """The examples of a block that are not in `seen`, which they are added to."""
    (tokens,), (lengths,) = block.tokens, block.lengths
    fresh = np.zeros(lengths.size, bool)
    ends = np.cumsum(lengths)
    for index, (start, end) in enumerate(zip((ends - lengths).tolist(), ends.tolist(), strict=True)):
        # a digest, as 100,000 trees themselves would take 100 MB
        tree = hashlib.blake2b(tokens[start:end].tobytes(), digest_size=16).digest()
        fresh[index] = tree not in seen
        seen.add(tree)
    return Block((tokens[np.repeat(fresh, lengths)],), (lengths[fresh],), block.labels[fresh])


def _parted(block: Block, count: int) -> tuple[Block, Block | None]:
    """The first `count` examples, and the rest if there is any."""
    if block.labels.size <= count:
        return block, None
    (tokens,), (lengths,) = block.tokens, block.lengths
    cut = int(lengths[:count].sum())
    return (
        Block((tokens[:cut],), (lengths[:count],), block.labels[:count]),
        Block((tokens[cut:],), (lengths[count:],), block.labels[count:]),
    )


def _local(request: DataRequest, cache: Path) -> Prepared:
    paths = find_files(request.source)
    content = {
        "reader": "listops tsv 1",
        "length": request.length,
        "files": {name: digest(path) for name, path in paths.items()},
    }
    return prepared(
        cache,
        request.name,
        content,
        lambda: ((name, block) for name, path in paths.items() for block in read(path, request.length)),
    )


def _task_data(found: Prepared, source: Source, limit: int | float | None) -> TaskData:
    splits = {name: limited(split, limit) for name, split in found.splits.items()}
    content = found.fingerprint if limit is None else fingerprint(splits)
    # generated trees are all different; what files hold in common is said, not mended
    common = shared(splits) if source == "local" else {}
    notes = [f"{count} inputs are in both {pair}" for pair, count in common.items() if count]
    train, validation, test = (splits[name] for name in SPLITS)
    return TaskData(train, validation, test, source, content, _baselines(splits), notes=notes)


def _baselines(splits: Mapping[str, Split]) -> dict[str, float]:
    """Accuracy on test of the most frequent class of train, overall and for each first token."""
    train, test = splits["train"], splits["test"]
    by_root: dict[int, Counter[int]] = defaultdict(Counter)
    for root, label in zip(_roots(train), train.labels.tolist(), strict=True):
        by_root[root][label] += 1
    majority = _most_frequent(sum(by_root.values(), Counter()))
    answers = {root: _most_frequent(counts) for root, counts in by_root.items()}
    guesses = np.array([answers.get(root, majority) for root in _roots(test)])
    return {
        "majority": float((test.labels == majority).mean()),
        "root operator": float((test.labels == guesses).mean()),
    }


def _roots(split: Split) -> list[int]:
    return [int(split[index].views[0][0]) for index in range(len(split))]


def _most_frequent(counts: Counter[int]) -> int:
    """The most frequent class, the lowest of equals."""
    return max(sorted(counts), key=counts.__getitem__)


def _window(data: TaskData, shortest: int, longest: int) -> Check:
    lengths = np.concatenate([split.lengths for split in data.splits.values()])
    low, high = int(lengths.min()), int(lengths.max())
    return Check(
        "window", shortest <= low and high <= longest, f"{low} to {high} tokens, asked {shortest} to {longest}"
    )


def _labels(data: TaskData) -> Check:
    """Every label against the evaluator, which shares nothing with the generator."""
    wrong = [
        f"{name} {index}"
        for name, split in data.splits.items()
        for index in range(len(split))
        if _worth(split[index]) != split.labels[index]
    ]
    found = f"{len(wrong)} mismatches in {sum(map(len, data.splits.values()))} labels"
    return Check("labels", not wrong, f"{found}, the first in {wrong[0]}" if wrong else found)


def _worth(example: Example) -> int | None:
    """What the expression is worth, or None where the tokens are none."""
    ids = example.views[0].tolist()
    if UNKNOWN in ids:
        return None
    try:
        return evaluate(ids)
    except ValueError:
        return None
