"""`lrbench cp`: a commented copy of something shipped, to start from."""

from pathlib import Path
from typing import Annotated

import typer

from lrbench.cli import options as opt


def command(
    kind: Annotated[str, typer.Argument(help="attention, task or suite.")],
    name: Annotated[str, typer.Argument(help="Of a shipped one: see lrbench list.")],
    file: Annotated[Path, typer.Argument(help="Where the copy goes. What is there is never overwritten.")],
    debug: opt.Debug = False,
) -> int:
    """Copy a shipped attention, task or suite as a commented file to start from.

    Example: lrbench cp attention local ./mine.py
    """
    from lrbench.starters import write_starter

    following = write_starter(kind, name, file.expanduser())
    typer.echo(str(file))
    typer.echo(f"go on with: {following}", err=True)
    return 0
