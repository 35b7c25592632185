"""A report in the order in which it is read: findings, scores, scaling, trade-off, curves, claims, cost, provenance.

All formats are written from this one document, so no two of them can differ.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lrbench.reporting import caveats, charts, claims, findings, provenance, scale_tables, score_tables
from lrbench.reporting.charts import Chart
from lrbench.reporting.findings import Finding
from lrbench.reporting.material import Material, gather
from lrbench.reporting.scores import Comparison, comparisons
from lrbench.reporting.styles import Style, styles
from lrbench.reporting.tables import Table
from lrbench.reporting.where import Condition
from lrbench.scalefits import by_model

QUESTION = "Which attention pays off for these data, at this length, on this hardware?"


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; `missing` says how to get what is not there."""

    name: str
    title: str
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is only to say what is missing."""
        return not (self.charts or self.tables or self.texts)


@dataclass(frozen=True)
class Document:
    """Everything that a report says."""

    material: Material
    comparisons: list[Comparison]
    sections: list[Section]
    findings: list[Finding]
    machines: list[str]
    date: str

    @property
    def tables(self) -> list[Table]:
        """All tables, in order."""
        return [table for section in self.sections for table in section.tables]

    @property
    def charts(self) -> list[Chart]:
        """All charts, in order."""
        return [chart for section in self.sections for chart in section.charts]

    def _repr_html_(self) -> str:
        """The page, in a frame of its own: its styles and scripts stay out of the notebook's."""
        from lrbench.reporting.page import page

        return f'<iframe title="lrbench report" width="100%" height="800" srcdoc="{html.escape(page(self))}"></iframe>'

    @cached_property
    def styles(self) -> dict[str, Style]:
        """How each model is drawn, everywhere."""
        return styles([series.model for chart in self.charts for series in chart.series])


def document(places: Sequence[Path], conditions: Sequence[Condition] = ()) -> Document:
    """Read results folders and say what they say."""
    material = gather(places, conditions)
    compared = comparisons(material.records)
    return Document(
        material=material,
        comparisons=compared,
        sections=_sections(material, compared),
        findings=[*findings.findings(compared, material.studies), *claims.findings(material.claims)],
        machines=_machines(material, compared),
        date=provenance.date(material),
    )


def _machines(material: Material, compared: Sequence[Comparison]) -> list[str]:
    """What runs were timed on; where there are studies only, what those were."""
    runs = [each for comparison in compared for each in comparison.machines]
    studies = [str(study.environment.get("cpu_model") or study.record.device) for study in material.studies]
    return list(dict.fromkeys(runs or studies))


def _sections(material: Material, compared: list[Comparison]) -> list[Section]:
    good = [comparison for comparison in compared if any(row.mean is not None for row in comparison.rows)]
    trade_offs = [chart for comparison in good if (chart := charts.trade_off(comparison))]
    curves = [chart for comparison in good if (chart := charts.learning_curves(comparison, material))]
    scores = [table for comparison in compared for table in _scores(comparison, material)]
    studies = [study for study in material.studies if by_model(study.points)]
    return [
        Section(
            "scores",
            "Scores",
            tables=[*score_tables.overviews(compared), *scores],
            missing="No runs here. lrbench run -m full,performer -t listops makes some.",
        ),
        Section(
            "scaling",
            "Time and memory against length",
            charts=[chart for study in studies for chart in charts.scaling(study)],
            tables=[table for study in studies for table in scale_tables.tables(study)],
            missing="No scaling study here. lrbench scale --lengths 512..16384 makes one.",
        ),
        Section(
            "trade-off",
            "Score against speed",
            charts=trade_offs,
            missing="Takes two models on one task, timed on one machine.",
        ),
        Section(
            "curves",
            "Learning curves",
            charts=curves,
            missing="No run here was evaluated during training more than once.",
        ),
        Section(
            "claims",
            "What the papers claim",
            tables=list(claims.tables(material.claims)),
            missing="No claim was checked here. lrbench claims --out of this folder checks them.",
        ),
        Section(
            "cost",
            "Cost",
            tables=[score_tables.costs(good)] if good else [],
            missing="No run ended well.",
        ),
        Section("caveats", "Caveats", texts=caveats.caveats(material, compared), missing="None was found."),
        Section("provenance", "Provenance", tables=_provenance(material)),
    ]


def _scores(comparison: Comparison, material: Material) -> Iterator[Table]:
    yield score_tables.scores(comparison, material.published)
    if table := score_tables.published(comparison, material.published):
        yield table


def _provenance(material: Material) -> list[Table]:
    return [
        provenance.machines(material),
        *([provenance.runs(material)] if material.runs else []),
        *([provenance.studies(material)] if material.studies else []),
        *([provenance.left_out(material)] if material.left_out else []),
    ]
