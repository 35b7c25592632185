"""Parquet files in the layout of a hub's data set: found, read whole, and their columns checked."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lrbench.errors import Missing, SpecError

Columns = Mapping[str, tuple[Callable[[pa.DataType], bool], str]]


def parquet_files(folder: Path, split: str) -> list[Path]:
    """The files of a split, `SPLIT-00000-of-00001.parquet` and so on."""
    found = sorted(folder.glob(f"{split}-*.parquet"))
    if not found:
        raise Missing(f"no {split}-*.parquet in {folder}", "name the folder of a whole data set")
    return found


def read_parquet(path: Path, columns: Columns) -> pa.Table:
    """The columns, each with what it has to be and the word for that. Raises `SpecError` that names the file."""
    try:
        file = pq.ParquetFile(path)
        absent = [name for name in columns if name not in file.schema_arrow.names]
        if absent:
            raise SpecError(f"{path}: column {absent[0]!r} is missing", f"found: {', '.join(file.schema_arrow.names)}")
        table = file.read(columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        first = " ".join(str(error).split())[:200]
        raise SpecError(f"{path}: no whole Parquet file: {first}", "fetch it again") from None
    check(table, columns, str(path))
    return table


def check(table: pa.Table, columns: Columns, where: str) -> None:
    """Raise `SpecError` for a column of the wrong type, or a row that lacks a value."""
    for name, (is_kind, kind) in columns.items():
        if name not in table.column_names:
            raise SpecError(f"{where}: column {name!r} is missing", f"found: {', '.join(table.column_names)}")
        column = table.column(name)
        if not is_kind(column.type):
            raise SpecError(f"{where}: column {name!r} holds {column.type}, not {kind}")
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise SpecError(f"{where}: row {row}: {name} is missing")


def is_text(kind: pa.DataType) -> bool:
    """Strings of either size."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_integer(kind: pa.DataType) -> bool:
    """Whole numbers of any size."""
    return bool(pa.types.is_integer(kind))


def is_image(kind: pa.DataType) -> bool:
    """An encoded image as `datasets` stores it: its bytes and a path."""
    return bool(pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)
