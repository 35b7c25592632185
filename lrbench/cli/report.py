"""`lrbench report`: what the records say: tables here, or one page, a paper's tables and figures, data."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrbench.cli import options as opt
from lrbench.errors import SpecError, UnknownName

if TYPE_CHECKING:
    from lrbench.reporting.document import Document
    from lrbench.reporting.scores import Comparison


def command(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Results folders. [default: $LRBENCH_RESULTS or results]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write: .html, .md, .csv, .tex or .json. [default: print]")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="html, md, csv, latex, json; several by commas. [default: as --out]")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for the charts as SVG, PDF and PNG.")
    ] = None,
    where: opt.Where = None,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Turn records into one self-contained page, or print their tables.

    Results of several machines and authors go together: lrbench report theirs/ ours/ --out report.html. Of two runs
    of one model and seed the later one counts, and the report names both.

    Example: lrbench report --out report.html
    """
    from lrbench.reporting.document import document
    from lrbench.reporting.where import conditions
    from lrbench.runner import out_folder

    wanted = conditions(where or "")
    files = _files(out, form, as_json)
    _writable(out, figures)
    places = results or [out_folder(None)]
    _there(places, given=bool(results))
    found = document(places, wanted)
    if found.material.empty:
        asked = " that meet --where" if where else ""
        typer.echo(f"error: no records in {', '.join(map(str, places))}{asked}", err=True)
        typer.echo("make some: lrbench run -m full,performer -t listops --preset tiny", err=True)
        return 1
    _write(found, files)
    if figures:
        _draw(found, figures)
    if not files:
        print_document(found)
    return 0


def _files(out: Path | None, form: str | None, as_json: bool) -> dict[str, Path | None]:
    """Where each format goes; None is stdout."""
    from lrbench.reporting.formats import FORMATS

    endings = {ending: name for name, (ending, _) in FORMATS.items()}
    if as_json and form not in (None, "json"):
        raise SpecError(f"--json and --format {form} exclude one another", f"--format {form},json writes both to files")
    if as_json:
        form = "json"
    if form is None:
        if out is None:
            return {}
        if out.suffix not in endings:
            raise SpecError(f"--out {out}: no format is known by {out.suffix or 'no ending'}", "add --format html")
        return {endings[out.suffix]: out}
    names = [name.strip() for name in form.split(",") if name.strip()]
    for name in names:
        if name not in FORMATS:
            raise UnknownName("format", name, FORMATS, "--format")
    if out is None:
        if len(names) != 1:
            raise SpecError(f"--format {form}: several formats need files", "add --out report")
        return {names[0]: None}
    if len(names) == 1:
        return {names[0]: out}
    return {name: out.with_suffix(FORMATS[name][0]) for name in names}


def _writable(out: Path | None, figures: Path | None) -> None:
    """Try the folders that are written to, before any work.

    Raises:
        SpecError
    """
    from lrbench.runner import check_writable

    if out and out.is_dir():
        raise SpecError(f"--out {out}: is a folder", f"name a file, such as {out / 'report.html'}")
    if out:
        check_writable(out.parent)
    if figures:
        check_writable(figures, "--figures")


def _there(places: Sequence[Path], given: bool) -> None:
    for place in places:
        if given and not place.expanduser().exists():
            raise SpecError(f"{place}: no such folder", "name a results folder")


def _write(found: "Document", files: dict[str, Path | None]) -> None:
    from lrbench.files import write_atomic
    from lrbench.reporting.formats import FORMATS

    for name, path in files.items():
        text = FORMATS[name][1](found)
        if path is None:
            typer.echo(text.encode("utf-8"), nl=False)
        else:
            write_atomic(path, text)
            typer.echo(path)


def _draw(found: "Document", folder: Path) -> None:
    from lrbench.reporting.figures import save

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # of fonts that lack a letter a figure shows a box
    for path in save(found.charts, found.styles, folder):
        typer.echo(path)


def print_document(found: "Document") -> None:
    """Score tables and scaling tables on stdout."""
    from rich.console import Console

    from lrbench.reporting.scaling import render

    print_comparisons(found.comparisons)
    console = Console(highlight=False)
    for study in found.material.studies:
        for part in render(study.record, study.points):
            console.print(part)
        console.print()


def print_comparisons(comparisons: "Sequence[Comparison]") -> None:
    """Their tables on stdout."""
    from rich.console import Console

    from lrbench.reporting.terminal import render

    console = Console(highlight=False)
    for table in comparisons:
        for part in render(table):
            console.print(part)
        console.print()
