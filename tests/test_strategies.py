"""Staged lengths, growing batches, checkpointing, early stopping: each does what it promises and says what it did."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import TOY, Called, changed
from test_predict import spec_for, split
from test_train import finished, gradients, logged, model_for, trainer_for
from torch import nn

from lrbench import catalog, fairness, plan
from lrbench.backends.base import Mixed
from lrbench.errors import SpecError
from lrbench.loaders.base import Example, TaskData
from lrbench.models.encoder import Encoder
from lrbench.records import RunRecord, Score
from lrbench.registry import backends
from lrbench.specs import Grid, RunSpec, TrainSpec
from lrbench.train import strategies
from lrbench.train.batches import IGNORED, batch_ids, collate
from lrbench.train.loop import Trainer
from lrbench.train.scores import loss_sum
from lrbench.train.strategies import Pieces, Progress, Selection

RECIPE = TrainSpec(steps=100, batch=4, lr=1.0)


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


def recipe(**fields: object) -> TrainSpec:
    return TrainSpec(**{**RECIPE.model_dump(), **fields})


def words(count: int = 17, shortest: int = 1, longest: int = 31) -> TaskData:
    """Sequences to be predicted, of which some tokens are given."""
    random = np.random.default_rng(7)

    def part(examples: int) -> Any:
        rows = [random.integers(0, 256, size).tolist() for size in random.integers(shortest, longest + 1, examples)]
        return split(rows, given=[int(random.integers(0, len(row))) for row in rows])

    return TaskData(part(count), part(5), part(5), source="generated", fingerprint="")


def scripted(trainer: Trainer, accuracies: list[float], losses: list[float] | None = None) -> list[int]:
    """Let validation score this, one after the other; the steps at which it does."""
    steps: list[int] = []

    def score(name: str, step: int) -> Score:
        place = len(steps)
        if name == "validation":
            steps.append(step)
        trainer.counts.eval_s += 1.0
        accuracy, loss = (accuracies[place], (losses or accuracies)[place]) if name == "validation" else (0.5, 1.0)
        return Score(accuracy=accuracy, loss=loss, correct=1, examples=2, step=step, bits_per_byte=1.0)

    trainer._score_of = score  # type: ignore[method-assign]
    return steps


class TestPieces:
    @pytest.mark.parametrize("length", [1, 3, 7, 31, 40])
    def test_a_batch_in_pieces_has_the_tokens_and_targets_of_the_whole(self, length: int) -> None:
        rows, ids = words().train, np.array([3, 0, 16, 8])
        cut = Pieces(rows, ids, length)
        assert cut.lengths.max() <= length and (cut.lengths == [len(cut[i].views[0]) for i in range(len(cut))]).all()
        assert [cut[place].label for place in range(len(cut))] == cut.labels.tolist()
        whole, pieces = collate(rows, ids, "predict"), collate(cut, range(len(cut)), "predict")
        assert (pieces.real_tokens, pieces.scored) == (whole.real_tokens, whole.scored)
        for batch in (whole, pieces):
            assert batch.mask is None or (batch.targets[~batch.mask] == IGNORED).all()
        read, wanted = ([self.flat(batch, which) for batch in (whole, pieces)] for which in ("tokens", "targets"))
        assert read[0] == read[1] and wanted[0] == wanted[1]
        assert IGNORED in wanted[0] and wanted[0] != read[0]  # some are given, and are not scored in pieces either

    @staticmethod
    def flat(batch: Any, which: str) -> list[int]:
        """All real positions, one row after the other."""
        values = getattr(batch, which)
        return (values if batch.mask is None else values[batch.mask]).flatten().tolist()

    def test_what_is_asked_from_both_sides_is_cut_with_its_targets(self) -> None:
        rows = split([[5, 6, 7, 8, 9], [1, 2]], targets=[[-1, 4, -1, -1, 3], [0, -1]])
        cut = Pieces(rows, np.array([0, 1]), 2)
        found = [[view.tolist() for view in cut[place].views] for place in range(len(cut))]
        assert found == [[[5, 6], [-1, 4]], [[7, 8], [-1, -1]], [[9], [3]], [[1, 2], [0, -1]]]

    def test_an_empty_example_is_one_empty_piece(self) -> None:
        (piece,) = strategies.pieces(Example((np.array([], np.int64),), 0), 4)
        assert len(piece.views[0]) == piece.label == 0

    def test_the_place_of_given_tokens_is_told_anew(self) -> None:
        found = strategies.pieces(Example((np.arange(10),), 5), 3)
        assert [(piece.views[0].tolist(), piece.label) for piece in found] == [
            ([0, 1, 2], 3),
            ([3, 4, 5], 2),
            ([6, 7, 8], 0),
            ([9], 0),
        ]

    @pytest.mark.parametrize("kind", ["classify", "match", "answer"])
    def test_of_what_cannot_be_cut_only_short_examples_are_drawn(self, kind: Any) -> None:
        rows = words().train
        length = int(np.sort(rows.lengths)[8])  # one has exactly that many
        pool = strategies.pool(rows, kind, length)
        short = [index for index in range(len(rows)) if rows.lengths[index] <= length]
        assert 8 < len(short) < len(rows) and len(pool) == len(short)
        assert pool.lengths.tolist() == rows.lengths[short].tolist() and max(pool.lengths) == length
        assert pool.labels.tolist() == rows.labels[short].tolist()
        for place, index in enumerate(short):
            assert (pool[place].views[0] == rows[index].views[0]).all()
        drawn = strategies.drawn(pool, np.array([2, 0]), kind, length)
        assert [drawn[0].label, drawn[1].label] == [pool.labels[2], pool.labels[0]]
        assert strategies.pool(rows, kind, None) is rows

    @pytest.mark.parametrize("kind", ["predict", "fill"])
    def test_what_can_be_cut_is_drawn_whole(self, kind: Any) -> None:
        rows = words().train
        assert strategies.pool(rows, kind, 12) is rows
        assert isinstance(strategies.drawn(rows, np.array([1]), kind, 12), Pieces)
        assert isinstance(strategies.drawn(rows, np.array([1]), kind, None), Selection)


class TestStages:
    STAGES = [{"length": 4, "steps": 3}, {"length": 9, "steps": 2}]

    def spec(self, **fields: object) -> RunSpec:
        return spec_for(**{"train.steps": 8, "train.batch": 5, "train.eval_every": 4, **fields})

    def updates(self, spec: RunSpec, data: TaskData, folder: Path) -> Iterator[tuple[int, list[int], int]]:
        """Of each update its tokens, their multiset and the longest row, as the model sees them."""
        torch.manual_seed(0)
        trainer = trainer_for(spec, data, folder)
        seen: list[tuple[int, list[int], int]] = []
        backward = trainer._backward

        def looked_at(rows: Any, scored: float, share: float) -> torch.Tensor:
            real = rows.tokens if rows.mask is None else rows.tokens[rows.mask]
            seen.append((rows.real_tokens, real.flatten().tolist(), rows.tokens.shape[1]))
            return backward(rows, scored, share)

        trainer._backward = looked_at  # type: ignore[method-assign]
        while trainer.counts.step < spec.train.steps:
            seen.clear()
            trainer._step(trainer.counts.step + 1)
            yield sum(each[0] for each in seen), sorted(sum((each[1] for each in seen), [])), max(e[2] for e in seen)

    def test_an_update_has_the_tokens_that_it_has_without_stages(self, tmp_path: Path) -> None:
        data = words(shortest=20)
        plain = list(self.updates(self.spec(), data, tmp_path / "plain"))
        staged = list(self.updates(self.spec(**{"train.stages": self.STAGES}), data, tmp_path / "staged"))
        assert [each[:2] for each in plain] == [each[:2] for each in staged]
        assert [each[2] for each in staged[:5]] == [4, 4, 4, 9, 9]
        assert [each[2] for each in staged[5:]] == [each[2] for each in plain[5:]] and min(e[2] for e in plain) >= 20

    def test_each_line_says_the_length_and_the_record_when_it_ended(self, tmp_path: Path) -> None:
        _, trainer = finished(self.spec(**{"train.stages": self.STAGES}), words(), tmp_path)
        lines = [line for line in logged(tmp_path) if "lr" in line]
        assert [line["length"] for line in lines] == [4] * 3 + [9] * 2 + [64] * 3
        assert {line["batch"] for line in lines} == {5}
        assert trainer.notes == [
            "trained on pieces of 4 tokens until step 3",
            "trained on pieces of 9 tokens until step 5",
        ]

    def test_without_strategies_lines_and_notes_are_as_before(self, tmp_path: Path) -> None:
        _, trainer = finished(self.spec(), words(), tmp_path)
        assert all(line.keys() == {"step", "loss", "lr"} for line in logged(tmp_path) if "lr" in line)
        assert trainer.notes == []

    def test_only_short_examples_train_a_classifier_and_all_of_them_evaluate(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
    ) -> None:
        spec = changed(toy_spec, train={"stages": [{"length": 5, "steps": 4}]})
        longest = [each[2] for each in self.updates(spec, toy_data, tmp_path / "a")]
        assert max(longest[:4]) <= 5 < min(longest[4:])
        outcome, trainer = finished(spec, toy_data, tmp_path / "b")
        assert outcome.metrics.test.examples == len(toy_data.test) and toy_data.test.lengths.max() == 13
        assert trainer.notes == ["trained on examples of at most 5 tokens until step 4"]

    def test_a_stage_may_take_all_steps(self, tmp_path: Path) -> None:
        spec = self.spec(**{"train.stages": [{"length": 4, "steps": 8}, {"length": 9, "patience": 1}]})
        assert {each[2] for each in self.updates(spec, words(shortest=20), tmp_path / "a")} == {4}
        _, trainer = finished(spec, words(), tmp_path / "b")
        assert trainer.notes == ["trained on pieces of 4 tokens until step 8"]

    def test_evaluation_is_at_full_length(self, tmp_path: Path) -> None:
        data = words(shortest=20)
        trainer = trainer_for(self.spec(**{"train.stages": self.STAGES}), data, tmp_path)
        trainer._step(1)
        trainer.score(data.validation, 1)
        assert trainer.counts.eval_tokens == data.validation.lengths.sum()

    def test_a_plateau_ends_a_stage_at_the_right_evaluation(self, tmp_path: Path) -> None:
        stages = [{"length": 4, "patience": 2}, {"length": 9, "patience": 1}]
        spec = self.spec(**{"train.stages": stages, "train.steps": 18, "train.eval_every": 2})
        spec = spec.model_copy(update={"task": spec.task.model_copy(update={"metric": catalog.task("listops").metric})})
        trainer = trainer_for(spec, words(), tmp_path)
        # at         2    4    6    8    10 (two in a row)   12   14 (one)   16   18
        scripted(trainer, [0.2, 0.1, 0.3, 0.3, 0.1, 0.4, 0.4, 0.5, 0.1])
        assert trainer.fit() is not None
        lengths = {line["step"]: line["length"] for line in logged(tmp_path) if "lr" in line}
        assert [lengths[step] for step in (1, 10, 11, 14, 15, 18)] == [4, 4, 9, 9, 64, 64]
        assert trainer.progress == Progress((10, 14), 1)
        assert trainer.notes == [
            "trained on pieces of 4 tokens until step 10",
            "trained on pieces of 9 tokens until step 14",
        ]

    def test_a_plateau_that_never_comes_is_said(self, tmp_path: Path) -> None:
        stages = [{"length": 4, "patience": 9}, {"length": 9, "patience": 1}]
        _, trainer = finished(self.spec(**{"train.stages": stages}), words(), tmp_path)
        assert trainer.notes == ["trained on pieces of 4 tokens until step 8"]

    def test_a_stage_without_examples_names_the_shortest(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
    ) -> None:
        shortest = toy_data.train.lengths.min()
        for length in (shortest, shortest - 1):
            spec = changed(toy_spec, train={"stages": [{"length": length, "steps": 4}]})
            if length == shortest:
                trainer_for(spec, toy_data, tmp_path)
                continue
            with pytest.raises(SpecError, match=f"^train.stages: no example has {length} .* shortest has {shortest}$"):
                trainer_for(spec, toy_data, tmp_path)
        trainer_for(self.spec(**{"train.stages": [{"length": 1, "steps": 4}]}), words(shortest=5), tmp_path)


class TestGrowth:
    GROWN = [{"step": 3, "batch": 11}, {"step": 6, "batch": 2}]

    def test_the_batch_grows_at_the_step_that_was_given(self) -> None:
        grown = recipe(growth=self.GROWN)
        assert [strategies.batch_of(grown, step) for step in range(1, 8)] == [4, 4, 11, 11, 11, 2, 2]

    def test_examples_before_an_update_are_those_of_all_earlier_ones(self) -> None:
        grown = recipe(growth=self.GROWN)
        for step in range(1, 101):
            assert strategies.examples_before(grown, step) == sum(strategies.batch_of(grown, s) for s in range(1, step))

    def test_examples_are_walked_without_repetition_or_omission(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
    ) -> None:
        spec = changed(toy_spec, train={"growth": [{"step": 4, "batch": 13}, {"step": 9, "batch": 31}]})
        trainer = trainer_for(spec, toy_data, tmp_path)
        walked = np.concatenate([trainer._drawn(step)._ids for step in range(1, 13)])
        assert len(walked) == 3 * 7 + 5 * 13 + 4 * 31 == 210
        assert sorted(walked[:103]) == sorted(walked[103:206]) == list(range(103))
        assert (walked == batch_ids(spec.seed, 0, 210, 103)).all()

    def test_an_update_is_over_the_grown_batch(self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
        """Its gradient is that of a run whose every batch is as large, at the same place of the row."""
        grown = changed(toy_spec, train={"growth": [{"step": 1, "batch": 20}]})
        one = gradients(grown, toy_data, tmp_path / "a", 10**6)
        other = gradients(changed(toy_spec, train={"batch": 20}), toy_data, tmp_path / "b", 10**6)
        small = gradients(toy_spec, toy_data, tmp_path / "c", 10**6)
        assert all(torch.equal(value, other[key]) for key, value in one.items())
        assert not all(torch.equal(value, small[key]) for key, value in one.items())

    def test_lines_and_notes_say_so(self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
        _, trainer = finished(changed(toy_spec, train={"growth": self.GROWN}), toy_data, tmp_path)
        lines = [line for line in logged(tmp_path) if "lr" in line]
        assert [line["batch"] for line in lines] == [7, 7, 11, 11, 11, *[2] * 7]
        assert {line["length"] for line in lines} == {13}
        assert trainer.notes == ["updates of 11 examples from step 3", "updates of 2 examples from step 6"]


class Costly(nn.Module):
    """A block with a loss of its own: of each row a mean over its real tokens, then the mean over rows."""

    def __init__(self, inner: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.dropout = inner, dropout

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> Mixed:
        y = self.inner(x, mask=mask)
        real = torch.ones_like(y[..., :1]) if mask is None else mask[..., None].to(y)
        squares = nn.functional.dropout(y, self.dropout).square() * real
        return Mixed(y, (squares.sum((1, 2)) / real.sum((1, 2)).clamp(min=1)).mean())


def costly(spec: RunSpec, dropout: float = 0.0) -> nn.Module:
    """The model of a run with such blocks."""
    model = model_for(spec)
    model.encoder.blocks = nn.ModuleList(Costly(block, dropout) for block in model.encoder.blocks)
    return model


class TestAccumulation:
    @pytest.mark.parametrize("own_loss", [False, True])
    def test_an_update_does_not_depend_on_how_it_is_cut_into_passes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_loss: bool
    ) -> None:
        """In pieces and with a grown batch."""
        strategies_on = {"train.stages": [{"length": 17, "steps": 2}], "train.growth": [{"step": 1, "batch": 11}]}
        if own_loss:
            monkeypatch.setattr("test_train.model_for", costly)
        spec, data = spec_for(**strategies_on), words()
        whole, parts = (gradients(spec, data, tmp_path / str(size), size) for size in (10**6, 40))
        assert whole.pop("passes") < parts.pop("passes") - 3
        assert whole.keys() == parts.keys()
        for key, gradient in whole.items():
            assert torch.allclose(gradient, parts[key], rtol=0, atol=1e-10), key

    def test_a_loss_of_the_blocks_own_is_a_mean_over_pieces(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("test_train.model_for", costly)
        spec, data = spec_for(**{"train.stages": [{"length": 5, "steps": 2}], "train.batch": 11}), words()
        found = gradients(spec, data, tmp_path, 40)
        model = costly(spec).double()
        cut = Pieces(data.train, batch_ids(spec.seed, 0, 11, len(data.train)), 5)
        scored = collate(cut, range(len(cut)), "predict").scored
        for row in range(len(cut)):
            alone = collate(cut, [row], "predict")
            logits, loss = model(alone.tokens, alone.mask)
            (loss_sum(logits, alone.targets) / scored + loss / len(cut)).backward()
        for name, parameter in model.named_parameters():
            assert torch.allclose(found[name], parameter.grad, rtol=0, atol=1e-10), name


class TestCheckpointing:
    def spec(self, toy_spec: RunSpec, name: str, checkpointing: bool) -> RunSpec:
        spec = toy_spec.model_copy(update={"attention": backends.spec(name)})
        return changed(
            spec, model={"dropout": 0.3, "attention_dropout": 0.2}, train={"checkpointing": checkpointing, "steps": 4}
        )

    @pytest.mark.parametrize("name", backends.shipped())
    def test_losses_and_weights_are_the_same_to_the_last_digit(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path, name: str
    ) -> None:
        runs = [
            finished(self.spec(toy_spec, name, on), toy_data, tmp_path / str(on))[1].plain.state_dict()
            for on in (False, True)
        ]
        assert logged(tmp_path / "False") == logged(tmp_path / "True")
        assert all(torch.equal(value, runs[1][key]) for key, value in runs[0].items())

    def test_a_block_is_computed_twice_and_only_while_training(self, toy_spec: RunSpec, toy_data: TaskData) -> None:
        model = model_for(toy_spec)
        model.encoder.checkpointing = True
        calls: list[int] = []
        model.encoder.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
        batch = collate(toy_data.train, range(5))
        model(batch.tokens, batch.mask).sum().backward()
        assert len(calls) == 2
        model.eval()(batch.tokens, batch.mask).sum().backward()
        assert len(calls) == 3

    @pytest.mark.parametrize("layers", [2, 5])
    def test_fewer_bytes_are_kept_for_the_backward_pass(
        self, toy_spec: RunSpec, toy_data: TaskData, layers: int
    ) -> None:
        """Of each layer its input alone: [rows seq dim] floats, and the mask's reference."""
        plain, kept = (self.saved(changed(toy_spec, model={"layers": layers}), toy_data, on) for on in (False, True))
        assert kept < plain / 2
        more = self.saved(changed(toy_spec, model={"layers": layers + 1}), toy_data, True)
        rows = collate(toy_data.train, range(5)).tokens
        assert more - kept == 4 * rows.shape[0] * (rows.shape[1] + 1) * toy_spec.model.dim

    @staticmethod
    def saved(spec: RunSpec, data: TaskData, checkpointing: bool) -> int:
        """Bytes of different storages that a forward pass keeps, weights apart."""
        model = model_for(spec)
        model.encoder.checkpointing = checkpointing
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        kept: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        batch = collate(data.train, range(5))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(batch.tokens, batch.mask)
        return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in weights)

    def test_a_loss_of_the_blocks_own_comes_through(self, toy_spec: RunSpec, toy_data: TaskData) -> None:
        def graded(checkpointing: bool) -> list[torch.Tensor]:
            model = costly(changed(toy_spec, model={"dropout": 0.3}), dropout=0.4)
            model.encoder.checkpointing = checkpointing
            torch.manual_seed(3)
            batch = collate(toy_data.train, range(5))
            logits, loss = model(batch.tokens, batch.mask)
            (logits.sum() + loss).backward()
            return [logits, loss, *(parameter.grad for parameter in model.encoder.parameters())]

        assert all(torch.equal(one, other) for one, other in zip(graded(False), graded(True), strict=True))

    def test_the_recipe_decides(self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
        for on in (False, True):
            trainer = trainer_for(changed(toy_spec, train={"checkpointing": on}), toy_data, tmp_path)
            (encoder,) = (module for module in trainer.plain.modules() if isinstance(module, Encoder))
            assert encoder.checkpointing is on


class TestEarlyStopping:
    def trainer(self, toy_spec: RunSpec, data: TaskData, folder: Path, **fields: object) -> Trainer:
        return trainer_for(changed(toy_spec, train={"steps": 30, "eval_every": 3, **fields}), data, folder)

    def test_it_stops_at_the_right_evaluation_and_keeps_the_best(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
    ) -> None:
        trainer = self.trainer(toy_spec, toy_data, tmp_path, patience=3)
        # better at 3, 6 and 15; then three in a row are not, the last of them as good
        steps = scripted(trainer, [0.1, 0.3, 0.2, 0.3, 0.4, 0.1, 0.2, 0.4, 0.9])
        outcome = trainer.fit()
        assert outcome is not None and steps == [3, 6, 9, 12, 15, 18, 21, 24]
        assert outcome.metrics.validation.step == outcome.metrics.test.step == 15
        assert outcome.metrics.test_last.step == trainer.counts.step == 24
        assert trainer.notes == ["stopped at step 24 of 30: no better score in 3 evaluations"]
        assert outcome.speed.train_steps_per_s == pytest.approx(24 / outcome.train_s)

    def test_what_stops_at_the_last_step_was_not_stopped(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
    ) -> None:
        trainer = self.trainer(toy_spec, toy_data, tmp_path, patience=1, steps=6)
        scripted(trainer, [0.3, 0.1])
        assert trainer.fit() is not None and trainer.notes == []

    def test_without_patience_nothing_stops(self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
        trainer = self.trainer(toy_spec, toy_data, tmp_path)
        scripted(trainer, [0.3] * 10)
        assert trainer.fit() is not None and trainer.counts.step == 30

    def test_what_is_better_is_said_by_the_tasks_metric(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
    ) -> None:
        """Of bits the loss counts, which falls here while accuracy does not rise."""
        bits = toy_spec.task.metric.model_copy(update={"name": "bits_per_byte"})
        spec = toy_spec.model_copy(update={"task": toy_spec.task.model_copy(update={"metric": bits})})
        trainer = self.trainer(spec, toy_data, tmp_path, patience=1, steps=9)
        scripted(trainer, [0.5, 0.5, 0.5], losses=[0.9, 0.8, 0.7])
        assert trainer.fit() is not None and trainer.counts.step == 9

    def test_evaluations_are_counted_anew_at_each_length(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
    ) -> None:
        """A plateau of a stage with a patience ends the stage, not the training."""
        stages = [{"length": 6, "patience": 2}]
        trainer = self.trainer(toy_spec, toy_data, tmp_path, patience=3, stages=stages)
        steps = scripted(trainer, [0.5, 0.4, 0.4, 0.4, 0.4, 0.4, 0.9])
        assert trainer.fit() is not None and steps == [3, 6, 9, 12, 15, 18]
        assert trainer.notes == [
            "trained on examples of at most 6 tokens until step 9",
            "stopped at step 18 of 30: no better score in 3 evaluations",
        ]

    def test_it_stops_in_a_stage_of_so_many_steps_too(
        self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
    ) -> None:
        trainer = self.trainer(toy_spec, toy_data, tmp_path, patience=1, stages=[{"length": 6, "steps": 30}])
        scripted(trainer, [0.5, 0.5])
        assert trainer.fit() is not None and trainer.counts.step == 6

    def test_data_without_validation_are_refused(self, toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
        blind = dataclasses.replace(toy_data, validation=Selection(toy_data.validation, np.array([], np.int64)))
        for fields, named in (
            ({"patience": 3}, "train.patience"),
            ({"stages": [{"length": 5, "steps": 1}, {"length": 6, "patience": 3}]}, "train.stages.1.patience"),
        ):
            with pytest.raises(SpecError, match=f"^{named}: there is no validation split"):
                self.trainer(toy_spec, blind, tmp_path, **fields)
        self.trainer(toy_spec, blind, tmp_path, stages=[{"length": 5, "steps": 1}])


RESUMED = {
    "plateau": {"stages": [{"length": 5, "patience": 1}, {"length": 8, "steps": 3}]},
    "stop": {"patience": 2, "stages": [{"length": 7, "steps": 5}]},
    "growth": {"growth": [{"step": 3, "batch": 11}, {"step": 8, "batch": 17}]},
    "all": {
        "stages": [{"length": 6, "steps": 2}, {"length": 9, "patience": 1}],
        "growth": [{"step": 4, "batch": 10}],
        "checkpointing": True,
        "patience": 2,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Of each set of strategies the run that was never cut off; they are the same for every cut."""
    return {}


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 6, 7, 9])
@pytest.mark.parametrize("which", RESUMED)
def test_a_run_cut_off_at_any_step_goes_on_bit_for_bit(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path, undisturbed: dict[str, Any], which: str, stop_at: int
) -> None:
    spec = changed(toy_spec, model={"dropout": 0.3}, train={"eval_every": 2, "steps": 14, **RESUMED[which]})
    if which not in undisturbed:
        outcome, trainer = finished(spec, toy_data, tmp_path / "whole")
        undisturbed[which] = outcome.metrics, logged(tmp_path / "whole"), trainer
    metrics, lines, trained = undisturbed[which]
    assert lines[-1]["step"] > 11 or trained.counts.step < 14
    AcceleratorState._reset_state(reset_partial_state=True)
    first = trainer_for(spec, toy_data, tmp_path / "parts")
    if first.fit(stop=lambda: first.counts.step == stop_at) is not None:
        assert trained.counts.step <= stop_at
        return
    torch.manual_seed(99)
    resumed, again = finished(spec, toy_data, tmp_path / "parts")
    assert resumed.metrics == metrics and logged(tmp_path / "parts") == lines
    assert again.notes == trained.notes and again.progress == trained.progress
    weights = trained.plain.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in again.plain.state_dict().items())


class TestCost:
    def cost(self, task: str = "copy", **sets: object) -> plan.Cost:
        return plan.cost(spec_for(task=task, **{"train.steps": 10, "train.batch": 6, **sets}))

    def test_tokens_of_a_growing_batch_are_counted(self) -> None:
        assert self.cost().train_tokens == 10 * 6 * 64
        grown = self.cost(**{"train.growth": [{"step": 4, "batch": 16}]})
        assert grown.train_tokens == (3 * 6 + 7 * 16) * 64
        assert grown.flops == pytest.approx(self.cost().flops * (3 * 6 + 7 * 16) / 60)

    def test_pieces_keep_the_tokens_and_save_pairs(self) -> None:
        whole, staged = self.cost(), self.cost(**{"train.stages": [{"length": 8, "steps": 10}]})
        assert staged.train_tokens == whole.train_tokens
        model = spec_for().model
        pairs = 12 * model.layers * model.dim * whole.train_tokens
        assert whole.flops - staged.flops == pytest.approx(pairs * (64 - 8))

    def test_short_examples_are_fewer_tokens(self) -> None:
        growing = {"train.growth": [{"step": 4, "batch": 16}], "train.stages": [{"length": 20, "steps": 5}]}
        found = self.cost("listops", **growing)
        assert found.train_tokens == (3 * 6 + 2 * 16) * 20 + 5 * 16 * 64

    def test_what_waits_for_a_plateau_is_bounded_by_the_full_length(self) -> None:
        stages = [{"length": 8, "steps": 2}, {"length": 9, "patience": 1}, {"length": 10, "steps": 5}]
        assert self.cost("listops", **{"train.stages": stages}).train_tokens == 2 * 6 * 8 + 8 * 6 * 64

    def test_checkpointing_takes_another_forward_pass_and_less_memory(self) -> None:
        plain, kept = (self.cost(**{"train.checkpointing": on, "model.layers": 6}) for on in (False, True))
        assert kept.flops == pytest.approx(plain.flops * 4 / 3) and kept.train_tokens == plain.train_tokens
        assert kept.memory_bytes < plain.memory_bytes


class TestProtocol:
    def record(self, **train: object) -> RunRecord:
        spec = spec_for().model_dump(mode="json")
        spec["train"] = {key: value for key, value in {**spec["train"], **train}.items() if value != "absent"}
        return RunRecord(
            run_id="an-id",
            status="error",
            model={"name": "full", "settings": {}, "source": "lrbench"},
            task={"name": "copy", "card_version": 1},
            preset="tiny",
            seed=0,
            time={"started_at": "", "finished_at": ""},
            environment={},
            spec=spec,
            lrbench_version="0",
        )

    def test_a_record_from_before_is_of_the_same_protocol(self) -> None:
        older = dict.fromkeys(["stages", "growth", "patience", "checkpointing"], "absent")
        assert fairness.protocol(self.record(**older)) == fairness.protocol(self.record())

    @pytest.mark.parametrize(
        ("field", "value"),
        [("stages", [{"length": 9, "steps": 1}]), ("growth", [{"step": 2, "batch": 9}]), ("patience", 3)],
    )
    def test_a_strategy_is_a_protocol_of_its_own(self, field: str, value: object) -> None:
        found = fairness.protocol(self.record(**{field: value}))
        assert found != fairness.protocol(self.record()) and found[f"train.{field}"] == value

    @pytest.mark.parametrize(("field", "value"), [("checkpointing", True), ("micro_tokens", 99)])
    def test_what_changes_no_result_is_no_part_of_it_and_no_deviation(self, field: str, value: object) -> None:
        assert fairness.protocol(self.record(**{field: value})) == fairness.protocol(self.record())
        grid = Grid(models=["full"], tasks=["copy"], preset="tiny", set={f"train.{field}": value})
        assert plan.cells(grid, Path("out"))[0].deviations == []

    def test_a_strategy_deviates_from_the_card(self) -> None:
        grid = Grid(models=["full"], tasks=["copy"], preset="tiny", set={"train.patience": 3})
        assert plan.cells(grid, Path("out"))[0].deviations == ["train.patience is 3, the card says None"]


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (["train.stages=[{length: 8}]"], "train.stages.0: a stage ends after steps or by patience"),
        (["train.stages=[{length: 8, steps: 2, patience: 2}]"], "train.stages.0: a stage ends after steps"),
        (["train.stages=[{length: 0, steps: 2}]"], "train.stages.0.length: should be greater"),
        (["train.stages=[{lenght: 8, steps: 2}]"], "train.stages.0.lenght: unknown field"),
        (["train.stages=8"], "train.stages: should be a valid list"),
        (["train.stages=[{length: 13, steps: 2}]"], "train.stages: a stage of 13 tokens is not shorter"),
        (
            ["train.stages=[{length: 8, steps: 2}, {length: 8, steps: 2}]"],
            "train.stages: each stage is longer than the one before, and these have [8, 8] tokens",
        ),
        (
            ["train.stages=[{length: 8, steps: 7}, {length: 9, steps: 6}]"],
            "train.stages: stages of 13 steps do not fit in train.steps 12",
        ),
        (["train.growth=[{step: 13, batch: 9}]"], "train.growth: step 13 is never reached in train.steps 12"),
        (
            ["train.growth=[{step: 3, batch: 9}, {step: 3, batch: 10}]"],
            "train.growth: each step is later than the one before, and these are [3, 3]",
        ),
        (["train.growth=[{step: 3}]"], "train.growth.0.batch: missing"),
        (["train.patience=0"], "train.patience: should be greater"),
        (["train.patience=1", "data.examples=[9, 0, 9]"], "train.patience: there is no validation split"),
        (["train.checkpointing=perhaps"], "train.checkpointing: should be a valid boolean"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_field(call: Callable[..., Called], sets: list[str], named: str) -> None:
    words = [word for each in sets for word in ("--set", each)]
    code, _, err = call("run", "-m", "full", "-t", TOY, "--preset", "tiny", *words)
    assert code == 2 and named in " ".join(err.split()) and "Traceback" not in err


def test_strategies_are_taken_from_the_command_line_and_kept_in_the_record(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    sets = ["train.stages=[{length: 6, steps: 4}]", "train.growth=[{step: 3, batch: 9}]", "train.patience=9"]
    words = [word for each in sets for word in ("--set", each)]
    run = ("run", "--device", "cpu", "--json", "--out", tmp_path / "out")
    code, out, err = call(*run, "-m", "full", "-t", TOY, "--preset", "tiny", *words)
    assert code == 0, err
    (record,) = json.loads(out)
    assert record["spec"]["train"]["stages"] == [{"length": 6, "steps": 4, "patience": None}]
    assert "trained on examples of at most 6 tokens until step 4" in record["notes"]
    (config,) = (tmp_path / "out").rglob("config.yaml")
    code, out, err = call(*run, "--suite", config)
    assert code == 0 and json.loads(out)[0]["run_id"] == record["run_id"], err
