"""What loaders share: where data come from, and from prepared splits to a task's data."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from lrbench.errors import SpecError
from lrbench.files import digest
from lrbench.loaders.base import DataRequest, Source, Split, TaskData, fingerprint, limited
from lrbench.loaders.cache import Prepared
from lrbench.loaders.checks import shared

Measure = Callable[[Mapping[str, Split]], Mapping[str, float]]
NAMED: dict[str, Source] = {"generated": "generated", "hub": "hub", "stand-in": "stand-in"}  # all else is a path


def task_data(
    found: Prepared, source: Source, limit: int | float | None, measure: Measure, notes: Sequence[str] = ()
) -> TaskData:
    """The data behind a limit. Baselines were measured when the whole was prepared; for a part they are anew."""
    splits = {name: limited(split, limit) if len(split) else split for name, split in found.splits.items()}
    whole = limit is None
    # what is generated is all different; what files hold in common is said, not mended
    common = shared(splits) if source in ("local", "hub") else {}
    return TaskData(
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        source=source,
        fingerprint=found.fingerprint if whole else fingerprint(splits),
        baselines=found.measured if whole else measure(splits),
        notes=[*notes, *(f"{count} inputs are in both {pair}" for pair, count in common.items() if count)],
    )


def source_of(request: DataRequest, *possible: Source) -> Source:
    """Which kind of source is asked for. Raises `SpecError` for one that the loader does not have."""
    source = NAMED.get(request.source, "local")
    if source not in possible:
        names = ("a folder or file" if each == "local" else each for each in possible)
        raise SpecError(f"{request.name} does not come from {request.source!r}", f"possible: {', '.join(names)}")
    return source


def digest_of(paths: Iterable[Path]) -> str:
    """Sha256 over the contents of files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.name} {digest(path)}\n".encode())
    return found.hexdigest()


def state_of(paths: Iterable[Path]) -> str:
    """Sha256 over names, sizes and times: for files that are too many to be read in passing."""
    found = hashlib.sha256()
    for path in paths:
        state = path.stat()
        found.update(f"{path.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return found.hexdigest()
