"""`lrbench scale`: memory and time against sequence length."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrbench.cli import options as opt
from lrbench.cli.spellings import DTYPES
from lrbench.errors import SpecError, nearest

if TYPE_CHECKING:
    from lrbench.scaleplan import StudyPlan
    from lrbench.scalestudy import Measured
    from lrbench.specs import ScaleGrid

MODES, LEVELS = ("forward", "train", "stream"), ("layer", "model")


def command(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Names, variants full[impl=math], files ./mine.py:Mine. [default: all]"),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option("--lengths", help="512..16384 (doubling), ..:+512, ..:x1.5, or 512,1000. [default: 512..16384]"),
    ] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", help="A suite of scaling studies. Flags override them.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", help="forward, train (with backward), stream. [default: train]")
    ] = None,
    causal: Annotated[bool | None, typer.Option("--causal/--no-causal", help="No token sees the future.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Sequences. [default: 1]")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Keep batch × length at this.")] = None,
    width: Annotated[int | None, typer.Option("--width", min=1, help="Of the model. [default: 512]")] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, help="[default: 8]")] = None,
    level: Annotated[
        str | None, typer.Option("--level", help="layer, or a model of two around it. [default: layer]")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="fp32, bf16 or fp16. [default: fp32]")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps. [default: auto]")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads.")] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile each point. [default: no]")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of weights and inputs. [default: 0]")] = None,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", help="Of one point: 8GB. [default: most of what is free]")
    ] = None,
    time_limit: Annotated[str | None, typer.Option("--time-limit", help="Of one call. [default: 60s]")] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Half-width of the 95 % interval. [default: 5%]")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Of a study, imports too. Past it, each point once. [default: 8min]")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", help="An older study, for what has changed since.")
    ] = None,
    out: opt.Out = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Keep points that are there.")] = True,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="No child processes: for debuggers, not for figures.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Run what was predicted to fail.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the points; measure nothing.")] = False,
    as_json: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: opt.Debug = False,
) -> int:
    """Peak memory and wall-clock against sequence length.

    Example: lrbench scale -m full,performer --lengths 512..4096
    """
    from lrbench import runner, scaleplan

    grids = _grids(
        suite,
        {
            "models": _models(model),
            "lengths": lengths,
            "modes": _modes(mode),
            "causal": causal,
            "batch": batch,
            "tokens": tokens,
            "width": width,
            "heads": heads,
            "level": _one_of("--level", level, LEVELS),
            "dtype": DTYPES.get(dtype, dtype) if dtype else None,
            "device": device,
            "threads": threads,
            "compile": compile,
            "seed": seed,
            "memory_limit": memory_limit,
            "time_limit": time_limit,
            "precision": precision,
            "budget": budget,
        },
    )
    folder = runner.out_folder(out)
    if dry_run:
        return _dry_run([plan for grid in grids for plan in scaleplan.studies(grid, folder)], as_json)
    measured = _measure(grids, folder, quiet, resume=resume, in_process=in_process, force=force, compare=compare)
    _print(measured, as_json)
    return _exit_code(measured)


def _measure(grids: "Sequence[ScaleGrid]", out: Path, quiet: bool, **request: Any) -> "list[Measured]":
    from lrbench.cli.scalelive import Curves
    from lrbench.runner import cache_folder, check_writable
    from lrbench.scalestudy import Request, run_each

    check_writable(out)
    try:
        with Curves(quiet) as live:
            return run_each(grids, Request(out, cache_folder(None), **request), live)
    except KeyboardInterrupt:
        typer.echo("interrupted: finished points are kept, and the same command goes on", err=True)
        raise


def _grids(suite: str | None, given: dict[str, Any]) -> "list[ScaleGrid]":
    """The suite's studies, or the default one, each with the flags on top."""
    from lrbench import catalog

    bases: list[dict[str, Any]] = [{"models": ["all"], "lengths": "512..16384"}]
    if suite:
        bases = [grid.model_dump() for grid in catalog.suite(suite).scale]
    if not bases:
        raise SpecError(f"--suite {suite}: it has no scale section", f"lrbench run --suite {suite}")
    flags = {key: value for key, value in given.items() if value is not None}
    return [_grid(base, flags) for base in bases]


def _grid(base: dict[str, Any], flags: dict[str, Any]) -> "ScaleGrid":
    from lrbench.specs import ScaleGrid, parse

    for one, other in (("batch", "tokens"), ("tokens", "batch")):
        if one in flags and other not in flags:
            base.pop(other, None)  # a flag of the one stands for the suite's other
    return parse(ScaleGrid, {**base, **flags}, "flags")


def _models(text: str | None) -> list[str] | None:
    from lrbench.registry import split_list

    if text is None:
        return None
    models = split_list(text)
    if not models:
        raise SpecError("--model names nothing", "for example: --model full,performer, or --model all")
    return models


def _modes(text: str | None) -> list[str] | None:
    if text is None:
        return None
    modes = [part.strip() for part in text.split(",") if part.strip()]
    if not modes:
        raise SpecError("--mode names nothing", f"choose {', '.join(MODES)}")
    return [str(_one_of("--mode", mode, MODES)) for mode in modes]


def _one_of(flag: str, word: str | None, known: Sequence[str]) -> str | None:
    if word is not None and word not in known:
        raise SpecError(f"{flag} {word}: unknown", nearest(word, list(known)))
    return word


def _dry_run(plans: "Sequence[StudyPlan]", as_json: bool) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from lrbench import scaleplan

    points = [point for plan in plans for point in plan.points]
    if as_json:
        rows = [vars(scaleplan.bound(point)) | {"spec": point.model_dump(mode="json")} for point in points]
        print(json.dumps({"points": rows}, indent=1))
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("mode", "model", "length", "batch", "TFLOP", "GiB"):
        table.add_column(name, justify="left" if name in ("mode", "model") else "right")
    for point in points:
        most = scaleplan.bound(point)
        sizes = [f"{most.flops / 1e12:.2g}", f"{most.memory_bytes / 2**30:.2g}"]
        table.add_row(point.mode, escape(point.attention.label), str(point.length), str(point.batch), *sizes)
    console = Console(highlight=False)
    console.print(table)
    seconds = sum(plan.grid.budget for plan in plans)
    console.print(
        f"{len(points)} points in {len(plans)} studies of at most {seconds:.0f} s in all; nothing was measured."
        " TFLOP and GiB: of one call, were it full attention that keeps its scores."
    )
    return 0


def _print(measured: "Sequence[Measured]", as_json: bool) -> None:
    if as_json:
        from lrbench.records import dumps

        studies = [
            {
                "record": one.record.to_json(),
                "points": [point.model_dump(mode="json", by_alias=True) for point in one.points],
            }
            for one in measured
        ]
        print(dumps({"studies": studies}, indent=1))
    else:
        from rich.console import Console

        from lrbench.reporting.scaling import render

        console = Console(highlight=False)
        for one in measured:
            for part in render(one.record, one.points):
                console.print(part)
            console.print()
    for one in measured:
        if not one.fresh:
            typer.echo("the study was there already and was not measured again (--no-resume does)", err=True)
        typer.echo(f"results: {one.plan.folder}", err=True)


def _exit_code(measured: "Sequence[Measured]") -> int:
    """What ran out of memory or time is a result; what broke is not."""
    statuses = {point.status for one in measured for point in one.points}
    if "interrupted" in statuses:
        return 130
    return 1 if "error" in statuses else 0
