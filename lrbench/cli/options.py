"""Flags that several commands share."""

import os
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Machine-readable result on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and what workers print.")]
Offline = Annotated[bool, typer.Option("--offline", help="Use no network (also HF_HUB_OFFLINE=1).")]
Out = Annotated[Path | None, typer.Option("--out", help="Results folder. [default: $LRBENCH_RESULTS or results]")]
Cache = Annotated[Path | None, typer.Option("--cache-dir", help="Data cache. [default: $LRBENCH_CACHE or the user's]")]
Preset = Annotated[str | None, typer.Option("--preset", help="tiny, small or paper. [default: small]")]
Data = Annotated[
    str | None, typer.Option("--data", help="generated, hub, stand-in or a path. [default: what the card prefers]")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Any field of the resolved config: train.steps=200. Repeatable.")
]
Limit = Annotated[str | None, typer.Option("--limit", help="Examples of each split: a count, or a fraction below 1.")]
Where = Annotated[
    str | None, typer.Option("--where", help="Runs that count: 'task=listops model~former seed<3 accuracy>0.4'.")
]


def is_offline(flag: bool) -> bool:
    """Whether no network is to be used: by the flag, or as the hub's own library is told."""
    return flag or os.environ.get("HF_HUB_OFFLINE", "") in ("1", "ON", "YES", "TRUE")
