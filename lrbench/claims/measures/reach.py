"""How far information travels through layers: which outputs move if one token is replaced by another.

By replacing tokens, not by gradients, for a memory is used but gets no gradient.
"""

from typing import Any

import torch
from torch import Tensor, nn

from lrbench.backends.base import Mixer
from lrbench.claims.built import factory, normal
from lrbench.claims.measured import Measured, exact
from lrbench.errors import SpecError
from lrbench.models import encoder
from lrbench.registry import backends

WIDTH = 13
AT_ONCE = 64  # rows
MOVED = 1e-12  # in float64 and relative to the largest output: above rounding


def stack(
    *,
    model: str = "longformer[window=4,dilation=2]",
    layers: int = 3,
    expected: int | None = None,
    causal: bool = True,
    length: int = 128,
) -> Measured:
    """S4, S8: how many tokens back (not causal: to a side) the farthest token that moves an output stands.

    The output is the last one, causal; that of the middle token, not causal. A method with segments gets whole ones
    and then one token, for it is from the beginning of a segment that papers count: memory + rate · compressed a
    layer, if segments divide it.

    Args:
        expected: the reach that the value is divided by, if given.

    Raises:
        SpecError: the input is not longer than what is expected.
    """
    blocks = _built(model, layers, causal, length)
    asked = _asked_of(blocks[0], length) if causal else length // 2
    if expected is not None and not 0 < expected < asked:
        raise SpecError(f"no reach of {expected} can be seen from token {asked}", "choose a greater length")
    length = asked + 1 if causal else length
    far = int((_influence(blocks, length)[:, asked].nonzero() - asked).abs().max())
    told = f"{far} tokens from token {asked} of {length}, {layers} layers"
    return exact(far / (expected or 1), told)


def through_globals(*, model: str = "longformer[window=4,globals=1]", length: int = 64) -> Measured:
    """S5: the share of all pairs of tokens, one of which moves the other's output, after two layers.

    Raises:
        SpecError: without global tokens windows alone reach all pairs.
    """
    spec = backends.spec(model)
    settings = {name: value for name, value in spec.settings.items() if name != "globals"}
    without = backends.typed(spec.model_copy(update={"settings": settings}))
    share, bare = (
        float(_influence(_built(text, 2, False, length), length).double().mean()) for text in (model, without)
    )
    if bare == 1:
        raise SpecError(f"{without} reaches all pairs of {length} tokens in two layers", "choose a greater length")
    return exact(share, f"{length} tokens, two layers; {bare:.3f} of pairs without global tokens", n=length**2)


def _asked_of(block: Any, length: int) -> int:
    """The last token, or in a method that reads segments the last one that begins a segment."""
    mixer: Any = block if isinstance(block, Mixer) else block.mixer
    return (length - 1) // mixer.segment * int(mixer.segment) if mixer.streams else length - 1


def _built(model: str, layers: int, causal: bool, length: int) -> Any:
    """Residual layers in float64, with random weights."""
    make = factory(model, causal, dim=WIDTH)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        mixers = encoder.stack(
            lambda config: make.cls(config, **make.settings),
            layers,
            lambda index, first: make.config(length, index=index, first=first, layers=layers),
        )
        blocks = nn.ModuleList(encoder.as_block(mixer, WIDTH, 2 * WIDTH, 0.0) for mixer in mixers)
    return blocks.double().eval()


@torch.no_grad()
def _influence(blocks: Any, length: int) -> Tensor:
    """Whether replacing a token [length] moves an output [length]."""
    x, other = normal(1, length, WIDTH), normal(1, length, WIDTH, seed=2)
    expected = _through(blocks, x)
    moved = []
    for few in torch.eye(length, dtype=torch.bool).split(AT_ONCE):
        y = _through(blocks, torch.where(few[..., None], other, x))
        moved.append((y - expected).abs().amax(-1) > MOVED * expected.abs().max())
    return torch.cat(moved)


def _through(blocks: Any, x: Tensor) -> Tensor:
    """All layers."""
    for block in blocks:
        x = block(x)
    return x
