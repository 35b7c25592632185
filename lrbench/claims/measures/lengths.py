"""What a method does with other lengths than the one that it was built for."""

import torch
from torch import Tensor

from lrbench.backends.base import Mixer
from lrbench.claims.built import distance, factory, normal, stirred
from lrbench.claims.measured import Measured, exact
from lrbench.errors import LrbenchError

BUILT_FOR, LONGER, SHORTER = 64, 131, (1, 7, 63, 64)
TOLERANCE = 1e-10  # the same sums in another order, in float64


def refused(*, model: str = "linformer") -> Measured:
    """S14: 1 if one token too many is refused by an error that names both lengths, and shorter inputs are defined."""
    mixer = stirred(factory(model)(BUILT_FOR))
    answer, both = _outcome(mixer, BUILT_FOR + 1), (str(BUILT_FOR), str(BUILT_FOR + 1))
    clear = isinstance(answer, LrbenchError) and all(length in answer.message for length in both)
    broken = [length for length in SHORTER if not _finite(_outcome(mixer, length))]
    below = f"not finite at {broken}" if broken else "shorter inputs are finite"
    return exact(float(clear and not broken), f"built for {BUILT_FOR}, {_told(answer)}; {below}")


def accepted(*, model: str = "longformer") -> Measured:
    """S18: 1 if longer inputs come out finite, and as from the same weights in a layer that was built for them."""
    short, long = (stirred(factory(model)(length)) for length in (BUILT_FOR, LONGER))
    told = f"built for {BUILT_FOR}, given {LONGER}"
    try:
        long.load_state_dict(short.state_dict())
    except RuntimeError:  # torch's own, for shapes that differ
        return exact(0.0, f"{told}: its weights do not fit a layer built for that")
    answer, expected = _outcome(short, LONGER), _outcome(long, LONGER)
    if not isinstance(answer, Tensor) or not isinstance(expected, Tensor):
        return exact(0.0, f"{told}: {_told(answer)}")
    apart = distance(answer, expected)
    return exact(float(_finite(answer) and apart <= TOLERANCE), f"{told}: {apart:.1e} from one built for {LONGER}")


@torch.no_grad()
def _outcome(mixer: Mixer, length: int) -> Tensor | Exception:
    """The output, or what is raised in its place."""
    try:
        return mixer(normal(2, length, mixer.cfg.dim))
    except Exception as error:  # any error is an answer; which one is what is asked
        return error


def _finite(answer: Tensor | Exception) -> bool:
    return isinstance(answer, Tensor) and bool(answer.isfinite().all())


def _told(answer: Tensor | Exception) -> str:
    return f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else "longer inputs are taken"
