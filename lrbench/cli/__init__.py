"""The command line: one file a command. Parse, call `api`, print, exit code."""


def main() -> None:
    """The console script."""
    from lrbench.cli.app import run_app

    run_app()
