"""Strategies of training, from the step and little state: staged lengths, growing batches, an early end. No torch.

Shortformer (Press et al. 2021, arXiv:2012.15832) trains on short inputs first and keeps the tokens of an update: what
is predicted at each position is cut into pieces, each a row that begins without context. An answer that depends on the
whole of an input cannot be had from pieces, so there only short examples are trained on. The Compressive Transformer
(Rae et al. 2020, arXiv:1911.05507) raises the batch late in training. Evaluation is at full length throughout.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lrbench.errors import SpecError
from lrbench.loaders.base import Example, Split, TaskData
from lrbench.specs import Kind, RunSpec, Stage, TrainSpec

Ids = NDArray[np.int64]
IN_PIECES: tuple[Kind, ...] = ("predict", "fill")  # kinds whose examples may be cut


@dataclass(frozen=True)
class Progress:
    """What does not follow from the step alone; kept in the checkpoint."""

    ends: tuple[int, ...] = ()  # the last update of each stage that is over
    stale: int = 0  # evaluations in a row without a better validation score, at this length


def stage(recipe: TrainSpec, progress: Progress) -> Stage | None:
    """The stage that the next update belongs to; None at full length."""
    return recipe.stages[len(progress.ends)] if len(progress.ends) < len(recipe.stages) else None


def after(recipe: TrainSpec, progress: Progress, step: int, better: bool | None) -> Progress:
    """The progress after update `step`.

    Args:
        better: whether its evaluation was the best so far; None where nothing was evaluated.
    """
    stale = progress.stale if better is None else 0 if better else progress.stale + 1
    now, begun = stage(recipe, progress), max((0, *progress.ends))
    if now is not None and (step - begun == now.steps or stale == now.patience):
        return Progress((*progress.ends, step))
    return Progress(progress.ends, stale)


def stopped(recipe: TrainSpec, progress: Progress) -> bool:
    """Whether patience has come to an end; in a stage with a patience of its own it ends the stage alone."""
    now = stage(recipe, progress)
    return progress.stale == recipe.patience and (now is None or now.patience is None)


def batch_of(recipe: TrainSpec, step: int) -> int:
    """Examples of update `step`, over all devices."""
    return next((grown.batch for grown in reversed(recipe.growth) if grown.step <= step), recipe.batch)


def examples_before(recipe: TrainSpec, step: int) -> int:
    """Examples of all updates before `step`: where its batch begins in the row of permutations."""
    total, first, batch = 0, 1, recipe.batch
    for grown in recipe.growth:
        if grown.step >= step:
            break
        total += (grown.step - first) * batch
        first, batch = grown.step, grown.batch
    return total + (step - first) * batch


def planned(recipe: TrainSpec) -> Iterator[tuple[int, int | None]]:
    """So many examples at which length, None for the full one, which is taken for all that waits for a plateau."""
    first = 1
    for each in recipe.stages:
        if each.steps is None:
            break
        yield _examples(recipe, first, first + each.steps), each.length
        first += each.steps
    yield _examples(recipe, first, recipe.steps + 1), None


def _examples(recipe: TrainSpec, first: int, end: int) -> int:
    return examples_before(recipe, end) - examples_before(recipe, first)


class Selection:
    """Some examples of a split."""

    def __init__(self, split: Split, ids: Ids) -> None:
        self.lengths, self.labels = split.lengths[ids], split.labels[ids]
        self._split, self._ids = split, ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Example:
        return self._split[int(self._ids[index])]


class Pieces:
    """Some examples of a split in pieces, each an example of its own."""

    def __init__(self, split: Split, ids: Ids, length: int) -> None:
        self._pieces = [piece for index in ids for piece in pieces(split[int(index)], length)]
        self.lengths = np.array([len(piece.views[0]) for piece in self._pieces])
        self.labels = np.array([piece.label for piece in self._pieces])

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> Example:
        return self._pieces[index]


def pieces(example: Example, length: int) -> Iterator[Example]:
    """Consecutive pieces of at most `length` tokens. The label, how many tokens are given, is told of each piece."""
    for start in range(0, max(1, len(example.views[0])), length):
        views = tuple(view[start : start + length] for view in example.views)
        yield Example(views, min(max(example.label - start, 0), len(views[0])))


def pool(split: Split, kind: Kind, length: int | None) -> Split:
    """What batches are drawn from at that length: the whole split, or of what cannot be cut the short examples."""
    if length is None or kind in IN_PIECES:
        return split
    return Selection(split, np.flatnonzero(split.lengths <= length))


def drawn(split: Split, ids: Ids, kind: Kind, length: int | None) -> Split:
    """These examples as they are trained on at that length."""
    return Selection(split, ids) if length is None or kind not in IN_PIECES else Pieces(split, ids, length)


def check(spec: RunSpec, data: TaskData) -> None:
    """Refuse what these data do not allow.

    Raises:
        SpecError: a patience without a validation split, or a stage without examples.
    """
    spec.train.check_validation(len(data.validation))
    shortest = int(data.train.lengths.min())
    # later stages are longer
    if spec.task.kind not in IN_PIECES and spec.train.stages and spec.train.stages[0].length < shortest:
        raise SpecError(
            f"train.stages: no example has {spec.train.stages[0].length} tokens or less, the shortest has {shortest}",
            f"give stages a length of {shortest} at least",
        )


def told(recipe: TrainSpec, progress: Progress, step: int, length: int) -> dict[str, int]:
    """What the line of an update says where lengths or batches change; `length` is the full one."""
    if not recipe.stages and not recipe.growth:
        return {}
    now = stage(recipe, progress)
    return {"length": now.length if now else length, "batch": batch_of(recipe, step)}


def notes(spec: RunSpec, progress: Progress, last: int) -> list[str]:
    """What happened until step `last`, where training ended."""
    recipe = spec.train
    what = "pieces of" if spec.task.kind in IN_PIECES else "examples of at most"
    parts = zip(recipe.stages, (0, *progress.ends), (*progress.ends, last), strict=False)
    found = [f"trained on {what} {each.length} tokens until step {end}" for each, begun, end in parts if begun < last]
    grown = [each for each in recipe.growth if each.step <= last]
    found += [f"updates of {each.batch} examples from step {each.step}" for each in grown]
    if last < recipe.steps:
        found.append(f"stopped at step {last} of {recipe.steps}: no better score in {recipe.patience} evaluations")
    return found
