"""Pathfinder images in the layout of the Long Range Arena release: `pathfinderN/SET/{imgs,metadata}`.

A batch has a folder of PNGs and a table with a line for each of them. In spite of its name, NUMBER.npy, a table of the
release is plain text; the authors' own program writes NumPy arrays of text. Both are read.
"""

import io
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import Missing, SpecError
from lrbench.files import digest
from lrbench.loaders.common import state_of
from lrbench.loaders.pictures import decode

Difficulty = Literal["easy", "intermediate", "hard"]
SETS: dict[Difficulty, str] = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
SEGMENTS = {"easy": 6, "intermediate": 9, "hard": 14}
LABEL, CONTOUR, COLUMNS = 3, 5, 11
KNOWN_EMPTY = ("pathfinder32", "curv_baseline", "imgs/0", "sample_172.png")  # of the release itself


class Row(NamedTuple):
    """An image and its label."""

    path: Path
    label: int


def find(source: str, side: int, difficulty: Difficulty) -> Path:
    """The folder of the set. Raises `Missing` where there is none."""
    given, wanted = Path(source).expanduser(), SETS[difficulty]
    for folder in (given, given / wanted, given / f"pathfinder{side}" / wanted):
        if (folder / "metadata").is_dir() and folder.resolve().name == wanted:
            return folder
    raise Missing(f"no pathfinder{side}/{wanted} in {given}", f"needed: {wanted}/metadata/*.npy and {wanted}/imgs")


def state(folder: Path) -> str:
    """What tells one state of a set from another: the tables by content, images by size and time."""
    tables = [f"{path.name} {digest(path)}" for path in _tables(folder)]
    return " ".join([*tables, state_of(sorted((folder / "imgs").glob("*/*.png")))])


def rows(folder: Path, side: int, difficulty: Difficulty) -> tuple[list[Row], list[str]]:
    """All rows of a set, by number of batch and then in the order of its table; and what was left out.

    Raises `SpecError` that names the table and its line.
    """
    found, notes = [], []
    for path in _tables(folder):
        for number, columns in enumerate(_lines(path), 1):
            row = _row(folder, columns, SEGMENTS[difficulty], f"{path}:{number}")
            if (
                f"pathfinder{side}",
                folder.resolve().name,
                *columns[:2],
            ) == KNOWN_EMPTY and not row.path.stat().st_size:
                notes.append(f"{row.path.name} of batch 0 is left out: it is empty in the release")
            else:
                found.append(row)
    if len(found) < 10:
        raise SpecError(f"{folder}: {len(found)} images are too few for three splits")
    return found, notes


def read(some: list[Row], side: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The pixels and labels of rows. Raises `SpecError` that names the image."""
    empty = np.zeros((0, side, side), np.uint8)
    images = [decode(row.path.read_bytes(), "L", side, str(row.path)) for row in some]
    return np.stack(images) if images else empty, np.array([row.label for row in some], np.int64)


def _tables(folder: Path) -> list[Path]:
    paths = list((folder / "metadata").glob("*.npy"))
    if not paths:
        raise Missing(f"no tables in {folder / 'metadata'}", "needed: 0.npy and so on")
    return sorted(paths, key=lambda path: (int(path.stem) if path.stem.isdecimal() else -1, path.name))


def _lines(path: Path) -> list[list[str]]:
    content = path.read_bytes()
    if content.startswith(b"\x93NUMPY"):
        return _from_array(path, content)
    try:
        lines = [line.split() for line in content.decode("ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: neither a table in plain text nor a NumPy array: byte {error.start}") from None
    if not lines:
        raise SpecError(f"{path}: the table is empty")
    return lines


def _from_array(path: Path, content: bytes) -> list[list[str]]:
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise SpecError(f"{path}: no NumPy array that can be read safely: {' '.join(str(error).split())}") from None
    if array.ndim != 2 or array.dtype.kind not in "US":
        raise SpecError(f"{path}: an array of {array.dtype} of {array.ndim} axes, not a table of text")
    return [[str(each) for each in row] for row in array.astype(str)]


def _row(folder: Path, columns: list[str], segments: int, where: str) -> Row:
    if len(columns) != COLUMNS:
        raise SpecError(f"{where}: {len(columns)} columns in place of {COLUMNS}")
    if columns[LABEL] not in ("0", "1"):
        raise SpecError(f"{where}: the label (column 4) is {columns[LABEL]!r}, not 0 or 1")
    if columns[CONTOUR] != str(segments):
        raise SpecError(
            f"{where}: paths of {columns[CONTOUR]!r} segments (column 6) in place of {segments}", "this is another set"
        )
    path = folder / columns[0] / columns[1]
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SpecError(f"{where}: {columns[0]}/{columns[1]} lies outside the set")
    if not path.is_file():
        raise SpecError(f"{where}: {columns[0]}/{columns[1]} is not there", "unpack the whole set")
    return Row(path, int(columns[LABEL]))
