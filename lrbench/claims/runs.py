"""Quantities of training runs: scores, gaps between models on the same seeds, seconds, parameters."""

from collections.abc import Callable, Mapping

from lrbench.claims.intervals import averaged, geometric
from lrbench.claims.measured import Measured, Unknown, exact
from lrbench.claims.spec import Gap, GapOfGaps, Of, Parameters, Part, Score, Seconds, Side
from lrbench.records import RunRecord

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
    if not part.above:
        return _over([*values.values()], "")
    base = {seed: (record.baselines or {}).get(part.above) for seed, record in records.items()}
    if None in base.values():
        known = ", ".join(next(iter(records.values())).baselines or {})
        raise Unknown(f"no baseline {part.above!r}, known: {known}", broken=True)
    detail = ", ".join(dict.fromkeys(f"{part.above} {value:.4g}" for value in base.values()))
    return _over([value - (base[seed] or 0.0) for seed, value in values.items()], detail)


def seconds(part: Seconds, found: Found) -> Measured:
    """A ratio of times in training."""
    a, b = (
        {seed: record.time.train_s for seed, record in found(side).items() if record.time.train_s}
        for side in (part.a, part.b)
    )
    ratios = [a[seed] / b[seed] for seed in sorted({*a} & {*b})]
    if not ratios:
        raise Unknown("no seed that both sides have")
    return geometric(ratios, f"{_mean(a)} s against {_mean(b)} s")


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
    return averaged(values, detail)
