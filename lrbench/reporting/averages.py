"""Mean accuracy over tasks, as the Long-Range Arena has it: of models that have all of them under one protocol."""

from collections.abc import Sequence
from dataclasses import dataclass

from lrbench import metrics, stats
from lrbench.reporting.scores import Comparison, Row


@dataclass(frozen=True)
class Average:
    """A model's mean over tasks, seed by seed; a single seed has no interval."""

    model: str
    tasks: int
    seeds: dict[int, float]
    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """In per cent, with half of the interval."""
        half = f" ± {metrics.shown('accuracy', (self.high - self.low) / 2)}" if len(self.seeds) > 1 else ""
        return metrics.shown("accuracy", self.mean) + half


def averages(tables: Sequence[Comparison]) -> list[Average]:
    """Of the models that are in every table scored by accuracy, with the same seeds, apples-to-apples; best first.

    The tables are of one preset. Of two tables of one task neither is the one to take, so there is no average.
    """
    scored = [table for table in tables if table.metric == "accuracy"]
    tasks = {table.task for table in scored}
    if len(scored) < 2 or len(tasks) < len(scored):
        return []
    rows = [{row.model: row for row in table.rows if row.is_fair and row.scores} for table in scored]
    found = [
        _average(model, [each[model] for each in rows]) for model in rows[0] if all(model in each for each in rows)
    ]
    return sorted((each for each in found if each is not None), key=lambda each: -each.mean)


def _average(model: str, rows: Sequence[Row]) -> Average | None:
    seeds = sorted(set.intersection(*(set(row.scores) for row in rows)))
    if not seeds or any(len(row.scores) > len(seeds) for row in rows):
        return None
    means = {seed: sum(row.scores[seed] for row in rows) / len(rows) for seed in seeds}
    return Average(model, len(rows), means, *stats.over_seeds(list(means.values()))[:3])
