"""Two sets of results side by side: what became better or worse, what did not, and what cannot be told.

Scores are compared on the same seeds, by paired t tests corrected for their number (Holm); times and peaks of memory
of scaling studies as ratios to the same reference. What was not done alike is not compared, and says why.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lrbench import metrics, scaledrift, scalerecords, stats
from lrbench.catalog import leaves
from lrbench.errors import SpecError
from lrbench.metrics import MetricName
from lrbench.records import RunRecord
from lrbench.specs import AttentionSpec

Verdict = Literal["better", "worse", "no difference", "undecided", "not comparable"]
PROTOCOL = (
    "data",
    "model",
    "train",
    "dtype",
    "compile",
)  # sections of a spec: where one differs, scores do not compare
WORDS: Mapping[stats.Verdict, Verdict] = {
    "better": "better",
    "worse": "worse",
    "equivalent": "no difference",
    "undecided": "undecided",
}


@dataclass(frozen=True)
class Line:
    """One thing that both may have. `old` and `new` are means; the change is new - old, of time and memory a factor."""

    what: str  # task and preset, or study and length
    model: str
    measure: str  # the metric, "time" or "memory"
    verdict: Verdict
    reason: str = ""
    old: float | None = None
    new: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0  # seeds in common


def compare_runs(old: Sequence[RunRecord], new: Sequence[RunRecord], threshold: float) -> list[Line]:
    """Every task, preset and model that either side has.

    Args:
        threshold: relative change of the metric that matters.
    """
    before, after = _grouped(old), _grouped(new)
    keys = list(dict.fromkeys([*before, *after]))
    found = [_pair(key, before.get(key, {}), after.get(key, {}), threshold) for key in keys]
    told = iter(stats.verdicts([pair for _, pair in found if pair is not None]))
    return [line if pair is None else _judged(line, pair, WORDS[next(told)]) for line, pair in found]


def compare_studies(old: Path, new: Path, threshold: float) -> Iterator[Line]:
    """Every scaling study of the new side against the one of the old side that asked for the same."""
    for folder in scalerecords.folders([new]):
        points = scalerecords.read_points(folder / "points.jsonl")
        record = scalerecords.read(folder / "record.json")
        if not points or record is None:
            continue
        what = f"scale {record.mode} {record.level}"
        try:
            other = scaledrift.find(old, [point.spec for point in points])
        except SpecError as error:
            yield Line(what, "all", "time", "not comparable", error.message.removeprefix(f"--compare {old}: "))
            continue
        floor = record.noise.floor if record.noise and record.noise.floor else 0.0
        drift = scaledrift.drift(points, other, floor, scaledrift.environment(folder))
        yield from (_changed(f"{what} {change.length}", change, drift.differs, threshold) for change in drift.changes)


def regressions(lines: Sequence[Line]) -> list[Line]:
    """What became worse."""
    return [line for line in lines if line.verdict == "worse"]


def _grouped(records: Sequence[RunRecord]) -> dict[tuple[str, str, str], dict[int, RunRecord]]:
    """By task, preset and model, the latest record of each seed."""
    groups: dict[tuple[str, str, str], dict[int, RunRecord]] = defaultdict(dict)
    for record in sorted(records, key=lambda record: record.time.finished_at):
        label = AttentionSpec.model_validate(record.spec["attention"]).label
        groups[record.task.name, record.preset, label][record.seed] = record
    return groups


def _pair(
    key: tuple[str, str, str], old: Mapping[int, RunRecord], new: Mapping[int, RunRecord], threshold: float
) -> tuple[Line, stats.Paired | None]:
    """What can be said without a test, or the line to be judged and its test."""
    task, preset, model = key
    metric: MetricName = next(iter((old or new).values())).spec["task"]["metric"]["name"]

    def line(verdict: Verdict, reason: str) -> tuple[Line, None]:
        return Line(f"{task} {preset}", model, metric, verdict, reason), None

    if not old or not new:
        return line("not comparable", f"only in the {'new' if new else 'old'} results")
    seeds = sorted(seed for seed in old if seed in new and old[seed].metrics)
    broken = [seed for seed in seeds if new[seed].metrics is None]
    if broken:
        return line("worse", f"seed {broken[0]} is {new[broken[0]].status} now: {new[broken[0]].reason}")
    if not seeds:
        return line("not comparable", "no seed in common that ended well before")
    if reason := _unlike(old[seeds[0]], new[seeds[0]]):
        return line("not comparable", reason)
    before, after = ([_value(side[seed], metric) for seed in seeds] for side in (old, new))
    shown = Line(f"{task} {preset}", model, metric, "undecided", "", _mean(before), _mean(after), n=len(seeds))
    if len(seeds) == 1:
        return Line(**{**vars(shown), "change": after[0] - before[0], "reason": "one seed in common: no spread"}), None
    sign = 1 if metrics.higher_is_better(metric) else -1
    margin = max(threshold * abs(_mean(before)), 1e-12)
    return shown, stats.paired([sign * value for value in after], [sign * value for value in before], margin)


def _judged(line: Line, pair: stats.Paired, verdict: Verdict) -> Line:
    """With the change as it is, not as better or worse."""
    sign = 1 if metrics.higher_is_better(line.measure) else -1  # type: ignore[arg-type]
    ends = sorted((sign * pair.low, sign * pair.high))
    return Line(
        **{**vars(line), "verdict": verdict, "change": sign * pair.gap, "low": ends[0], "high": ends[1]},
    )


def _unlike(old: RunRecord, new: RunRecord) -> str:
    """The first thing that was not done alike, in words."""
    if old.task.card_version != new.task.card_version:
        return f"card version {old.task.card_version} there, {new.task.card_version} here"
    there, here = (_flat(record.spec) for record in (old, new))
    for name in dict.fromkeys([*there, *here]):
        if there.get(name) != here.get(name):
            return f"{name} is {there.get(name)} there and {here.get(name)} here"
    if old.data and new.data and old.data.fingerprint != new.data.fingerprint:
        return "the data differ"
    return ""


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be alike, under dotted names; where the data lie is told by their fingerprint."""
    flat = leaves({name: spec.get(name) for name in PROTOCOL})
    return {name: value for name, value in flat.items() if name not in ("data.source", "train.micro_tokens")}


def _changed(what: str, change: scalerecords.Change, differs: Sequence[str], threshold: float) -> Line:
    """A change of a study: more is worse."""
    verdict: Verdict = "no difference"
    reason = ""
    if change.what == "time" and differs:
        verdict, reason = "not comparable", f"another machine: {', '.join(differs)}"
    elif change.beyond_noise and abs(math.log(change.factor)) > math.log1p(threshold):
        verdict = "worse" if change.factor > 1 else "better"
    elif change.what == "time" and not change.beyond_noise:
        verdict, reason = "undecided", "within the noise"
    return Line(
        what, change.model, change.what, verdict, reason, change=change.factor, low=change.ci_low, high=change.ci_high
    )


def _value(record: RunRecord, metric: MetricName) -> float:
    return record.metrics.test.value(metric) if record.metrics else math.nan


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
