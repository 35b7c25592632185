"""CIFAR-10 as it lies on disk or on the hub: `cifar-10-batches-py`, or `plain_text/*.parquet`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lrbench.errors import Missing, SpecError
from lrbench.loaders import hub
from lrbench.loaders.base import DataRequest
from lrbench.loaders.pickles import read_arrays
from lrbench.loaders.pictures import decode
from lrbench.loaders.tables import Columns, check, is_image, is_integer, parquet_files, read_parquet

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]  # colour images, image y x colour, and labels
SIDE, CLASSES = 32, 10
BATCHES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
COLUMNS: Columns = {"img": (is_image, "images"), "label": (is_integer, "whole numbers")}


def find(source: str) -> Path:
    """The folder that holds the files of either layout. Raises `Missing` where there is none."""
    given = Path(source).expanduser()
    for folder in (given, given / "cifar-10-batches-py", given / "plain_text"):
        if _is_parquet(folder) or any((folder / name).is_file() for name in (*BATCHES["train"], *BATCHES["test"])):
            return folder
    raise Missing(f"no images in {given}", "looked for cifar-10-batches-py/data_batch_1 and plain_text/train-*.parquet")


def files_of(folder: Path) -> list[Path]:
    """All files that are read. Raises `Missing` where one is not there."""
    return [path for split in ("train", "test") for path in _files(folder, split)]


def read(folder: Path) -> tuple[Iterator[Part], Iterator[Part]]:
    """Train and test, in the order of the files."""
    train, test = (_parts(folder, split) for split in ("train", "test"))
    return train, test


def from_hub(request: DataRequest, split: str) -> Iterator[Part]:
    """A split of the hub's data set."""
    yield from _from_table(hub.table(request, split), f"the hub's {split} split")


def _files(folder: Path, split: str) -> list[Path]:
    if _is_parquet(folder):
        return parquet_files(folder, split)
    paths = [folder / name for name in BATCHES[split]]
    for path in paths:
        if not path.is_file():
            raise Missing(f"{path.name} is missing in {folder}", "needed: data_batch_1 to data_batch_5 and test_batch")
    return paths


def _parts(folder: Path, split: str) -> Iterator[Part]:
    for path in _files(folder, split):
        if _is_parquet(folder):
            yield from _from_table(read_parquet(path, COLUMNS), str(path))
        else:
            yield _from_batch(path)


def _is_parquet(folder: Path) -> bool:
    return any(folder.glob("train-*.parquet"))


def _from_batch(path: Path) -> Part:
    """A file of the release: a row holds 1,024 reds, then greens, then blues."""
    batch = read_arrays(path)
    for key in (b"data", b"labels"):
        if key not in batch:
            raise SpecError(f"{path}: {key.decode()!r} is missing", f"found: {', '.join(sorted(map(str, batch)))}")
    pixels, labels = batch[b"data"], batch[b"labels"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3 * SIDE * SIDE,):
        raise SpecError(f"{path}: data is {_kind(pixels)}, not rows of {3 * SIDE * SIDE} bytes")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise SpecError(f"{path}: labels is {_kind(labels)}, not a list of {len(pixels)}")
    images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return images, _labels(labels, str(path))


def _from_table(table: pa.Table, where: str) -> Iterator[Part]:
    check(table, COLUMNS, where)
    if not table.num_rows:
        raise SpecError(f"{where}: holds no images")
    first = 0
    for batch in table.to_batches(max_chunksize=1000):
        contents = batch.column("img").field("bytes").to_pylist()
        images = [
            decode(content or b"", "RGB", SIDE, f"{where}: row {first + row}") for row, content in enumerate(contents)
        ]
        yield np.stack(images), _labels(batch.column("label").to_pylist(), where, first)
        first += len(images)


def _labels(labels: list[Any], where: str, first: int = 0) -> NDArray[np.int64]:
    for row, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < CLASSES:
            raise SpecError(f"{where}: row {first + row}: the label is {label!r}, not one of 0 to {CLASSES - 1}")
    return np.array(labels, np.int64)


def _kind(thing: Any) -> str:
    if isinstance(thing, np.ndarray):
        return f"an array of {thing.dtype} of shape {list(thing.shape)}"
    return f"a {type(thing).__name__}" + (f" of {len(thing)}" if isinstance(thing, list) else "")
