"""Batches, schedules, the loop and its checkpoints: what a protocol has to hold."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import changed
from torch import Tensor, nn

from lrbench import fairness
from lrbench.backends.positions import sinusoids
from lrbench.errors import Missing
from lrbench.loaders.base import Split, TaskData
from lrbench.models import heads
from lrbench.models.encoder import Encoder, masked_mean
from lrbench.registry import backends
from lrbench.specs import RunSpec, TrainSpec
from lrbench.train import checkpoint, devices
from lrbench.train.batches import batch_ids, collate, cut, fill
from lrbench.train.loop import Diverged, Outcome, Trainer, accelerator
from lrbench.train.schedules import learning_rate, warnings

RECIPE = TrainSpec(steps=100, batch=4, lr=1.0)


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> None:
    """A process trains one cell; a test process trains many."""
    AcceleratorState._reset_state(reset_partial_state=True)


def model_for(spec: RunSpec, seed: int = 0) -> heads.Classifier:
    torch.manual_seed(seed)
    return heads.build(backends.load(spec.attention), spec.task, spec.model, spec.data.length)


def trainer_for(spec: RunSpec, data: TaskData, folder: Path, model: nn.Module | None = None, **more: float) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    return Trainer(model or model_for(spec), data, spec, folder, accelerator(spec), **more)


def logged(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# batches


def test_an_epoch_is_a_permutation_and_the_next_another() -> None:
    places = np.concatenate([batch_ids(seed=3, first=first, batch=7, examples=103) for first in range(0, 210, 7)])
    first, second = places[:103], places[103:206]
    assert sorted(first) == sorted(second) == list(range(103))
    assert (first != second).any()
    assert (batch_ids(4, 0, 7, 103) != first[:7]).any()


def test_who_meets_in_a_batch_is_near_chance() -> None:
    together = Counter()
    for first in range(0, 16000, 8):
        ids = batch_ids(seed=0, first=first, batch=8, examples=64)
        together.update((int(a), int(b)) for a in ids for b in ids if a < b)
    pairs = 64 * 63 // 2
    assert len(together) == pairs  # nobody is kept apart
    assert max(together.values()) < 3 * sum(together.values()) / pairs


def test_a_cut_is_a_partition_within_the_limit_and_pads_less() -> None:
    lengths = np.random.Generator(np.random.Philox(0)).integers(1, 500, 61)
    passes = cut(lengths, max_tokens=4000)
    assert sorted(np.concatenate(passes)) == list(range(61))
    padded = [len(part) * lengths[part].max() for part in passes]
    assert max(padded) <= 4000
    assert sum(padded) + 512 * len(passes) < 61 * lengths.max()


def test_the_cut_is_the_cheapest_there_is() -> None:
    """Against every way of cutting seven sorted lengths."""
    lengths = np.array([3, 4, 9, 10, 30, 31, 60])

    def price(ends: list[int]) -> int:
        starts = [0, *ends]
        return sum((b - a) * int(lengths[b - 1]) + 20 for a, b in zip(starts, [*ends, 7], strict=True))

    every = [[end for end in range(1, 7) if chosen >> (end - 1) & 1] for chosen in range(64)]
    passes = cut(lengths, max_tokens=10**6, pass_cost=20)
    assert sum(len(p) * int(lengths[p].max()) + 20 for p in passes) == min(map(price, every))


def test_a_single_example_above_the_limit_still_goes_through() -> None:
    assert [part.tolist() for part in cut(np.array([900, 10]), max_tokens=100)] == [[0], [1]]
    assert [part.tolist() for part in fill(np.array([900, 10]), max_tokens=100)] == [[0], [1]]


def test_filling_takes_every_example_once_within_the_limit() -> None:
    lengths = np.random.Generator(np.random.Philox(1)).integers(1, 90, 211)
    passes = fill(lengths, max_tokens=512)
    assert sorted(np.concatenate(passes)) == list(range(211))
    assert max(len(part) * lengths[part].max() for part in passes) <= 512


def test_a_batch_without_padding_has_no_mask(toy_data: TaskData) -> None:
    lengths = toy_data.train.lengths
    alike = np.flatnonzero(lengths == lengths[0])
    assert collate(toy_data.train, alike).mask is None
    batch = collate(toy_data.train, [int(lengths.argmin()), int(lengths.argmax())])
    assert batch.mask is not None and batch.mask.sum() == batch.real_tokens == lengths.min() + lengths.max()
    assert (batch.tokens[~batch.mask] == 0).all()


# schedules


@pytest.mark.parametrize(
    ("recipe", "step", "rate"),
    [
        ({"schedule": "rsqrt", "lr": 0.05, "warmup_steps": 1000, "steps": 5000}, 1000, 1.581e-3),
        ({"schedule": "rsqrt", "lr": 0.05, "warmup_steps": 1000, "steps": 5000}, 5000, 7.071e-4),
        ({"schedule": "rsqrt", "lr": 0.05, "warmup_steps": 8000, "steps": 20000}, 8000, 5.590e-4),
        ({"schedule": "rsqrt", "lr": 0.05, "warmup_steps": 8000, "steps": 20000}, 20000, 3.536e-4),
        ({"schedule": "rsqrt", "lr": 0.05, "warmup_steps": 8000, "steps": 5000}, 5000, 3.494e-4),
        ({"schedule": "cosine", "lr": 5e-4, "warmup_steps": 175, "steps": 35000}, 175, 5e-4),
        ({"schedule": "cosine", "lr": 5e-4, "warmup_steps": 175, "steps": 35000}, 35000, 5e-4 * 6.17e-5),
        ({"schedule": "linear", "lr": 1.0, "warmup_steps": 10, "steps": 110}, 5, 0.5),
        ({"schedule": "linear", "lr": 1.0, "warmup_steps": 10, "steps": 110}, 10, 1.0),
        ({"schedule": "linear", "lr": 1.0, "warmup_steps": 0, "steps": 100}, 100, 0.01),
        ({"schedule": "constant", "lr": 0.3, "warmup_steps": 2, "steps": 9}, 9, 0.3),
    ],
)
def test_the_rate_is_the_published_one(recipe: dict[str, float], step: int, rate: float) -> None:
    assert learning_rate(TrainSpec(batch=1, **recipe), step) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "rsqrt"])
def test_the_rate_rises_to_its_peak_at_the_end_of_the_warm_up_and_stays_positive(schedule: str) -> None:
    recipe = RECIPE.model_copy(update={"schedule": schedule, "warmup_steps": 20})
    rates = [learning_rate(recipe, step) for step in range(1, 101)]
    assert all(a < b for a, b in zip(rates[:19], rates[1:20], strict=True))
    assert max(rates) == rates[19] and min(rates) > 0


def test_a_warm_up_that_never_ends_is_said() -> None:
    assert warnings(RECIPE) == []
    assert "never ends" in warnings(RECIPE.model_copy(update={"warmup_steps": 100}))[0]


# the model


@pytest.mark.parametrize("preset", ["paper"])
def test_the_published_model_has_the_published_number_of_parameters(preset: str) -> None:
    from lrbench import catalog

    card = catalog.task("listops")
    chosen = card.presets[preset]
    model = heads.build(backends.get("full"), card.facts(), chosen.model, chosen.data.length)
    counted = heads.count(model)
    assert counted.total == counted.trainable == 8_948_746
    assert counted.embedding == 17 * 512 and counted.positional == 0
    assert counted.non_embedding == counted.total - counted.embedding


def test_sinusoids_are_the_published_ones() -> None:
    table = sinusoids(torch.arange(11), 7)
    assert table.shape == (11, 7)
    assert table[3, 2] == pytest.approx(np.sin(3 / 10000 ** (2 / 7)), abs=1e-6)
    assert table[3, 3] == pytest.approx(np.cos(3 / 10000 ** (2 / 7)), abs=1e-6)


def test_learned_positions_are_parameters_and_counted_apart(toy_spec: RunSpec) -> None:
    spec = changed(toy_spec, model={"positions": "learned", "pooling": "mean"})
    counted = heads.count(model_for(spec))
    assert counted.positional == 13 * 10 and counted.embedding == 9 * 10 + 13 * 10


def test_pooling_takes_the_mean_of_real_tokens_alone() -> None:
    x, mask = torch.randn(2, 5, 3), torch.tensor([[1, 1, 0, 0, 0], [0] * 5]).bool()
    pooled = masked_mean(x, mask)
    assert torch.allclose(pooled[0], x[0, :2].mean(0)) and (pooled[1] == 0).all()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", backends.shipped())
def test_an_answer_does_not_depend_on_its_neighbours_or_on_padding(
    toy_spec: RunSpec, toy_data: TaskData, name: str, pooling: str
) -> None:
    """Alone, in a batch with longer ones, and with more padding still: the first two traps of the protocol."""
    spec = changed(toy_spec.model_copy(update={"attention": backends.spec(name)}), model={"pooling": pooling})
    model = model_for(changed(spec, data={"length": 600})).eval()
    batch = collate(toy_data.train, range(9))
    together = model(batch.tokens, batch.mask)
    longer = nn.functional.pad(batch.tokens, (0, 500)), nn.functional.pad(batch.mask, (0, 500))
    assert torch.allclose(model(*longer), together, atol=1e-5)
    for row in range(9):
        alone = collate(toy_data.train, [row])
        assert torch.allclose(model(alone.tokens, alone.mask)[0], together[row], atol=1e-5)


def test_a_mean_over_padding_would_be_caught(
    toy_spec: RunSpec, toy_data: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lrbench.models.encoder.masked_mean", lambda x, mask: x.mean(1))
    with pytest.raises(AssertionError):
        test_an_answer_does_not_depend_on_its_neighbours_or_on_padding(toy_spec, toy_data, "full", "mean")


# the loop


def gradients(spec: RunSpec, data: TaskData, folder: Path, cut_into: int) -> dict[str, Tensor]:
    """The gradient of the first update, with its batch cut for passes of at most so many tokens."""
    AcceleratorState._reset_state(reset_partial_state=True)
    trainer = trainer_for(changed(spec, train={"micro_tokens": cut_into}), data, folder, model_for(spec).double())
    kept: dict[str, Tensor] = {}
    trainer.optimizer.zero_grad = lambda: kept.update(
        {name: p.grad.clone() for name, p in trainer.plain.named_parameters() if p.grad is not None}
    )
    trainer._update(1, 0.0)
    kept["passes"] = torch.tensor(trainer.counts.passes)
    return kept


@pytest.mark.parametrize("name", backends.shipped())
def test_the_gradient_does_not_depend_on_how_a_batch_is_cut(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path, name: str
) -> None:
    spec = toy_spec.model_copy(update={"attention": backends.spec(name)})
    whole, pieces = (gradients(spec, toy_data, tmp_path / str(size), size) for size in (10**6, 20))
    assert whole.pop("passes") == 1 and pieces.pop("passes") > 3
    assert whole.keys() == pieces.keys()
    for key, gradient in whole.items():
        assert torch.allclose(gradient, pieces[key], atol=1e-10), key


def finished(spec: RunSpec, data: TaskData, folder: Path) -> tuple[Outcome, Trainer]:
    AcceleratorState._reset_state(reset_partial_state=True)
    trainer = trainer_for(spec, data, folder)
    outcome = trainer.fit()
    assert outcome is not None
    return outcome, trainer


def test_scores_are_exact_ratios_of_whole_sets_whatever_the_batch(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
) -> None:
    trainer = trainer_for(toy_spec, toy_data, tmp_path)
    scores = []
    for tokens in (1, 50, 10**6):
        trainer.recipe = toy_spec.train.model_copy(update={"micro_tokens": tokens})
        scores.append(trainer.score(toy_data.test, step=0))
    assert {score.examples for score in scores} == {37}
    assert len({score.correct for score in scores}) == 1
    assert scores[0].accuracy * 37 == pytest.approx(scores[0].correct, abs=1e-9)
    one_by_one = 0
    for index in range(37):
        row = collate(toy_data.test, [index])
        one_by_one += int(trainer.plain(row.tokens, row.mask).argmax() == row.targets[0])
    assert scores[0].correct == one_by_one


def test_the_same_seed_trains_the_same_and_another_does_not(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
) -> None:
    spec = changed(toy_spec, model={"dropout": 0.2})
    runs = [finished(spec, toy_data, tmp_path / name) for name in "ab"]
    assert logged(tmp_path / "a") == logged(tmp_path / "b")
    assert runs[0][0].metrics == runs[1][0].metrics
    finished(spec.model_copy(update={"seed": 1}), toy_data, tmp_path / "c")
    assert logged(tmp_path / "c") != logged(tmp_path / "a")


@pytest.mark.parametrize("name", ["full", "performer[redraw=2]"])
@pytest.mark.parametrize("stop_at", [1, 4, 5, 8])
def test_a_stopped_run_goes_on_bit_for_bit(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path, name: str, stop_at: int
) -> None:
    spec = changed(toy_spec.model_copy(update={"attention": backends.spec(name)}), model={"dropout": 0.3})
    whole, trained = finished(spec, toy_data, tmp_path / "whole")
    first = trainer_for(spec, toy_data, tmp_path / "parts")
    assert first.fit(stop=lambda: first.counts.step == stop_at) is None
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "loss": 0.5}\n{"step": 1')  # what a killed run may leave behind
    torch.manual_seed(99)
    resumed, again = finished(spec, toy_data, tmp_path / "parts")
    assert resumed.metrics == whole.metrics
    assert logged(tmp_path / "parts") == logged(tmp_path / "whole")
    weights = trained.plain.state_dict()
    assert all(torch.equal(weights[key], value) for key, value in again.plain.state_dict().items())
    assert again.notes == []


def test_features_are_redrawn_by_steps_and_by_nothing_else(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
) -> None:
    spec = toy_spec.model_copy(update={"attention": backends.spec("performer[redraw=5]")})
    trainer = trainer_for(changed(spec, train={"micro_tokens": 20}), toy_data, tmp_path)
    directions, seen = trainer.mixers[0].directions, []
    step = trainer._step
    trainer._step = lambda number: (step(number), seen.append(directions.clone()))  # type: ignore[method-assign]
    trainer.fit()
    changes = [number for number in range(2, 13) if not torch.equal(seen[number - 1], seen[number - 2])]
    assert trainer.counts.passes > 24 and changes == [6, 11]  # step 5 is scored with the features it was trained with


def test_forgetting_the_generators_would_be_caught(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "restore_generators", lambda state: None)
    with pytest.raises(AssertionError):
        test_a_stopped_run_goes_on_bit_for_bit(toy_spec, toy_data, tmp_path, "full", 4)


def test_checkpoints_hold_tensors_and_plain_types_only(toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
    trainer = trainer_for(toy_spec, toy_data, tmp_path, checkpoint_every_s=0)
    trainer.fit(stop=lambda: trainer.counts.step == 7)
    (file,) = (tmp_path / "checkpoint").glob("step-*")  # and only the last one
    state = torch.load(file, weights_only=True)
    assert state["counts"]["step"] == 7 and state["best_score"]["step"] == 5


@pytest.mark.parametrize("damage", ["flip", "cut", "pointer", "missing"])
def test_a_damaged_checkpoint_is_named_and_not_used(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path, damage: str
) -> None:
    first = trainer_for(toy_spec, toy_data, tmp_path)
    first.fit(stop=lambda: first.counts.step == 6)
    (file,) = (tmp_path / "checkpoint").glob("step-*")
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "pointer":
        (tmp_path / "checkpoint" / "latest.json").write_text('{"file": ')
    else:
        file.unlink()
    outcome, again = finished(toy_spec, toy_data, tmp_path)
    assert "checkpoint" in again.notes[0] and "not used" in again.notes[0]
    assert outcome.metrics == finished(toy_spec, toy_data, tmp_path / "whole")[0].metrics


class Poisoned(nn.Module):
    """A model whose logits are no numbers from its fourth update on."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.updates = inner, 0

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        self.updates += self.training
        return self.inner(tokens, mask) * (float("nan") if self.updates > 3 else 1.0)


def test_a_loss_that_is_no_number_ends_the_run_with_its_step(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
) -> None:
    trainer = trainer_for(toy_spec, toy_data, tmp_path, Poisoned(model_for(toy_spec)))
    with pytest.raises(Diverged, match="nan at step 4"):
        trainer.fit()
    assert logged(tmp_path)[-1] == {"step": 4, "loss": None, "lr": pytest.approx(9e-3)}


class Relabelled:
    """A split with other labels."""

    def __init__(self, split: Split, labels: np.ndarray) -> None:
        self.split, self.lengths, self.labels = split, split.lengths, labels

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int):
        return self.split[index]._replace(label=int(self.labels[index]))


def test_poisoning_the_test_labels_changes_no_step_and_no_weight(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
) -> None:
    poisoned = replace(toy_data, test=Relabelled(toy_data.test, 1 - toy_data.test.labels))
    clean, poisoned_run = finished(toy_spec, toy_data, tmp_path / "a"), finished(toy_spec, poisoned, tmp_path / "b")
    assert clean[0].metrics.validation == poisoned_run[0].metrics.validation
    assert clean[0].metrics.test.step == poisoned_run[0].metrics.test.step
    assert clean[0].metrics.test.correct == 37 - poisoned_run[0].metrics.test.correct


def test_test_is_scored_at_the_best_validation_step_and_blind_at_the_last(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path
) -> None:
    outcome, _ = finished(toy_spec, toy_data, tmp_path)
    lines = [line for line in logged(tmp_path) if line.get("split") == "validation"]
    assert [line["step"] for line in lines] == [5, 10, 12]
    best = max(lines, key=lambda line: line["accuracy"])  # the earliest of equals
    assert outcome.metrics.validation.step == outcome.metrics.test.step == best["step"]
    assert outcome.metrics.test_last.step == 12


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 13},
        {"batch": 8},
        {"lr": 2e-2},
        {"schedule": "cosine"},
        {"warmup_steps": 6},
        {"weight_decay": 5.0},
        {"betas": (0.5, 0.98)},
        {"betas": (0.9, 0.5)},
        {"eps": 1.0},
        {"clip": 1e-3},
        {"eval_every": 3},
        {"stages": [{"length": 8, "steps": 6}]},
        {"growth": [{"step": 4, "batch": 11}]},
        {"patience": 1, "eval_every": 1},
    ],
    ids=str,
)
def test_every_field_of_the_recipe_changes_what_is_recorded(
    toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path, change: dict[str, object]
) -> None:
    """All but those that by design change nothing but speed and memory: `fairness.SAME_RESULT`."""
    base = changed(toy_spec, train={"eval_every": 1}) if "patience" in change else toy_spec
    finished(base, toy_data, tmp_path / "a")
    finished(changed(toy_spec, train=change), toy_data, tmp_path / "b")
    assert logged(tmp_path / "a") != logged(tmp_path / "b")


def test_the_parametrised_fields_above_are_all_there_are() -> None:
    marks = test_every_field_of_the_recipe_changes_what_is_recorded.pytestmark
    tried = {key for mark in marks for change in mark.args[1] for key in change}
    assert tried | {key.removeprefix("train.") for key in fairness.SAME_RESULT} == set(TrainSpec.model_fields)


def test_weight_decay_is_decoupled(toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
    """A parameter without gradient shrinks by lr · decay, whatever Adam's moments are."""
    trainer = trainer_for(changed(toy_spec, train={"weight_decay": 0.3}), toy_data, tmp_path)
    unused = nn.Parameter(torch.ones(3))
    unused.grad = torch.zeros(3)
    trainer.optimizer.optimizer.add_param_group({"params": [unused]})
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.1
    trainer.optimizer.step()
    assert torch.allclose(unused, torch.full((3,), 1 - 0.1 * 0.3))


def test_half_precision_trains_and_differs(toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
    finished(toy_spec, toy_data, tmp_path / "a")
    finished(toy_spec.model_copy(update={"dtype": "bf16"}), toy_data, tmp_path / "b")
    a, b = logged(tmp_path / "a"), logged(tmp_path / "b")
    assert a != b
    assert a[0]["loss"] == pytest.approx(b[0]["loss"], rel=2e-2)


def test_it_learns_what_can_be_learnt(toy_spec: RunSpec, toy_data: TaskData, tmp_path: Path) -> None:
    """Is the mean token above 4.5? A few dozen steps are enough."""
    high = {
        name: np.array([int(s[i].views[0].mean() > 4.5) for i in range(len(s))]) for name, s in toy_data.splits.items()
    }
    data = replace(toy_data, **{name: Relabelled(split, high[name]) for name, split in toy_data.splits.items()})
    spec = changed(toy_spec, train={"steps": 80, "batch": 16}, model={"pooling": "mean"})
    outcome, _ = finished(spec, data, tmp_path)
    majority = np.bincount(high["test"]).max() / 37
    assert majority < 0.7 and outcome.metrics.test.accuracy > 0.8


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for device in ("cuda", "cuda:1", "mps"):
        with pytest.raises(Missing):
            devices.check(device, "fp32")
    with pytest.raises(Missing):
        devices.check("cpu", "fp16")
    devices.check("auto", "bf16")


def test_the_encoder_says_which_positions_are_read_out(toy_spec: RunSpec) -> None:
    for pooling, readout in (("cls", 1), ("mean", 0)):
        encoder = model_for(changed(toy_spec, model={"pooling": pooling})).encoder
        assert isinstance(encoder, Encoder)
        configs = [block.mixer.cfg for block in encoder.blocks]
        assert [cfg.readout for cfg in configs] == [readout] * 2
        assert [cfg.index for cfg in configs] == [0, 1]
        assert configs[0].first is None and configs[1].first is encoder.blocks[0].mixer
        assert configs[0].max_len == 13 + readout
