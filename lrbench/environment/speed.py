"""How fast this CPU multiplies matrices in bf16, against fp32."""

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SIZE = 512
BUDGET_S = 1.0
FEWEST_ROUNDS = 3


def bf16_gain() -> float:
    """Time of an fp32 product divided by that of a bf16 one: above 1, bf16 is faster. Takes about a second.

    The two alternate, so that a change of the machine's load meets both, and the ratio is taken within each round.
    """
    import torch

    wide = torch.rand(SIZE, SIZE)
    narrow = wide.to(torch.bfloat16)
    for matrix in (wide, narrow):  # the first product of a kind sets its kernel up
        matrix @ matrix
    ratios: list[float] = []
    start = perf_counter()
    while len(ratios) < FEWEST_ROUNDS or perf_counter() - start < BUDGET_S:
        ratios.append(_product_s(wide) / _product_s(narrow))
    return median(ratios)


def _product_s(matrix: "Tensor") -> float:
    start = perf_counter()
    matrix @ matrix
    return perf_counter() - start
