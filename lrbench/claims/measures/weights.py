"""The attention matrix that a method implies: what comes out of it where the values are unit vectors."""

import inspect

import torch
from torch import Tensor

from lrbench.backends.base import HeadMixer
from lrbench.claims.built import factory, normal
from lrbench.claims.measured import Measured, exact
from lrbench.errors import SpecError, Unsupported

SEQ, WIDTH = 37, 13


def row_sums(*, model: str = "combiner") -> Measured:
    """K1: attention is a distribution. The value is the largest |row sum - 1|, causal and not where it can be both."""
    found, told = [], []
    for causal, name in ((False, "not causal"), (True, "causal")):
        try:
            found.append(float((_matrix(model, causal).sum(1) - 1).abs().max()))
            told.append(f"{name} {found[-1]:.1e}")
        except Unsupported as refusal:
            told.append(refusal.message)
    return exact(max(found), f"{SEQ} tokens: {', '.join(told)}", n=len(found))


def least_weight(*, model: str = "combiner", causal: bool = False) -> Measured:
    """K2: full support. The value is the least weight of a pair that may be seen, times n: 0 where one cannot be."""
    weights = _matrix(model, causal)
    pairs = torch.ones_like(weights, dtype=torch.bool)
    seen = weights.masked_fill(~(pairs.tril() if causal else pairs), torch.inf)
    query, key = divmod(int(seen.argmin()), SEQ)
    return exact(float(seen.min()) * SEQ, f"{SEQ} tokens: least where token {query} looks at token {key}")


@torch.no_grad()
def _matrix(model: str, causal: bool) -> Tensor:
    """The weights [query key] of one head, as wide as there are tokens, in float64.

    Raises:
        SpecError: the model is not made of heads that mix values.
        Unsupported: it cannot be causal.
    """
    mixer = factory(model, causal, dim=WIDTH, heads=1, head_dim=SEQ)(SEQ).double()
    if not isinstance(mixer, HeadMixer) or type(mixer).attend is HeadMixer.attend:
        raise SpecError(f"model {model!r} has no heads that mix values", "choose one with `attend`, such as combiner")
    q, k, x = normal(1, 1, SEQ, SEQ), normal(1, 1, SEQ, SEQ, seed=2), normal(1, SEQ, WIDTH, seed=3)
    wanted = {"x": x} if "x" in inspect.signature(mixer.attend).parameters else {}  # plans with keys from the input
    return mixer.attend(q, k, torch.eye(SEQ, dtype=torch.float64)[None, None], None, **wanted)[0, 0]
