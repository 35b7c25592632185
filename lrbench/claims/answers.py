"""Asks measures in processes of their own, and keeps their answers in `claims/measures` of a results folder."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from time import monotonic

from lrbench.claims.measured import Measured, Unknown
from lrbench.claims.questions import Question
from lrbench.claims.records import FOLDER
from lrbench.claims.spec import Measure
from lrbench.executors.base import Died, Job
from lrbench.executors.local import LocalExecutor
from lrbench.files import write_atomic
from lrbench.records import dumps
from lrbench.runner import Options

ENTRY = "lrbench.claims.questions:execute"
Told = Callable[[str, float], None]


def question(part: Measure) -> Question:
    """What a part asks."""
    return Question(by=part.by, options=part.options)


def given(
    questions: Sequence[Question], options: Options, run: bool, told: Told
) -> Iterator[tuple[str, Measured | Unknown]]:
    """Each question's key with its answer, kept or new."""
    todo = {}
    for each in {each.key: each for each in questions}.values():
        kept = read(_file(options.out, each)) if options.resume or not run else None
        if kept is not None:
            yield each.key, kept
        elif run:
            todo[each.key] = each
        else:
            yield each.key, Unknown("not measured yet")
    if todo:
        yield from _asked(todo, options, told)


def read(path: Path) -> Measured | None:
    """An answer that was kept; None for none, and for one that is damaged, which is then asked for again."""
    try:
        return Measured.model_validate(json.loads(path.read_text(encoding="utf-8"))["measured"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _asked(todo: dict[str, Question], options: Options, told: Told) -> Iterator[tuple[str, Measured | Unknown]]:
    executor = LocalExecutor(options.workers, verbose=options.verbose)
    started = monotonic()
    waiting = {executor.submit(Job(entry=ENTRY, payload=each.model_dump_json())): each for each in todo.values()}
    try:
        while waiting:
            ready, _ = wait(waiting, timeout=0.2, return_when="FIRST_COMPLETED")
            for future in ready:
                each = waiting.pop(future)
                yield each.key, _answer(each, future, options.out)
                told(each.by, monotonic() - started)
    except BaseException:
        executor.stop()
        raise
    finally:
        executor.shutdown()


def _answer(asked: Question, future: "Future[str]", out: Path) -> Measured | Unknown:
    try:
        found = Measured.model_validate_json(future.result())
    except Died as death:
        return Unknown(f"{asked.by}: {death}", broken=not death.killed)
    path = _file(out, asked)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dumps({**asked.model_dump(), "measured": found.model_dump()}, indent=1) + "\n")
    return found


def _file(out: Path, asked: Question) -> Path:
    return out / FOLDER / "measures" / f"{asked.key}.json"
