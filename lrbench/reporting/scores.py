"""Records grouped into comparisons that are fair to make, and what each model scored in them.

Only runs that share task, card version, preset, data, sizes, recipe, precision and kind of device stand in one table.
Of two records of one model and seed the later one counts, and a note names both. Which rows fall short of the best one
is told by paired t tests on the seeds that both have, corrected for their number (Holm), each track by itself.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lrbench import fairness, metrics, stats
from lrbench.metrics import MetricName
from lrbench.records import RunRecord, Score
from lrbench.reporting.published import Published
from lrbench.reporting.tables import slug, unique
from lrbench.specs import AttentionSpec

Standing = Literal["best", "tied", "behind", "untold"]  # tied: not to be told from the best; untold: no common seeds
LEVEL = 0.05  # of the tests
FAIR = "apples-to-apples"


@dataclass(frozen=True)
class Row:
    """One model in one comparison. Measured values are None where no seed ended well, costs where machines differ."""

    model: str
    seeds: list[int]
    records: list[RunRecord] = field(default_factory=list, repr=False)  # good ones and failed ones
    scores: dict[int, float] = field(default_factory=dict)  # by seed
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = ""  # "seeds" or "examples": what the interval is over
    beats: bool | None = None  # the whole interval is better than the best trivial baseline
    standing: Standing | None = None  # beside the best of its track
    parameters: int | None = None
    train_s: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    track: str = ""
    reasons: list[str] = field(default_factory=list)  # for the track
    machines: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def is_fair(self) -> bool:
        """Whether all of its runs kept to the card."""
        return self.track == FAIR


@dataclass(frozen=True)
class Comparison:
    """A table: the best rows first, then what no model is needed for."""

    name: str  # unlike that of any other
    task: str
    preset: str
    metric: MetricName
    test_examples: int | None
    sources: list[str]
    changed: list[str]  # fields that are not as on the card, for all rows
    machines: list[str]  # on which rows were timed; where there are several, costs of different rows do not compare
    rows: list[Row]
    baselines: dict[str, float]
    chance: float
    notes: list[str]

    @property
    def title(self) -> str:
        """What was asked, of which data."""
        sources = f", {' and '.join(self.sources)} data" if self.sources else ""
        return f"{self.task}, preset {self.preset}{sources}"

    @property
    def tracks(self) -> dict[str, list[Row]]:
        """The rows that scored, by track; the fair one first."""
        tracks: dict[str, list[Row]] = {FAIR: []}
        for row in self.rows:
            if row.mean is not None:
                tracks.setdefault(row.track, []).append(row)
        return {track: rows for track, rows in tracks.items() if rows}

    def figures(self, published: Iterable[Published]) -> list[Published]:
        """What papers say of this task in its metric."""
        return [each for each in published if (each.task, each.metric) == (self.task, self.metric)]

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
    names = unique([slug(f"{group[0].task.name}-{group[0].preset}") for group in groups.values()])
    return [_comparison(name, group) for name, group in zip(names, groups.values(), strict=True)]


def label(record: RunRecord) -> str:
    """The model as it was asked for."""
    return AttentionSpec.model_validate(record.spec["attention"]).label


def machine(record: RunRecord) -> str:
    """The hardware and torch that a run was timed on, in words; what is not recorded is not told."""
    told = record.environment
    gpus = [str(gpu.get("name")) for gpu in told.get("gpus") or [] if isinstance(gpu, dict)]
    device = str(record.spec.get("device"))
    where = ", ".join(gpus) if gpus and device != "cpu" else str(told.get("cpu_model") or "unknown machine")
    threads = told.get("torch_threads")
    parts = [where, f"{threads} thread{'s' * (threads != 1)}" if threads else "", f"torch {told.get('torch') or '?'}"]
    return ", ".join(filter(None, parts))


def by_preset(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    """Comparisons of each preset: no two presets share an average."""
    presets: dict[str, list[Comparison]] = defaultdict(list)
    for comparison in comparisons:
        presets[comparison.preset].append(comparison)
    return presets


def standings(scores: Mapping[str, Mapping[int, float]], best: str) -> dict[str, Standing]:
    """Models beside the best one, by their scores on each seed: paired t tests corrected for their number (Holm)."""
    tests = {model: _p_value(scores[model], scores[best]) for model in scores if model != best}
    told = {model: p for model, p in tests.items() if p is not None}
    corrected = dict(zip(told, stats.holm(list(told.values())), strict=True))
    found: dict[str, Standing] = dict.fromkeys(tests, "untold")
    found |= {model: "behind" if p < LEVEL else "tied" for model, p in corrected.items()}
    return found | {best: "best"}


def metric_of(record: RunRecord) -> MetricName:
    """The metric of a record's task."""
    return record.spec["task"]["metric"]["name"]


def _fair_to_compare(record: RunRecord) -> str:
    return json.dumps([record.task.name, record.preset, fairness.protocol(record)], sort_keys=True)


def _comparison(name: str, group: Sequence[RunRecord]) -> Comparison:
    kept, notes = _latest(group)
    good = [record for record in kept if record.status == "ok"]
    metric = metric_of(kept[0])
    sign = -1 if metrics.higher_is_better(metric) else 1
    baselines = dict(good[0].baselines or {}) if good else {}
    rows = _judged([_row(model, records, baselines, metric) for model, records in _by_model(kept).items()], metric)
    common = [note for note in (good[0].notes if len(good) > 1 else []) if all(note in each.notes for each in good)]
    notes += common + [f"{label(each)}: {note}" for each in good for note in each.notes if note not in common]
    reasons = [set(record.fairness.reasons) for record in good if record.fairness]
    spec = kept[0].spec
    return Comparison(
        name=name,
        task=kept[0].task.name,
        preset=kept[0].preset,
        metric=metric,
        test_examples=good[0].data.test_examples if good and good[0].data else None,
        sources=sorted({record.data.source for record in good if record.data}),
        changed=sorted(set.intersection(*reasons)) if reasons else [],
        machines=sorted({each for row in rows for each in row.machines}),
        rows=sorted(rows, key=lambda row: (not row.is_fair, math.inf if row.mean is None else sign * row.mean)),
        baselines=baselines,
        chance=spec["task"]["metric"]["chance"],
        notes=list(dict.fromkeys(notes)),
    )


def _latest(group: Sequence[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """One record for each model and seed: reruns are not further seeds."""
    latest: dict[tuple[tuple[str, ...], int], RunRecord] = {}
    notes = []
    for record in sorted(group, key=lambda record: record.time.finished_at):
        place = (_which(record), record.seed)
        if place in latest:
            notes.append(
                f"{label(record)}, seed {record.seed}: {record.run_id} counts, {latest[place].run_id} is older"
            )
        latest[place] = record
    return list(latest.values()), notes


def _by_model(records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Records by label; models of one label and different files are told apart by the file."""
    models: dict[tuple[str, ...], list[RunRecord]] = defaultdict(list)
    for record in records:
        models[_which(record)].append(record)
    labels = Counter(name for name, *_ in models)
    return {
        name if labels[name] == 1 else f"{name} ({' '.join(filter(None, [source, digest[:8]]))})": group
        for (name, source, digest), group in models.items()
    }


def _which(record: RunRecord) -> tuple[str, str, str]:
    """What makes two runs those of one model: its label, where it came from, and what was in that file."""
    attention = AttentionSpec.model_validate(record.spec["attention"])
    return attention.label, record.model.source, attention.digest or ""


def _row(model: str, records: Sequence[RunRecord], baselines: dict[str, float], metric: MetricName) -> Row:
    good = sorted((record for record in records if _has(record, metric)), key=lambda record: record.seed)
    row = Row(
        model=model,
        seeds=[record.seed for record in good or records],
        records=list(records),
        failures=[_failure(record, metric) for record in records if not _has(record, metric)],
    )
    if not good:
        return row
    tests = [record.metrics.test for record in good if record.metrics]
    found, over = stats.over_seeds([score.value(metric) for score in tests]), "seeds"
    if len(tests) == 1:
        found, over = _over_examples(tests[0], metric), "examples"
    judged = [record.fairness for record in good if record.fairness]
    return replace(
        row,
        scores={record.seed: score.value(metric) for record, score in zip(good, tests, strict=True)},
        mean=found.mean,
        low=found.low,
        high=found.high,
        interval=over,
        beats=_beats(found, metrics.best(metric, list(baselines.values())), metric) if baselines else None,
        parameters=good[0].parameters.total if good[0].parameters else None,
        track=" and ".join(sorted({each.track for each in judged})),
        reasons=sorted({reason for each in judged for reason in each.reasons}),
        machines=sorted({machine(record) for record in good}),
        **(_costs(good) if len({machine(record) for record in good}) == 1 else {}),
    )


def _costs(records: Sequence[RunRecord]) -> dict[str, Any]:
    """What runs on one machine took: means, and the highest peak."""
    peaks = [record.memory.peak_bytes for record in records if record.memory]
    return {
        "train_s": _mean([record.time.train_s for record in records]),
        "tokens_per_s": _mean([record.speed.train_tokens_per_s for record in records if record.speed]),
        "peak_bytes": max((peak for peak in peaks if peak is not None), default=None),
    }


def _has(record: RunRecord, metric: MetricName) -> bool:
    return record.metrics is not None and math.isfinite(record.metrics.test.value(metric))


def _failure(record: RunRecord, metric: MetricName) -> str:
    reason = record.reason if record.status != "ok" else f"its record has no {metric}"
    return f"seed {record.seed}: {record.status if record.status != 'ok' else 'error'}: {reason}"


def _judged(rows: Sequence[Row], metric: MetricName) -> list[Row]:
    """Each row beside the best of its track."""
    found: dict[str, Standing] = {}
    for track in {row.track for row in rows if row.mean is not None}:
        scores = {row.model: row.scores for row in rows if row.track == track and row.mean is not None}
        means = {row.model: row.mean for row in rows if row.model in scores and row.mean is not None}
        wanted = metrics.best(metric, list(means.values()))
        found |= standings(scores, next(model for model, mean in means.items() if mean == wanted))
    return [replace(row, standing=found.get(row.model)) for row in rows]


def _p_value(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """That the means are equal, on the seeds that both have; None of less than two."""
    common = sorted(set(one) & set(other))
    if len(common) < 2:
        return None
    return stats.paired([one[seed] for seed in common], [other[seed] for seed in common], 1.0).p_gap


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
