"""Everything that a report is made from, read from results folders without changing them.

Of one cell copied to several folders one counts. What cannot be read is left out and named.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lrbench import records, scaledrift, scalerecords
from lrbench.claims import records as claimrecords
from lrbench.claims.records import ClaimRecord
from lrbench.files import told
from lrbench.points import ScalePoint
from lrbench.records import RunRecord
from lrbench.reporting.published import Published, published
from lrbench.reporting.scores import label, metric_of
from lrbench.reporting.where import Condition
from lrbench.scalerecords import StudyRecord


@dataclass(frozen=True)
class Study:
    """A finished scaling study."""

    folder: Path
    record: StudyRecord
    points: list[ScalePoint]
    environment: dict[str, Any]


@dataclass(frozen=True)
class Material:
    """What was found, and what was left out and why."""

    runs: dict[Path, RunRecord]  # by folder
    studies: list[Study]
    published: list[Published]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    claims: list[ClaimRecord] = field(default_factory=list)

    @property
    def records(self) -> list[RunRecord]:
        """The runs alone."""
        return list(self.runs.values())

    @property
    def empty(self) -> bool:
        """Whether nothing was found."""
        return not (self.runs or self.studies or self.claims)

    @cached_property
    def _folders(self) -> dict[int, Path]:
        return {id(record): folder for folder, record in self.runs.items()}

    def folder(self, record: RunRecord) -> Path:
        """Where one of `records` lies."""
        return self._folders[id(record)]


def gather(places: Sequence[Path], conditions: Sequence[Condition] = ()) -> Material:
    """Read all results below some folders.

    Args:
        conditions: runs that do not meet all of them are not counted; studies know no conditions.
    """
    places = [place.expanduser() for place in places]
    left_out: list[tuple[str, str]] = []

    def note(place: str, reason: str) -> None:
        records.warn(place, reason)
        left_out.append((place, reason))

    runs, copies = _once(_whole(records.found(places, note), note))
    kept = {folder: record for folder, record in runs.items() if all(one.holds(record) for one in conditions)}
    studies = list(_studies(places, note))
    remarks = []
    if copies:
        remarks.append(f"Copies of records that lie elsewhere too, not counted again: {copies}.")
    if conditions:
        asked = " ".join(str(condition) for condition in conditions)
        remarks.append(f"{len(kept)} of {len(runs)} runs meet the condition {asked!r}; the others are not shown.")
    return Material(
        runs=kept,
        studies=studies,
        published=published(places, note),
        left_out=left_out,
        remarks=remarks,
        claims=claimrecords.load(places, note),
    )


def _whole(found: dict[Path, RunRecord], note: records.LeftOut) -> dict[Path, RunRecord]:
    """Records that say which model and metric they are of."""
    whole = {}
    for folder, record in found.items():
        try:
            label(record), metric_of(record), float(record.spec["task"]["metric"]["chance"])
        except (KeyError, TypeError, ValueError) as error:
            why = " ".join(str(error).split())[:80]
            note(told(folder / "record.json"), f"its spec lacks what a table needs ({why})")
        else:
            whole[folder] = record
    return whole


def _once(found: dict[Path, RunRecord]) -> tuple[dict[Path, RunRecord], int]:
    """Records without copies of one another, and the number of those."""
    seen: dict[str, Path] = {}
    for folder, record in found.items():
        seen.setdefault(record.model_dump_json(), folder)
    return {folder: found[folder] for folder in seen.values()}, len(found) - len(seen)


def _studies(places: Sequence[Path], note: records.LeftOut) -> Iterator[Study]:
    seen = set()
    for folder in scalerecords.folders(places):
        record = scalerecords.read(folder / "record.json", note)
        if record is None:
            if not (folder / "record.json").exists():
                note(told(folder), "the study is not finished: the same command goes on with it")
            continue
        if (record.study_id, record.finished_at) not in seen:
            seen.add((record.study_id, record.finished_at))
            points = scalerecords.read_points(folder / "points.jsonl", note)
            yield Study(folder, record, points, scaledrift.environment(folder))


@dataclass(frozen=True)
class Evaluation:
    """A model during training: steps done, and the score on validation."""

    step: int
    score: float


def evaluations(folder: Path, metric: str) -> list[Evaluation]:
    """The learning curve of a run: every evaluation in its `metrics.jsonl`, as far as it can be read."""
    try:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [found for line in lines if '"validation"' in line and (found := _evaluation(line, metric))]  # few of many


def _evaluation(line: str, metric: str) -> Evaluation | None:
    try:
        content = json.loads(line)
        found = Evaluation(int(content["step"]), float(content[metric]))
    except (ValueError, KeyError, TypeError):
        return None
    return found if math.isfinite(found.score) else None
