"""What was fetched of a stream, kept until all is prepared: files of rows, each with the position that follows them.

A file's name says which rows it holds, and it is there as a whole or not at all. So rows and position always agree:
whatever ended a process, the next one goes on behind the last file, and no row is lost or taken twice.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

log = logging.getLogger(__name__)

COLUMN = "text"
POSITION = b"position"


class Part(NamedTuple):
    """Some texts, at least one, and where the stream goes on behind them."""

    texts: list[str | None]
    position: dict[str, Any]


class Fetched:
    """The parts of one stream in a folder of its own. `state` names the data that it is read from, and how.

    Parts of any other state are removed.
    """

    def __init__(self, folder: Path, state: str) -> None:
        self._folder = folder / state
        for other in folder.glob("*"):
            if other != self._folder:
                log.warning("%s: the hub's data or datasets itself have changed since: fetching anew", other)
                shutil.rmtree(other)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rows = 0

    def parts(self) -> Iterator[Part]:
        """All that follow one another from the first row on; to be gone through before any is added."""
        while path := max(self._folder.glob(f"{self._rows:012}-*.parquet"), default=None):
            try:
                part = _read(path)
            except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
                log.warning("%s is damaged and removed, its rows are fetched again: %s", path, error)
                path.unlink()
                continue
            self._rows += len(part.texts)
            yield part

    def add(self, part: Part) -> None:
        """Keep one more."""
        after = self._rows + len(part.texts)
        table = pa.table({COLUMN: pa.array(part.texts, pa.large_string())})
        new = self._folder / f".{os.getpid()}.tmp"
        pq.write_table(table.replace_schema_metadata({POSITION: json.dumps(part.position)}), new)
        os.replace(new, self._folder / f"{self._rows:012}-{after:012}.parquet")
        self._rows = after


def _read(path: Path) -> Part:
    table = pq.read_table(path)
    return Part(table.column(COLUMN).to_pylist(), json.loads(table.schema.metadata[POSITION]))
