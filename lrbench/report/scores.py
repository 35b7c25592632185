"""Records grouped into comparisons that are fair to make, and what each model scored in them.

Only runs that share task, card version, preset, data, sizes, recipe, precision and kind of device stand in one table.
Of two records of one model and seed the later one counts, and a note names both.
"""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lrbench import stats
from lrbench.records import RunRecord
from lrbench.specs import AttentionSpec


@dataclass(frozen=True)
class Row:
    """One model in one comparison. Measured values are None where no seed ended well."""

    model: str
    seeds: list[int]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = ""  # "seeds" or "examples": what the interval is over
    beats: bool | None = None  # the interval lies above the best trivial baseline
    parameters: int | None = None
    train_s: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    track: str = ""
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """A table: rows by falling score, then what no model is needed for."""

    task: str
    preset: str
    metric: str
    test_examples: int | None
    sources: list[str]
    changed: list[str]  # fields that are not as on the card, for all rows
    rows: list[Row]
    baselines: dict[str, float]
    chance: float
    notes: list[str]

    @property
    def to_beat(self) -> str | None:
        """The best of the trivial baselines."""
        return max(self.baselines, key=self.baselines.__getitem__) if self.baselines else None


def comparisons(records: Sequence[RunRecord]) -> list[Comparison]:
    """All tables that the records make, in the order in which their tasks first appear."""
    groups: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        groups[_fair_to_compare(record)].append(record)
    return [_comparison(group) for group in groups.values()]


def label(record: RunRecord) -> str:
    """The model as it was asked for."""
    return AttentionSpec.model_validate(record.spec["attention"]).label


def _fair_to_compare(record: RunRecord) -> str:
    spec = record.spec
    shared = {name: spec[name] for name in ("model", "train", "dtype", "device", "compile", "threads")}
    data = {key: value for key, value in spec["data"].items()}
    return json.dumps([record.task.name, record.task.card_version, record.preset, data, shared], sort_keys=True)


def _comparison(group: Sequence[RunRecord]) -> Comparison:
    kept, notes = _latest(group)
    good = [record for record in kept if record.status == "ok"]
    baselines = dict(good[0].baselines or {}) if good else {}
    by_model: dict[str, list[RunRecord]] = defaultdict(list)
    for record in kept:
        by_model[label(record)].append(record)
    rows = [_row(model, records, baselines) for model, records in by_model.items()]
    notes += [f"{label(record)}: {note}" for record in good for note in record.notes]
    reasons = [set(record.fairness.reasons) for record in good if record.fairness]
    spec = kept[0].spec
    return Comparison(
        task=kept[0].task.name,
        preset=kept[0].preset,
        metric=spec["task"]["metric"]["name"],
        test_examples=good[0].data.test_examples if good and good[0].data else None,
        sources=sorted({record.data.source for record in good if record.data}),
        changed=sorted(set.intersection(*reasons)) if reasons else [],
        rows=sorted(rows, key=lambda row: -math.inf if row.mean is None else row.mean, reverse=True),
        baselines=baselines,
        chance=spec["task"]["metric"]["chance"],
        notes=list(dict.fromkeys(notes)),
    )


def _latest(group: Sequence[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """One record for each model and seed: reruns are not further seeds."""
    latest: dict[tuple[str, int], RunRecord] = {}
    notes = []
    for record in sorted(group, key=lambda record: record.time.finished_at):
        place = (label(record) + record.model.source, record.seed)
        if place in latest:
            notes.append(
                f"{label(record)}, seed {record.seed}: {record.run_id} counts, {latest[place].run_id} is older"
            )
        latest[place] = record
    return list(latest.values()), notes


def _row(model: str, records: Sequence[RunRecord], baselines: dict[str, float]) -> Row:
    good = sorted((record for record in records if record.metrics), key=lambda record: record.seed)
    failures = [f"seed {record.seed}: {record.status}: {record.reason}" for record in records if record.status != "ok"]
    if not good:
        return Row(model, [record.seed for record in records], failures=failures)
    tests = [record.metrics.test for record in good if record.metrics]
    if len(tests) > 1:
        found, over = stats.over_seeds([score.accuracy for score in tests]), "seeds"
    else:
        found, over = stats.over_examples(tests[0].correct, tests[0].examples), "examples"
    tracks = sorted({record.fairness.track for record in good if record.fairness})
    return Row(
        model=model,
        seeds=[record.seed for record in good],
        mean=found.mean,
        low=found.low,
        high=found.high,
        interval=over,
        beats=found.low > max(baselines.values()) if baselines else None,
        parameters=good[0].parameters.total if good[0].parameters else None,
        train_s=_mean([record.time.train_s for record in good]),
        tokens_per_s=_mean([record.speed.train_tokens_per_s for record in good if record.speed]),
        peak_bytes=max((m.peak_bytes for r in good if (m := r.memory) and m.peak_bytes is not None), default=None),
        track=" and ".join(tracks),
        failures=failures,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
