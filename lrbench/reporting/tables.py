"""Tables as data: what a page, Markdown and LaTeX all show, and how the last two are written."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≈": r"$\approx$",
    "−": r"$-$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


@dataclass(frozen=True)
class Cell:
    """A text; what it is sorted by where that is a number; what it is marked as, and why; `faint`: in italics."""

    text: str
    value: float | None = None
    mark: str = ""  # "best", "tied" or "bad"
    why: str = ""
    faint: bool = False


@dataclass(frozen=True)
class Body:
    """Rows that stay together when a table is sorted."""

    title: str
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Table:
    """A table of one or several bodies. `numbers`: columns that are numbers; `folded`: shown when asked for."""

    name: str
    caption: str
    columns: list[str]
    bodies: list[Body]
    numbers: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    folded: bool = False

    @property
    def titled(self) -> list[Body]:
        """The bodies that hold anything."""
        return [body for body in self.bodies if body.rows]


def row(*cells: Cell | str) -> list[Cell]:
    """A row of texts and cells."""
    return [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]


def markdown(table: Table) -> Iterator[str]:
    """The table's lines. A body's title is a row of its own."""
    yield f"**{_plain(table.caption)}**"
    yield ""
    yield f"| {' | '.join(map(_plain, table.columns))} |"
    yield f"| {' | '.join('---:' if name in table.numbers else '---' for name in table.columns)} |"
    for body in table.titled:
        if body.title:
            yield f"| *{_plain(body.title)}* |{' |' * (len(table.columns) - 1)}"
        for cells in body.rows:
            yield f"| {' | '.join(_marked(_plain(cell.text), cell, '**{}**', '{} ≈', '*{}*') for cell in cells)} |"
    yield from ("", *(f"{_plain(note)}  " for note in table.notes), "")


def latex(table: Table) -> Iterator[str]:
    """The table as a booktabs `tabular` in a `table`; needs the packages booktabs and graphicx."""
    aligned = "".join("r" if name in table.numbers else "l" for name in table.columns)
    yield from (r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.caption)}}}")
    yield rf"\label{{tab:{table.name}}}"
    # never wider than the text, and never blown up
    yield r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    yield from (rf"\begin{{tabular}}{{{aligned}}}", r"\toprule")
    yield " & ".join(map(_tex, table.columns)) + r" \\"
    for body in table.titled:
        yield r"\midrule"
        if body.title:
            yield rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\emph{{{_tex(body.title)}}}}} \\"
        for cells in body.rows:
            yield (
                " & ".join(
                    _marked(_tex(cell.text), cell, r"\textbf{{{}}}", r"{}$^\approx$", r"\emph{{{}}}") for cell in cells
                )
                + r" \\"
            )
    yield from (r"\bottomrule", r"\end{tabular}}")
    if table.notes:
        yield r"\par\smallskip\footnotesize " + " ".join(map(_tex, table.notes))
    yield from (r"\end{table}", "")


def slug(text: str) -> str:
    """A text as the name of a thing: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def unique(names: Sequence[str]) -> list[str]:
    """The names, later ones of the same numbered."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found


def _marked(text: str, cell: Cell, best: str, tied: str, faint: str) -> str:
    text = faint.format(text) if cell.faint else text
    return best.format(text) if cell.mark == "best" else tied.format(text) if cell.mark == "tied" else text


def _plain(text: str) -> str:
    """A text that Markdown takes as it is, HTML in it included."""
    for sign in "\\`*_|[]#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").split())


def _tex(text: str) -> str:
    return " ".join("".join(LATEX.get(sign, sign) for sign in text).split())
