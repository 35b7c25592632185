"""Progress of running cells on stderr: bars on a terminal, else one line a finished cell."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from lrbench.metrics import with_unit
from lrbench.plan import Cell
from lrbench.runner import Result

TAIL_BYTES = 4096


class Live:
    """A listener for `runner.run_cells`; reads what the cells write as they go, wherever they run."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._tasks: dict[str, tuple[Cell, TaskID]] = {}
        self._all = self._bars.add_task("getting ready", total=None, said="")
        self._total = self._ended = 0
        self._noted: set[str] = set()

    def __enter__(self) -> "Live":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def plan(self, cells: Sequence[Cell], finished: int) -> None:
        """Show a bar for each cell once it has begun."""
        self._total = len(cells)
        self._bars.update(self._all, description="cells", total=len(cells), completed=0)
        if finished:
            self._console.print(f"{finished} cells are done, {len(cells)} to run")
        for cell in cells:
            name = f"{cell.spec.task.name} · {cell.spec.attention.label} · seed {cell.spec.seed}"
            bar = self._bars.add_task(escape(name), total=cell.spec.train.steps, said="", visible=False)
            self._tasks[cell.run_id] = (cell, bar)

    def tick(self) -> None:
        """Look at what the cells have written since."""
        if self._bars.disable:
            return
        for cell, bar in self._tasks.values():
            lines = last_lines(cell.folder / "metrics.jsonl")
            if lines:
                metric = cell.spec.task.metric.name
                score = next((line[metric] for line in reversed(lines) if metric in line), None)
                said = "" if score is None else with_unit(metric, score)
                self._bars.update(bar, completed=lines[-1]["step"], said=said, visible=True)

    def done(self, result: Result) -> None:
        """One line for a cell that has ended."""
        self._ended += 1
        self._bars.update(self._all, completed=self._ended)
        record, spec = result.record, result.cell.spec
        if result.cell.run_id in self._tasks:
            self._bars.remove_task(self._tasks.pop(result.cell.run_id)[1])
        metric = spec.task.metric.name
        scores = record.metrics
        outcome = record.status if scores is None else f"{with_unit(metric, scores.test.value(metric))} on test"
        reason = f": {record.reason}" if record.reason else ""
        seconds = f" in {record.time.train_s:.0f} s" if record.time.train_s is not None else ""
        name = f"{spec.task.name} · {spec.attention.label} · seed {spec.seed}"
        self._console.print(escape(f"[{self._ended}/{self._total}] {name}: {outcome}{reason}{seconds}"))
        for note in record.notes:
            if note not in self._noted:  # most cells of a grid say the same
                self._noted.add(note)
                self._console.print(escape(f"    note: {note}"))


def last_lines(path: Path) -> list[dict[str, float]]:
    """The last whole lines of a metrics file that is being written."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            *lines, _ = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
