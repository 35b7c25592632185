"""What happens in a trained model whose softmax is replaced, with the weights that it has.

Errors of FAVOR+ (Choromanski et al. 2020, section 4.2) compound across layers, and fine-tuning mends them.
"""

import copy
import math

import torch
from torch import Tensor

from lrbench.claims.intervals import averaged, geometric
from lrbench.claims.measured import Measured
from lrbench.claims.measures import training
from lrbench.claims.measures.training import Trained, loss
from lrbench.errors import SpecError
from lrbench.models import heads
from lrbench.registry import backends
from lrbench.specs import RunSpec

FLOOR = 1e-12  # an error of nothing does not grow


@torch.no_grad()
def growth(
    *, attention: str = "performer", layers: int = 6, length: int = 128, steps: int = 240, draws: int = 6
) -> Measured:
    """The error of the output with all layers swapped over that with the first one swapped; above 1 expected.

    An error is the norm of the difference of logits, relative to those of the model as it was trained. The interval is
    over draws of what is random in `attention`, all in one model.
    """
    found = training.trained(task="enwik8", layers=layers, length=length, steps=steps)
    exact = found.model(found.rows.tokens)
    counts = [*(2**power for power in range(math.ceil(math.log2(layers)))), layers]
    errors = torch.tensor(
        [[_error(swapped(found, attention, count, seed), found, exact) for count in counts] for seed in range(draws)]
    ).clamp_min(FLOOR)
    told = ", ".join(f"{float(each):.1%} at {count}" for each, count in zip(errors.mean(0), counts, strict=True))
    return geometric((errors[:, -1] / errors[:, 0]).tolist(), f"{attention} in a model of {_told(found)}: error {told}")


def recovers(
    *,
    attention: str = "performer",
    layers: int = 6,
    length: int = 128,
    steps: int = 240,
    more: int = 60,
    draws: int = 3,
) -> Measured:
    """How much of the loss that a swap of all layers costs `more` updates win back: 0 nothing, 1 all.

    What is left is against the model as it was, trained as much longer: else mere training would count as recovery.

    Raises:
        SpecError: the swap costs nothing.
    """
    found = training.trained(task="enwik8", layers=layers, length=length, steps=steps)
    models = [swapped(found, attention, layers, seed) for seed in range(draws)]
    before, after = loss(found.model, found.rows), loss(_continued(found, copy.deepcopy(found.model), more), found.rows)
    hurt = [loss(model, found.rows) for model in models]
    if min(hurt) <= before:
        raise SpecError(
            f"attention {attention}: to swap it in costs no loss, and nothing can be won back",
            "choose one that is further from softmax attention, or train for more steps",
        )
    mended = [loss(_continued(found, model, more), found.rows) for model in models]
    shares = [1 - (end - after) / (start - before) for start, end in zip(hurt, mended, strict=True)]
    told = f"loss {before:.3f}, swapped {sum(hurt) / draws:.3f}, after {more} updates {sum(mended) / draws:.3f}"
    return averaged(shares, f"{attention} in a model of {_told(found)}: {told}, unswapped {after:.3f}")


def swapped(found: Trained, attention: str, layers: int, seed: int = 0) -> heads.Model:
    """A copy of the model whose first layers mix by another attention, with the same projections.

    Raises:
        SpecError: that attention has other parameters.
    """
    spec = found.spec.model_copy(update={"attention": backends.spec(attention), "seed": seed})
    donor, model = training.fresh(spec), copy.deepcopy(found.model)
    differing = {name for name, _ in donor.named_parameters()} ^ {name for name, _ in model.named_parameters()}
    if differing:
        raise SpecError(
            f"attention {attention}: its parameters are not those of full attention ({min(differing)})",
            "choose one that differs in nothing but how it mixes, such as performer or local",
        )
    donor.load_state_dict(model.state_dict(), strict=False)  # buffers of its own stay
    for index in range(layers):
        model.encoder.blocks[index] = donor.encoder.blocks[index]
    return model.eval()


def _error(model: heads.Model, found: Trained, exact: Tensor) -> float:
    return float((model(found.rows.tokens) - exact).norm() / exact.norm())


def _continued(found: Trained, model: heads.Model, steps: int) -> heads.Model:
    """So many updates more, on batches in another order, at a third of the rate that training began with."""
    spec = found.spec
    fields = {"steps": steps, "eval_every": steps, "warmup_steps": 0, "schedule": "constant", "lr": spec.train.lr / 3}
    recipe = spec.train.model_copy(update=fields)
    spec = spec.model_copy(update={"train": recipe, "seed": spec.seed + 1})
    with training.reviews(spec) as data:
        return training.fitted(model, data, spec)


def _told(found: Trained) -> str:
    spec: RunSpec = found.spec
    return f"{spec.model.layers} layers, length {spec.data.length}, {spec.train.steps} updates on generated reviews"
