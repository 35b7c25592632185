"""Spellings that people bring along from other tools, turned into ours."""

ALIASES = {
    "--models": "--model",
    "--tasks": "--task",
    "--presets": "--preset",
    "--suites": "--suite",
    "--config": "--suite",
    "--sets": "--set",
    "--num-seeds": "--seeds",
    "--devices": "--device",
    "--dtypes": "--dtype",
    "--output-path": "--out",
    "--output-dir": "--out",
    "--output": "--out",
    "--batch-size": "--batch",
    "--max-steps": "--steps",
    "--num-workers": "--workers",
    "--data-dir": "--data",
    "--cache": "--cache-dir",
}


def accepted(arguments: list[str]) -> list[str]:
    """The arguments with underscores as hyphens and plurals as singulars, in names of flags only."""
    return [_flag(argument) if argument.startswith("--") else argument for argument in arguments]


def _flag(argument: str) -> str:
    name, equals, value = argument.partition("=")
    name = name.replace("_", "-")
    return ALIASES.get(name, name) + equals + value
