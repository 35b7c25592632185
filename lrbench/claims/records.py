"""What is written about a claim: `claims/ID.json` of a results folder (schema `lrbench.claim/1`)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from lrbench.claims.measured import Measured
from lrbench.claims.spec import Full, Paper
from lrbench.claims.verdicts import Verdict
from lrbench.files import told, write_atomic
from lrbench.records import LeftOut, dumps, warn, why
from lrbench.specs import Frozen

SCHEMA = "lrbench.claim/1"
FOLDER = "claims"  # of a results folder


class PartRecord(Frozen):
    """One quantity of a claim: what was expected, what was found, and on which runs and studies it stands."""

    label: str
    quantity: str
    asked: dict[str, Any]
    expected: str
    measured: Measured | None = None
    verdict: Verdict
    reason: str = ""  # why there is no measurement
    broken: bool = False  # whether that is so because something failed, not because this machine cannot
    evidence: list[str] = []  # ids of runs and studies


class ClaimRecord(Frozen):
    """A claim and its verdict."""

    schema_: Literal["lrbench.claim/1"] = Field("lrbench.claim/1", alias="schema")
    id: str
    paper: Paper
    statement: str
    published: str
    source: str
    tag: str  # of the published figures: verified, secondary or none
    condition: str
    required: bool
    verdict: Verdict
    reason: str = ""  # why it was not run here
    parts: list[PartRecord]
    full: Full
    machine: str
    finished_at: str
    lrbench_version: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def failed(self) -> bool:
        """Whether something that must hold does not, or evidence of it broke."""
        return (self.required and self.verdict == "contradicted") or any(part.broken for part in self.parts)


def place(out: Path, name: str) -> Path:
    """The file of a claim."""
    return out / FOLDER / f"{name}.json"


def write(record: ClaimRecord, out: Path) -> None:
    """Write a claim's file, in one step."""
    path = place(out, record.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dumps(record.to_json(), indent=1) + "\n")


def read(path: Path, left_out: LeftOut = warn) -> ClaimRecord | None:
    """A claim's record, or None with a warning that names the file if it is damaged or newer than this program."""
    try:
        return ClaimRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        left_out(told(path), why(error, SCHEMA))
        return None


def load(places: Iterable[Path], left_out: LeftOut = warn) -> list[ClaimRecord]:
    """All claims in results folders; of one that stands in several, the latest."""
    found: dict[str, ClaimRecord] = {}
    for path in sorted(path for root in places for path in (root / FOLDER).glob("*.json")):
        record = read(path, left_out)
        if record and (record.id not in found or record.finished_at > found[record.id].finished_at):
            found[record.id] = record
    return sorted(
        found.values(),
        key=lambda record: (record.id[0], int(record.id[1:]) if record.id[1:].isdigit() else 0, record.id),
    )


def in_order(name: str) -> tuple[str, int, str]:
    """How ids are sorted: K2 before K10."""
    digits = name.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return name.removesuffix(digits), int(digits) if digits.isdigit() else 0, name
