"""Claims checked: evidence gathered, quantities taken from it, verdicts written."""

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from lrbench._version import __version__
from lrbench.claims import runs, scaling
from lrbench.claims.answers import question
from lrbench.claims.evidence import Evidence, Progress, Request, gather
from lrbench.claims.files import Suites, Told, select
from lrbench.claims.measured import Measured, Unknown
from lrbench.claims.records import ClaimRecord, PartRecord, write
from lrbench.claims.spec import Measure, Part, Scaling, sides
from lrbench.claims.verdicts import judge, together
from lrbench.environment import fingerprint


def check(asked: Sequence[str], request: Request, progress: Progress) -> list[ClaimRecord]:
    """Every claim that is asked for, with its verdict; each is written to `claims/ID.json` of the results folder.

    Raises:
        SpecError: a file of claims or a suite is wrong; nothing was run.
    """
    suites = Suites(request.options.out)
    told = select(asked, suites)
    evidence = gather((part for each in told for part in each.claim.parts), suites, request, progress)
    machine = fingerprint()
    where = f"{machine.cpu_model or 'unknown processor'}, torch {machine.torch}"
    found = [_record(each, evidence, where) for each in told]
    for record in found:
        write(record, request.options.out)
    return found


def _record(told: Told, evidence: Evidence, machine: str) -> ClaimRecord:
    claim = told.claim
    parts = [_judged(part, evidence) for part in claim.parts]
    verdict = together([part.verdict for part in parts])
    reason = claim.not_here or "; ".join(dict.fromkeys(part.reason for part in parts if part.reason))
    return ClaimRecord(
        **claim.model_dump(include={"id", "statement", "published", "source", "tag", "condition", "required"}),
        paper=told.paper,
        verdict=verdict,
        reason=reason,
        parts=parts,
        full=claim.full,
        machine=machine,
        finished_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        lrbench_version=__version__,
    )


def _judged(part: Part, evidence: Evidence) -> PartRecord:
    asked = part.model_dump(mode="json", exclude={"label", "expect", "quantity"})
    told: dict[str, Any] = {
        "label": part.label or _label(part),
        "quantity": part.model_dump()["quantity"],
        "asked": asked,
        "expected": str(part.expect),
    }
    try:
        measured = _measured(part, evidence)
    except Unknown as unknown:
        return PartRecord(**told, verdict="not run here", reason=str(unknown), broken=unknown.broken)
    return PartRecord(
        **told, measured=measured, verdict=judge(measured, part.expect), evidence=_evidence(part, evidence)
    )


def _measured(part: Part, evidence: Evidence) -> Measured:
    if isinstance(part, Measure):
        return evidence.measure(part)
    if isinstance(part, Scaling):
        return scaling.measured(part, evidence.study(part.suite))
    return runs.measured(part, evidence.seeds)


def _evidence(part: Part, evidence: Evidence) -> list[str]:
    """Ids of what a part stands on."""
    if isinstance(part, Measure):
        return [question(part).key]
    if isinstance(part, Scaling):
        return [evidence.study(part.suite).record.study_id]
    return list(dict.fromkeys(record.run_id for side in sides(part) for record in evidence.seeds(side).values()))


def _label(part: Part) -> str:
    """What a part is, where its claim does not say."""
    if isinstance(part, Measure):
        inner = ", ".join(str(value) for value in part.options.values())
        return f"{part.by}({inner})"
    if isinstance(part, Scaling):
        against = f" over {against}" if (against := getattr(part, "against", "")) else ""
        return f"{part.of} of {part.model}{against}"
    models = [side.model for side in sides(part)]
    return f"{' − '.join(models)} on {next(sides(part)).task}"
