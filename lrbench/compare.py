"""Two sets of results side by side: what became better or worse, what did not, and what cannot be told.

Scores are compared on the same seeds, by paired t tests corrected for their number (Holm); times and peaks of memory
of scaling studies as ratios to the same reference. What was not done alike is not compared, and says why; what was
left out of a comparison is a remark on its line.
"""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lrbench import fairness, metrics, scaledrift, scalefits, scalerecords, stats
from lrbench.errors import SpecError
from lrbench.metrics import MetricName
from lrbench.points import ScalePoint
from lrbench.records import RunRecord
from lrbench.specs import AttentionSpec

Verdict = Literal["better", "worse", "no difference", "undecided", "not comparable"]
Cost = Literal["time", "memory"]  # of scaling studies: their changes are factors
WORDS: Mapping[stats.Verdict, Verdict] = {
    "better": "better",
    "worse": "worse",
    "equivalent": "no difference",
    "undecided": "undecided",
}
BROKEN = frozenset({"error", "oom", "timeout"})  # after an ok, a regression; all other ends have measured nothing
SIDES = ("old results", "new results")
_Key = tuple[str, str, str]  # task, preset, model


@dataclass(frozen=True)
class Line:
    """One thing that both may have. `old` and `new` are means; the change is new - old, of time and memory a factor."""

    what: str  # task and preset, study, or claims
    model: str
    measure: MetricName | Cost | Literal["claim"]
    verdict: Verdict
    reason: str = ""
    old: float | None = None
    new: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0  # seeds in common
    length: int | None = None  # of the points of a study
    remarks: tuple[str, ...] = ()  # what was left out, and what differs and is compared all the same

    @property
    def name(self) -> str:
        """The model, of a study at its length."""
        return self.model if self.length is None else f"{self.model}, length {self.length}"

    @property
    def metric(self) -> MetricName | None:
        """The metric that its values are of; None of time, memory and claims."""
        measure = self.measure
        return None if measure == "time" or measure == "memory" or measure == "claim" else measure


@dataclass(frozen=True, eq=False)
class _Runs:
    """Runs of one model on one side that were done alike, the latest of each seed."""

    metric: MetricName
    protocol: dict[str, Any]
    seeds: dict[int, RunRecord] = field(default_factory=dict)
    reruns: list[str] = field(default_factory=list)


_Pair = tuple[_Runs | None, _Runs | None]  # there and here


@dataclass(frozen=True)
class _Waiting:
    """A line whose verdict depends on how many others are tested. The test is of gains: more is better."""

    line: Line
    test: stats.Paired
    sign: int  # of a gain in the metric


def compare_runs(old: Sequence[RunRecord], new: Sequence[RunRecord], threshold: float) -> list[Line]:
    """Every task, preset, model and protocol that either side has.

    A model is known by its label: that its file changed is what a comparison may be made for, and a remark. Only where
    one side has several files under one label are these told apart, and each is compared with the same file alone.
    Runs under a protocol that one side alone has are not compared. The line names the first difference to the most
    similar runs of that model on the other side that have no partner either.

    Args:
        threshold: relative change of the metric that matters.
    """
    several = _several_files(old) | _several_files(new)
    before, after = (_grouped(side, several) for side in (old, new))
    found: list[Line | _Waiting] = []
    for key in dict.fromkeys([*before, *after]):
        pairs = list(_pairs(before.get(key, []), after.get(key, [])))
        found += [_compared(_what(key, pair, pairs), key[2], pair, threshold) for pair in pairs]
    told = iter(stats.verdicts([each.test for each in found if isinstance(each, _Waiting)]))
    return [_judged(each, WORDS[next(told)]) if isinstance(each, _Waiting) else each for each in found]


def compare_studies(old: Path, new: Path, threshold: float) -> Iterator[Line]:
    """Every scaling study of either side, that of the new one against the one of the old that asked for the same."""
    told = set()
    for folder in scalerecords.folders([new]):
        points = scalerecords.read_points(folder / "points.jsonl")
        if points:
            told.add(_study(points))
            yield from _compared_study(folder, points, old, threshold)
    for folder in scalerecords.folders([old]):
        points = scalerecords.read_points(folder / "points.jsonl")
        if points and _study(points) not in told and not _is_met(points, new):
            yield Line(_study(points), "all", "time", "not comparable", f"only in the {SIDES[0]}")


def regressions(lines: Sequence[Line]) -> list[Line]:
    """What became worse."""
    return [line for line in lines if line.verdict == "worse"]


def _key(record: RunRecord) -> _Key:
    return record.task.name, record.preset, AttentionSpec.model_validate(record.spec["attention"]).label


def _file(record: RunRecord) -> str:
    """What tells models of one label apart: what is in their file, or where they come from."""
    attention = AttentionSpec.model_validate(record.spec["attention"])
    return f"file {attention.digest[:8]}" if attention.digest else attention.source


def _several_files(records: Sequence[RunRecord]) -> set[_Key]:
    """Labels under which this side has more than one model."""
    files: dict[_Key, set[str]] = defaultdict(set)
    for record in records:
        files[_key(record)].add(_file(record))
    return {key for key, found in files.items() if len(found) > 1}


def _grouped(records: Sequence[RunRecord], several: Collection[_Key]) -> dict[_Key, list[_Runs]]:
    """By task, preset and model, the runs of each protocol. Of two runs of a seed the later counts, and is told."""
    groups: dict[tuple[_Key, str], _Runs] = {}
    for record in sorted(records, key=lambda record: record.time.finished_at):
        key, protocol = _key(record), _protocol(record)
        if key in several:
            key = (*key[:2], f"{key[2]} ({_file(record)})")
        place = key, json.dumps(protocol, sort_keys=True)
        runs = groups.setdefault(place, _Runs(record.spec["task"]["metric"]["name"], protocol))
        if rerun := runs.seeds.get(record.seed):
            runs.reruns.append(f"seed {record.seed}: {record.run_id} counts, {rerun.run_id} is older")
        runs.seeds[record.seed] = record
    found: dict[_Key, list[_Runs]] = defaultdict(list)
    for (key, _), runs in groups.items():
        found[key].append(runs)
    return found


def _protocol(record: RunRecord) -> dict[str, Any]:
    """What has to be alike. Where the data come from is no part of it: their fingerprint tells whether they are."""
    told = {"metric": record.spec["task"]["metric"]["name"], **fairness.protocol(record)}
    return {name: value for name, value in told.items() if name != "data.source" and value is not None}


def _differing(old: _Runs, new: _Runs) -> list[str]:
    """The fields of two protocols that differ."""
    names = dict.fromkeys([*old.protocol, *new.protocol])
    return [name for name in names if old.protocol.get(name) != new.protocol.get(name)]


def _pairs(old: Sequence[_Runs], new: Sequence[_Runs]) -> Iterator[_Pair]:
    """Runs and those that were done alike on the other side; what is left, with the most similar that is left."""
    left, alone = list(new), []
    for there in old:
        same = [here for here in left if not _differing(there, here)]
        if same:
            left.remove(same[0])
            yield there, same[0]
        else:
            alone.append(there)
    for there in alone:
        nearest = min(left, key=lambda here: len(_differing(there, here)), default=None)
        if nearest:
            left.remove(nearest)
        yield there, nearest
    yield from ((None, here) for here in left)


def _what(key: _Key, pair: _Pair, pairs: Sequence[_Pair]) -> str:
    """Task and preset; of several pairs, also the fields that their protocols differ in."""
    own, *others = (_either(each).protocol for each in (pair, *pairs))
    names = dict.fromkeys(name for protocol in others for name in protocol)
    varied = [name for name in names if any(each.get(name) != own.get(name) for each in others)]
    return ", ".join([f"{key[0]} {key[1]}", *(f"{name} {own.get(name)}" for name in varied)])


def _either(pair: _Pair) -> _Runs:
    return next(runs for runs in pair if runs)


def _compared(what: str, model: str, pair: _Pair, threshold: float) -> Line | _Waiting:
    """What can be said of runs of both sides without a test, or the line that waits for one."""
    old, new = pair
    reruns = tuple(
        f"{remark}, in the {side}" for side, runs in zip(SIDES, pair, strict=True) if runs for remark in runs.reruns
    )
    line = Line(what, model, _either(pair).metric, "not comparable", remarks=reruns)
    if not old or not new:
        return replace(line, reason=f"only in the {SIDES[0] if old else SIDES[1]}")
    for name in _differing(old, new):
        there, here = old.protocol.get(name), new.protocol.get(name)
        return replace(line, reason=f"{name} is {there} there and {here} here")
    return _scored(line, old, new, threshold)


def _scored(line: Line, old: _Runs, new: _Runs, threshold: float) -> Line | _Waiting:
    """Runs that were done alike, on the seeds that have a score on both sides."""
    pairs = {seed: (old.seeds.get(seed), new.seeds.get(seed)) for seed in sorted({*old.seeds, *new.seeds})}
    broken = [seed for seed, (there, here) in pairs.items() if _broke(there, here, old.metric)]
    left_out = {seed: why for seed, pair in pairs.items() if (why := _left_out(*pair, old.metric))}
    seeds = [seed for seed in pairs if seed not in left_out]
    if broken:
        failed = _by_reason({seed: left_out.pop(seed) for seed in broken})
        return replace(line, verdict="worse", reason="; ".join(failed), remarks=(*line.remarks, *_by_reason(left_out)))
    if not seeds:
        return replace(line, reason="; ".join(_by_reason(left_out)))
    if other := {seed: "the data differ" for seed in seeds if _fingerprint(old, seed) != _fingerprint(new, seed)}:
        return replace(line, reason="; ".join(_by_reason(other)))
    moved = [remark for seed in seeds for remark in _moved(old.seeds[seed], new.seeds[seed])]
    line = replace(line, remarks=(*line.remarks, *_by_reason(left_out), *dict.fromkeys(moved)), n=len(seeds))
    before, after = ([_value(runs.seeds[seed], old.metric) for seed in seeds] for runs in (old, new))
    return _tested(line, before, after, threshold)


def _broke(there: RunRecord | None, here: RunRecord | None, metric: MetricName) -> bool:
    """Whether a run ended well and no longer does."""
    return bool(there and here and here.status in BROKEN and not _unscored(there, metric, "before"))


def _left_out(there: RunRecord | None, here: RunRecord | None, metric: MetricName) -> str:
    """Why two runs of a seed do not compare, if they do not."""
    if not there or not here:
        return f"only in the {SIDES[0] if there else SIDES[1]}"
    return _unscored(there, metric, "before") or _unscored(here, metric, "now")


def _unscored(record: RunRecord, metric: MetricName, when: str) -> str:
    """Why a record has no score, if it has none."""
    if record.status != "ok":
        return _ended(record, when)
    return "" if math.isfinite(_value(record, metric)) else f"ok {when}, but without a finite {metric}"


def _ended(record: RunRecord | ScalePoint, when: str) -> str:
    return f"{record.status} {when}" + (f" ({record.reason})" if record.reason else "")


def _by_reason(reasons: Mapping[int, str]) -> list[str]:
    """Each reason with all of its seeds."""
    seeds: dict[str, list[str]] = defaultdict(list)
    for seed, reason in reasons.items():
        seeds[reason].append(str(seed))
    return [f"seed{'s' * (len(found) > 1)} {', '.join(found)}: {reason}" for reason, found in seeds.items()]


def _value(record: RunRecord, metric: MetricName) -> float:
    return record.metrics.test.value(metric) if record.metrics else math.nan


def _fingerprint(runs: _Runs, seed: int) -> str | None:
    data = runs.seeds[seed].data
    return data.fingerprint if data else None


def _moved(old: RunRecord, new: RunRecord) -> Iterator[str]:
    """What differs and is compared all the same: the model's file, which may be what changed, and the machine."""
    if _file(old) != _file(new):
        yield f"{_file(old)} there, {_file(new)} here"
    if machine := scaledrift.other_machine(old.environment, new.environment, str(old.spec.get("device"))):
        yield machine


def _tested(line: Line, old: Sequence[float], new: Sequence[float], threshold: float) -> Line | _Waiting:
    mean = _mean(old)
    line = replace(line, verdict="undecided", old=mean, new=_mean(new), change=_mean(new) - mean)
    if len(old) == 1:
        return replace(line, reason="one seed in common: no spread")
    sign = 1 if line.metric and metrics.higher_is_better(line.metric) else -1
    # a mean of 0 leaves no room for a difference that does not matter
    margin = max(threshold * abs(mean), 1e-12)
    return _Waiting(line, stats.paired([sign * value for value in new], [sign * value for value in old], margin), sign)


def _judged(waiting: _Waiting, verdict: Verdict) -> Line:
    """With the interval of the change as it is, not as a gain."""
    low, high = sorted((waiting.sign * waiting.test.low, waiting.sign * waiting.test.high))
    return replace(waiting.line, verdict=verdict, low=low, high=high)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _study(points: Sequence[ScalePoint]) -> str:
    return f"scale {points[0].mode} {points[0].level}"


def _is_met(points: Sequence[ScalePoint], place: Path) -> bool:
    """Whether there is a study that asked for the same."""
    try:
        return bool(scaledrift.find(place, [point.spec for point in points]))
    except SpecError:
        return False


def _compared_study(folder: Path, points: Sequence[ScalePoint], old: Path, threshold: float) -> Iterator[Line]:
    what = _study(points)
    try:
        other = scaledrift.find(old, [point.spec for point in points])
    except SpecError as error:
        yield Line(what, "all", "time", "not comparable", error.message.removeprefix(f"--compare {old}: "))
        return
    record = scalerecords.read(folder / "record.json")
    if record is None:
        yield Line(what, "all", "time", "not comparable", "the new study has no record: it was not finished")
        return
    floor = record.noise.floor if record.noise and record.noise.floor else 0.0
    drift = scaledrift.drift(points, other, floor, scaledrift.environment(folder))
    yield from (_changed(what, change, drift.differs, threshold) for change in drift.changes)
    yield from _ends(what, other.points, points)


def _ends(what: str, old: Sequence[ScalePoint], new: Sequence[ScalePoint]) -> Iterator[Line]:
    """Points that do not compare: of one side alone, or without a measurement."""
    before, after = ({(name, point.length): point for name, point in _points(side)} for side in (old, new))
    for name, length in dict.fromkeys([*before, *after]):
        there, here = before.get((name, length)), after.get((name, length))
        line = Line(what, name, "time", "not comparable", length=length)
        if not there or not here:
            yield replace(line, reason=f"only in the {SIDES[0] if there else SIDES[1]}")
        elif there.status != "ok":
            yield replace(line, reason=_ended(there, "before"))
        elif here.status in BROKEN and not here.predicted:  # what was foreseen and not run is no finding
            yield replace(line, verdict="worse", reason=_ended(here, "now"))
        elif here.status != "ok":
            yield replace(line, reason=_ended(here, "now"))


def _points(points: Sequence[ScalePoint]) -> Iterator[tuple[str, ScalePoint]]:
    return ((name, point) for name, curve in scalefits.by_model(points).items() for point in curve)


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
    line = Line(what, change.model, change.what, verdict, reason, length=change.length)
    return replace(line, change=change.factor, low=change.ci_low, high=change.ci_high)
