"""Charts as what plotly.js draws: traces and layouts. Colours of paper and ink are the page's, in light and dark."""

import html
import math
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from lrbench.reporting.charts import Axis, Chart, Point, Series
from lrbench.reporting.styles import Style

ROOM = 0.15  # of the range of curves, above and below them
GUIDE = "#8a8a8a"
BUBBLE = (10.0, 44.0)  # pixels, of the smallest and the largest memory


def library() -> str:
    """The text of plotly.js, to be part of a page."""
    return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def plotted(chart: Chart, styles: Mapping[str, Style]) -> dict[str, Any]:
    """What plotly.js takes. Every trace names its model in `meta`: the page shows and hides models everywhere."""
    traces = [trace for series in chart.series for trace in _traces(chart, series, styles[series.model])]
    guides = [_guide(points, name) for name, slope in chart.slopes if (points := chart.guide(slope))]
    front = [_front(chart)] if len(chart.front) > 1 else []
    return {
        "name": chart.name,
        "data": [*guides, *front, *traces],
        "layout": {"xaxis": _axis(chart.x), "yaxis": _axis(chart.y) | _range(chart), "hovermode": "closest"},
    }


def _axis(axis: Axis) -> dict[str, Any]:
    shown = {"title": {"text": axis.label}, "automargin": True, "type": "log" if axis.log else "linear"}
    if not axis.ticks:
        return shown
    return shown | {"tickvals": list(axis.ticks), "ticktext": [f"{tick:,}" for tick in axis.ticks]}


def _range(chart: Chart) -> dict[str, Any]:
    """Of curves on a plain axis: what the means take, for intervals of two seeds would press them flat."""
    known = [y for _, y in chart.known]
    if chart.y.log or not chart.joined or not known:
        return {}
    room = ROOM * ((max(known) - min(known)) or 1.0)
    return {"range": [min(known) - room, max(known) + room]}


def _traces(chart: Chart, series: Series, style: Style) -> Iterator[dict[str, Any]]:
    shared = {"legendgroup": series.model, "meta": series.model}
    points = series.points
    if chart.joined and (band := _band(points)):
        yield {
            **shared,
            **band,
            "type": "scatter",
            "mode": "lines",
            "line": {"width": 0},
            "fill": "toself",
            "fillcolor": _faint(style.colour),
            "hoverinfo": "skip",
            "showlegend": False,
        }
    yield {
        **shared,
        "type": "scatter",
        "mode": "lines+markers" if chart.joined else "markers",
        "name": html.escape(series.model),
        "x": [point.x for point in points],
        "y": [point.y for point in points],
        "text": [html.escape(point.text) for point in points],
        "hovertemplate": _hover(chart),
        "line": {"color": style.colour, "dash": style.dash[0], "width": 2},
        "marker": {"color": style.colour, "symbol": style.marker[0], "size": _sizes(chart, points)},
        **({} if chart.joined else {"error_y": _errors(points, style)}),
    }
    if series.ends:
        yield {
            **shared,
            "type": "scatter",
            "mode": "markers+text",
            "name": html.escape(series.model),
            "x": [x for x, _ in series.ends],
            "y": [chart.above] * len(series.ends),
            "text": [status for _, status in series.ends],
            "textposition": "middle left",
            "cliponaxis": False,
            "hovertemplate": "%{fullData.name}: %{text} at %{x:,}<extra></extra>",
            "marker": {"color": style.colour, "symbol": "x", "size": 9},
            "showlegend": False,
        }


def _hover(chart: Chart) -> str:
    if chart.x.label.startswith("length"):
        return "%{fullData.name}<br>n = %{x:,}: %{text}<extra></extra>"
    if chart.joined:
        return "%{fullData.name}<br>step %{x:,}: %{text}<extra></extra>"
    return "%{fullData.name}<br>%{text}<extra></extra>"


def _band(points: list[Point]) -> dict[str, list[float]] | None:
    """The outline of the intervals, once around."""
    known = [point for point in points if point.low is not None and point.high is not None]
    if len(known) < 2:
        return None
    x = [point.x for point in known]
    return {
        "x": x + x[::-1],
        "y": [p.low for p in known if p.low is not None] + [p.high for p in known[::-1] if p.high is not None],
    }


def _sizes(chart: Chart, points: list[Point]) -> float | list[float]:
    """Bubbles whose area grows with memory, over all models of the chart."""
    if not chart.largest:
        return 7.0 if chart.joined else 14.0
    return [max(BUBBLE[0], BUBBLE[1] * math.sqrt((point.size or 0.0) / chart.largest)) for point in points]


def _errors(points: list[Point], style: Style) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [(p.high - p.y) if p.high is not None and p.y is not None else 0.0 for p in points],
        "arrayminus": [(p.y - p.low) if p.low is not None and p.y is not None else 0.0 for p in points],
        "color": style.colour,
        "thickness": 1,
    }


def _guide(points: list[tuple[float, float]], name: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+text",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "text": ["", name, ""],
        "textposition": "bottom right",
        "line": {"color": GUIDE, "dash": "dot", "width": 1},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _front(chart: Chart) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for x, _ in chart.front],
        "y": [y for _, y in chart.front],
        "line": {"color": GUIDE, "dash": "dot", "width": 2},
        "hoverinfo": "skip",
        "name": "not beaten in both",
        "showlegend": True,
    }


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
