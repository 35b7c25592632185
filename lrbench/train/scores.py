"""From logits to a score: what is right, the loss, the task's metric, and how far chance may have moved it."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from lrbench.metrics import MetricName, from_nats
from lrbench.records import Score
from lrbench.train.batches import IGNORED

TALLIES = 6  # numbers of a tally


def loss_sum(logits: Float[Tensor, "... classes"], targets: Int[Tensor, " ..."]) -> Tensor:
    """The cross-entropy in nats, summed over all that is scored."""
    return cross_entropy(logits.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def tally(logits: Float[Tensor, "rows ... classes"], targets: Int[Tensor, "rows ..."]) -> Float[Tensor, " 6"]:
    """Right answers, nats, what is scored; and over rows the sums of nats², nats · scored and scored². On the host.

    These add up over passes and devices, and hold all that a `Score` needs.
    """
    flat = targets.reshape(len(targets), -1)
    each = cross_entropy(logits.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    nats = each.reshape(flat.shape).cpu().double().sum(1)
    scored = (flat != IGNORED).sum(1).cpu().double()
    right = (logits.argmax(-1).reshape(flat.shape) == flat).sum().cpu().double()
    return torch.stack([right, nats.sum(), scored.sum(), nats @ nats, nats @ scored, scored @ scored])


def from_tally(sums: Float[Tensor, " 6"], metric: MetricName, examples: int, step: int, units: int | None) -> Score:
    """The score of a split from its tally.

    Args:
        units: what the total loss is divided by where that is not what is scored: words, of text read in bytes.
    """
    right, nats, scored, *squares = sums.tolist()
    mean = nats / max(1.0, scored)
    own = {} if metric == "accuracy" else {metric: from_nats(metric, nats / max(1, units or scored))}
    return Score(
        accuracy=right / max(1.0, scored),
        loss=mean,
        correct=int(right),
        examples=examples,
        step=step,
        scored=None if scored == examples else int(scored),
        loss_error=_error(mean, scored, squares, examples),
        units=units,
        **own,
    )


def _error(mean: float, scored: float, squares: list[float], examples: int) -> float | None:
    """The standard error of a ratio of sums over examples; none of a single one."""
    if examples < 2 or not scored:
        return None
    nats2, cross, scored2 = squares
    spread = max(0.0, nats2 - 2 * mean * cross + mean**2 * scored2)
    return math.sqrt(spread * examples / (examples - 1)) / scored
