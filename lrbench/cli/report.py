"""`lrbench report`: what the records say, as tables."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrbench.cli import options as opt

if TYPE_CHECKING:
    from lrbench.records import RunRecord


def command(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Results folders. [default: $LRBENCH_RESULTS or results]")
    ] = None,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Print the score tables of results folders.

    Example: lrbench report results
    """
    from lrbench.api import out_folder
    from lrbench.records import load, strict
    from lrbench.report.scores import comparisons

    places = results or [out_folder(None)]
    records = load(places)
    if not records:
        typer.echo(f"error: no records in {', '.join(map(str, places))}", err=True)
        typer.echo("make some: lrbench run -m full,performer -t listops --preset tiny", err=True)
        return 1
    if as_json:
        tables = [{**asdict(table), "to_beat": table.to_beat} for table in comparisons(records)]
        print(json.dumps(strict({"comparisons": tables}), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        print_comparisons(records)
    return 0


def print_comparisons(records: "Sequence[RunRecord]") -> None:
    """Every table that the records make, on stdout."""
    from rich.console import Console

    from lrbench.report.scores import comparisons
    from lrbench.report.terminal import render

    console = Console(highlight=False)
    for table in comparisons(records):
        for part in render(table):
            console.print(part)
        console.print()
