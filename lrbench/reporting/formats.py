"""A document in each of the formats that `lrbench report` writes."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from lrbench.records import dumps
from lrbench.reporting.document import QUESTION, Document
from lrbench.reporting.page import page
from lrbench.reporting.scores import Comparison
from lrbench.reporting.tables import latex, markdown
from lrbench.reporting.tidy import tidy_csv


def as_markdown(document: Document) -> str:
    """Findings, tables and caveats."""
    return "\n".join(_markdown(document)) + "\n"


def _markdown(document: Document) -> Iterator[str]:
    yield from (
        f"# {QUESTION}",
        "",
        f"{document.date}; {'; '.join(document.machines) or 'no machine is recorded'}.",
        "",
    )
    for finding in document.findings:
        yield from (f"**{finding.question}** {finding.answer}", "")
    for section in document.sections:
        yield from (f"## {section.title}", "")
        yield from ([f"{section.missing}", ""] if section.empty else [])
        yield from (f"- {text}" for text in section.texts)
        for table in section.tables:
            yield from markdown(table)


def as_latex(document: Document) -> str:
    """The tables that a paper may want, to be read into it by \\input: all but provenance and what others published."""
    head = [
        "% needs \\usepackage[T1]{fontenc} and the packages booktabs, graphicx, textcomp;"
        " names in other scripts need lualatex or xelatex",
        "",
    ]
    sections = [section for section in document.sections if section.name != "provenance"]
    tables = [table for section in sections for table in section.tables if not table.folded]
    return "\n".join([*head, *(line for table in tables for line in latex(table))]) + "\n"


def as_json(document: Document) -> str:
    """Findings, comparisons, studies, claims and caveats, machine-readable."""
    found = {
        "findings": [finding._asdict() for finding in document.findings],
        "comparisons": [_comparison(comparison) for comparison in document.comparisons],
        "studies": [study.record.to_json() for study in document.material.studies],
        "claims": [claim.to_json() for claim in document.material.claims],
        "caveats": next(section.texts for section in document.sections if section.name == "caveats"),
        "left_out": [{"place": place, "reason": reason} for place, reason in document.material.left_out],
    }
    return dumps(found, indent=1) + "\n"


def _comparison(comparison: Comparison) -> dict[str, Any]:
    """All fields of a comparison; of a row's records the run ids."""
    plain = {field.name: getattr(comparison, field.name) for field in fields(comparison)}
    rows = [
        {field.name: getattr(row, field.name) for field in fields(row) if field.name != "records"}
        | {"run_ids": [record.run_id for record in row.records]}
        for row in comparison.rows
    ]
    return {**plain, "rows": rows, "to_beat": comparison.to_beat}


FORMATS: dict[str, tuple[str, Callable[[Document], str]]] = {
    "html": (".html", page),
    "md": (".md", as_markdown),
    "csv": (".csv", tidy_csv),
    "latex": (".tex", as_latex),
    "json": (".json", as_json),
}
