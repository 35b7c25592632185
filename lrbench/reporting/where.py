"""Conditions on records, as `--where 'task=listops model~former accuracy>0.4'` has them."""

import operator
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from lrbench.errors import SpecError, UnknownName
from lrbench.metrics import MetricName
from lrbench.records import RunRecord
from lrbench.reporting.scores import label

SHORT = {
    "task": "task.name",
    "source": "data.source",
    "track": "fairness.track",
    "device": "spec.device",
    "dtype": "spec.dtype",
    **{name: f"metrics.test.{name}" for name in get_args(MetricName)},
}
ORDER: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
FORM = re.compile(r"(?P<field>[\w.]+)(?P<sign>!=|!~|<=|>=|=|~|<|>)(?P<value>.*)", re.DOTALL)
WAY_OUT = "write for example --where 'task=listops model~former seed<3'"


@dataclass(frozen=True)
class Condition:
    """A field, a sign and a value: = != equal, ~ !~ matches a regular expression, < <= > >= numbers."""

    field: str
    sign: str
    value: str

    def __str__(self) -> str:
        return f"{self.field}{self.sign}{self.value}"

    def holds(self, record: RunRecord) -> bool:
        """Whether a record meets it. A field that the record lacks is equal to nothing and matches nothing."""
        found = self._found(record)
        if self.sign in ORDER:
            number = isinstance(found, (int, float)) and not isinstance(found, bool)
            return number and ORDER[self.sign](found, float(self.value))
        text = "" if found is None else str(found)
        met = text == self.value if "=" in self.sign else re.search(self.value, text, re.IGNORECASE) is not None
        return (found is not None and met) != self.sign.startswith("!")

    def _found(self, record: RunRecord) -> Any:
        if self.field == "model":
            return label(record)
        found: Any = record.to_json()
        for part in SHORT.get(self.field, self.field).split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found


def conditions(text: str) -> list[Condition]:
    """The conditions of a text, separated by blanks; a value with blanks is quoted.

    Raises:
        SpecError: what is no condition, or names a field that no record can have.
    """
    try:
        return [_condition(part) for part in shlex.split(text)]
    except ValueError as error:
        raise SpecError(f"--where {text!r}: {error}", WAY_OUT) from None


def _condition(text: str) -> Condition:
    found = FORM.fullmatch(text)
    if not found:
        raise SpecError(f"--where {text!r}: no condition", WAY_OUT)
    condition = Condition(**found.groupdict())
    fields = {"model", *SHORT, *RunRecord.model_fields}
    if condition.field.split(".")[0] not in fields:
        raise UnknownName("field", condition.field, fields, "--where")
    try:
        if condition.sign in ORDER:
            float(condition.value)
        elif "~" in condition.sign:
            re.compile(condition.value)
    except (ValueError, re.error) as error:
        raise SpecError(f"--where {condition}: {error}", WAY_OUT) from None
    return condition
