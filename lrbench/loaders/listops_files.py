"""ListOps from files in the layout of the Long Range Arena release: `basic_{train,val,test}.tsv`."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import Missing, SpecError
from lrbench.loaders.blocks import Block
from lrbench.loaders.listops_tokens import UNKNOWN, encode, evaluate

FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
HEADER = b"Source\tTarget"
ROWS = 1000  # of a block


def find_files(source: str) -> dict[str, Path]:
    """The file of each split, in the folder or in its `listops-1000`. Raises `Missing` where one is not there."""
    given = Path(source).expanduser()
    for folder in (given, given / "listops-1000"):
        if any((folder / name).is_file() for name in FILES.values()):
            break
    else:
        raise Missing(
            f"no ListOps files in {given} nor in {given / 'listops-1000'}", f"looked for {', '.join(FILES.values())}"
        )
    paths = {split: folder / name for split, name in FILES.items()}
    for path in paths.values():
        if not path.is_file():
            raise Missing(f"{path.name} is missing in {folder}", f"needed: {', '.join(FILES.values())}")
    return paths


def read(path: Path, length: int) -> Iterator[Block]:
    """The examples of a file, in its order. Every target is compared with what its expression is worth.

    Raises `SpecError` with the file and the line of the first thing wrong.
    A row of the release takes up to a millisecond, nearly all of it the evaluation.
    """
    lines = _lines(path)
    if next(lines, HEADER) != HEADER:
        raise SpecError(f"{path}:1: the header is not Source<TAB>Target", "name the folder of an LRA release")
    rows = (_row(line, length, f"{path}:{number}") for number, line in enumerate(lines, 2))
    empty = True
    while some := list(islice(rows, ROWS)):
        yield _block(some)
        empty = False
    if empty:
        raise SpecError(f"{path} holds no examples")


def _lines(path: Path) -> Iterator[bytes]:
    """The lines without their ends, which are CR LF in the release."""
    with path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\r\n")


def _row(line: bytes, length: int, where: str) -> tuple[NDArray[np.uint8], int]:
    columns = line.decode(errors="replace").split("\t")
    if len(columns) != 2:
        raise SpecError(f"{where}: {len(columns)} columns in place of 2")
    text, target = columns
    if not (target.isascii() and target.isdigit()):
        raise SpecError(f"{where}: the target {target[:20]!r} is not a whole number")
    ids = encode(text)
    if (ids == UNKNOWN).any():
        raise SpecError(f"{where}: {_first_unknown(text)!r} is no ListOps token")
    if ids.size > length:
        raise SpecError(f"{where}: {ids.size} tokens, but the task takes {length}", "raise the task's data.length")
    try:
        value = evaluate(ids.tolist())
    except ValueError as error:
        raise SpecError(f"{where}: not an expression: {error}") from None
    if value != int(target):
        raise SpecError(f"{where}: the target is {int(target)}, but the expression is worth {value}")
    return ids, value


def _first_unknown(text: str) -> str:
    return next(word for word in text.split() if (encode(word) == UNKNOWN).any())[:20]


def _block(rows: list[tuple[NDArray[np.uint8], int]]) -> Block:
    lengths = np.array([ids.size for ids, _ in rows], np.int64)
    return Block(
        (np.concatenate([ids for ids, _ in rows]),), (lengths,), np.array([label for _, label in rows], np.int64)
    )
