"""Times of several backends at one length: generations of fresh workers, all alive, one running at a time.

Inside a generation rounds of blocks go over the workers in random order. More rounds in the same processes buy false
precision, for memory layout differs between processes: the unit of statistics is the generation.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import mean, median
from time import monotonic
from typing import Any

from lrbench.measure.children import Child, Children
from lrbench.measure.energy import Spent
from lrbench.measure.failures import Failure
from lrbench.measure.host import Limits
from lrbench.measure.timing import BLOCK_CALLS, BLOCK_S, DISCARDED, SLOW_S
from lrbench.points import PointSpec
from lrbench.stats import over_seeds

CONTENDED, REPEATED, TRIES = 0.02, 0.10, 3  # shares of a block that waited for a CPU
GRACE_S = 5.0  # beyond the limit: imports, messages, collection of garbage
WORKER = "lrbench.measure.timing:TimeWorker"


@dataclass
class Times:
    """What became of one backend. `rounds[g][r]` are block medians in milliseconds."""

    rounds: list[list[float]] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    minimum_ms: float = math.inf
    calls: int = 0
    delays: list[float] = field(default_factory=list)
    energy: list[Spent] = field(default_factory=list)
    denormals: int = 0
    notes: list[str] = field(default_factory=list)
    failure: Failure | None = None
    half_width: float = math.inf  # relative, of the 95 % interval of the ratio to the reference

    @property
    def contended(self) -> float:
        """Share of blocks that waited for a CPU."""
        return mean(delay > CONTENDED for delay in self.delays) if self.delays else 0.0

    @property
    def median_ms(self) -> float:
        """Median over generations of the median of their blocks."""
        return median(median(blocks) for blocks in self.rounds)


@dataclass(frozen=True)
class Rules:
    """When a race ends.

    Args:
        precision: half-width of the 95 % interval of every ratio to the reference.
        least, most: generations.
        rounds: in a generation, fewer if the time does not suffice.
        budget_s: a generation that would end later is not begun; the first always is.
        time_limit_s: of one call.
    """

    precision: float
    least: int
    most: int
    rounds: int
    budget_s: float
    time_limit_s: float


class Race:
    """Runs the generations.

    Args:
        specs: by any key; the order does not matter.
        reference: the key that ratios are taken to.
        rng: of the order in each round.
        tick: called after each block.
    """

    def __init__(
        self,
        children: Children,
        specs: Mapping[str, PointSpec],
        reference: str,
        limits: Limits,
        rules: Rules,
        rng: random.Random,
        tick: Callable[[], None],
    ) -> None:
        self._children, self._specs, self._limits, self._rules = children, specs, limits, rules
        self._rng, self._tick = rng, tick
        self.times = {key: Times() for key in specs}
        self._reference = reference
        self.measured_s = 0.0

    def run(self) -> dict[str, Times]:
        """All generations that the rules allow."""
        started = monotonic()
        for number in range(self._rules.most):
            began = monotonic()
            self._generation(self._rules.budget_s / self._rules.least if number == 0 else self._left(started))
            took = monotonic() - began
            enough = number + 1 >= self._rules.least and self.worst() <= self._rules.precision
            if enough or not self._racing() or monotonic() + took > started + self._rules.budget_s:
                break
        for key in self._racing():
            self.times[key].half_width = self.half_width(key)
        return self.times

    @property
    def reference(self) -> str:
        """What ratios are taken to; another one if it failed."""
        racing = self._racing()
        return self._reference if self._reference in racing or not racing else racing[0]

    def half_width(self, key: str) -> float:
        """Of the interval of the ratio to the reference, relative; inf from a single generation."""
        values = log_ratios(self.times[key].rounds, self.times[self.reference].rounds)
        if key == self.reference:
            values = [math.log(median(blocks)) for blocks in self.times[key].rounds]
        return half_width(values)

    def worst(self) -> float:
        """The widest interval of a ratio."""
        return max((self.half_width(key) for key in self._racing() if key != self.reference), default=0.0)

    def _racing(self) -> list[str]:
        return [key for key, times in self.times.items() if times.failure is None]

    def _left(self, started: float) -> float:
        return started + self._rules.budget_s - monotonic()

    def _generation(self, budget_s: float) -> None:
        """Fresh workers, some rounds; a worker that fails leaves the race for good."""
        until = monotonic() + budget_s
        workers: dict[str, Child] = {}
        call_s: dict[str, float] = {}
        try:
            for key in self._shuffled():
                self._try(key, lambda key=key: self._warm(key, workers, call_s))  # type: ignore[misc]
                self._tick()
            cost_s = sum(block_cost_s(call_s[key]) for key in self._racing() if key in call_s)
            rounds = int(max(1, min(self._rules.rounds, (until - monotonic()) / max(cost_s, 1e-6))))
            for key in self._racing():
                self.times[key].rounds.append([])
            for _ in range(rounds):
                for key in self._shuffled():
                    self._try(key, lambda key=key: self._block(key, workers[key], until))  # type: ignore[misc]
                    self._tick()
            for key in self._racing():
                self._try(key, lambda key=key: self._finish(key, workers[key]))  # type: ignore[misc]
        finally:
            for worker in workers.values():
                worker.close()

    def _shuffled(self) -> list[str]:
        keys = self._racing()
        return self._rng.sample(keys, len(keys))

    def _try(self, key: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Failure as failure:
            times = self.times[key]
            times.failure = failure
            if times.rounds and not times.rounds[-1]:
                times.rounds.pop()  # it failed in its first block: a generation of none has no median

    def _warm(self, key: str, workers: dict[str, Child], call_s: dict[str, float]) -> None:
        worker = self._children.start(WORKER, self._specs[key].model_dump(mode="json"), self._limits)
        workers[key] = worker
        limit_s = self._rules.time_limit_s + GRACE_S
        first = worker.call("first", limit_s)
        warm = worker.call("warm_up", limit_s)
        self.times[key].first_ms.append(first["ms"])
        self.measured_s += first["spent_s"] + warm["spent_s"]
        call_s[key] = warm["call_s"]

    def _block(self, key: str, worker: Child, until: float) -> None:
        """One block; again if it waited for a CPU, and the one of those that waited least is kept."""
        tried: list[dict[str, Any]] = []
        while True:
            tried.append(worker.call("block", self._rules.time_limit_s + GRACE_S))
            self.measured_s += tried[-1]["spent_s"]
            late = monotonic() + tried[-1]["spent_s"] > until
            if (tried[-1]["delay"] or 0.0) <= REPEATED or len(tried) > TRIES or late:
                break
        kept = min(tried, key=lambda found: found["delay"] or 0.0)
        times = self.times[key]
        times.rounds[-1].append(kept["ms"])
        times.minimum_ms = min(times.minimum_ms, *kept["calls"])
        times.calls += len(kept["calls"])
        if kept.get("energy") is not None:
            times.energy.append(Spent(*kept["energy"]))
        if kept["delay"] is not None:
            times.delays.append(kept["delay"])

    def _finish(self, key: str, worker: Child) -> None:
        found = worker.call("finish", self._rules.time_limit_s + GRACE_S)
        if found["disturbed"]:
            raise Failure("error", f"not a fair process to time in: {', '.join(found['disturbed'])}")
        times = self.times[key]
        times.denormals += found["denormals"]
        times.notes = list(dict.fromkeys([*times.notes, *found["notes"]]))


def block_cost_s(call_s: float) -> float:
    """Of a block of calls that take so long."""
    if call_s > SLOW_S:
        return call_s
    return (DISCARDED + max(BLOCK_CALLS, math.ceil(BLOCK_S / max(call_s, 1e-6)))) * call_s


def log_ratios(rounds: list[list[float]], others: list[list[float]]) -> list[float]:
    """For each generation that both have the mean over its rounds of ln(time / other time)."""
    # one that failed has fewer of both than the others
    both = zip(rounds, others, strict=False)
    generations = ([math.log(a / b) for a, b in zip(mine, their, strict=False)] for mine, their in both)
    return [mean(ratios) for ratios in generations if ratios]


def half_width(logs: list[float]) -> float:
    """Relative half-width of the t interval of a mean of logarithms; inf where there is no interval."""
    found = over_seeds(logs) if len(logs) > 1 else None
    return math.expm1(found.high - found.mean) if found else math.inf
