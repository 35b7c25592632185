"""The charts of a page as figures for a paper: one column wide, vectors with real text, SVG, PDF and PNG."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from lrbench.reporting.charts import Axis, Chart, Point, Series
from lrbench.reporting.styles import Style

WIDTH, HEIGHT = 3.35, 2.6  # inches: a column of most proceedings
BUBBLE = 350.0  # square points, of the largest memory
FORMATS: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}  # undated
NAMED = 14  # models of a legend; of more there is none that could be read
SETTINGS: dict[Any, Any] = {
    "font.size": 7,
    "font.family": "sans-serif",
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "legend.fontsize": 6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "lrbench",  # the same records make the same file
    "savefig.dpi": 300,
}


def save(charts: list[Chart], styles: Mapping[str, Style], folder: Path) -> list[Path]:
    """Write every chart in every format, named after the chart.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(SETTINGS):
        for chart in charts:
            figure = drawn(chart, styles)
            for form, metadata in FORMATS.items():
                path = folder / f"{chart.name}.{form}"
                figure.savefig(path, metadata=metadata)
                written.append(path)
    return written


def drawn(chart: Chart, styles: Mapping[str, Style]) -> Figure:
    """One chart. Belongs to no window and no global state."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _scale(axes, chart)
    for name, slope in chart.slopes:
        if points := chart.guide(slope):
            _guide(axes, points, name)
    if len(chart.front) > 1:
        axes.plot(*zip(*chart.front, strict=True), color="0.55", linestyle=":", linewidth=0.8, zorder=1)
    for series in chart.series:
        _draw(axes, chart, series, styles[series.model])
    axes.grid(color="0.9", linewidth=0.4)
    if len(chart.series) <= NAMED:
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _scale(axes: Axes, chart: Chart) -> None:
    axes.set(xlabel=chart.x.label, ylabel=chart.y.label)
    if chart.y.log:
        axes.set_yscale("log")
    if chart.x.log:
        axes.set_xscale("log")
        known = {x for x, _ in chart.known}
        if len(known) == 1:  # else matplotlib warns of an axis without extent
            axes.set_xlim(0.5 * min(known), 2 * max(known))
        _ticks(axes, chart.x)


def _ticks(axes: Axes, axis: Axis) -> None:
    if axis.ticks:
        axes.set_xticks(axis.ticks, [f"{tick:,}" for tick in axis.ticks], rotation=30, ha="right")
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        for each in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            each(StrMethodFormatter("{x:,.0f}"))
        axes.tick_params(axis="x", which="both", labelrotation=30)


def _draw(axes: Axes, chart: Chart, series: Series, style: Style) -> None:
    line = style.dash[1] if chart.joined else "none"
    look: dict[str, Any] = {"color": style.colour, "marker": style.marker[1], "linestyle": line}
    x = [point.x for point in series.points]
    y = [float("nan") if point.y is None else point.y for point in series.points]
    axes.plot(x, y, label=_literal(series.model), zorder=3, **look)
    if chart.joined:
        _band(axes, series.points, style)
    else:
        _bubbles(axes, chart, series.points, style)
    for at, status in series.ends:
        axes.annotate(f"{status}  ", (at, chart.above), color=style.colour, fontsize=5, ha="right", va="center")
        axes.plot([at], [chart.above], color=style.colour, marker="x", linestyle="none")


def _band(axes: Axes, points: list[Point], style: Style) -> None:
    known = [(point.x, point.low, point.high) for point in points if point.low is not None and point.high is not None]
    if len(known) > 1:
        x, low, high = zip(*known, strict=True)
        axes.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0, zorder=1)


def _bubbles(axes: Axes, chart: Chart, points: list[Point], style: Style) -> None:
    """Intervals as whiskers; memory as the area of a disc around the marker."""
    for point in points:
        if point.y is not None and point.low is not None and point.high is not None:
            whiskers = [[point.y - point.low], [point.high - point.y]]
            axes.errorbar([point.x], [point.y], yerr=whiskers, color=style.colour, linewidth=0.6, zorder=2)
        if point.y is not None and point.size:
            area = BUBBLE * point.size / chart.largest
            axes.scatter([point.x], [point.y], s=area, color=style.colour, alpha=0.2, linewidth=0)


def _guide(axes: Axes, points: list[tuple[float, float]], name: str) -> None:
    axes.plot(*zip(*points, strict=True), color="0.6", linestyle=":", linewidth=0.7, zorder=0)
    axes.annotate(name, points[1], color="0.4", fontsize=6, xytext=(2, -6), textcoords="offset points")


def _literal(text: str) -> str:
    """A label in which nothing is a formula, and that no leading underscore hides."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")
