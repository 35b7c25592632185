"""Learning rate by step, counted from 1. Warm-up is linear in all of them."""

import math

from lrbench.specs import TrainSpec


def learning_rate(spec: TrainSpec, step: int) -> float:
    """The rate of update `step`.

    `constant` lr · ramp; `linear` falls to 0 at the last step; `cosine` lr · ramp · ½(1 + cos(π · progress));
    `rsqrt` lr · ramp / √max(step, warmup), where lr is the factor and not the peak (the arena's text tasks).
    """
    warmup = spec.warmup_steps
    ramp = min(1.0, step / warmup) if warmup else 1.0
    if spec.schedule == "constant":
        return spec.lr * ramp
    if spec.schedule == "rsqrt":
        return spec.lr * ramp / math.sqrt(max(step, warmup))
    if spec.schedule == "linear":
        # the last update is still worth making: the rate reaches 0 one step after it
        return spec.lr * min(ramp, (spec.steps + 1 - step) / max(1, spec.steps + 1 - max(warmup, 1)))
    progress = max(0, step - warmup) / spec.steps
    return spec.lr * ramp * 0.5 * (1.0 + math.cos(math.pi * (progress % 1.0)))


def warnings(spec: TrainSpec) -> list[str]:
    """What a reader should know about the schedule."""
    if spec.warmup_steps >= spec.steps:
        return [f"the warm-up of {spec.warmup_steps} steps never ends in {spec.steps} steps"]
    return []
