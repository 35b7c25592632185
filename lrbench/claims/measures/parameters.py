"""How many numbers a method learns."""

from lrbench.claims.built import factory
from lrbench.claims.measured import Measured, exact

WIDTH, HEADS, LENGTH = 64, 4, 256


def added(*, model: str = "combiner", against: str = "full") -> Measured:
    """K15: parameters of one layer beyond those of another of the same sizes."""
    mine, theirs = _count(model), _count(against)
    return exact(mine - theirs, f"width {WIDTH}, {HEADS} heads, {LENGTH} tokens: {mine} and {theirs}")


def _count(model: str) -> int:
    """Parameters of a layer."""
    mixer = factory(model, dim=WIDTH, heads=HEADS, head_dim=WIDTH // HEADS)(LENGTH)
    return sum(parameter.numel() for parameter in mixer.parameters())
