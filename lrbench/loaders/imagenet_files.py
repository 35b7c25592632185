"""ImageNet at 64 x 64 as it lies on disk, in the two kinds that must not be mixed.

`imagenet64`: PNG folders `train_64x64` and `valid_64x64` of van den Oord et al. 2016, 1,281,149 and 49,999 images.
`imagenet64-box`: `train_data_batch_*` and `val_data` of Chrabaszcz et al. 2017, as npz or as pickle, 1,281,167 and
50,000 images, averaged over boxes and so smoother: fewer bits a dimension, and no comparison with the other kind.
"""

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lrbench.errors import Missing, SpecError
from lrbench.loaders.pickles import read_arrays
from lrbench.loaders.pictures import decode

SIDE, BYTES = 64, 3 * 64 * 64
ROWS = 1000  # images read at once: 12 MB
COUNTS = {"imagenet64": (1_281_149, 49_999), "imagenet64-box": (1_281_167, 50_000)}
Images = NDArray[np.uint8]  # image, y, x, colour


@dataclass(frozen=True)
class Parts:
    """What was found: files, how many images each split has, and the images in pieces, read anew at each turn."""

    files: list[Path]
    train: tuple[int, Iterable[Images]]
    test: tuple[int, Iterable[Images]]
    notes: list[str]


class _Pieces:
    """Images of some files, piece by piece."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Images]:
        if self.files[0].suffix == ".png":
            yield from _from_pngs(self.files)
            return
        for path in self.files:
            yield from _from_npz(path) if path.suffix == ".npz" else _from_pickle(path)

    def __len__(self) -> int:
        return len(self.files) if self.files[0].suffix == ".png" else sum(map(_count, self.files))


def find(source: str, images: str) -> Parts:
    """The files of one kind below a folder. Raises `Missing` where there are none."""
    given = Path(source).expanduser()
    found = _pngs(given) if images == "imagenet64" else _batches(given)
    train, test = (_Pieces(files) for files in found)
    sizes = len(train), len(test)
    notes = [] if sizes == COUNTS[images] else [f"{sizes[0]} and {sizes[1]} images, not the whole {images}"]
    return Parts([*train.files, *test.files], (sizes[0], train), (sizes[1], test), notes)


def _pngs(folder: Path) -> tuple[list[Path], list[Path]]:
    train, test = (sorted((folder / name).glob("*.png")) for name in ("train_64x64", "valid_64x64"))
    if not train or not test:
        raise Missing(
            f"no images in {folder}",
            "looked for train_64x64/*.png and valid_64x64/*.png; train_data_batch_* are of imagenet64-box-density",
        )
    return train, test


def _batches(folder: Path) -> tuple[list[Path], list[Path]]:
    for suffix in (".npz", ""):
        train = sorted(folder.glob(f"train_data_batch_*{suffix}"), key=lambda path: (len(path.name), path.name))
        train = [path for path in train if path.suffix == suffix]
        test = folder / f"val_data{suffix}"
        if train and test.is_file():
            return train, [test]
    raise Missing(
        f"no images in {folder}", "looked for train_data_batch_1.npz and val_data.npz, or the same without .npz"
    )


def _from_pngs(files: list[Path]) -> Iterator[Images]:
    for start in range(0, len(files), ROWS):
        some = files[start : start + ROWS]
        yield np.stack([decode(path.read_bytes(), "RGB", SIDE, str(path)) for path in some])


def _count(path: Path) -> int:
    if path.suffix != ".npz":
        return len(_planes(path))
    with _member(path) as stream:
        return _header(stream, path)


def _from_npz(path: Path) -> Iterator[Images]:
    """Without unpacking the whole, which would be 1.6 GB."""
    with _member(path) as stream:
        left = _header(stream, path)
        while left:
            rows = min(ROWS, left)
            try:
                content = stream.read(rows * BYTES)
            except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
                raise SpecError(f"{path}: damaged, {left} images before its end: {error}", "fetch it again") from None
            if len(content) < rows * BYTES:
                raise SpecError(f"{path}: {left} images are missing at its end", "fetch it again")
            yield _turned(np.frombuffer(content, np.uint8).reshape(rows, BYTES))
            left -= rows


def _from_pickle(path: Path) -> Iterator[Images]:
    planes = _planes(path)
    for start in range(0, len(planes), ROWS):
        yield _turned(planes[start : start + ROWS])


def _planes(path: Path) -> NDArray[np.uint8]:
    batch = read_arrays(path)
    if b"data" not in batch:
        raise SpecError(f"{path}: 'data' is missing", f"found: {', '.join(sorted(map(str, batch)))}")
    planes = batch[b"data"]
    if not isinstance(planes, np.ndarray) or planes.dtype != np.uint8 or planes.shape[1:] != (BYTES,):
        raise SpecError(f"{path}: data are not rows of {BYTES} bytes")
    return planes


def _member(path: Path) -> IO[bytes]:
    """The array `data` of an archive."""
    try:
        return zipfile.ZipFile(path).open("data.npy")
    except KeyError:
        raise SpecError(f"{path}: 'data' is missing", "expected data and labels") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise SpecError(f"{path}: no whole npz file: {error}", "fetch it again") from None


def _header(stream: IO[bytes], path: Path) -> int:
    """How many images follow."""
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, kind = read(stream)
    except ValueError as error:
        raise SpecError(f"{path}: data is no array: {error}", "fetch it again") from None
    if kind != np.uint8 or fortran or shape[1:] != (BYTES,):
        raise SpecError(f"{path}: data is {kind} of shape {list(shape)}, not rows of {BYTES} bytes")
    return int(shape[0])


def _turned(planes: NDArray[np.uint8]) -> Images:
    """A row holds 4,096 reds, then greens, then blues."""
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
