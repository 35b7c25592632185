"""What one more token costs a causal model after few or many others: the same in FLASH (Hua et al. 2022, section 3)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lrbench.backends.base import LayerConfig
from lrbench.claims.intervals import geometric
from lrbench.claims.measured import Measured
from lrbench.claims.measures.training import seeded
from lrbench.claims.rounds import ratios
from lrbench.errors import SpecError
from lrbench.registry import backends


@torch.inference_mode()
def per_token(
    *, model: str = "flash[chunk=64]", short: int = 1024, long: int = 8192, dim: int = 128, rounds: int = 15
) -> Measured:
    """Time of a token that is read alone after `long` others, over that of one after `short`; 1 expected.

    One layer, one row; of each place a segment's worth of tokens is timed, one by one, in turns.

    Raises:
        SpecError: the model does not read a sequence in parts.
    """
    backend = backends.get(model)
    cfg = LayerConfig(dim=dim, heads=4, head_dim=dim // 4, max_len=2 * long, causal=True)
    with seeded(0):
        mixer = backend.cls(cfg, **backend.options).eval()
        x = torch.randn(1, long, dim)
    if not mixer.streams:
        raise SpecError(f"model {model} does not stream", "choose one that `lrbench scale --mode stream` takes")
    near, far = (_read(mixer, x[:, :count]) for count in (short, long))
    found = ratios(_reading(mixer, x, far), _reading(mixer, x, near), rounds)
    kept = [
        sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
        for state in (near, far)
    ]
    return geometric(
        found, f"{model}, width {dim}: {kept[0]:,} bytes kept after {short:,} tokens, {kept[1]:,} after {long:,}"
    )


def _read(mixer: Any, x: Tensor) -> Any:
    """The state after all of x."""
    state = None
    for part in x.split(mixer.segment, dim=1):
        _, state = mixer.step(part, state)
    return state


def _reading(mixer: Any, x: Tensor, state: Any) -> Callable[[], None]:
    """A call that reads a segment's worth of tokens one by one from this state on."""

    def call() -> None:
        after = state
        for token in x[:, : mixer.segment].split(1, dim=1):
            _, after = mixer.step(token, after)

    return call
