"""Trains a model and scores it: the only user of accelerate.

Validation chooses the step, test is scored whole at that step and, blind, at the last one. Everything that follows
from the step (rate, examples) is computed from it, and what follows from scores (`strategies.Progress`) is kept with
the weights, so a run that was cut off goes on as if it never had been.
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast, broadcast_object_list, gather_object
from torch import Tensor, nn

from lrbench.backends.base import Mixer, parted
from lrbench.files import write_atomic
from lrbench.loaders.base import Split, TaskData
from lrbench.models.encoder import Encoder
from lrbench.records import Metrics, Score, Speed, dumps
from lrbench.specs import RunSpec
from lrbench.train import checkpoint, devices, strategies
from lrbench.train.batches import Batch, batch_ids, collate, cut, fill
from lrbench.train.counts import Counts, speed
from lrbench.train.schedules import learning_rate
from lrbench.train.scores import TALLIES, from_tally, loss_sum, tally

CHECKPOINT_EVERY_S = 30.0
Value = TypeVar("Value")
LOGGED_STEPS = 2000  # at most so many lines of training steps


class Diverged(Exception):
    """The loss stopped being a number."""


@dataclass(frozen=True)
class Outcome:
    """A finished training."""

    metrics: Metrics
    speed: Speed
    train_s: float
    eval_s: float


@dataclass
class Best:
    """The best validation score so far and the weights that reached it; the earliest of equals."""

    score: Score | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)


def accelerator(spec: RunSpec, track: str | None = None, folder: Path | None = None) -> Accelerator:
    """Device and precision as asked for.

    Raises:
        Missing: this machine has not got them.
    """
    devices.check(spec.device, spec.dtype)
    _, _, index = spec.device.partition(":")
    if index:
        torch.cuda.set_device(int(index))
    precision = "no" if spec.dtype == "fp32" else spec.dtype
    return Accelerator(cpu=devices.on_cpu(spec.device), mixed_precision=precision, log_with=track, project_dir=folder)


def processes(spec: RunSpec) -> PartialState:
    """Those that a launcher has started, one for each device; usually this one alone."""
    return PartialState(cpu=devices.on_cpu(spec.device))


def from_first(value: Value, spec: RunSpec) -> Value:
    """What the first process says, on all of them. Each has to ask."""
    processes(spec)
    said: list[Value] = broadcast_object_list([value])
    return said[0]


class Trainer:
    """One training of one model.

    Args:
        model: freshly built; its weights are trained in place.
        data: all three splits.
        spec: the resolved run.
        folder: where `metrics.jsonl` and `checkpoint/` are kept.
        engine: from `accelerator`.
        checkpoint_every_s: seconds between checkpoints; 0 writes one after every step.

    Raises:
        SpecError: the data do not allow a strategy of the recipe.
    """

    def __init__(
        self,
        model: nn.Module,
        data: TaskData,
        spec: RunSpec,
        folder: Path,
        engine: Accelerator,
        checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    ) -> None:
        recipe = spec.train
        strategies.check(spec, data)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, weight_decay=recipe.weight_decay
        )
        self.data, self.spec, self.recipe, self.folder, self.engine = data, spec, recipe, folder, engine
        self.kind, self.metric, self.views = spec.task.kind, spec.task.metric.name, spec.task.rows
        self.plain = model.to(engine.device)
        for module in self.plain.modules():
            if isinstance(module, Encoder):
                module.checkpointing = recipe.checkpointing
        if spec.compile:
            self.plain.compile(dynamic=True)
        self.model, self.optimizer = engine.prepare(self.plain, optimizer)
        self.mixers = [module for module in self.plain.modules() if isinstance(module, Mixer)]
        self.checkpoint_every_s = checkpoint_every_s
        self.counts = Counts()
        self.best = Best()
        self.progress = strategies.Progress()
        ranks = engine.num_processes
        self.notes = [f"trained on {ranks} devices; memory is that of the first"] if ranks > 1 else []
        self.notes += [] if len(data.validation) else ["no validation split: the last step counts, nothing was chosen"]

    def fit(self, stop: Callable[[], bool] = lambda: False) -> Outcome | None:
        """Train to the last step and score, or write a checkpoint and return None once `stop` says so."""
        self._resume()
        saved_at = time.monotonic()
        while not self._over():
            if self._agreed(stop()):
                self._save()
                return None
            self._step(self.counts.step + 1)
            due = time.monotonic() - saved_at >= self.checkpoint_every_s
            if self._agreed(due or self._over()):
                self._save()
                saved_at = time.monotonic()
        return self._outcome()

    def _over(self) -> bool:
        return self.counts.step >= self.recipe.steps or strategies.stopped(self.recipe, self.progress)

    def _step(self, step: int) -> None:
        started = time.perf_counter()
        rate = learning_rate(self.recipe, step)
        loss = self._update(step, rate)
        self.counts.step = step
        self.counts.train_s += time.perf_counter() - started
        if step == 1 or step % max(1, self.recipe.steps // LOGGED_STEPS) == 0:
            told = strategies.told(self.recipe, self.progress, step, self.spec.data.length)
            self._log({"step": step, "loss": loss, "lr": rate, **told})
        if not math.isfinite(loss):
            raise Diverged(f"the loss became {loss} at step {step}")
        due = step % self.recipe.eval_every == 0 or step == self.recipe.steps
        better = self._validate(step) if due else None
        self.progress = strategies.after(self.recipe, self.progress, step, better)

    def _update(self, step: int, rate: float) -> float:
        """One update on one batch; the mean loss over its examples, on all devices."""
        drawn = self._drawn(step)
        parts = cut(drawn.lengths * self.views, self.recipe.micro_tokens)
        passes = [collate(drawn, part, self.kind) for part in parts]
        # what means are over: of the loss examples, or tokens where one pass has more than another; of mixers' own rows
        sums = torch.tensor([float(sum(rows.scored for rows in passes)), float(len(drawn))])
        scored, drawn_in_all = self._summed(sums).tolist()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        for mixer in self.mixers:
            mixer.before_step()
        total = torch.zeros((), device=self.engine.device)
        for part, rows in zip(parts, passes, strict=True):
            last = rows is passes[-1]
            with (
                nullcontext() if last else self.engine.no_sync(self.model)
            ):  # devices exchange gradients once an update
                total += self._backward(rows, max(1.0, scored), len(part) / drawn_in_all)
        if self.recipe.clip is not None:
            self.engine.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.counts.passes += len(passes)
        return float(self.engine.reduce(total, "sum"))

    def _drawn(self, step: int) -> Split:
        """What update `step` is over, on this device, as it is trained on."""
        stage = strategies.stage(self.recipe, self.progress)
        length = stage.length if stage else None
        pool = strategies.pool(self.data.train, self.kind, length)
        first, batch = strategies.examples_before(self.recipe, step), strategies.batch_of(self.recipe, step)
        ids = batch_ids(self.spec.seed, first, batch, len(pool))
        return strategies.drawn(pool, ids[self.engine.process_index :: self.engine.num_processes], self.kind, length)

    def _backward(self, rows: Batch, scored: float, share: float) -> Tensor:
        """Add the gradient of one pass, which holds that share of the batch's examples; its part of the mean loss."""
        rows = rows.to(self.engine.device)
        with self.engine.autocast():
            logits, of_mixers = parted(self.model(rows.tokens, rows.mask))
        loss = loss_sum(logits, rows.targets) / scored
        objective = loss if of_mixers is None else loss + of_mixers * share
        # devices average their gradients, and what is wanted is the sum over the batch
        self.engine.backward(objective * self.engine.num_processes)
        self.counts.train_tokens += rows.real_tokens
        self.counts.train_padded_tokens += rows.tokens.numel()
        return loss.detach()

    @torch.no_grad()
    def score(self, split: Split, step: int, units: int | None = None) -> Score:
        """Every example of the split, once. `units`: what the loss is divided by where that is not what is scored."""
        started = time.perf_counter()
        self.plain.eval()
        if self.engine.num_processes > 1:
            broadcast(list(self.plain.buffers()))  # they may have been drawn anew since devices last shared them
        sums = torch.zeros(TALLIES, dtype=torch.float64, device="cpu")
        for part in fill(split.lengths * self.views, self.recipe.micro_tokens):
            mine = part[self.engine.process_index :: self.engine.num_processes]
            if len(mine) == 0:
                continue
            rows = collate(split, mine, self.kind).to(self.engine.device)
            with self.engine.autocast():
                logits = self.plain(rows.tokens, rows.mask)
            sums += tally(logits, rows.targets)
            self.counts.eval_tokens += rows.real_tokens
            self.counts.eval_padded_tokens += rows.tokens.numel()
        found = from_tally(self._summed(sums), self.metric, len(split), step, units)
        self.counts.eval_s += time.perf_counter() - started
        if not math.isfinite(found.loss):
            raise Diverged(f"the loss on unseen examples became {found.loss} at step {step}")
        return found

    def _validate(self, step: int) -> bool | None:
        """Score on validation, and keep the weights if they are the best: whether they are, or None without a split."""
        if not len(self.data.validation):
            return None
        found = self._score_of("validation", step)
        self._log_score("validation", found)
        better = self.best.score is None or self._better(found, self.best.score)
        if better:
            self.best = Best(found, {name: value.cpu().clone() for name, value in self.plain.state_dict().items()})
        return better

    def _score_of(self, name: str, step: int) -> Score:
        return self.score(self.data.splits[name], step, self.data.units.get(name))

    def _log_score(self, name: str, found: Score) -> None:
        values = {"accuracy": found.accuracy, "loss": found.loss, self.metric: found.value(self.metric)}
        self._log({"step": found.step, "split": name, **values})

    def _better(self, one: Score, other: Score) -> bool:
        """By the task's metric; bits and perplexity fall with the loss, which is always finite."""
        return one.accuracy > other.accuracy if self.metric == "accuracy" else one.loss < other.loss

    def _outcome(self) -> Outcome:
        last = self.counts.step
        self.notes += strategies.notes(self.spec, self.progress, last)
        chosen = self.best.score.step if self.best.score else last
        test_last = self._score_of("test", last)
        if chosen != last:
            self.plain.load_state_dict(self.best.weights)
        test = test_last if chosen == last else self._score_of("test", chosen)
        for name, found in (("test", test), ("test_last", test_last)):
            self._log_score(name, found)
        counts = self._counted()
        metrics = Metrics(validation=self.best.score, test=test, test_last=test_last)
        return Outcome(metrics, speed(counts), counts.train_s, counts.eval_s)

    def _counted(self) -> Counts:
        """Tokens of all devices together; times are those of the first."""
        names = ["train_tokens", "train_padded_tokens", "eval_tokens", "eval_padded_tokens"]
        sums = self._summed(torch.tensor([float(getattr(self.counts, name)) for name in names], dtype=torch.float64))
        tokens = {name: int(value) for name, value in zip(names, sums.tolist(), strict=True)}
        return Counts(**{**asdict(self.counts), **tokens})

    def _summed(self, values: Tensor) -> Tensor:
        """The sum over all devices, exact in double precision; mps has none, and is never one of several."""
        if self.engine.num_processes == 1:
            return values
        return self.engine.reduce(values.to(self.engine.device), "sum").cpu()

    def _agreed(self, mine: bool) -> bool:
        """Whether any device says so: all of them have to take the same turn."""
        if self.engine.num_processes == 1:
            return mine
        return bool(self.engine.reduce(torch.tensor(float(mine), device=self.engine.device), "sum"))

    def _log(self, line: dict[str, Any]) -> None:
        if not self.engine.is_main_process:
            return
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(dumps(line) + "\n")
        step, split = line["step"], line.get("split", "train")
        values = {f"{split}/{key}": value for key, value in line.items() if isinstance(value, float)}
        self.engine.log(values, step=step)

    def _save(self) -> None:
        generators = gather_object([checkpoint.generators()])  # each device draws its own numbers
        if not self.engine.is_main_process:
            return
        state = {
            "model": self.plain.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.engine.scaler.state_dict() if self.engine.scaler else None,
            "generators": generators,
            "counts": asdict(self.counts),
            "progress": asdict(self.progress),
            "best_score": self.best.score.model_dump() if self.best.score else None,
            "best_weights": self.best.weights,
        }
        checkpoint.save(self.folder / "checkpoint", self.counts.step, state)

    def _resume(self) -> None:
        state, problem = checkpoint.load(self.folder / "checkpoint")
        self.notes += [problem] if problem else []
        if state is not None:
            self.plain.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.engine.scaler:
                self.engine.scaler.load_state_dict(state["scaler"])
            self._restore_generators(state["generators"])
            self.counts = Counts(**state["counts"])
            self.progress = strategies.Progress(**state["progress"])
            score = state["best_score"]
            self.best = Best(Score(**score) if score else None, state["best_weights"])
        if self.engine.is_main_process:
            keep_until(self.folder / "metrics.jsonl", self.counts.step)

    def _restore_generators(self, states: list[dict[str, Any]]) -> None:
        begun, now = len(states), self.engine.num_processes
        if begun != now:
            self.notes.append(f"begun on {begun} devices, resumed on {now}: what dropout drops differs")
        checkpoint.restore_generators(states[self.engine.process_index % begun])


def keep_until(path: Path, step: int) -> None:
    """Drop the lines of a metrics file that a resumed run will write again, a torn last one included."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    write_atomic(path, "".join(line + "\n" for line in kept))
