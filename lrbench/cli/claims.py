"""`lrbench claims`: what the papers say, as measured statements."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lrbench.cli import options as opt

if TYPE_CHECKING:
    from lrbench.claims.evidence import Progress
    from lrbench.claims.records import ClaimRecord


def command(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="F5, K3 …, required, or all. [default: all]")
    ] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="The claims that a suite names.")] = None,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Run what is missing, or only read what is recorded.")
    ] = True,
    out: opt.Out = None,
    cache_dir: opt.Cache = None,
    offline: opt.Offline = False,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Keep what is done.")] = True,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Runs side by side; studies go alone.")] = 1,
    as_json: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: opt.Debug = False,
) -> int:
    """What the papers claim, measured: reproduced, contradicted, inconclusive, or not run here and why.

    Exit 1 where a claim that must hold is contradicted.

    Example: lrbench claims F5 K3
    """
    from lrbench import runner
    from lrbench.claims.check import check
    from lrbench.claims.evidence import Request

    options = runner.Options(
        out=runner.out_folder(out),
        cache=runner.cache_folder(cache_dir),
        resume=resume,
        offline=opt.is_offline(offline),
        workers=workers,
        verbose=debug,
    )
    found = check(_asked(ids, suite), Request(options, run), _progress(quiet))
    _print(found, as_json)
    typer.echo(f"results: {options.out}", err=True)
    return 1 if any(record.failed for record in found) else 0


def _asked(ids: list[str] | None, suite: str | None) -> list[str]:
    from lrbench import catalog
    from lrbench.errors import SpecError

    if suite is None:
        return ids or ["all"]
    if ids:
        raise SpecError("--suite and ids exclude one another", "the suite's claims, or those named")
    named = catalog.suite(suite).claims
    if not named:
        raise SpecError(f"--suite {suite}: it names no claims", "add for example claims: [required]")
    return named


def _progress(quiet: bool) -> "Progress":
    from rich.console import Console

    from lrbench.claims.evidence import Progress
    from lrbench.cli.live import Live
    from lrbench.cli.scalelive import Curves

    console = Console(stderr=True, quiet=quiet, highlight=False)

    def measure(by: str, seconds: float) -> None:
        console.print(f"{by}: measured after {seconds:.0f} s")

    return Progress(cells=lambda: Live(quiet), curves=lambda: Curves(quiet), measure=measure)


def _print(found: "Sequence[ClaimRecord]", as_json: bool) -> None:
    if as_json:
        from lrbench.records import dumps

        print(dumps({"claims": [record.to_json() for record in found]}, indent=1))
        return
    from rich.console import Console

    from lrbench.reporting.claims import render

    console = Console(highlight=False)
    for part in render(found):
        console.print(part)
