"""`lrbench run`: train and evaluate."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrbench.cli import options as opt
from lrbench.cli.spellings import DTYPES
from lrbench.errors import SpecError

if TYPE_CHECKING:
    from lrbench.plan import Cell
    from lrbench.runner import Options, Result
    from lrbench.specs import Grid

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


def command(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Names, variants local[window=64], files ./mine.py:Mine, or all."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="Names, card files ./my.yaml, or all.")] = None,
    suite: Annotated[
        str | None, typer.Option("--suite", help="Grids: a name or a YAML file. Flags override them.")
    ] = None,
    preset: opt.Preset = None,
    sets: opt.Sets = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="One seed. [default: 0]")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds, from 0.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Training steps: train.steps.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Examples a step: train.batch.")] = None,
    limit: opt.Limit = None,
    data: opt.Data = None,
    device: Annotated[
        str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps. [default: auto]")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="fp32, bf16 or fp16. [default: fp32]")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads. [default: torch's]")] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile the model. [default: no]")
    ] = None,
    out: opt.Out = None,
    cache_dir: opt.Cache = None,
    offline: opt.Offline = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Keep what is done, go on from checkpoints.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the grid and what it costs; run nothing.")] = False,
    on: Annotated[
        str, typer.Option("--on", help="local, ray or slurm. --threads and --device cuda ask for cores, GPUs.")
    ] = "local",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Cells side by side.")] = 1,
    track: Annotated[
        str | None, typer.Option("--track", help="Also log to tensorboard, wandb, mlflow or trackio.")
    ] = None,
    keep_checkpoint: Annotated[
        bool, typer.Option("--keep-checkpoint", help="Keep checkpoints of finished runs.")
    ] = False,
    as_json: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: opt.Debug = False,
) -> int:
    """Train and evaluate: one record for each model, task and seed.

    Example: lrbench run -m full,performer,local[window=64] -t listops --seeds 3
    """
    from lrbench import plan, runner
    from lrbench.cli.live import Live
    from lrbench.executors.inline import is_first
    from lrbench.registry import split_list

    given = {
        "models": split_list(model) if model else None,
        "tasks": split_list(task) if task else None,
        "seeds": _seeds(seed, seeds),
        "preset": preset,
        "data": data,
        "limit": parse_limit(limit),
        "device": device,
        "dtype": DTYPES.get(dtype, dtype) if dtype else None,
        "threads": threads,
        "compile": compile,
    }
    grids = _grids(suite, given, _overrides(sets or [], steps, batch))
    settings = runner.Options(
        out=runner.out_folder(out),
        cache=runner.cache_folder(cache_dir),
        resume=resume,
        offline=opt.is_offline(offline),
        workers=workers,
        on=on,
        track=_tracker(track),
        keep_checkpoint=keep_checkpoint,
        verbose=debug,
    )
    cells = runner.distinct(cell for grid in grids for cell in plan.cells(grid, settings.out))
    if dry_run:
        return _dry_run(cells, as_json)
    with Live(quiet or not is_first()) as live:
        results = runner.run_cells(cells, settings, live)
    if is_first():
        _print(results, settings, as_json)
    return _exit_code(results)


def _grids(suite: str | None, given: dict[str, Any], sets: dict[str, Any]) -> "list[Grid]":
    """The suite's grids, or one of nothing, each with the flags on top."""
    from lrbench import catalog

    bases: list[dict[str, Any]] = [{}]
    if suite:
        bases = [grid.model_dump() for grid in catalog.suite(suite).grid]
    if not bases:
        raise SpecError(f"--suite {suite}: it has no grid of models and tasks", f"lrbench scale --suite {suite}")
    return [_grid(base, given, sets) for base in bases]


def _grid(base: dict[str, Any], given: dict[str, Any], sets: dict[str, Any]) -> "Grid":
    from lrbench.specs import Grid, parse

    merged = {**base, **{key: value for key, value in given.items() if value is not None}}
    merged["set"] = {**merged.get("set", {}), **sets}
    for name, flag in (("models", "--model"), ("tasks", "--task")):
        if name not in merged:
            raise SpecError(
                f"nothing to run: {flag} is missing", "for example: lrbench run -m full,performer -t listops"
            )
    return parse(Grid, merged, "flags")


def _seeds(seed: int | None, seeds: int | None) -> int | list[int] | None:
    if seed is not None and seeds is not None:
        raise SpecError("--seed and --seeds exclude one another", "--seeds 5 means 0 to 4, --seed 7 means 7 alone")
    return [seed] if seed is not None else seeds


def _overrides(sets: list[str], steps: int | None, batch: int | None) -> dict[str, Any]:
    from lrbench import catalog

    short = {"train.steps": steps, "train.batch": batch}
    return {**catalog.parse_sets(sets), **{key: value for key, value in short.items() if value is not None}}


def parse_limit(text: str | None) -> int | float | None:
    """A count, or a fraction below 1."""
    if text is None:
        return None
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise SpecError(f"--limit {text}: not a number", "a count such as 500, or a fraction such as 0.1") from None


def _tracker(name: str | None) -> str | None:
    if name is not None and name not in TRACKERS:
        raise SpecError(f"--track {name}: unknown tracker", f"choose {', '.join(TRACKERS)}")
    return name


def _dry_run(cells: "Sequence[Cell]", as_json: bool) -> int:
    from lrbench.cli import costs

    if as_json:
        costs.print_json(cells)
    else:
        costs.print_table(cells)
    return 0


def _print(results: "Sequence[Result]", settings: "Options", as_json: bool) -> None:
    if as_json:
        print(
            json.dumps([result.record.to_json() for result in results], indent=1, ensure_ascii=False, allow_nan=False)
        )
    else:
        from lrbench.cli.report import print_comparisons
        from lrbench.reporting.scores import comparisons

        print_comparisons(comparisons([result.record for result in results]))
    skipped = sum(not result.fresh for result in results)
    if skipped:
        typer.echo(
            f"{skipped} of {len(results)} were there already and were not run again (--no-resume does)", err=True
        )
    typer.echo(f"results: {settings.out}", err=True)


def _exit_code(results: "Sequence[Result]") -> int:
    statuses = {result.record.status for result in results}
    if "interrupted" in statuses:
        return 130
    return 1 if statuses - {"ok", "unsupported"} else 0
