"""All measured numbers as one tidy table: a row a quantity, with its interval where it has one."""

import csv
import math
from collections.abc import Iterator
from io import StringIO
from typing import NamedTuple

from lrbench.points import ScalePoint
from lrbench.records import RunRecord
from lrbench.reporting.document import Document
from lrbench.reporting.material import Study
from lrbench.reporting.scores import Comparison, label, metric_of
from lrbench.scalefits import by_model, peak_bytes


class Tidy(NamedTuple):
    """A number and what it is of. Empty where something does not apply or was not measured."""

    kind: str  # run: of one seed; score: of a comparison; scale: of a point; baseline; published
    group: str  # the comparison or the study
    task: str
    preset: str
    model: str
    seed: int | str
    length: int | str
    status: str
    quantity: str
    value: float | str
    low: float | str
    high: float | str
    n: int | str
    source: str
    reason: str = ""


def tidy_csv(document: Document) -> str:
    """The table as CSV with a header."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Tidy._fields)
    for comparison in document.comparisons:
        writer.writerows(_comparison(comparison, document))
    for study in document.material.studies:
        writer.writerows(_study(study))
    return out.getvalue()


def _comparison(comparison: Comparison, document: Document) -> Iterator[Tidy]:
    where = (comparison.name, comparison.task, comparison.preset)
    for row in comparison.rows:
        for record in row.records:
            yield from _run(record, comparison)
        yield Tidy(
            "score", *where, row.model, "", "", "ok" if row.scores else "error", comparison.metric, _known(row.mean),
            _known(row.low), _known(row.high), len(row.scores), row.interval,
        )  # fmt: skip
    for name, score in [*comparison.baselines.items(), ("chance", comparison.chance)]:
        yield Tidy("baseline", *where, name, "", "", "", comparison.metric, score, "", "", "", "")
    for figure in comparison.figures(document.material.published):
        yield Tidy(
            "published", *where, figure.model, "", "", "", figure.metric, figure.score, "", "", "", figure.source
        )


def _run(record: RunRecord, comparison: Comparison) -> Iterator[Tidy]:
    metric = metric_of(record)
    quantities = {
        f"test {metric}": record.metrics.test.value(metric) if record.metrics else None,
        f"test_last {metric}": record.metrics.test_last.value(metric) if record.metrics else None,
        f"validation {metric}": record.metrics.validation.value(metric)
        if record.metrics and record.metrics.validation
        else None,
        "train_s": record.time.train_s,
        "train_tokens_per_s": record.speed.train_tokens_per_s if record.speed else None,
        "peak_bytes": record.memory.peak_bytes if record.memory else None,
        "parameters": record.parameters.total if record.parameters else None,
    }
    for quantity, value in quantities.items():
        yield Tidy(
            "run", comparison.name, record.task.name, record.preset, label(record), record.seed, "", record.status,
            quantity, _known(value), "", "", "", record.data.source if record.data else "", record.reason,
        )  # fmt: skip


def _study(study: Study) -> Iterator[Tidy]:
    for model, curve in by_model(study.points).items():
        for point in curve:
            for quantity, value, low, high in _quantities(point):
                yield Tidy(
                    "scale", study.record.study_id, "", point.mode, model, point.seed, point.length, point.status,
                    quantity, _known(value), _known(low), _known(high), "", "", point.reason,
                )  # fmt: skip


def _quantities(point: ScalePoint) -> Iterator[tuple[str, float | None, float | None, float | None]]:
    time = point.time_ms
    yield ("time_ms", time.median, time.ci_low, time.ci_high) if time else ("time_ms", None, None, None)
    yield "peak_bytes", peak_bytes(point) if point.status == "ok" else None, None, None
    yield "tokens_per_s", point.tokens_per_s, None, None
    yield "energy_j", point.energy_j, None, None


def _known(value: float | None) -> float | str:
    return "" if value is None or not math.isfinite(value) else value
