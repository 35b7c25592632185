"""What tasks are scored by: how a metric comes from counts and losses, which way is better, how it is written."""

import math
from collections.abc import Sequence
from typing import Literal

LARGE = 1e6  # perplexities from here on are told by their size
MetricName = Literal["accuracy", "bits_per_dim", "bits_per_byte", "perplexity"]


def higher_is_better(name: MetricName) -> bool:
    """Whether more is better: of accuracy; of bits and perplexity less is."""
    return name == "accuracy"


def from_nats(name: MetricName, nats: float) -> float:
    """A mean loss in nats as bits, or as perplexity: exp(nats), infinite where that is too large for a number."""
    if name == "perplexity":
        return math.exp(nats) if nats < 700 else math.inf
    return nats / math.log(2)


def best(name: MetricName, values: Sequence[float]) -> float:
    """The best of some values."""
    return max(values) if higher_is_better(name) else min(values)


def unit(name: MetricName) -> str:
    """What its numbers are, in a title."""
    return {"accuracy": "accuracy in %", "bits_per_dim": "bits per dimension", "bits_per_byte": "bits per byte"}.get(
        name, name
    )


def shown(name: MetricName, value: float) -> str:
    """A value as tables have it: accuracy in per cent with one digit, bits with three, perplexity with two."""
    if name == "accuracy":
        return f"{100 * value:.1f}"
    if name == "perplexity":
        return f"{value:.2f}" if value < LARGE else f"{value:.2e}"
    return f"{value:.3f}"


def with_unit(name: MetricName, value: float) -> str:
    """A value in a sentence: 46.2%, 2.913 bits per byte, perplexity 18.70."""
    if name == "accuracy":
        return f"{value:.1%}"
    return f"perplexity {shown(name, value)}" if name == "perplexity" else f"{shown(name, value)} {unit(name)}"
