"""How few singular values hold a trained attention map: Linformer's premise (Wang et al. 2020, section 3)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrbench.backends.base import HeadMixer
from lrbench.claims.intervals import averaged
from lrbench.claims.measured import Measured
from lrbench.claims.measures import training
from lrbench.models import heads


@torch.no_grad()
def share(*, energy: float = 0.9, layers: int = 4, length: int = 128, steps: int = 300, examples: int = 16) -> Measured:
    """The share k / n of singular values that hold so much of the energy, the sum of their squares, of maps.

    A mean over heads and layers of a model that fills in masked bytes from both sides; the interval is over examples.
    Beside it: the same model untrained, and its trained maps with each row's numbers in random places, which have all
    that the maps have but what lies in common between rows.
    """
    found = training.trained(task="c4-mlm", layers=layers, length=length, steps=steps)
    tokens = found.rows.tokens[:examples]
    after, before = (maps(model, tokens) for model in (found.model, training.fresh(found.spec)))
    with training.seeded(0):
        shuffled = after.gather(-1, torch.rand_like(after).argsort(-1))
    shares, raw, mixed = (of(each, energy) for each in (after, before, shuffled))  # layers rows heads
    by_layer = ", ".join(f"{float(each):.1%}" for each in shares.mean((1, 2)))
    told = f"{energy:.0%} of energy, n={length}, by layer {by_layer}; untrained {float(raw.mean()):.1%}"
    return averaged(shares.mean((0, 2)).tolist(), f"{told}, shuffled rows {float(mixed.mean()):.1%}")


def maps(model: heads.Model, tokens: Tensor) -> Float[Tensor, "layers rows heads seq seq"]:
    """softmax(Q Kᵀ / √d) of every layer, in double precision."""
    found: list[Tensor] = []

    def look(mixer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(mixer, HeadMixer)
        q, k, _ = mixer.projected(inputs[0], None)
        found.append((q @ k.transpose(-1, -2) * mixer.cfg.head_dim**-0.5).double().softmax(-1))

    hooks = [module.register_forward_pre_hook(look) for module in model.modules() if isinstance(module, HeadMixer)]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


def of(matrices: Float[Tensor, "*lead seq seq"], energy: float) -> Float[Tensor, "*lead"]:
    """k / n of each matrix."""
    held = torch.linalg.svdvals(matrices).square().cumsum(-1)
    needed = (held < energy * held[..., -1:]).sum(-1) + 1
    return needed.double() / matrices.shape[-1]
