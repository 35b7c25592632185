"""`lrbench doctor`: the environment."""

import json

from lrbench.cli import options as opt


def command(
    out: opt.Out = None,
    cache_dir: opt.Cache = None,
    offline: opt.Offline = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """What was found here, what is missing, and what that rules out.

    Example: lrbench doctor
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from lrbench.environment import doctor
    from lrbench.runner import cache_folder, out_folder

    checks = doctor(cache_folder(cache_dir), out_folder(out), offline=offline)
    if as_json:
        print(json.dumps({"checks": [check.model_dump(mode="json") for check in checks]}, indent=1, ensure_ascii=False))
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "missing": "[red]missing[/]"}
    for check in checks:
        means = f"\n[dim]{escape(check.meaning)}[/]" if check.meaning else ""
        table.add_row(marks[check.status], escape(check.name), escape(check.found) + means)
    Console(highlight=False).print(table)
    return 0
