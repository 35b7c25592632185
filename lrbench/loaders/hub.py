"""Data sets of the Hugging Face hub, through `datasets`: at the card's revision, kept in the cache once prepared."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from lrbench.errors import Missing, SpecError
from lrbench.loaders.base import DataRequest, Hub
from lrbench.loaders.fetched import Fetched, Part

PART = 2**24  # characters that are fetched before they are kept: what is lost at most when a process is killed
log = logging.getLogger(__name__)


def table(request: DataRequest, split: str) -> pa.Table:
    """All rows of a split. Raises `Missing` where there is no network."""
    hub = _hub(request)

    def fetch() -> Any:
        from datasets import load_dataset

        return load_dataset(hub.name, hub.config, split=split, revision=hub.revision)

    rows = _fetched(request, hub, fetch)
    return rows.with_format("arrow")[:]


def file(request: DataRequest, path: str) -> Path:
    """One file of a repository as it is. Raises `Missing` where there is no network."""
    hub = _hub(request)

    def fetch() -> Any:
        from datasets import DownloadManager

        at = f"@{hub.revision}" if hub.revision else ""
        return DownloadManager(dataset_name=hub.name).download(f"hf://datasets/{hub.name}{at}/{path}")

    return Path(_fetched(request, hub, fetch))


def stream(request: DataRequest, split: str, column: str, kept: Path) -> Iterator[str | None]:
    """The texts of a column, row after row in the hub's order, fetched as they are asked for.

    They lie in the folder `kept` too, which is for whoever calls to remove: a call that was cut off is gone on with by
    the next one that names the folder. Of the hub's file that it was in, what precedes the position is read again.

    Raises `Missing` where there is no network, or once it fails.
    """
    hub = _hub(request)

    def fetch() -> Any:
        from datasets import __version__, load_dataset_builder

        builder = load_dataset_builder(hub.name, hub.config, revision=hub.revision)
        # the hash is that of the commit, also where the card pins none; positions are the library's own affair
        return f"{builder.hash}-{__version__}", builder.as_streaming_dataset(split=split).select_columns([column])

    state, rows = _fetched(request, hub, fetch)
    fetched = Fetched(kept / split, state)
    for part in fetched.parts():
        yield from part.texts
        rows.load_state_dict(part.position)
    source = iter(rows)
    texts: list[str | None] = []
    size, position = 0, {}
    try:
        while (row := _fetched(request, hub, lambda: next(source, None))) is not None:
            texts.append(row[column])
            size, position = size + len(row[column] or ""), rows.state_dict()
            if size >= PART:
                fetched.add(Part(texts, position))
                texts, size = [], 0
            yield row[column]
    finally:  # the network failed, no more is wanted, or all is to end
        if texts:
            fetched.add(Part(texts, position))


def size(request: DataRequest) -> int | None:
    """Bytes that are to be downloaded, as the hub states them; None where it does not, or cannot be asked."""
    hub = _hub(request)
    if request.offline:
        return None
    try:
        from datasets import load_dataset_builder

        found = load_dataset_builder(hub.name, hub.config, revision=hub.revision).info.download_size
    except Exception as error:  # libraries for the network raise what they like; fetching will say what is wrong
        log.debug("the size of %s is not known: %s", hub.name, error)
        return None
    return int(found) if found else None


def content(request: DataRequest) -> dict[str, object]:
    """What tells one state of the hub's data from another, for the key of the cache."""
    hub = _hub(request)
    return {"hub": hub.name, "config": hub.config, "revision": hub.revision}


def notes(request: DataRequest) -> list[str]:
    """What a record has to say of where the data came from."""
    hub = _hub(request)
    at = f"revision {hub.revision}" if hub.revision else "an unknown revision: the card pins none"
    return [f"data of {hub.name} at {at}"]


def _hub(request: DataRequest) -> Hub:
    if request.hub is None:
        raise SpecError(f"task {request.name} names no data set of the hub", "add hub: {name: …} to its card")
    return request.hub


def _fetched(request: DataRequest, hub: Hub, fetch: Any) -> Any:
    way_out = (
        f"with a network: lrbench data prepare {request.name} --data hub, with the same --preset and --set; "
        "or use --data stand-in"
    )
    if request.offline:
        raise Missing(f"{hub.name} is not in the cache, and --offline keeps the hub from being asked", way_out)
    try:
        return fetch()
    except Exception as error:  # libraries for the network raise what they like
        first = str(error).strip().splitlines()[:1] or [""]
        problem = f"{type(error).__name__}: {first[0][:200]}"
        raise Missing(f"{hub.name} cannot be had from the hub: {problem}", way_out) from error
