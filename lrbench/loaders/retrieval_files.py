"""Pairs of papers in the layout of the Long Range Arena release: `new_aan_pairs.{train,eval,test}.tsv`.

No header, no quoting; a label as a decimal, two ids, two texts. Public readers of the release tell that a text is
bytes as Python prints them, b'...' with escapes; plain text is taken too.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lrbench.errors import Missing, SpecError

FILES = {
    name: f"new_aan_pairs.{word}.tsv" for name, word in (("train", "train"), ("validation", "eval"), ("test", "test"))
}
LABELS = {b"0.0": 0, b"1.0": 1, b"0": 0, b"1": 1}
MOST = 10_000  # bytes of a text that count
ESCAPED = re.compile(rb"b'.*'|b\".*\"", re.DOTALL)
Pair = tuple[tuple[bytes, bytes], int]


def find_files(source: str) -> dict[str, Path]:
    """The file of each split, in the folder or where the release has them. Raises `Missing` where one is not there."""
    given = Path(source).expanduser()
    for folder in (given, given / "aan", given / "tsv_data"):
        if any((folder / name).is_file() for name in FILES.values()):
            break
    else:
        raise Missing(f"no pairs of papers in {given}", f"looked for {', '.join(FILES.values())}")
    paths = {split: folder / name for split, name in FILES.items()}
    for path in paths.values():
        if not path.is_file():
            raise Missing(f"{path.name} is missing in {folder}", f"needed: {', '.join(FILES.values())}")
    return paths


def read(path: Path) -> Iterator[Pair]:
    """The pairs of a file, in its order. Raises `SpecError` with the file and the line of the first thing wrong."""
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield row(line.rstrip(b"\r\n"), f"{path}:{number}")
    if not number:
        raise SpecError(f"{path} holds no pairs")


def is_escaped(path: Path) -> bool:
    """Whether the first row's texts are bytes as Python prints them."""
    with path.open("rb") as file:
        columns = file.readline().rstrip(b"\r\n").split(b"\t")
    return len(columns) == 5 and all(ESCAPED.fullmatch(text) for text in columns[3:])


def row(line: bytes, where: str) -> Pair:
    """One pair. Quotation marks mean nothing."""
    columns = line.split(b"\t")
    if len(columns) != 5:
        raise SpecError(
            f"{where}: {len(columns)} columns in place of 5", "label, two ids and two texts, tabs between them"
        )
    label, _, _, first, second = columns
    if label not in LABELS:
        raise SpecError(f"{where}: the label {label[:20].decode(errors='replace')!r} is not 0.0 or 1.0")
    return (_text(first, where, 4), _text(second, where, 5)), LABELS[label]


def _text(field: bytes, where: str, column: int) -> bytes:
    if b"\0" in field:
        raise SpecError(f"{where}: column {column} holds a NUL byte: not a text file")
    try:
        field.decode()
        text = ast.literal_eval(field.decode()) if ESCAPED.fullmatch(field) else field
    except UnicodeDecodeError as error:
        raise SpecError(f"{where}: column {column} is not valid UTF-8 at byte {error.start}") from None
    except (ValueError, SyntaxError):
        raise SpecError(f"{where}: column {column} begins like escaped bytes and is none") from None
    if not isinstance(text, bytes) or not text:
        raise SpecError(f"{where}: column {column} is empty")
    return text[:MOST]
