"""What a run has done, and the rates that come of it."""

from dataclasses import dataclass

from lrbench.records import Speed


@dataclass
class Counts:
    """What a run has done so far, over all its sittings."""

    step: int = 0
    passes: int = 0
    train_s: float = 0.0
    train_tokens: int = 0
    train_padded_tokens: int = 0
    eval_s: float = 0.0
    eval_tokens: int = 0
    eval_padded_tokens: int = 0


def speed(counts: Counts) -> Speed:
    """Rates from counts."""
    return Speed(
        train_steps_per_s=counts.step / counts.train_s,
        train_tokens_per_s=counts.train_tokens / counts.train_s,
        train_padded_tokens_per_s=counts.train_padded_tokens / counts.train_s,
        eval_tokens_per_s=counts.eval_tokens / counts.eval_s,
        eval_padded_tokens_per_s=counts.eval_padded_tokens / counts.eval_s,
        forward_passes_per_step=counts.passes / counts.step,
    )
