"""Corpora as they lie on disk: one file that is cut by size, or files of documents for each split."""

import gzip
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lrbench.errors import Missing, SpecError
from lrbench.loaders.base import SPLITS
from lrbench.loaders.tables import Columns, check, is_text

NAMES = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
KINDS = (".txt", ".tokens", ".parquet", ".json.gz", ".jsonl", ".jsonl.gz")
ALONE = ("enwik8", "enwik8.zip", "text8", "text8.zip")
LARGEST = 2**30  # bytes of one file that is read whole
SHARES = (0.90, 0.05)  # of one file: train, validation; the rest is test
LOOKED_FOR = "looked for one file (enwik8, enwik8.zip, text8), and for train, validation and test as folders or files"


class Corpus(NamedTuple):
    """The files of each split, or one file that holds all three."""

    whole: Path | None
    parts: dict[str, list[Path]]

    @property
    def files(self) -> list[Path]:
        """All that is read."""
        return [self.whole] if self.whole else [path for name in SPLITS for path in self.parts[name]]


def find(source: str) -> Corpus:
    """The files below a path. Raises `Missing` where there are none, or one split has none."""
    given = Path(source).expanduser()
    if given.is_file():
        return Corpus(given, {})
    for name in ALONE:
        if (given / name).is_file():
            return Corpus(given / name, {})
    parts = {split: _files(given, names) for split, names in NAMES.items()}
    absent = [split for split, paths in parts.items() if not paths]
    if len(absent) == len(parts):
        raise Missing(f"no text in {given}", LOOKED_FOR)
    if absent:
        raise Missing(
            f"no {absent[0]} split in {given}", f"name one of its files, which is then cut 90/5/5; or {LOOKED_FOR}"
        )
    return Corpus(None, parts)


def documents(path: Path) -> Iterator[bytes]:
    """The documents of one file, as bytes. Raises `SpecError` that names the file and the record."""
    if path.suffix == ".parquet":
        yield from _rows(path)
    elif ".json" in path.suffixes or ".jsonl" in path.suffixes:
        yield from _lines(path)
    else:
        yield _checked(whole(path), str(path))


def whole(path: Path) -> bytes:
    """The content of one file; of a ZIP archive that of its only member, which is never unpacked to disk."""
    if path.stat().st_size > LARGEST:
        raise SpecError(f"{path}: {path.stat().st_size} bytes, more than the {LARGEST} that are read whole", "cut it")
    if path.suffix != ".zip":
        return path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) != 1:
                raise SpecError(f"{path}: holds {len(members)} files, not one", "unpack it and name the file")
            if members[0].file_size > LARGEST:
                raise SpecError(f"{path}: promises {members[0].file_size} bytes, more than {LARGEST}")
            return archive.read(members[0])
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise SpecError(f"{path}: no whole ZIP archive: {error}", "fetch it again") from None


def bounds(size: int) -> tuple[int, int]:
    """Where train and validation end in a file of so many bytes: 90, 5 and 5 parts, to the byte for 10^8."""
    train = round(size * SHARES[0])
    return train, train + round(size * SHARES[1])


def _files(folder: Path, names: Iterable[str]) -> list[Path]:
    """Files of a split: those of a folder of its name, or those in whose name it stands."""
    for name in names:
        if (folder / name).is_dir():
            return sorted(path for path in (folder / name).iterdir() if path.name.endswith(KINDS))
    return sorted(
        path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.is_file() and path.name.endswith(KINDS) and set(names) & set(_words(path.name))
    )


def _words(name: str) -> list[str]:
    """A file's name at its dots and dashes: wiki.valid.tokens, c4-train.00000-of-01024.json.gz."""
    return name.replace("-", ".").split(".")


def _rows(path: Path) -> Iterator[bytes]:
    columns: Columns = {"text": (is_text, "text")}
    try:
        file = pq.ParquetFile(path)
        if "text" not in file.schema_arrow.names:
            raise SpecError(f"{path}: column 'text' is missing", f"found: {', '.join(file.schema_arrow.names)}")
        row = 0
        for batch in file.iter_batches(batch_size=256, columns=["text"]):
            check(pa.Table.from_batches([batch]), columns, str(path))
            for text in batch.column("text").to_pylist():
                yield _checked(text.encode(), f"{path}: row {row}")
                row += 1
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise SpecError(
            f"{path}: no whole Parquet file: {' '.join(str(error).split())[:200]}", "fetch it again"
        ) from None


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                yield _checked(_text(line, f"{path}: line {number}"), f"{path}: line {number}")
    except (OSError, EOFError, UnicodeError) as error:
        raise SpecError(f"{path}: not whole after line {number}: {error}", "fetch it again") from None


def _text(line: str, where: str) -> bytes:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{where}: not JSON: {error}", "fetch it again") from None
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise SpecError(f"{where}: no field 'text' that holds a text")
    return str(found["text"]).encode()


def _checked(content: bytes, where: str) -> bytes:
    if not content:
        raise SpecError(f"{where}: the document is empty")
    return content
