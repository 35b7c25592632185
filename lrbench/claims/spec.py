"""A claim as data: what a paper says, which quantities it comes to at this size, and what is expected of them.

A file of claims (`configs/claims/NAME.yaml`) holds a paper and its claims. Each part of a claim is one quantity, with
the fields that its kind has here, and bounds. All evidence comes from suites of the ordinary kind, by their names, or
from a measure of this package.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lrbench.specs import Frozen

Cost = Literal["time", "memory"]
Of = Literal["loss", "metric"]  # of a run on its test set: nats, or the task's own metric


class Expected(Frozen):
    """Bounds of a quantity. `tolerance` widens both: what is too small to matter."""

    least: float | None = None
    most: float | None = None
    tolerance: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _bounded(self) -> "Expected":
        if self.least is None and self.most is None:
            raise ValueError("needs least, most or both")
        return self

    def __str__(self) -> str:
        margin = f", tolerance {self.tolerance:g}" if self.tolerance else ""
        if self.least is None:
            return f"at most {self.most:g}{margin}"
        if self.most is None:
            return f"at least {self.least:g}{margin}"
        return f"{self.least:g} to {self.most:g}{margin}" if self.least < self.most else f"{self.least:g}{margin}"


class Part(Frozen):
    """One quantity of a claim."""

    label: str = ""  # what it is, where a table would not tell it from others of its claim
    expect: Expected


class Scaling(Part):
    """A quantity of the one scaling study of a suite."""

    suite: str
    model: str
    of: Cost = "time"


class Exponent(Scaling):
    """Of growth with length: the fit and interval of the study."""

    quantity: Literal["exponent"]


class Ratio(Scaling):
    """Cost of the model over that of `against`: at a length, at the longest with an interval, or the worst of all."""

    quantity: Literal["ratio"]
    against: str
    at: int | Literal["longest", "every"] = "longest"


class Growth(Scaling):
    """How the ratio to `against` grows: its exponent of length, with a t interval over lengths."""

    quantity: Literal["growth"]
    against: str


class Longest(Scaling):
    """The longest length that fits into the study's memory limit, over that of `against`."""

    quantity: Literal["longest"]
    against: str


class Side(Frozen):
    """Runs of a suite: one model on one task, all its seeds; of several grids those of the one with that name."""

    suite: str
    model: str
    task: str
    grid: str = ""


class Gap(Part):
    """a - b on the same seeds, with a paired t interval; `relative`: divided by b."""

    quantity: Literal["gap"]
    a: Side
    b: Side
    of: Of = "loss"
    relative: bool = False


class GapOfGaps(Part):
    """(a - b) - (c - d) on the same seeds, with a paired t interval."""

    quantity: Literal["gap_of_gaps"]
    a: Side
    b: Side
    c: Side
    d: Side
    of: Of = "loss"


class Score(Part):
    """The mean over seeds with a t interval, less the trivial baseline of that name if one is given."""

    quantity: Literal["score"]
    a: Side
    of: Of = "metric"
    above: str = ""


class Seconds(Part):
    """Time in training of a over that of b, on the same seeds, with a paired t interval of the logarithms."""

    quantity: Literal["seconds"]
    a: Side
    b: Side


class Parameters(Part):
    """Parameters of a's model without embeddings, over those of b's."""

    quantity: Literal["parameters"]
    a: Side
    b: Side


class Measure(Part):
    """What a function of `lrbench.claims.measures` finds: `by` is file.function, `options` are its own."""

    quantity: Literal["measure"]
    by: str
    options: dict[str, Any] = {}


QUANTITIES: dict[str, type[Part]] = {
    str(kind.model_fields["quantity"].annotation.__args__[0]): kind  # type: ignore[union-attr]
    for kind in (Exponent, Ratio, Growth, Longest, Gap, GapOfGaps, Score, Seconds, Parameters, Measure)
}


class Full(Frozen):
    """The check at the size of the paper."""

    needs: str  # hardware, hours, data
    run: str  # commands


class Claim(Frozen):
    """What a paper says."""

    id: str
    statement: str  # in our words, as something that can be measured
    published: str  # what the text has for it: figures, or none
    source: str  # where it says so
    tag: Literal["verified", "secondary", "none"]  # figures read in the text, or second-hand; or none
    condition: str = ""  # under which the parts are measured here
    required: bool = False  # whether a contradiction is a fault of this suite
    parts: list[Any] = []  # of `Part`, by their quantity
    not_here: str = ""  # what a check takes that is not to be had at this size
    full: Full

    @model_validator(mode="after")
    def _checked_or_not(self) -> "Claim":
        if bool(self.parts) == bool(self.not_here):
            raise ValueError("needs parts, or not_here, and not both")
        return self


class Paper(Frozen):
    """The text that claims something."""

    title: str
    reference: str


class ClaimFile(Frozen):
    """A page of claims."""

    paper: Paper
    claims: list[dict[str, Any]]


def sides(part: Part) -> Iterator[Side]:
    """The runs that a part needs."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Side):
            yield value
