"""Times the harness itself: start-up, generator, and what cutting batches by length gains over padding them.

Nothing here passes or fails. Where two things are compared they alternate and the ratio is taken within each pair, so
that a change of the machine's load meets both. Absolute times hold for one machine and one moment only.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from lrbench import plan
from lrbench.loaders import listops
from lrbench.loaders.base import DataRequest, Split
from lrbench.models import heads
from lrbench.registry import backends
from lrbench.specs import Grid
from lrbench.train.batches import Ids, batch_ids, collate, cut

ROUNDS = 5
TREES = 5000
WINDOW = {"shortest": 50, "longest": 500}
BATCH = 32
MODELS = ["full", "linear"]


def seconds(action: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    started = perf_counter()
    action()
    return perf_counter() - started


def compare(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float, float]:
    """Median times of both, and the median of their ratios."""
    pairs = [(seconds(one), seconds(other)) for _ in range(ROUNDS)]
    return median(a for a, _ in pairs), median(b for _, b in pairs), median(a / b for a, b in pairs)


def show(what: str, value: float, unit: str, remark: str = "") -> None:
    """One line of the table."""
    print(f"{what:24}{value:9.3g} {unit:9}{remark}", flush=True)


def start_up() -> None:
    """What a user waits for help and for the list, beside a bare interpreter and `import torch`."""

    def interpreter(*arguments: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    show("bare interpreter", median(seconds(interpreter("-c", "pass")) for _ in range(ROUNDS)), "s")
    for arguments in (["--help"], ["list", "models"]):
        ours, torchs, ratio = compare(interpreter("-m", "lrbench", *arguments), interpreter("-c", "import torch"))
        show(f"lrbench {' '.join(arguments)}", ours, "s", f"{ratio:.2f} of `import torch`, {torchs:.2f} s")


def generator() -> None:
    """ListOps trees of 501 to 1999 tokens: drawn, written and read again."""
    request = DataRequest("listops", 2000, (TREES, 500, 500))
    with tempfile.TemporaryDirectory() as cache:
        drawn = seconds(lambda: listops.load(request, Path(cache)))
        again = seconds(lambda: listops.load(request, Path(cache)))
    show("listops, new", sum(request.examples) / drawn, "trees/s", f"{drawn / again:.0f}x as fast from the cache")


def batching() -> None:
    """One update on a batch that is cut by length, against the same batch padded to its longest example."""
    request = DataRequest("listops", 512, (500, 10, 10))
    with tempfile.TemporaryDirectory() as cache:
        train = listops.load(request, Path(cache), **WINDOW).train
        for name in MODELS:
            cell = plan.cells(Grid(models=[name], tasks=["listops"], preset="small"), Path(cache))[0].spec
            model = heads.build(backends.load(cell.attention), cell.task, cell.model, request.length)
            padded, by_length, ratio = updates(model, train, cell.train.micro_tokens)
            remark = f"cut by length; padded takes {ratio:.2f}x, {padded * 1e3:.0f} ms"
            show(f"update, {name}", by_length * 1e3, "ms", remark)


def updates(model: torch.nn.Module, train: Split, max_tokens: int) -> tuple[float, float, float]:
    """Times of the gradients of one batch, padded and cut by length, and their ratio."""
    ids = batch_ids(0, 0, BATCH, len(train))

    def padded() -> None:
        gradients(model, train, ids, [np.arange(BATCH)])

    def by_length() -> None:
        gradients(model, train, ids, cut(train.lengths[ids], max_tokens))

    compare(padded, by_length)  # the first calls set kernels up
    return compare(padded, by_length)


def gradients(model: torch.nn.Module, train: Split, ids: Ids, passes: list[Ids]) -> None:
    """Forward and backward of all passes of an update."""
    model.zero_grad()
    for part in passes:
        rows = collate(train, ids[part])
        cross_entropy(model(rows.tokens, rows.mask), rows.targets, reduction="sum").backward()


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine would measure that machine
    print(f"torch {torch.__version__}, one thread; medians of {ROUNDS} rounds")
    start_up()
    generator()
    batching()
