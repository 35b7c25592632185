"""Data that is prepared once and then shared by all processes: `<cache>/<task>/<key>/`.

The folder holds an Arrow file for each split and `manifest.json` with their sizes and digests. It is made
under a temporary name and renamed when complete, under a lock, so any number of processes may ask at once and
any of them may be killed. Whoever uses it checks the digests first (a 100 MB set: under half a second), so a
damaged file is made anew and never read. Nothing depends on the time or the machine: equal keys give equal files.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from lrbench.errors import Missing
from lrbench.files import digest
from lrbench.loaders.arrow import open_split, write_splits
from lrbench.loaders.base import SPLITS, fingerprint
from lrbench.loaders.blocks import Block, BlockSplit

MANIFEST = "manifest.json"
Measure = Callable[[Mapping[str, BlockSplit]], Mapping[str, float]]
FORMAT = 1  # of the folder: raised whenever the files of one key look different
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """The three splits of a task as they lie in the cache, without any limit."""

    splits: Mapping[str, BlockSplit]
    fingerprint: str
    folder: Path
    measured: Mapping[str, float] = field(default_factory=dict)


def prepared(
    cache: Path,
    task: str,
    content: Mapping[str, object],
    build: Callable[[], Iterable[tuple[str, Block]]],
    measure: Measure | None = None,
) -> Prepared:
    """The data that `content` names, from the cache, or made by `build` where the cache lacks it.

    `content` holds all that determines the data, as JSON values: two calls with equal contents share a folder.
    `build` yields blocks, each with the name of its split, at least one for every split. What `measure` finds out
    about the finished splits is kept with them. A `Missing` says that the cache cannot be written; whatever `build`
    raises goes through and leaves nothing behind but what is `kept`.
    """
    folder = _folder(cache, task, content)
    try:
        if not folder.exists() or damage(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.parent / f".{folder.name}.lock"):
                _make(folder, content, build, measure)
    except OSError as error:
        hint = "free it, or choose another with --cache-dir or LRBENCH_CACHE"
        raise Missing(f"{task} cannot be prepared in the cache {cache}: {error}", hint) from error
    splits = {name: open_split(folder / f"{name}.arrow") for name in SPLITS}
    manifest = _manifest(folder)
    return Prepared(splits, manifest["fingerprint"], folder, manifest.get("measured", {}))


def kept(cache: Path, task: str, content: Mapping[str, object]) -> Path:
    """Where a `build` of this content may keep what it has fetched, for the next one should it fail.

    It is one builder's at a time, and removed once the data are prepared.
    """
    return _kept(_folder(cache, task, content))


def damage(folder: Path) -> str | None:
    """What is wrong with a prepared folder, naming the file, or None. Reads every file once."""
    try:
        manifest = _manifest(folder)
        files = [(folder / f"{name}.arrow", manifest["files"][f"{name}.arrow"]) for name in SPLITS]
        expected = [(path, int(entry["bytes"]), str(entry["sha256"])) for path, entry in files]
        str(manifest["fingerprint"])
    except (OSError, ValueError, LookupError, TypeError):
        return f"{folder / MANIFEST} is missing or damaged"
    for path, size, sha256 in expected:
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != size:
            return f"{path} holds {path.stat().st_size} bytes in place of {size}"
        if digest(path) != sha256:
            return f"{path} is damaged: its sha256 is not that of the manifest"
    return None


def damages(cache: Path, task: str) -> list[str]:
    """What is wrong with whatever is prepared of a task: a line for each damaged folder. For `data verify`."""
    folders = sorted(path for path in (cache / task).glob("[!.]*") if path.is_dir())
    return [found for found in map(damage, folders) if found]


def _make(
    folder: Path,
    content: Mapping[str, object],
    build: Callable[[], Iterable[tuple[str, Block]]],
    measure: Measure | None,
) -> None:
    """Make the folder, unless another process did so while we waited for the lock."""
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):  # of builders that were killed: we hold the lock
        shutil.rmtree(leftover)
    if folder.exists():
        found = damage(folder)
        if not found:
            return
        logger.warning("%s: preparing it again", found)
        shutil.rmtree(folder)
    logger.info("preparing %s", folder)
    unfinished = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    unfinished.mkdir()
    try:
        paths = write_splits(unfinished, SPLITS, build())
        (unfinished / MANIFEST).write_text(
            json.dumps(_describe(paths, content, measure), indent=1, sort_keys=True) + "\n"
        )
        os.rename(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    shutil.rmtree(_kept(folder), ignore_errors=True)


def _folder(cache: Path, task: str, content: Mapping[str, object]) -> Path:
    key = hashlib.sha256(json.dumps([FORMAT, content], sort_keys=True).encode()).hexdigest()[:16]
    return cache / task / key


def _kept(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.kept"


def _describe(paths: Mapping[str, Path], content: Mapping[str, object], measure: Measure | None) -> dict[str, object]:
    """The manifest of finished files."""
    splits = {name: open_split(path) for name, path in paths.items()}
    measured = {"measured": dict(measure(splits))} if measure else {}
    return {
        **measured,
        "format": FORMAT,
        "content": content,
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in paths.values()},
        "examples": {name: len(split) for name, split in splits.items()},
        "fingerprint": fingerprint(splits),
    }


def _manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return manifest
