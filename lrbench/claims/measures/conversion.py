"""What a trained model keeps when full attention gives way to a window.

Longformer (Beltagy et al. 2020, section 5): models trained with full attention go on from their weights.
"""

import torch

from lrbench.claims.intervals import averaged
from lrbench.claims.measured import Measured
from lrbench.claims.measures import training
from lrbench.claims.measures.swapping import swapped
from lrbench.claims.measures.training import Trained, loss


def kept(
    *,
    attention: str = "longformer[window=16]",
    layers: int = 2,
    length: int = 128,
    steps: int = 300,
    seeds: int = 3,
) -> Measured:
    """Share of what training won, in loss, that is there right after conversion of all layers, without an update.

    1: the converted model is as good as the trained one; 0: no better than an untrained one. A seed is a training.
    """
    models = [
        training.trained(task="enwik8", layers=layers, length=length, steps=steps, seed=seed) for seed in range(seeds)
    ]
    losses = torch.tensor([_losses(found, attention) for found in models], dtype=torch.float64)
    scratch, start, end = losses.unbind(1)
    told = ", ".join(
        f"{name} {float(each):.3f}"
        for name, each in zip(("untrained", "converted", "trained"), losses.mean(0), strict=True)
    )
    shares = ((scratch - start) / (scratch - end)).tolist()
    return averaged(shares, f"{attention}, {layers} layers, length {length}, {steps} updates: loss {told}")


def _losses(found: Trained, attention: str) -> tuple[float, float, float]:
    """Untrained, converted, trained."""
    converted = swapped(found, attention, found.spec.model.layers)
    return loss(training.fresh(found.spec), found.rows), loss(converted, found.rows), loss(found.model, found.rows)
