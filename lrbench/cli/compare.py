"""`lrbench compare`: what changed between two sets of results; the gate of a CI."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lrbench.cli import options as opt
from lrbench.errors import SpecError


def command(
    old: Annotated[Path, typer.Argument(metavar="A", help="Results folder to compare with.")],
    new: Annotated[Path, typer.Argument(metavar="B", help="Results folder that is looked at.")],
    fail_on: Annotated[
        str | None, typer.Option("--fail-on", help="regression: exit 1 if anything became worse.")
    ] = None,
    threshold: Annotated[str, typer.Option("--threshold", help="The relative change that matters: 5% or 0.05.")] = "5%",
    form: Annotated[str, typer.Option("--format", help="table, or md for a comment on a change.")] = "table",
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Compare two sets of results: scores on the same seeds, time and memory against length, claims.

    Each line is better, worse, no difference, undecided, or not comparable and why.

    Example: lrbench compare main/results results --fail-on regression
    """
    from rich.console import Console

    from lrbench import compare
    from lrbench.claims.compared import compare_claims
    from lrbench.claims.records import load as claims
    from lrbench.quantities import parse_share
    from lrbench.records import load, strict
    from lrbench.reporting import changes

    if fail_on not in (None, "regression"):
        raise SpecError(f"--fail-on {fail_on}: unknown", "choose regression")
    if form not in ("table", "md"):
        raise SpecError(f"--format {form}: unknown format", "choose table or md")
    share = parse_share(threshold, "--threshold")
    for place in (old, new):
        if not place.expanduser().exists():
            raise SpecError(f"{place}: no such folder", "name two results folders")
    lines = compare.compare_runs(load([old]), load([new]), share)
    lines += compare.compare_studies(old.expanduser(), new.expanduser(), share)
    lines += compare_claims(*(claims([place.expanduser()]) for place in (old, new)))
    if not lines:
        raise SpecError(f"no records in {old} and {new}", "make some: lrbench run -m full -t listops --preset tiny")
    worse = compare.regressions(lines)
    if as_json:
        print(json.dumps(strict({"lines": [asdict(line) for line in lines], "regressions": len(worse)}), indent=1))
    elif form == "md":
        print("\n".join(changes.markdown(lines)))
    else:
        console = Console(highlight=False)
        for part in changes.render(lines):
            console.print(part)
    return 1 if fail_on and worse else 0
