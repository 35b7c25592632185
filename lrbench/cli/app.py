"""The commands together, and how their errors reach a user: two lines and an exit code."""

import logging
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, NoReturn

import typer

from lrbench._version import __version__
from lrbench.cli import check, claims, compare, cp, data, doctor, listing, report, run, sample, scale
from lrbench.cli.spellings import accepted
from lrbench.errors import LrbenchError
from lrbench.executors.inline import is_first

INTERRUPTED = 130
UsageError = typer.BadParameter.__base__  # typer keeps the class itself to itself

app = typer.Typer(
    name="lrbench",
    invoke_without_command=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    pretty_exceptions_enable=False,
)
app.command("run")(run.command)
app.command("scale")(scale.command)
app.command("report")(report.command)
app.command("sample")(sample.command)
app.command("compare")(compare.command)
app.command("claims")(claims.command)
app.command("check")(check.command)
app.command("list")(listing.command)
app.add_typer(data.app, name="data")
app.command("doctor")(doctor.command)
app.command("cp")(cp.command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lrbench {__version__}")
        raise typer.Exit


@app.callback()
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Which attention pays off for my data, at my length, on my hardware?

    Start with: lrbench run --model full,performer --task listops --preset tiny
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run_app() -> NoReturn:
    """Run the command line and leave with the contract's exit code."""
    arguments = accepted(sys.argv[1:])
    debug = "--debug" in arguments or os.environ.get("LRBENCH_DEBUG", "") not in ("", "0")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.DEBUG if debug else logging.WARNING)
    logging.addLevelName(logging.WARNING, "warning")
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    try:
        sys.exit(app(arguments, standalone_mode=False) or 0)
    except LrbenchError as error:
        _say(error.message, error.hint, debug)
        sys.exit(error.exit_code)
    except UsageError as error:  # type: ignore[misc]
        _say(*_usage(error), debug)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)


def _as_ctrl_c(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(message: str, hint: str, debug: bool) -> None:
    if not is_first():
        return
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(hint, file=sys.stderr)


def _usage(error: Exception) -> tuple[str, str]:
    """What was wrong and the way out, out of a parser's message."""
    text = getattr(error, "format_message", lambda: str(error))().strip()
    message, _, guess = text.partition(" Did you mean ")
    message, _, guess = (message, "", guess) if guess else text.partition(" (Possible options: ")
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "lrbench"
    return message[:1].lower() + message[1:], f"did you mean {guess.strip('?)')}?" if guess else f"see {path} --help"
