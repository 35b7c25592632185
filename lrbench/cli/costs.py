"""What a grid would cost, for `lrbench run --dry-run`: an object a cell, or a line for each task and model."""

import json
from collections.abc import Sequence

import typer

from lrbench import plan
from lrbench.plan import Cell

RATE = 1e14  # FLOP/s, sustained: what hours are told at
LABEL = 38  # characters of a model's name, beyond which it has a line of its own

Groups = dict[str, dict[str, list[Cell]]]  # cells that differ in nothing but the seed, by title and model


def print_json(cells: Sequence[Cell]) -> None:
    """One object a cell."""
    rows = [
        {
            "run_id": cell.run_id,
            "folder": str(cell.folder),
            **vars(plan.cost(cell.spec)),
            "spec": cell.spec.model_dump(mode="json"),
        }
        for cell in cells
    ]
    print(json.dumps(rows, indent=1))


def print_table(cells: Sequence[Cell]) -> None:
    """One line for each task and model, whatever the seeds, and what all of it comes to."""
    groups = grouped(cells)
    widest = max(len(label) for models in groups.values() for label in models)
    width = min(max(widest, len("model")), LABEL)
    typer.echo(_line(width, "model", "seeds", "steps", "tokens", "PFLOP", "GiB"))
    for title, models in groups.items():
        typer.echo(f"\n{title}")
        for label, same in models.items():
            if len(label) > width:
                typer.echo(f"  {label}")
            typer.echo(_line(width, label if len(label) <= width else "", *_figures(same)))
    typer.echo(f"\n{total(cells)}")


def grouped(cells: Sequence[Cell]) -> Groups:
    """Cells by what was asked of a task, then by model."""
    groups: Groups = {}
    for cell in cells:
        groups.setdefault(_title(cell), {}).setdefault(cell.spec.attention.label, []).append(cell)
    return groups


def total(cells: Sequence[Cell]) -> str:
    """Cells, tokens, operations and hours of all of it."""
    costs = [plan.cost(cell.spec) for cell in cells]
    flops = sum(cost.flops for cost in costs)
    return (
        f"{len(cells):,} cells, {sum(cost.train_tokens for cost in costs):.2g} tokens, {flops / 1e15:.2g} PFLOP;"
        f" at {RATE / 1e12:.0f} TFLOP/s sustained: {hours(flops / RATE)}.\n"
        "Nothing was run. Lines are of one seed, the total is of all. Upper bounds: every\n"
        "sequence at full length, full attention, and for memory weights, optimiser and\n"
        "one forward pass."
    )


def hours(seconds: float) -> str:
    """Hours in words, with a decimal where there are few."""
    found = seconds / 3600
    return f"{found:,.0f} hours" if found >= 10 else f"{found:.2g} hours"


def _title(cell: Cell) -> str:
    """The task, its preset, the precision, and each way in which the grid leaves the card."""
    spec = cell.spec
    told = f"{spec.task.name}, preset {spec.preset}, {spec.dtype}{', compiled' if spec.compile else ''}"
    return "\n".join([told, *cell.deviations])


def _figures(same: Sequence[Cell]) -> list[str]:
    spec = same[0].spec
    cost = plan.cost(spec)
    return [
        str(len(same)),
        f"{spec.train.steps:,}",
        f"{cost.train_tokens:.2g}",
        f"{cost.flops / 1e15:.2g}",
        f"{cost.memory_bytes / 2**30:.1f}",
    ]


def _line(width: int, label: str, *figures: str) -> str:
    seeds, steps, tokens, flops, memory = figures
    return f"  {label:<{width}} {seeds:>5} {steps:>8} {tokens:>8} {flops:>8} {memory:>6}"
