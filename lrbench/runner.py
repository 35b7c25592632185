"""Cells carried out: what is there is kept, the rest is looked at before anything is trained, then run side by side.

Importing this is cheap.
"""

import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import platformdirs

from lrbench import plan
from lrbench.errors import LrbenchError, Missing, SpecError, Unsupported
from lrbench.executors.base import Died, Executor, Job
from lrbench.executors.inline import InlineExecutor, is_first, launched_once_a_device
from lrbench.executors.local import LocalExecutor
from lrbench.plan import Cell
from lrbench.records import RunRecord, Status, read, write
from lrbench.specs import Grid, RunSpec

if TYPE_CHECKING:
    from lrbench.loaders.base import TaskData

log = logging.getLogger(__name__)
PLACES = {"local": None, "ray": "ray", "slurm": "submitit"}  # where cells run, and the package that takes


@dataclass(frozen=True)
class Options:
    """How cells are run; nothing here changes a result."""

    out: Path
    cache: Path
    resume: bool = True
    offline: bool = False
    workers: int = 1
    on: str = "local"
    track: str | None = None
    keep_checkpoint: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        """Refuse a place that is unknown or lacks its package.

        Raises:
            SpecError, Missing
        """
        if self.on not in PLACES:
            raise SpecError(f"--on {self.on}: unknown place", f"choose {', '.join(PLACES)}")
        package = PLACES[self.on]
        if package and find_spec(package) is None:
            raise Missing(
                f"--on {self.on}: the package {package} is not installed", f"pip install 'lrbench[{self.on}]'"
            )
        if self.on == "slurm" and shutil.which("sbatch") is None:
            raise Missing("--on slurm: there is no Slurm here", "run where sbatch is in PATH, or use --on local")


@dataclass(frozen=True)
class Result:
    """A cell, what became of it, and whether that happened just now."""

    cell: Cell
    record: RunRecord
    fresh: bool


class Listener(Protocol):
    """Told what happens while cells run."""

    def plan(self, cells: Sequence[Cell], finished: int) -> None:
        """`cells` are about to run, `finished` more were there already."""

    def tick(self) -> None:
        """Called several times a second."""

    def done(self, result: Result) -> None:
        """One cell has ended."""


class Silent:
    """A listener that says nothing."""

    def plan(self, cells: Sequence[Cell], finished: int) -> None: ...
    def tick(self) -> None: ...
    def done(self, result: Result) -> None: ...


def out_folder(given: Path | str | None) -> Path:
    """Where results go: as given, else LRBENCH_RESULTS, else `results`."""
    return Path(given or os.environ.get("LRBENCH_RESULTS") or "results").expanduser()


def cache_folder(given: Path | str | None) -> Path:
    """Where data are kept: as given, else LRBENCH_CACHE, else the platform's cache folder of the user."""
    return Path(given or os.environ.get("LRBENCH_CACHE") or platformdirs.user_cache_dir("lrbench")).expanduser()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once, whichever of the grids it stands in."""
    return list({cell.run_id: cell for cell in cells}.values())


def run_grid(grid: Grid, options: Options, listener: Listener | None = None) -> list[Result]:
    """Run what is missing of a grid and return all of it, in the order of the plan.

    Raises:
        SpecError, Missing, Unsupported: before anything is trained.
    """
    return run_cells(plan.cells(grid, options.out), options, listener)


def run_cells(cells: Iterable[Cell], options: Options, listener: Listener | None = None) -> list[Result]:
    """Run what is missing of some cells and return all of them, in their order and each once.

    Raises:
        SpecError, Missing, Unsupported: before anything is trained.
    """
    listener = listener or Silent()
    cells = distinct(cells)
    check_writable(options.out)
    old = _finished(cells) if options.resume else {}
    todo = [cell for cell in cells if cell.run_id not in old]
    results = [Result(cell, old[cell.run_id], fresh=False) for cell in cells if cell.run_id in old]
    if todo:
        refused = preflight(todo, options, alone=len(cells) == 1)
        listener.plan([cell for cell in todo if cell.run_id not in refused], len(old))
        results += [_refuse(cell, refused[cell.run_id], options) for cell in todo if cell.run_id in refused]
        results += _run_all([cell for cell in todo if cell.run_id not in refused], options, listener)
    order = {cell.run_id: place for place, cell in enumerate(cells)}
    return sorted(results, key=lambda result: order[result.cell.run_id])


def check_writable(out: Path, flag: str = "--out") -> None:
    """Try a folder before any work; it is made if it is missing.

    Raises:
        SpecError: nothing can be written there.
    """
    probe = out / f".probe-{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SpecError(f"{flag} {out}: {error.strerror}", "name a folder that can be written to") from None


def preflight(cells: Sequence[Cell], options: Options, alone: bool) -> dict[str, Unsupported]:
    """Find what is wrong before anything is trained; the cells that their backend refuses.

    Raises:
        SpecError, Missing: the request or the environment is wrong.
        Unsupported: a cell that was asked for alone cannot be.
    """
    from lrbench.taskdata import TaskSource
    from lrbench.train import devices

    if options.track and find_spec(options.track) is None:
        raise Missing(f"--track {options.track}: the package is not installed", f"pip install {options.track}")
    for device, dtype in {(cell.spec.device, cell.spec.dtype) for cell in cells}:
        if options.on == "local":  # elsewhere, each cell looks at the machine that it comes to
            devices.check(device, dtype)
    refused = {cell.run_id: refusal for cell in cells if (refusal := _refusal(cell)) is not None}
    if alone and refused:
        raise next(iter(refused.values()))
    wanted = {cell.spec.data.model_dump_json() + cell.spec.card: cell.spec for cell in cells}
    for spec in wanted.values():
        _fits_positions(spec, TaskSource(spec.task, spec.data, options.cache, options.offline).load())
    return refused


def _fits_positions(spec: RunSpec, data: "TaskData") -> None:
    """Refuse inputs that are longer than the table of positions that the model adds to its embedding."""
    longest = max(int(split.lengths.max()) for split in data.splits.values() if len(split))
    if longest > spec.data.length and spec.model.positions in ("learned", "sinusoidal"):
        raise SpecError(
            f"task {spec.task.name} has inputs of {longest} tokens, {spec.model.positions} positions end at"
            f" {spec.data.length}",
            "choose --set model.positions=none, or a kind that acts inside attention",
        )


def _refusal(cell: Cell) -> Unsupported | None:
    """Build the model once. What goes wrong in a user's class by accident is for the cell itself to report."""
    from lrbench.models import heads
    from lrbench.registry import backends

    backend = backends.load(cell.spec.attention)
    try:
        heads.build(backend, cell.spec.task, cell.spec.model, cell.spec.data.length)
    except Unsupported as refusal:
        return refusal
    except LrbenchError:
        raise
    except Exception as error:
        log.debug("%s could not be built: %s", cell.spec.attention.label, error)
    return None


def _finished(cells: Sequence[Cell]) -> dict[str, RunRecord]:
    """Records of cells that need not run."""
    found = {cell.run_id: read(cell.folder / "record.json") for cell in cells}
    done = {run_id: record for run_id, record in found.items() if record is not None and record.status == "ok"}
    if launched_once_a_device():
        from lrbench.train.loop import from_first

        return from_first(done, cells[0].spec)  # what each finds for itself may change from one to the next
    return done


def _refuse(cell: Cell, refusal: Unsupported, options: Options) -> Result:
    return _without_answer(cell, options, "unsupported", refusal.message)


def _run_all(cells: Sequence[Cell], options: Options, listener: Listener) -> list[Result]:
    """Run cells side by side. Ctrl-C asks them to save their state, a second one ends them."""
    if launched_once_a_device():
        return _run_in_step(cells, options, listener)
    executor = _executor(options)
    running = {executor.submit(_job(cell, options)): cell for cell in cells}
    results: list[Result] = []
    waiting = set(running)
    while waiting:
        try:
            wait(waiting, timeout=0.2, return_when="FIRST_COMPLETED")
            listener.tick()
            for future in [future for future in waiting if future.done()]:  # `wait` overlooks cancelled ones
                waiting.discard(future)
                results.append(_result(running[future], future, options))
                listener.done(results[-1])
        except KeyboardInterrupt:
            executor.stop()
    executor.shutdown()
    return results


def _run_in_step(cells: Sequence[Cell], options: Options, listener: Listener) -> list[Result]:
    """Run cells one after the other in this process, as the processes of all other devices do."""
    executor, results = InlineExecutor(), list[Result]()
    for cell in cells:
        if results and results[-1].record.status == "interrupted":
            results.append(_without_answer(cell, options, "interrupted", "not started"))
        else:
            results.append(_result(cell, executor.submit(_job(cell, options)), options))
        listener.done(results[-1])
    return results


def _executor(options: Options) -> Executor:
    if options.on == "ray":
        from lrbench.executors.ray import RayExecutor

        return RayExecutor(options.workers, verbose=options.verbose)
    if options.on == "slurm":
        from lrbench.executors.slurm import SlurmExecutor

        return SlurmExecutor(options.out, options.workers)
    return LocalExecutor(options.workers, verbose=options.verbose)


def _job(cell: Cell, options: Options) -> Job:
    from lrbench.trial import Order

    order = Order(
        spec=cell.spec,
        run_id=cell.run_id,
        folder=cell.folder,
        cache=options.cache,
        deviations=cell.deviations,
        fresh=not options.resume,
        offline=options.offline,
        threads=_threads(cell, options),
        track=options.track,
        keep_checkpoint=options.keep_checkpoint,
    )
    gpus = 1 if cell.spec.device.startswith("cuda") else 0
    return Job(entry="lrbench.trial:execute", payload=order.model_dump_json(), cpus=order.threads or 1, gpus=gpus)


def _threads(cell: Cell, options: Options) -> int | None:
    """Here, cells side by side share the cores and one alone has what torch takes; a cluster is asked for as many."""
    if options.on != "local":
        return cell.spec.threads or 1
    return max(1, (os.cpu_count() or 1) // options.workers) if options.workers > 1 else None


def _result(cell: Cell, future: "Future[str]", options: Options) -> Result:
    """What came back, or a record of why nothing did."""
    try:
        return Result(cell, RunRecord.model_validate_json(future.result()), fresh=True)
    except CancelledError:
        return _without_answer(cell, options, "interrupted", "not started")
    except Died as death:
        if death.asked_to:
            return _without_answer(cell, options, "interrupted", "ended before there was anything to keep")
        hint = " (most often for want of memory)" if death.killed else ""
        return _without_answer(cell, options, "oom" if death.killed else "error", f"{death}{hint}")


def _without_answer(cell: Cell, options: Options, status: Status, reason: str) -> Result:
    from lrbench import trial

    order = trial.Order.model_validate_json(_job(cell, options).payload)
    record = trial.blank(order, status, reason, trial.now())
    if status != "interrupted" and is_first():
        cell.folder.mkdir(parents=True, exist_ok=True)
        write(record, cell.folder)
    return Result(cell, record, fresh=True)
