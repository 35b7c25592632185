"""The life of one cell: from its spec to the last byte of its `record.json`."""

import logging
import traceback
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from filelock import FileLock

from lrbench import fairness
from lrbench._version import __version__
from lrbench.environment import fingerprint
from lrbench.errors import LrbenchError, SpecError, Unsupported
from lrbench.files import lock_of, write_atomic
from lrbench.loaders.base import TaskData
from lrbench.memory import PeakMemory
from lrbench.models import heads
from lrbench.plan import as_suite
from lrbench.records import DataInfo, ModelInfo, RunRecord, Status, TaskInfo, Time, dumps, read, write
from lrbench.registry import Backend, backends
from lrbench.signals import noted
from lrbench.specs import AttentionSpec, Frozen, RunSpec
from lrbench.taskdata import TaskSource
from lrbench.train import checkpoint, schedules
from lrbench.train.loop import Diverged, Outcome, Trainer, accelerator, from_first, processes

log = logging.getLogger(__name__)


class Order(Frozen):
    """What a worker needs to run one cell."""

    spec: RunSpec
    run_id: str
    folder: Path
    cache: Path
    deviations: list[str] = []
    fresh: bool = False  # train again, whatever is there
    offline: bool = False
    threads: int | None = None  # of this worker, where several share a machine
    track: str | None = None
    keep_checkpoint: bool = False


def execute(payload: str) -> str:
    """Run the cell of a JSON `Order`; the JSON of its record. The entry that executors call."""
    return dumps(run(Order.model_validate_json(payload)).to_json())


def run(order: Order) -> RunRecord:
    """Run one cell and write its record, unless another process has done so meanwhile.

    Of several processes, one for each device, the first holds the lock, decides and writes; all return its record.
    """
    first = processes(order.spec).is_main_process
    with _lock(order) if first else nullcontext():
        done = read(order.folder / "record.json") if first else None
        if first and order.fresh:
            checkpoint.drop(order.folder / "checkpoint")
        usable = done is not None and done.status == "ok" and not order.fresh
        if (agreed := from_first(done if usable else None, order.spec)) is not None:
            return agreed
        record, trace = _attempt(order)
        return from_first(_keep(order, record, trace) if first else record, order.spec)


def _lock(order: Order) -> FileLock:
    """Held by who works on the cell."""
    return FileLock(lock_of(order.folder, order.cache))


def blank(order: Order, status: Status, reason: str, started_at: str) -> RunRecord:
    """A record without measurements: a cell that failed, was refused or was interrupted."""
    spec = order.spec
    return RunRecord(
        run_id=order.run_id,
        status=status,
        reason=reason,
        model=model_info(spec.attention, spec.attention.settings),
        task=TaskInfo(name=spec.task.name, card_version=spec.task.version),
        preset=spec.preset,
        seed=spec.seed,
        time=Time(started_at=started_at, finished_at=now()),
        environment=fingerprint().model_dump(mode="json"),
        spec=spec.model_dump(mode="json"),
        lrbench_version=__version__,
    )


def model_info(attention: AttentionSpec, settings: dict[str, Any]) -> ModelInfo:
    """Name, settings and origin, without the folders of whoever ran it."""
    source = attention.source
    if attention.digest:
        source = f"file {Path(source).name} sha256:{attention.digest}"
    return ModelInfo(name=attention.name, settings=settings, source=source)


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _attempt(order: Order) -> tuple[RunRecord, str]:
    """The record, and the traceback of a failure."""
    started_at = now()
    order.folder.mkdir(parents=True, exist_ok=True)
    try:
        record = _train(order, started_at)
        return record or blank(order, "interrupted", "a checkpoint was kept", started_at), ""
    except Exception as error:
        record, trace = blank(order, *_classify(error), started_at), traceback.format_exc()
        if processes(order.spec).num_processes > 1 and not isinstance(error, (LrbenchError, Diverged)):
            _end_all(order, record, trace)
        return record, trace


def _end_all(order: Order, record: RunRecord, trace: str) -> NoReturn:
    """What may have happened to this process alone leaves the others waiting for it: the launcher ends them with it."""
    before = read(order.folder / "record.json")
    # of those that fail because another one did, none may hide the cause
    if before is None or before.time.finished_at < record.time.started_at:
        _keep(order, record, trace)
    log.error("%s", record.reason)
    raise SystemExit(1)


def _classify(error: Exception) -> tuple[Status, str]:
    if isinstance(error, Unsupported):
        return "unsupported", error.message
    if isinstance(error, (LrbenchError, Diverged)):
        return "error", str(error)
    text = f"{type(error).__name__}: {error}"
    # the CPU allocator raises a plain RuntimeError
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        return "oom", text
    return "error", text


def _train(order: Order, started_at: str) -> RunRecord | None:
    spec = order.spec
    if threads := spec.threads or order.threads:
        torch.set_num_threads(threads)
    engine = accelerator(spec, order.track, order.folder)
    least = min([spec.train.batch, *(grown.batch for grown in spec.train.growth)])
    if least < engine.num_processes:
        raise SpecError(f"a batch of {least} is less than the {engine.num_processes} devices")
    if engine.is_main_process:
        suite = as_suite(spec).model_dump(mode="json", exclude_unset=True)
        text = yaml.safe_dump(suite, sort_keys=False, allow_unicode=True)
        write_atomic(order.folder / "config.yaml", text)
    engine.init_trackers("lrbench", config={"run_id": order.run_id})
    data = TaskSource(spec.task, spec.data, order.cache, order.offline).load()
    backend = backends.load(spec.attention)
    torch.manual_seed(spec.seed)
    model = heads.build(backend, spec.task, spec.model, spec.data.length)
    if engine.process_index:
        torch.manual_seed(spec.seed + 1_000_003 * engine.process_index)  # devices drop different values
    # Ctrl-C reaches the processes of a launcher directly
    with noted("SIGTERM", "SIGINT") as stop, PeakMemory(engine.device) as memory:
        trainer = Trainer(model, data, spec, order.folder, engine)
        outcome = trainer.fit(lambda: bool(stop))
    for tracker in engine.trackers:  # not `end_training`, which also ends the processes' connection
        tracker.finish()
    if outcome is None:
        return None
    notes = [*trainer.notes, *heads.notes(model), *schedules.warnings(spec.train), *data.notes]
    return _record(order, started_at, backend, model, data, outcome, memory, notes)


def _record(
    order: Order,
    started_at: str,
    backend: Backend,
    model: heads.Model,
    data: TaskData,
    outcome: Outcome,
    memory: PeakMemory,
    notes: list[str],
) -> RunRecord:
    spec = order.spec
    parameters = heads.count(model)
    base = heads.count(heads.build(backends.get("full"), spec.task, spec.model, spec.data.length))
    return blank(order, "ok", "", started_at).model_copy(
        update={
            "model": model_info(spec.attention, backend.options),
            "metrics": outcome.metrics,
            "parameters": parameters,
            "fairness": fairness.judge(order.deviations, parameters, base),
            "speed": outcome.speed,
            "memory": memory.result(),
            "time": Time(started_at=started_at, finished_at=now(), train_s=outcome.train_s, eval_s=outcome.eval_s),
            "data": DataInfo(
                source=data.source,
                fingerprint=data.fingerprint,
                train_examples=len(data.train),
                validation_examples=len(data.validation),
                test_examples=len(data.test),
            ),
            "baselines": dict(data.baselines),
            "notes": list(dict.fromkeys(notes)),
        }
    )


def _keep(order: Order, record: RunRecord, trace: str) -> RunRecord:
    """Write what a finished cell leaves behind; an interrupted one leaves its checkpoint."""
    if record.status == "interrupted":
        return record
    error = order.folder / "error.txt"
    if trace:
        write_atomic(error, trace)
    else:
        error.unlink(missing_ok=True)
    write(record, order.folder)
    if record.status != "ok" or not order.keep_checkpoint:
        checkpoint.drop(order.folder / "checkpoint")
    return record
