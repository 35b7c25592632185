"""A sliding window by index against one by blocks, both exact (Beltagy et al. 2020, section 3.1 and appendix A)."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from lrbench.backends.base import LayerConfig
from lrbench.claims.intervals import geometric
from lrbench.claims.measured import Measured
from lrbench.claims.measures.training import seeded
from lrbench.claims.rounds import ratios
from lrbench.registry import backends

CLOSE = 1e-6  # in double precision


def against_gather(
    *, length: int = 1024, window: int = 64, heads: int = 4, head_dim: int = 32, rounds: int = 9
) -> Measured:
    """Time of a window that gathers each token's 2 · window + 1 keys and values, over that of `local`.

    One row, forward and backward of what lies between the projections, in turns. Above 1 expected.

    Raises:
        ArithmeticError: both do not compute the same, so that their times say nothing.
    """
    cfg = LayerConfig(dim=heads * head_dim, heads=heads, head_dim=head_dim, max_len=length)
    with seeded(0):
        mixer = backends.get("local").cls(cfg, window=window)
        parts = torch.randn(4, 1, heads, length, head_dim)

    def by_index(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return gathered(q, k, v, window)

    def by_block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mixer.attend(q, k, v, None)

    q, k, v, _ = parts.double()
    gap = float((by_index(q, k, v) - by_block(q, k, v)).abs().max())
    if gap > CLOSE:
        raise ArithmeticError(f"a gathered window of {window} differs from local by {gap:.1e}")
    found = ratios(lambda: _pass(by_index, parts), lambda: _pass(by_block, parts), rounds)
    return geometric(found, f"length {length}, window {window}, {heads} heads of {head_dim}, equal to {gap:.0e}")


def gathered(
    q: Float[Tensor, "rows heads seq head_dim"],
    k: Float[Tensor, "rows heads seq head_dim"],
    v: Float[Tensor, "rows heads seq head_dim"],
    window: int,
) -> Float[Tensor, "rows heads seq head_dim"]:
    """Softmax attention of each token i to j with |i - j| <= window, keys and values picked by their numbers."""
    seq, head_dim = q.shape[2:]
    places = torch.arange(seq)[:, None] + torch.arange(-window, window + 1)  # seq 2·window+1
    picked = places.clamp(0, seq - 1)
    scores = (k[:, :, picked] @ (q * head_dim**-0.5)[..., None])[..., 0]  # rows heads seq 2·window+1
    weights = scores.masked_fill(picked != places, -torch.inf).softmax(-1)
    return (weights[..., None, :] @ v[:, :, picked])[..., 0, :]


def _pass(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], parts: Float[Tensor, "4 rows heads seq head_dim"]
) -> None:
    """Forward and backward; the last of the parts is the gradient that comes in."""
    q, k, v = (part.detach().requires_grad_() for part in parts[:3])
    attend(q, k, v).backward(parts[3])
