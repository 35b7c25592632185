"""Quantities of training runs: scores, gaps between models on the same seeds, seconds, parameters."""

import math
from collections.abc import Callable, Mapping

from lrbench.claims.measured import Measured, Unknown, exact
from lrbench.claims.spec import Gap, GapOfGaps, Of, Parameters, Part, Score, Seconds, Side
from lrbench.records import RunRecord
from lrbench.stats import over_seeds

Seeds = Mapping[int, RunRecord]
Found = Callable[[Side], Seeds]  # the good runs of a side, by seed


def measured(part: Part, found: Found) -> Measured:
    """The quantity of a part, from runs of its sides.

    Raises:
        Unknown: a side has no good run.
    """
    if isinstance(part, Gap):
        return gap(part, found)
    if isinstance(part, GapOfGaps):
        return gap_of_gaps(part, found)
    if isinstance(part, Score):
        return score(part, found)
    if isinstance(part, Seconds):
        return seconds(part, found)
    assert isinstance(part, Parameters)
    return parameters(part, found)


def gap(part: Gap, found: Found) -> Measured:
    """a - b, of b's size if `relative`."""
    a, b = (_values(found(side), part.of) for side in (part.a, part.b))
    seeds = sorted({*a} & {*b})
    gaps = [(a[seed] - b[seed]) / (abs(b[seed]) if part.relative else 1.0) for seed in seeds]
    return _over(gaps, f"{_mean(a)} against {_mean(b)}")


def gap_of_gaps(part: GapOfGaps, found: Found) -> Measured:
    """(a - b) - (c - d)."""
    a, b, c, d = (_values(found(side), part.of) for side in (part.a, part.b, part.c, part.d))
    seeds = sorted({*a} & {*b} & {*c} & {*d})
    gaps = [(a[seed] - b[seed]) - (c[seed] - d[seed]) for seed in seeds]
    return _over(gaps, f"({_mean(a)} - {_mean(b)}) against ({_mean(c)} - {_mean(d)})")


def score(part: Score, found: Found) -> Measured:
    """The mean, less a trivial baseline."""
    records = found(part.a)
    values = _values(records, part.of)
    base = [(record.baselines or {}).get(part.above, 0.0) if part.above else 0.0 for record in records.values()]
    detail = f"{part.above} {base[0]:.4g}" if part.above else ""
    return _over([value - less for value, less in zip(values.values(), base, strict=True)], detail)


def seconds(part: Seconds, found: Found) -> Measured:
    """A ratio of times in training."""
    a, b = (
        {seed: record.time.train_s for seed, record in found(side).items() if record.time.train_s}
        for side in (part.a, part.b)
    )
    logs = over_seeds([math.log(a[seed] / b[seed]) for seed in sorted({*a} & {*b})])
    low, high = (None if math.isnan(end) else math.exp(end) for end in (logs.low, logs.high))
    return Measured(
        value=math.exp(logs.mean), low=low, high=high, n=logs.n, detail=f"{_mean(a)} s against {_mean(b)} s"
    )


def parameters(part: Parameters, found: Found) -> Measured:
    """A ratio of numbers of parameters without embeddings."""
    a, b = (_size(next(iter(found(side).values()))) for side in (part.a, part.b))
    return exact(a / b, f"{a:,} against {b:,}")


def _size(record: RunRecord) -> int:
    assert record.parameters is not None
    return record.parameters.non_embedding


def _values(records: Seeds, of: Of) -> dict[int, float]:
    """On test, at the step that validation chose."""
    found = {}
    for seed, record in sorted(records.items()):
        assert record.metrics is not None
        test = record.metrics.test
        found[seed] = test.loss if of == "loss" else test.value(record.spec["task"]["metric"]["name"])
    return found


def _mean(values: Mapping[int, float]) -> str:
    return f"{sum(values.values()) / len(values):.4g}" if values else "none"


def _over(values: list[float], detail: str) -> Measured:
    if not values:
        raise Unknown("no seed that all sides have")
    estimate = over_seeds(values)
    low, high = (None if math.isnan(end) else end for end in (estimate.low, estimate.high))
    return Measured(value=estimate.mean, low=low, high=high, n=estimate.n, detail=detail)
