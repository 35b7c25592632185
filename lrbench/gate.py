"""The contract over several backends: what `lrbench check` asks for, and what came out.

Each backend is checked in a process of its own, so that one that dies, hangs on Ctrl-C or prints takes nothing with it.
"""

import logging
import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from time import monotonic
from typing import TYPE_CHECKING, Literal, Protocol

from lrbench.errors import LrbenchError, Missing, SpecError, Unsupported
from lrbench.executors.base import Died, Job
from lrbench.executors.local import LocalExecutor
from lrbench.registry import backends
from lrbench.specs import AttentionSpec, Frozen

if TYPE_CHECKING:
    from lrbench import testing

log = logging.getLogger(__name__)
REFUSALS: dict[str, type[LrbenchError]] = {kind.__name__: kind for kind in (SpecError, Unsupported, Missing)}


class Finding(Frozen):
    """What one probe found. `measured` is null where nothing was, or nothing finite."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    measured: float | None
    bound: float | None
    sense: Literal["at most", "at least"]
    detail: str
    line: str  # all of it, to be read


class Verdict(Frozen):
    """One backend in one direction. `unsupported` is no failure: the backend said that it cannot."""

    causal: bool
    status: Literal["passed", "failed", "unsupported"]
    reason: str = ""
    notes: list[str] = []
    probes: list[Finding] = []

    @property
    def direction(self) -> str:
        """In a word."""
        return "causal" if self.causal else "not causal"

    def count(self, status: str) -> int:
        """How many probes ended so."""
        return sum(probe.status == status for probe in self.probes)


class Question(Frozen):
    """What a process is told. `causal` None asks for both directions."""

    attention: AttentionSpec
    causal: bool | None = None
    threads: int = 1


class Refusal(Frozen):
    """An error of the request, on its way to the process that prints it."""

    kind: str
    message: str
    hint: str

    def error(self) -> LrbenchError:
        """As it was raised."""
        return REFUSALS.get(self.kind, SpecError)(self.message, self.hint)


class Answer(Frozen):
    """One backend: its verdicts, or why there are none."""

    model: str
    source: str
    status: Literal["passed", "failed", "unsupported", "refused", "error"]
    reason: str = ""
    seconds: float = 0.0
    verdicts: list[Verdict] = []
    refusal: Refusal | None = None

    @property
    def failures(self) -> list[str]:
        """Each failure in one line."""
        if self.status == "error":
            return [f"{self.model}: {self.reason}"]
        return [
            f"{self.model}, {verdict.direction}: {probe.line}"
            for verdict in self.verdicts
            for probe in verdict.probes
            if probe.status == "failed"
        ]


class Listener(Protocol):
    """Told what happens while backends are checked."""

    def plan(self, models: Sequence[str]) -> None:
        """These are about to be checked."""

    def tick(self) -> None:
        """Called several times a second."""

    def done(self, answer: Answer) -> None:
        """One is ready."""


def questions(models: Iterable[str], causal: bool | None, threads: int) -> tuple[list[Question], set[str]]:
    """What is to be checked, each once, and which of it was not named: plug-ins that `all` brought in.

    Raises:
        SpecError: an unknown name, or a file in which no class can be told.
    """
    named, extra = list[str](), set[str]()
    for text in models:
        named += backends.names() if text == "all" else [text]
        if text == "all":
            extra |= {*backends.names()} - {*backends.shipped(), *models}
    wanted = [backends.spec(text) for text in dict.fromkeys(named)]
    return [Question(attention=spec, causal=causal, threads=threads) for spec in wanted], extra


def check(
    models: Sequence[str], causal: bool | None = None, workers: int = 2, listener: Listener | None = None
) -> tuple[list[Answer], list[str]]:
    """Put backends through the contract; the answers in the order asked for, and warnings about plug-ins.

    Args:
        models: as `--model` of the other commands; `all` is every shipped one and those of installed packages.
        causal: one direction only; by default both, and what a backend cannot do is `unsupported`.

    Raises:
        SpecError: a request that is wrong.
        Unsupported: a backend that was asked for alone can do nothing of it.
    """
    workers = max(1, min(workers, os.cpu_count() or 1))
    asked, extra = questions(models, causal, max(1, (os.cpu_count() or 1) // workers))
    if listener:
        listener.plan([question.attention.label for question in asked])
    answers, warnings = [], []
    for answer in _answers(asked, workers, extra, listener):
        if answer.refusal and answer.model in extra:
            warnings.append(f"plug-in {answer.model} was left out: {answer.reason}")
            log.warning("%s", warnings[-1])
        else:
            answers.append(answer)
    if len(asked) == 1 and answers and answers[0].status == "unsupported":
        raise Unsupported(
            answers[0].reason, "choose a backend that `lrbench list models` marks so, or leave out --causal"
        )
    return answers, warnings


def _answers(asked: Sequence[Question], workers: int, extra: set[str], listener: Listener | None) -> list[Answer]:
    """Ask side by side. What is wrong with a backend that was named ends it all."""
    executor = LocalExecutor(workers)
    waiting = {executor.submit(_job(question)): question for question in asked}
    found: dict[str, Answer] = {}
    try:
        while waiting:
            ready, _ = wait(waiting, timeout=0.2, return_when="FIRST_COMPLETED")
            if listener:
                listener.tick()
            for future in ready:
                question = waiting.pop(future)
                answer = found[question.model_dump_json()] = _answer(question, future)
                if answer.refusal and answer.model not in extra:
                    raise answer.refusal.error()
                if listener:
                    listener.done(answer)
    except BaseException:
        executor.stop()
        raise
    finally:
        executor.shutdown()
    return [found[question.model_dump_json()] for question in asked]


def _job(question: Question) -> Job:
    return Job(entry="lrbench.gate:execute", payload=question.model_dump_json(), cpus=question.threads)


def _answer(question: Question, future: "Future[str]") -> Answer:
    try:
        return Answer.model_validate_json(future.result())
    except Died as death:
        told = {"model": question.attention.label, "source": question.attention.source}
        return Answer(**told, status="error", reason=str(death))


def execute(payload: str) -> str:
    """Check one backend: a `Question` to an `Answer`. What the process of a job calls."""
    import torch

    question = Question.model_validate_json(payload)
    torch.set_num_threads(question.threads)
    started, spec = monotonic(), question.attention
    told = {"model": spec.label, "source": spec.source}
    try:
        verdicts = [_verdict(spec, causal) for causal in _directions(question)]
    except LrbenchError as error:
        refused = _refusal(error)
        return Answer(**told, status="refused", reason=error.message, refusal=refused).model_dump_json()
    found = {verdict.status for verdict in verdicts}
    status = next(status for status in ("failed", "passed", "unsupported") if status in found)
    reason = verdicts[0].reason if status == "unsupported" else ""
    seconds = round(monotonic() - started, 3)
    return Answer(**told, status=status, reason=reason, seconds=seconds, verdicts=verdicts).model_dump_json()


def _refusal(error: LrbenchError) -> Refusal:
    return Refusal(kind=type(error).__name__, message=error.message, hint=error.hint)


def _directions(question: Question) -> list[bool]:
    return [False, True] if question.causal is None else [question.causal]


def _verdict(spec: AttentionSpec, causal: bool) -> Verdict:
    from lrbench import testing

    backend = backends.load(spec)
    try:
        probes = testing.conformance(backend.cls, backend.options, causal)
    except Unsupported as error:
        return Verdict(causal=causal, status="unsupported", reason=error.message)
    except LrbenchError as error:
        raise SpecError(f"model {spec.label}: {error.message}", error.hint) from error
    told = list[str]()
    try:
        told = testing.notes(backend.cls, backend.options, causal)
    except Exception as error:
        probes.append(testing.raised("notes", error))
    findings = [_finding(probe) for probe in probes]
    failed = any(finding.status == "failed" for finding in findings)
    return Verdict(causal=causal, status="failed" if failed else "passed", notes=told, probes=findings)


def _finding(probe: "testing.Probe") -> Finding:
    return Finding(
        name=probe.name,
        status="skipped" if probe.skipped else "passed" if probe.passed else "failed",
        measured=probe.measured if math.isfinite(probe.measured) else None,
        bound=probe.bound if math.isfinite(probe.bound) else None,
        sense="at least" if probe.least else "at most",
        detail=probe.detail,
        line=str(probe),
    )
