"""The document as one HTML page that needs nothing else: styles, scripts and plotly.js are part of it."""

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from lrbench._version import __version__
from lrbench.records import strict
from lrbench.reporting.document import QUESTION, Document
from lrbench.reporting.plotted import library, plotted
from lrbench.reporting.tables import LATEX


def page(document: Document) -> str:
    """The whole page. Whatever comes from records is escaped by the template, or by JSON within a script."""
    environment = Environment(
        loader=PackageLoader("lrbench.reporting", "assets"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = [plotted(chart, document.styles) for chart in document.charts]
    models = [{"name": name, "colour": style.colour} for name, style in document.styles.items()]
    return environment.get_template("page.html").render(
        document=document,
        question=QUESTION,
        version=__version__,
        style=_asset("page.css"),
        script=_asset("page.js"),
        plotly=library() if charts else "",
        charts=_json(charts),
        latex=_json(LATEX),
        models=models,
    )


def _json(value: Any) -> str:
    """For within a script, which < could end."""
    return json.dumps(strict(value), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("lrbench.reporting").joinpath("assets", name).read_text(encoding="utf-8")
