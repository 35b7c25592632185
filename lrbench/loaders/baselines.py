"""What rules that need no model score: fitted on train, scored on test, the same on every run."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lrbench.loaders.base import Example, Split

Features = Callable[[Example], NDArray[np.float64]]
CHUNK = 4096  # examples whose features are held at once
BINS = 10


def majority(train: Split, test: Split) -> float:
    """The most frequent class of train, the lowest of equals."""
    return float((test.labels == np.bincount(train.labels).argmax()).mean())


def linear(train: Split, test: Split, features: Features) -> float:
    """Ridge regression on standardised features, one output a class; closed form, some 50 µs an example."""
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    total, width = len(train), features(train[0]).size
    moments, sums, squares = np.zeros((width, classes)), np.zeros(width), np.zeros((width, width))
    for rows, labels in _chunks(train, features):
        moments += rows.T @ np.eye(classes)[labels]
        sums += rows.sum(0)
        squares += rows.T @ rows
    mean = sums / total
    covariance = squares / total - np.outer(mean, mean)
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
    shares = np.bincount(train.labels, minlength=classes) / total
    wanted = (moments / total - np.outer(mean, shares)) / scale[:, None]
    # as many features as examples would fit anything: the fewer examples, the more is held back
    ridge = np.eye(len(mean)) * (len(mean) / total + 1e-3)
    weights = np.linalg.solve(covariance / np.outer(scale, scale) + ridge, wanted)
    right = 0
    for rows, labels in _chunks(test, features):
        scores = (rows - mean) / scale @ weights + shares
        right += int((scores.round(9).argmax(1) == labels).sum())
    return right / len(test)


def binned(train: Split, test: Split, *clues: Callable[[Example], float]) -> float:
    """The most frequent class of train wherever the clues fall into the same tenths of their ranges."""
    seen = [_values(train, clue) for clue in clues]
    edges = [np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]) for values in seen]
    cells, test_cells = (_cells([_values(split, clue) for clue in clues], edges) for split in (train, test))
    counts = np.zeros((BINS ** len(clues), int(train.labels.max()) + 1))
    np.add.at(counts, (cells, train.labels), 1)
    answers = np.where(counts.sum(1) > 0, counts.argmax(1), np.bincount(train.labels).argmax())
    return float((answers[test_cells] == test.labels).mean())


def bag_of_bytes(example: Example) -> NDArray[np.float64]:
    """How often each id occurs, as shares; of two documents both, and how far apart they are."""
    bags = [np.bincount(view, minlength=257)[:257] / max(1, len(view)) for view in example.views]
    return np.concatenate([*bags, *(np.abs(bags[0] - other) for other in bags[1:])])


def _chunks(split: Split, features: Features) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    for start in range(0, len(split), CHUNK):
        rows = range(start, min(start + CHUNK, len(split)))
        yield np.stack([features(split[row]) for row in rows]), split.labels[start : start + CHUNK]


def _values(split: Split, clue: Callable[[Example], float]) -> NDArray[np.float64]:
    return np.array([clue(split[row]) for row in range(len(split))], float)


def _cells(values: Sequence[NDArray[np.float64]], edges: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """One number for the tenths that the clues of each example fall into."""
    cells = np.zeros(len(values[0]), np.int64)
    for each, bounds in zip(values, edges, strict=True):
        cells = cells * BINS + np.digitize(each, bounds)
    return cells
