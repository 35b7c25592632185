"""One colour, marker and dash for each model, the same in every chart and figure.

Colours are those of Okabe and Ito (2008), made to be told apart with any colour vision; yellow, too faint on paper, is
left out. In grey, markers and dashes tell.
"""

from collections.abc import Iterable
from typing import NamedTuple

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# names of plotly and of matplotlib
MARKERS = (
    ("circle", "o"),
    ("square", "s"),
    ("triangle-up", "^"),
    ("diamond", "D"),
    ("triangle-down", "v"),
    ("pentagon", "p"),
    ("star", "*"),
    ("hexagon", "h"),
    ("cross", "P"),
)
DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"), ("dashdot", "-."))


class Style(NamedTuple):
    """How a model is drawn."""

    colour: str
    marker: tuple[str, str]
    dash: tuple[str, str]


def styles(models: Iterable[str]) -> dict[str, Style]:
    """A style for each label: full attention in black, the others in the order of their names."""
    names = sorted(set(models), key=lambda name: (name != "full", name))
    return {name: _style(number) for number, name in enumerate(names)}


def _style(number: int) -> Style:
    """No two of the first 252 are alike: 7, 9 and 4 have no common divisor."""
    return Style(COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], DASHES[number % len(DASHES)])
