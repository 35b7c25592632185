"""Records grouped into comparisons that are fair to make, and what each model scored in them.

Only runs that share task, card version, preset, data, sizes, recipe, precision and kind of device stand in one table.
Of two records of one model and seed the later one counts, and a note names both.
"""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lrbench import metrics, stats
from lrbench.metrics import MetricName
from lrbench.records import RunRecord, Score
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
    beats: bool | None = None  # the whole interval is better than the best trivial baseline
    parameters: int | None = None
    train_s: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    track: str = ""
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """A table: the best rows first, then what no model is needed for."""

    task: str
    preset: str
    metric: MetricName
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
        wanted = metrics.best(self.metric, list(self.baselines.values())) if self.baselines else None
        return next((name for name, value in self.baselines.items() if value == wanted), None)


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
    metric: MetricName = kept[0].spec["task"]["metric"]["name"]
    sign = -1 if metrics.higher_is_better(metric) else 1
    baselines = dict(good[0].baselines or {}) if good else {}
    by_model: dict[str, list[RunRecord]] = defaultdict(list)
    for record in kept:
        by_model[label(record)].append(record)
    rows = [_row(model, records, baselines, metric) for model, records in by_model.items()]
    common = [note for note in (good[0].notes if len(good) > 1 else []) if all(note in each.notes for each in good)]
    notes += common + [f"{label(each)}: {note}" for each in good for note in each.notes if note not in common]
    reasons = [set(record.fairness.reasons) for record in good if record.fairness]
    spec = kept[0].spec
    return Comparison(
        task=kept[0].task.name,
        preset=kept[0].preset,
        metric=metric,
        test_examples=good[0].data.test_examples if good and good[0].data else None,
        sources=sorted({record.data.source for record in good if record.data}),
        changed=sorted(set.intersection(*reasons)) if reasons else [],
        rows=sorted(rows, key=lambda row: math.inf if row.mean is None else sign * row.mean),
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


def _row(model: str, records: Sequence[RunRecord], baselines: dict[str, float], metric: MetricName) -> Row:
    good = sorted((record for record in records if record.metrics), key=lambda record: record.seed)
    failures = [f"seed {record.seed}: {record.status}: {record.reason}" for record in records if record.status != "ok"]
    if not good:
        return Row(model, [record.seed for record in records], failures=failures)
    tests = [record.metrics.test for record in good if record.metrics]
    found, over = stats.over_seeds([score.value(metric) for score in tests]), "seeds"
    if len(tests) == 1:
        found, over = _over_examples(tests[0], metric), "examples"
    tracks = sorted({record.fairness.track for record in good if record.fairness})
    return Row(
        model=model,
        seeds=[record.seed for record in good],
        mean=found.mean,
        low=found.low,
        high=found.high,
        interval=over,
        beats=_beats(found, metrics.best(metric, list(baselines.values())), metric) if baselines else None,
        parameters=good[0].parameters.total if good[0].parameters else None,
        train_s=_mean([record.time.train_s for record in good]),
        tokens_per_s=_mean([record.speed.train_tokens_per_s for record in good if record.speed]),
        peak_bytes=max((m.peak_bytes for r in good if (m := r.memory) and m.peak_bytes is not None), default=None),
        track=" and ".join(tracks),
        failures=failures,
    )


def _over_examples(score: Score, metric: MetricName) -> stats.Estimate:
    """The interval of one seed: how far another test set of this size might have been from it."""
    if metric == "accuracy":
        return stats.over_examples(score.correct, score.scored or score.examples)
    if score.loss_error is None:
        return stats.Estimate(score.value(metric), math.nan, math.nan, score.examples)
    share = (score.scored or score.examples) / (score.units or score.scored or score.examples)
    half = stats.Z95 * score.loss_error
    low, high = (metrics.from_nats(metric, share * (score.loss + side)) for side in (-half, half))
    return stats.Estimate(score.value(metric), low, high, score.examples)


def _beats(found: stats.Estimate, baseline: float, metric: MetricName) -> bool:
    return found.low > baseline if metrics.higher_is_better(metric) else found.high < baseline


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
