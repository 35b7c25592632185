"""IMDb as it lies on disk or on the hub: `plain_text/*.parquet`, or the folders of `aclImdb`."""

from pathlib import Path

import pyarrow as pa

from lrbench.errors import Missing, SpecError
from lrbench.loaders import hub
from lrbench.loaders.base import DataRequest
from lrbench.loaders.tables import Columns, check, is_integer, is_text, parquet_files, read_parquet

Review = tuple[bytes, int]  # the text in UTF-8; 0 negative, 1 positive
COLUMNS: Columns = {"text": (is_text, "text"), "label": (is_integer, "whole numbers")}
FOLDERS = (("neg", 0), ("pos", 1))  # reviews without a label, in `unsup`, are left alone


def find(source: str) -> Path:
    """The folder that holds the files of either layout. Raises `Missing` where there is none."""
    given = Path(source).expanduser()
    for folder in (given, given / "plain_text", given / "aclImdb"):
        if _is_parquet(folder) or (folder / "train" / "pos").is_dir():
            return folder
    raise Missing(f"no reviews in {given}", "looked for plain_text/train-*.parquet and aclImdb/train/pos")


def files_of(folder: Path) -> list[Path]:
    """All files that are read."""
    if _is_parquet(folder):
        return [path for split in ("train", "test") for path in parquet_files(folder, split)]
    return [path for split in ("train", "test") for path, _ in _texts(folder / split)]


def read(folder: Path) -> tuple[list[Review], list[Review]]:
    """Train and test, in the order of the files. Raises `SpecError` that names the file and the row."""
    train, test = (
        _from_parquet(folder, split) if _is_parquet(folder) else _from_folders(folder / split)
        for split in ("train", "test")
    )
    return train, test


def from_hub(request: DataRequest) -> tuple[list[Review], list[Review]]:
    """Train and test of the hub's data set."""
    train, test = (_from_table(hub.table(request, split), f"the hub's {split} split") for split in ("train", "test"))
    return train, test


def _is_parquet(folder: Path) -> bool:
    return any(folder.glob("train-*.parquet"))


def _from_parquet(folder: Path, split: str) -> list[Review]:
    reviews = []
    for path in parquet_files(folder, split):
        reviews += _from_table(read_parquet(path, COLUMNS), str(path))
    return reviews


def _from_table(table: pa.Table, where: str) -> list[Review]:
    check(table, COLUMNS, where)
    try:
        texts = [text.encode() for text in table.column("text").to_pylist()]
    except UnicodeError as error:
        raise SpecError(f"{where}: a text is not valid UTF-8: {error}") from None
    reviews = list(zip(texts, table.column("label").to_pylist(), strict=True))
    for row, review in enumerate(reviews):
        _checked(review, f"{where}: row {row}")
    if not reviews:
        raise SpecError(f"{where}: holds no reviews")
    return reviews


def _from_folders(folder: Path) -> list[Review]:
    reviews = []
    for path, label in _texts(folder):
        text = path.read_bytes()
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise SpecError(f"{path}: not valid UTF-8 at byte {error.start}", "fetch it again") from None
        reviews.append(_checked((text, label), str(path)))
    return reviews


def _texts(folder: Path) -> list[tuple[Path, int]]:
    found = []
    for name, label in FOLDERS:
        paths = sorted((folder / name).glob("*.txt"), key=_number)
        if not paths:
            raise Missing(
                f"no reviews in {folder / name}", "an aclImdb folder has train and test, each with pos and neg"
            )
        found += [(path, label) for path in paths]
    return found


def _number(path: Path) -> tuple[int, str]:
    """Files are named ID_STARS.txt."""
    first = path.stem.partition("_")[0]
    return (int(first), path.name) if first.isascii() and first.isdigit() else (-1, path.name)


def _checked(review: Review, where: str) -> Review:
    text, label = review
    if label not in (0, 1):
        raise SpecError(
            f"{where}: the label is {label}, not 0 or 1", "reviews without a label are a split of their own"
        )
    if not text:
        raise SpecError(f"{where}: the review is empty")
    return review
