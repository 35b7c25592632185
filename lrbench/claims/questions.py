"""Calls a measure in a process of its own, and keeps what it found.

A measure is named `file.function`, a public function of a file in `lrbench.claims.measures`.
"""

import ast
import functools
import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

from lrbench._version import __version__
from lrbench.claims.measured import Measured
from lrbench.errors import SpecError, UnknownName
from lrbench.specs import Frozen

PLACE = Path(__file__).parent / "measures"


class Question(Frozen):
    """What a process is asked."""

    by: str
    options: dict[str, Any] = {}

    @property
    def key(self) -> str:
        """Names the answer: the same of the same question to the same version."""
        text = json.dumps([__version__, self.by, self.options], sort_keys=True)
        return f"{self.by}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def execute(payload: str) -> str:
    """Answer a JSON `Question` with a JSON `Measured`: the entry that executors call."""
    import torch

    question = Question.model_validate_json(payload)
    torch.set_num_threads(1)  # measures run side by side
    file, _, function = question.by.partition(".")
    found = getattr(importlib.import_module(f"lrbench.claims.measures.{file}"), function)(**question.options)
    assert isinstance(found, Measured)
    return found.model_dump_json()


@functools.cache
def known() -> dict[str, set[str]]:
    """Every measure with its options, read without importing any."""
    return {
        f"{path.stem}.{node.name}": {argument.arg for argument in node.args.kwonlyargs}
        for path in sorted(PLACE.glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and node.returns is not None
        and ast.unparse(node.returns) == "Measured"
    }


def check(by: str, options: dict[str, Any]) -> None:
    """Refuse a measure that is not there, and options that it does not take.

    Raises:
        UnknownName, SpecError
    """
    measures = known()
    if by not in measures:
        raise UnknownName("measure", by, list(measures), "by")
    for option in options:
        if option not in measures[by]:
            has = ", ".join(sorted(measures[by])) or "none"
            raise SpecError(f"options.{option}: {by} has no such option", f"it has: {has}")
