"""`lrbench data`: fetch or generate, check and look at a task's data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrbench.cli import options as opt
from lrbench.cli.run import parse_limit

if TYPE_CHECKING:
    from lrbench.loaders.base import TaskData
    from lrbench.taskdata import TaskSource

app = typer.Typer(no_args_is_help=True, help="Fetch or generate, check and look at a task's data.")

Name = Annotated[str, typer.Argument(metavar="TASK", help="A task's name or card file.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of the generator: data.seed. [default: 0]")]
LINE = 74  # characters of an example that fit a terminal


@app.command("prepare")
def prepare(
    task: Name,
    preset: opt.Preset = None,
    sets: opt.Sets = None,
    seed: Seed = None,
    data: opt.Data = None,
    limit: opt.Limit = None,
    cache_dir: opt.Cache = None,
    offline: opt.Offline = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Make a task's data ready, so that runs need neither time nor network for it.

    Example: lrbench data prepare listops --preset paper
    """
    source = _source(task, preset, sets, seed, data, limit, cache_dir, offline)
    if source.spec.source == "hub":
        from lrbench.loaders import hub

        size = hub.size(source.request)
        told = "of a size that the hub does not state" if size is None else f"of {size / 1e6:,.0f} MB"
        typer.echo(f"{task}: a download {told}, unless it is there already", err=True)
    facts = _facts(source, source.load())
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        for name, value in facts.items():
            typer.echo(f"{name:12} {value}")
    return 0


@app.command("verify")
def verify(
    task: Name,
    preset: opt.Preset = None,
    sets: opt.Sets = None,
    seed: Seed = None,
    data: opt.Data = None,
    limit: opt.Limit = None,
    cache_dir: opt.Cache = None,
    offline: opt.Offline = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Check a task's data: counts, cuts, labels, duplicates, fingerprint. Exit 1 if anything is wrong.

    Example: lrbench data verify listops --data path/to/listops-1000
    """
    source = _source(task, preset, sets, seed, data, limit, cache_dir, offline)
    checks = source.verify()
    if as_json:
        print(json.dumps({"task": source.task.name, "checks": [check._asdict() for check in checks]}, indent=1))
    else:
        for check in checks:
            typer.echo(f"{'ok   ' if check.ok else 'WRONG'}  {check.name:12} {check.found}")
    return 0 if all(check.ok for check in checks) else 1


@app.command("show")
def show(
    task: Name,
    preset: opt.Preset = None,
    sets: opt.Sets = None,
    seed: Seed = None,
    data: opt.Data = None,
    examples: Annotated[int, typer.Option("--examples", "-n", min=1, help="How many of the test set.")] = 3,
    png: Annotated[Path | None, typer.Option("--png", help="Images: write them to this file too.")] = None,
    cache_dir: opt.Cache = None,
    offline: opt.Offline = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Print what a task's data are, and some decoded examples.

    Example: lrbench data show listops -n 5
    """
    source = _source(task, preset, sets, seed, data, None, cache_dir, offline)
    found = source.load()
    facts = _facts(source, found)
    shown = [found.test[index] for index in range(min(examples, len(found.test)))]
    texts = [source.describe(example) for example in shown]
    if png:
        _draw([source.picture(example.views[0]) for example in shown], png.expanduser(), task)
    if as_json:
        print(json.dumps({**facts, "test": texts}, indent=1, ensure_ascii=False))
        return 0
    for name, value in facts.items():
        typer.echo(f"{name:12} {value}")
    for text in texts:
        typer.echo()
        for line in text.splitlines():
            typer.echo(line if len(line) <= LINE else f"{line[:LINE]} …")
    return 0


def _draw(images: list[Any], file: Path, task: str) -> None:
    from lrbench.errors import SpecError
    from lrbench.loaders.pictures import save_sheet

    if images[0] is None:
        raise SpecError(f"--png: the examples of {task} are no images", "leave it out")
    save_sheet(images, file)


def _source(
    task: str,
    preset: str | None,
    sets: list[str] | None,
    seed: int | None,
    data: str | None,
    limit: str | None,
    cache: Path | None,
    offline: bool,
) -> "TaskSource":
    """The data that the flags ask for."""
    from lrbench import catalog, plan, runner
    from lrbench.specs import Grid, parse
    from lrbench.taskdata import TaskSource

    overrides = catalog.parse_sets(sets or []) | ({} if seed is None else {"data.seed": seed})
    asked = {"models": [], "tasks": [task], "set": overrides, "limit": parse_limit(limit), "data": data or ""}
    grid = parse(Grid, asked | ({"preset": preset} if preset else {}), "flags")
    card = catalog.task(task)
    return TaskSource(card.facts(), plan.resolve(card, grid).data, runner.cache_folder(cache), offline)


def _facts(source: "TaskSource", found: "TaskData") -> dict[str, Any]:
    return {
        "task": source.task.name,
        "version": source.task.version,
        "source": found.source,
        "train": len(found.train),
        "validation": len(found.validation),
        "test": len(found.test),
        "longest": int(max(split.lengths.max() for split in found.splits.values() if len(split))),
        "baselines": {name: round(value, 4) for name, value in found.baselines.items()},
        "fingerprint": found.fingerprint,
        "notes": list(found.notes),
    }
