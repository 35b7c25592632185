"""Our backends for a bench that takes adapters: `ADAPTERS = {name: factory(dim, heads, n, causal) -> module}`.

Modules map (rows, n, dim) to the same, projections included, and take `mask=None`, True at real tokens. What a backend
cannot do raises NotImplementedError. A loss of a backend's own is left in `aux_loss`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lrbench.backends.base import LayerConfig, Mixer, check_divisible, parted
from lrbench.errors import Unsupported
from lrbench.models.encoder import stack
from lrbench.registry import backends


class Ours(nn.Module):
    """One layer: the units that stand for it, one after the other."""

    def __init__(self, name: str, dim: int, heads: int, n: int, causal: bool) -> None:
        super().__init__()
        backend = backends.get(name)

        def config(index: int, first: Mixer | None) -> LayerConfig:
            return LayerConfig(
                dim=dim,
                heads=heads,
                head_dim=check_divisible(dim, heads),
                max_len=n,
                causal=causal,
                readout=int(not causal),
                index=index,
                first=first,
                mlp_dim=4 * dim,
            )

        try:
            self.units = nn.ModuleList(stack(partial(backend.cls, **backend.options), 1, config))
        except Unsupported as reason:
            raise NotImplementedError(str(reason)) from reason
        self.aux_loss: Tensor | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix."""
        losses = []
        for unit in self.units:
            x, loss = parted(unit(x, mask=mask))
            losses += [] if loss is None else [loss]
        self.aux_loss = torch.stack(losses).sum() if losses else None
        return x


def factory(name: str) -> Callable[[int, int, int, bool], nn.Module]:
    """Builds one backend as a module."""
    return partial(Ours, name)


ADAPTERS = {f"ours_{name.replace('-', '_')}": factory(name) for name in backends.shipped()}
