"""Which examples meet in which update, and how an update is cut into forward passes.

A batch is a run of consecutive places in an endless row of seeded permutations, so its content follows from its first
place alone and a resumed run sees what an uninterrupted one sees. A batch is then cut into passes of like length: the
gradient is the sum over its examples whichever way it is cut, so no padding is paid for and nothing depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from lrbench.loaders.base import Example, Split
from lrbench.specs import Kind

IGNORED = -1  # a target that is not scored
PASS_COST = 512  # what one more forward and backward pass costs, in tokens: the price of not padding

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward pass: the views of its examples, those of one example next to one another."""

    tokens: Int[Tensor, "rows seq"]
    mask: Bool[Tensor, "rows seq"] | None  # True at real tokens; None when nothing is padded
    targets: Int[Tensor, " batch"] | Int[Tensor, "rows seq"]  # labels, or what is wanted at each position
    real_tokens: int
    scored: int  # targets that count

    def to(self, device: torch.device) -> "Batch":
        """The same rows elsewhere."""
        mask = None if self.mask is None else self.mask.to(device)
        return Batch(self.tokens.to(device), mask, self.targets.to(device), self.real_tokens, self.scored)


def batch_ids(seed: int, first: int, batch: int, examples: int) -> Ids:
    """The examples at `batch` places from `first` on, from 0: each epoch is a fresh permutation, a batch may span two.

    What is drawn from has `examples` examples.
    """
    places = np.arange(first, first + batch)
    orders = {epoch: _permutation(seed, epoch, examples) for epoch in np.unique(places // examples).tolist()}
    return np.array([orders[int(place) // examples][int(place) % examples] for place in places])


_cached: dict[tuple[int, int, int], Ids] = {}


def _permutation(seed: int, epoch: int, examples: int) -> Ids:
    key = (seed, epoch, examples)
    if key not in _cached:
        while len(_cached) > 1:  # two epochs can meet in one batch
            _cached.pop(next(iter(_cached)))
        _cached[key] = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(examples)
    return _cached[key]


def cut(lengths: Ids, max_tokens: int, pass_cost: int = PASS_COST) -> list[Ids]:
    """Cut examples into passes, as positions in `lengths`, at the least cost of padding and passes.

    Dynamic programming over the examples sorted by length: rows · longest + pass_cost a pass, none above
    `max_tokens` unless a single example is. O(examples²) at worst, on the host.
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    best = np.zeros(len(order) + 1)
    start = np.zeros(len(order) + 1, dtype=int)
    for end in range(1, len(order) + 1):
        rows = np.arange(end, 0, -1)
        tokens = rows * ordered[end - 1]  # of a pass from each earlier place up to here
        allowed = (tokens <= max_tokens) | (rows == 1)
        costs = np.where(allowed, best[:end] + tokens + pass_cost, np.inf)
        start[end] = int(np.argmin(costs))
        best[end] = costs[start[end]]
    passes, end = [], len(order)
    while end:
        passes.append(order[start[end] : end])
        end = int(start[end])
    return passes


def fill(lengths: Ids, max_tokens: int) -> list[Ids]:
    """Cut a whole split for evaluation: sorted by length, as many rows a pass as `max_tokens` holds."""
    order = np.argsort(-lengths, kind="stable")
    passes, first = [], 0
    while first < len(order):
        rows = max(1, max_tokens // max(1, int(lengths[order[first]])))
        passes.append(order[first : first + rows])
        first += rows
    return passes


def collate(split: Split, ids: Sequence[int] | Ids, kind: Kind = "classify") -> Batch:
    """Pad what the model reads with 0 on the right to the longest of it. Costs one copy of the tokens.

    The mask is made from the lengths, never from the tokens: a 0 in an example is as real as any other.
    """
    examples = [split[int(index)] for index in ids]
    views = [view for example in examples for view in (example.views if kind == "match" else example.views[:1])]
    lengths = np.array([len(view) for view in views])
    tokens = padded(views, 0)
    mask = np.arange(tokens.shape[1]) < lengths[:, None]
    targets = wanted(examples, kind, tokens.shape[1])
    return Batch(
        torch.from_numpy(tokens),
        None if mask.all() else torch.from_numpy(mask),
        torch.from_numpy(targets),
        int(lengths.sum()),
        int((targets != IGNORED).sum()),
    )


def wanted(examples: Sequence[Example], kind: Kind, width: int) -> NDArray[np.int64]:
    """The targets of a pass: a label an example, or an id at each position that is scored."""
    if kind in ("classify", "match"):
        return np.array([example.label for example in examples], np.int64)
    targets = padded([example.views[-1] for example in examples], IGNORED, width)
    if kind == "predict":  # the label says how many tokens are given, and only read
        given = np.array([example.label for example in examples])
        targets[np.arange(width) < given[:, None]] = IGNORED
    return targets


def padded(views: Sequence[NDArray[np.integer]], value: int, width: int = 1) -> NDArray[np.int64]:
    """Rows of at least `width`, filled up on the right."""
    rows = np.full((len(views), max(width, *map(len, views))), value, np.int64)
    for row, view in zip(rows, views, strict=True):
        row[: len(view)] = view
    return rows
