"""A measured quantity: its value, the interval that it may lie in, and what it stands on."""

from lrbench.specs import Frozen


class Measured(Frozen):
    """One quantity. The ends equal the value where it is exact, and are None where nobody knows the spread."""

    value: float
    low: float | None
    high: float | None
    n: int = 1  # seeds, draws, lengths or pairs behind the interval
    detail: str = ""  # how it was found, in a few words: sizes, models, what was counted


class Unknown(Exception):
    """Why there is no measurement.

    Args:
        broken: something went wrong that should not have; otherwise this machine cannot, or nobody has tried.
    """

    def __init__(self, reason: str, broken: bool = False) -> None:
        super().__init__(reason)
        self.broken = broken


def exact(value: float, detail: str = "", n: int = 1) -> Measured:
    """A quantity without scatter."""
    return Measured(value=value, low=value, high=value, n=n, detail=detail)
