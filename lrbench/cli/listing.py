"""`lrbench list`: what there is."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lrbench.cli import options as opt
from lrbench.errors import LrbenchError, SpecError, UnknownName

KINDS = ("models", "tasks", "suites", "runs")


def command(
    kind: Annotated[str | None, typer.Argument(help="models, tasks, suites or runs. [default: all but runs]")] = None,
    results: Annotated[list[Path] | None, typer.Argument(help="For runs: results folders.")] = None,
    where: opt.Where = None,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """What there is, with one line on each.

    Example: lrbench list models --json
    """
    if kind is not None and kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    if where is not None and kind != "runs":
        raise SpecError("--where: only runs have conditions", "lrbench list runs --where 'task=listops'")
    found = {name: _rows(name, results, where) for name in ([kind] if kind else KINDS[:-1])}
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return 0
    for name, rows in found.items():
        _show(name, rows)
    return 0


def _rows(kind: str, results: list[Path] | None, where: str | None) -> list[dict[str, Any]]:
    from lrbench import catalog
    from lrbench.registry import backends

    if kind == "models":
        return [backends.about(name) for name in backends.names()]
    if kind == "tasks":
        return [_task(name) for name in catalog.names("tasks")]
    if kind == "suites":
        return [_suite(name) for name in catalog.names("configs")]
    return _runs(results, where)


def _task(name: str) -> dict[str, Any]:
    from lrbench import catalog

    try:
        card = catalog.task(name)
    except LrbenchError as error:
        return {"name": name, "summary": f"broken: {error.message}", "broken": True}
    lengths = {preset: found.data.length for preset, found in card.presets.items()}
    told = card.model_dump(
        include={"name", "summary", "version", "kind", "sources", "layout", "licence", "citation", "tried"}
    )
    return told | {"lengths": lengths}


def _suite(name: str) -> dict[str, Any]:
    from lrbench import catalog

    try:
        return {"name": name, "summary": catalog.suite(name).summary}
    except LrbenchError as error:
        return {"name": name, "summary": f"broken: {error.message}", "broken": True}


def _runs(results: list[Path] | None, where: str | None) -> list[dict[str, Any]]:
    from lrbench.metrics import with_unit
    from lrbench.reporting.material import gather
    from lrbench.reporting.scores import label, metric_of
    from lrbench.reporting.where import conditions
    from lrbench.runner import out_folder

    rows = []
    for folder, record in gather(results or [out_folder(None)], conditions(where or "")).runs.items():
        metric = metric_of(record)
        test = with_unit(metric, record.metrics.test.value(metric)) if record.metrics else record.reason
        name = f"{record.task.name}/{label(record)}/{record.run_id}"
        rows.append(
            {
                "name": name,
                "summary": f"{record.status} {test}",
                "status": record.status,
                "run_id": record.run_id,
                "folder": str(folder),
            }
        )
    return rows


def _show(kind: str, rows: list[dict[str, Any]]) -> None:
    typer.secho(kind, bold=True)
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        typer.echo(f"  {row['name']:{width}}  {row['summary']}")
    if not rows:
        typer.echo("  none")
