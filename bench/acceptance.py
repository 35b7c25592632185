"""The long acceptance tests of the measuring core: whether times, ratios and exponents repeat on this machine.

`python bench/acceptance.py [t1 t2 f3 f5]`; minutes to an hour each, one thread. They say what was found beside what is
asked; the exit code is the number of those that fell short. A busy machine falls short.
"""

import math
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lrbench.measure.children import Forked
from lrbench.measure.host import Limits
from lrbench.measure.race import Race, Rules, log_ratios
from lrbench.points import PointSpec
from lrbench.registry import backends
from lrbench.stats import Estimate, over_seeds
from lrbench.study import Study, StudyOptions, run_study

BARE = Path(__file__).parents[1] / "tests" / "plugins" / "bare.py"
KINDS = ("naive", "sdpa", "linear")
REPEATS = 5
GENERATIONS, ROUNDS = 8, 5


def unit(kind: str, calls: int = 1, length: int = 512) -> PointSpec:
    """Forward and backward of bare attention, so many times."""
    spec = backends.spec(f"{BARE}:Bare[kind={kind},calls={calls}]")
    return PointSpec(attention=spec, length=length, threads=1)


def ratio(one: PointSpec, other: PointSpec, seed: int) -> Estimate:
    """ln(time of one / time of other) with its interval over generations."""
    rules = Rules(0.0, GENERATIONS, GENERATIONS, ROUNDS, math.inf, 60.0)
    with Forked() as host:
        race = Race(host, {"one": one, "other": other}, "other", Limits(), rules, random.Random(seed), lambda: None)
        times = race.run()
    return over_seeds(log_ratios(times["one"].rounds, times["other"].rounds))


def t1() -> bool:
    """Equal workers: the interval contains 1 in four of five, and is within 5 %."""
    return all([_equal(kind) for kind in ("sdpa", "linear")])


def _equal(kind: str) -> bool:
    found = [ratio(unit(kind), unit(kind), seed) for seed in range(REPEATS)]
    hits = sum(each.low <= 0 <= each.high for each in found)
    width = float(np.mean([math.expm1(each.high - each.mean) for each in found]))
    say("T1", kind, f"contains 1 in {hits} of {REPEATS}, half-width {width:.1%}", "4 of 5, 5 %")
    return hits >= REPEATS - 1 and width <= 0.05


def t2() -> bool:
    """Six calls against five: contains 1.2 in four of five, excludes 1 always, and 1.2 within 2 % together."""
    return all([_known(kind) for kind in ("sdpa", "linear")])


def _known(kind: str) -> bool:
    found = [ratio(unit(kind, 6), unit(kind, 5), seed) for seed in range(REPEATS)]
    hits = sum(each.low <= math.log(1.2) <= each.high for each in found)
    apart = sum(each.low > 0 for each in found)
    pooled = math.exp(float(np.mean([each.mean for each in found])))
    say("T2", kind, f"contains 1.2 in {hits}, excludes 1 in {apart}, pooled {pooled:.3f}", "4, 5 of 5; 1.2 within 2 %")
    return hits >= REPEATS - 1 and apart == REPEATS and abs(pooled / 1.2 - 1) <= 0.02


def f3() -> bool:
    """Exponents of five sweeps: each within 0.1 of their mean over five lengths, 512 to 8192."""
    lengths = [512, 1024, 2048, 4096, 8192]
    sweeps = [sweep(KINDS, lengths, seed) for seed in range(REPEATS)]
    good = True
    for kind in KINDS:
        found = [float(np.polyfit(np.log(lengths), np.log(times[kind]), 1)[0]) for times in sweeps]
        worst = max(abs(each - np.mean(found)) for each in found)
        say("F3", kind, f"exponent {np.mean(found):.2f}, worst sweep {worst:.2f} off", "0.1")
        good &= bool(worst <= 0.1)
    return good


def f5() -> bool:
    """Crossover of sdpa and linear in five sweeps: each within 12 % of their mean."""
    lengths = [32, 64, 128, 192, 256]
    found = []
    for seed in range(REPEATS):
        times = sweep(("sdpa", "linear"), lengths, seed)
        found.append(crossing(lengths, [math.log(a / b) for a, b in zip(times["sdpa"], times["linear"], strict=True)]))
    worst = max(abs(each / np.mean(found) - 1) for each in found)
    say("F5", "sdpa/linear", f"crossover {min(found):.0f} to {max(found):.0f}, worst {worst:.0%} off", "12 %")
    return bool(worst <= 0.12)


def crossing(lengths: Sequence[int], logs: Sequence[float]) -> float:
    """Where log ratios change their sign, between lengths on a log scale; nan where they do not."""
    for place in range(1, len(logs)):
        a, b = logs[place - 1], logs[place]
        if a < 0 <= b:
            return lengths[place - 1] * (lengths[place] / lengths[place - 1]) ** (a / (a - b))
    return math.nan


def sweep(kinds: Sequence[str], lengths: Sequence[int], seed: int) -> dict[str, list[float]]:
    """Median times of one study of times alone."""
    points = [unit(kind, length=length).model_copy(update={"seed": seed}) for kind in kinds for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        options = StudyOptions(folder=Path(folder), memory=False, control=False, budget_s=240.0)
        study = run_study(points, options)
    return {kind: _medians(study, kind) for kind in kinds}


def _medians(study: Study, kind: str) -> list[float]:
    found = [point for point in study.points if point.settings["kind"] == kind]
    return [point.time_ms.median if point.time_ms else math.nan for point in found]


def say(test: str, what: str, found: str, asked: str) -> None:
    """One line of the table."""
    print(f"{test:4}{what:12}{found}   (asked: {asked})", flush=True)


TESTS: dict[str, Callable[[], bool]] = {"t1": t1, "t2": t2, "f3": f3, "f5": f5}

if __name__ == "__main__":
    sys.exit(sum(not TESTS[name]() for name in sys.argv[1:] or TESTS))
