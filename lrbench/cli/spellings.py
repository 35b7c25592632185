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
    "--length": "--lengths",
    "--seq-lens": "--lengths",
    "--modes": "--mode",
    "--levels": "--level",
    "--dim": "--width",
    "--num-workers": "--workers",
    "--data-dir": "--data",
    "--cache": "--cache-dir",
}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}


def accepted(arguments: list[str]) -> list[str]:
    """The arguments with underscores as hyphens and plurals as singulars, in names of flags only."""
    return [_flag(argument) if argument.startswith("--") else argument for argument in arguments]


def _flag(argument: str) -> str:
    name, equals, value = argument.partition("=")
    name = name.replace("_", "-")
    return ALIASES.get(name, name) + equals + value
