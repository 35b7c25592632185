"""Tasks with an answer at every position: what is read, what is scored, and what it costs in bits."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from task_helpers import model_of
from torch import nn

from lrbench import catalog, metrics, plan
from lrbench.errors import SpecError, Unsupported
from lrbench.loaders.base import TaskData
from lrbench.loaders.blocks import Block, BlockSplit
from lrbench.models import heads
from lrbench.registry import backends
from lrbench.specs import Grid, RunSpec
from lrbench.train.batches import IGNORED, collate
from lrbench.train.loop import Trainer, accelerator
from lrbench.train.scores import from_tally, loss_sum, tally

CAUSAL = [name for name in backends.shipped() if backends.about(name)["can_be_causal"]]


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


def split(
    rows: Iterable[list[int]], given: Iterable[int] | None = None, targets: list[list[int]] | None = None
) -> BlockSplit:
    """Sequences to be predicted, or with targets of their own."""
    rows = list(rows)
    lengths = np.array([len(row) for row in rows], np.int64)
    views = [
        np.concatenate([np.array(row, np.int16) for row in part]) for part in ([rows, targets] if targets else [rows])
    ]
    labels = np.array(list(given or [0] * len(rows)), np.int64)
    return BlockSplit([Block(tuple(views), (lengths,) * len(views), labels)])


def spec_for(model: str = "full", task: str = "copy", **sets: object) -> RunSpec:
    grid = Grid(models=[model], tasks=[task], preset="tiny", device="cpu", set={"train.steps": 4, **sets})
    (cell,) = plan.cells(grid, Path("unused"))
    return cell.spec


def trained(model: nn.Module, data: TaskData, spec: RunSpec, folder: Path) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    return Trainer(model, data, spec, folder, accelerator(spec))


class Constant(nn.Module):
    """Logits that do not look at anything."""

    def __init__(self, classes: int, favourite: int | None = None) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(classes))
        if favourite is not None:
            self.logits.data[favourite] = 1000.0

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.logits.expand(*tokens.shape, -1)


class TestWhatIsScored:
    def test_all_tokens_are_targets_but_what_is_given_and_padding(self) -> None:
        batch = collate(split([[5, 6, 7], [8, 9, 1, 2, 3]], given=[1, 0]), [0, 1], "predict")
        assert batch.tokens.tolist() == [[5, 6, 7, 0, 0], [8, 9, 1, 2, 3]]
        assert batch.targets.tolist() == [[IGNORED, 6, 7, IGNORED, IGNORED], [8, 9, 1, 2, 3]]
        assert (batch.scored, batch.real_tokens) == (7, 8)

    def test_a_token_0_is_as_real_as_any_other(self) -> None:
        batch = collate(split([[0, 0, 0]]), [0], "predict")
        assert batch.mask is None and batch.scored == 3

    @pytest.mark.parametrize("kind", ["fill", "answer"])
    def test_targets_of_their_own_are_not_read(self, kind: str) -> None:
        batch = collate(split([[5, 6, 7], [8, 9]], targets=[[-1, 4, -1], [3, 3]]), [0, 1], kind)
        assert batch.tokens.tolist() == [[5, 6, 7], [8, 9, 0]]
        assert batch.targets.tolist() == [[-1, 4, -1], [3, 3, -1]] and batch.scored == 3

    def test_uniform_logits_cost_eight_bits_and_the_truth_none(self) -> None:
        rows = split([[1, 2, 3], [250, 0]], given=[0, 1])
        batch = collate(rows, [0, 1], "predict")
        found = from_tally(tally(torch.zeros(2, 3, 256), batch.targets), "bits_per_dim", 2, 7, None)
        assert found.bits_per_dim == pytest.approx(8.0, abs=1e-6)
        assert (found.scored, found.examples, found.step) == (4, 2, 7)
        sure = torch.nn.functional.one_hot(batch.targets.clamp(min=0), 256).float() * 1e4
        found = from_tally(tally(sure, batch.targets), "bits_per_dim", 2, 7, None)
        assert found.bits_per_dim == 0 and found.accuracy == 1

    def test_an_image_of_one_pixel_by_hand(self) -> None:
        logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75]]]))
        batch = collate(split([[0, 0, 1]]), [0], "predict")
        found = from_tally(tally(logits, batch.targets), "bits_per_dim", 1, 0, None)
        assert found.bits_per_dim == pytest.approx((1 + 2 + 3) / 3)

    def test_masked_positions_alone_make_the_perplexity(self) -> None:
        batch = collate(split([[9, 9, 9, 9]], targets=[[-1, 2, -1, 0]]), [0], "fill")
        found = from_tally(tally(torch.zeros(1, 4, 16), batch.targets), "perplexity", 1, 0, None)
        assert found.perplexity == pytest.approx(16) and found.scored == 2

    def test_a_perplexity_by_words_divides_by_words(self) -> None:
        batch = collate(split([[1, 2, 3, 4]]), [0], "predict")
        found = from_tally(tally(torch.zeros(1, 4, 8), batch.targets), "perplexity", 1, 0, 2)
        assert found.perplexity == pytest.approx(8**2) and found.units == 2

    def test_the_error_of_the_loss_is_that_of_a_ratio_over_examples(self) -> None:
        random = np.random.default_rng(0)
        logits = torch.from_numpy(random.normal(size=(40, 6, 5)))
        targets = torch.from_numpy(random.integers(-1, 5, (40, 6)))
        found = from_tally(tally(logits, targets), "bits_per_byte", 40, 0, None)
        each = [float(loss_sum(a, b)) for a, b in zip(logits, targets, strict=True)]
        counts = (targets >= 0).sum(1).numpy()
        left_out = [
            (sum(each) - each[index]) / (counts.sum() - counts[index]) for index in range(40)
        ]  # the jackknife, which needs no formula
        jackknife = math.sqrt(39 / 40 * sum((value - np.mean(left_out)) ** 2 for value in left_out))
        assert found.loss == pytest.approx(sum(each) / counts.sum(), rel=1e-6)
        assert found.loss_error == pytest.approx(jackknife, rel=0.05)


class TestModels:
    @pytest.mark.parametrize("name", CAUSAL)
    def test_nothing_leaks_from_the_token_itself_or_what_follows(self, name: str) -> None:
        """Change one token: the logits up to and at its place stay, and later ones do not all."""
        torch.manual_seed(0)
        card = catalog.task("copy")
        sizes = card.presets["tiny"].model.model_copy(update={"layers": 2})
        model = heads.build(backends.load(backends.spec(name)), card.facts(), sizes, 40).double().eval()
        tokens = torch.randint(0, 256, (1, 40))
        for place in (0, 13, 38):
            other = tokens.clone()
            other[0, place] = (other[0, place] + 100) % 256
            with torch.no_grad():
                gap = (model(tokens) - model(other)).abs().amax(-1)[0]
            assert gap[: place + 1].max() < 1e-9, (name, place)
            assert gap[place + 1 :].max() > 1e-9, (name, place)

    def test_the_first_token_is_predicted_from_a_vector_that_is_no_token(self) -> None:
        model = model_of("copy", "tiny")
        assert model.encoder.embedding.num_embeddings == model.head.out_features == 256
        assert model.encoder.start.shape == (32,)

    def test_bits_are_the_sum_of_log_probabilities_one_token_at_a_time(self) -> None:
        torch.manual_seed(1)
        model = model_of("copy", "tiny").double().eval()
        tokens = torch.randint(0, 256, (3, 9))
        whole = loss_sum(model(tokens), tokens).item()
        parts = 0.0
        for row in tokens:
            for place in range(9):
                # what stands at the place itself must not matter
                seen = torch.cat([row[:place], torch.tensor([77])])[None]
                parts -= model(seen)[0, place].log_softmax(-1)[row[place]].item()
        assert whole == pytest.approx(parts, rel=1e-6)

    def test_a_model_that_copies_its_input_is_no_oracle(self) -> None:
        """Shifted once and not twice: who repeats what it reads repeats the token before."""
        encoder = model_of("copy", "tiny").encoder
        encoder.blocks = nn.ModuleList()
        encoder.positions = nn.Identity()
        encoder.norm = nn.Identity()
        tokens = torch.randint(0, 256, (2, 12))
        read = encoder(tokens)
        assert torch.equal(read[:, 1:], encoder.embedding(tokens[:, :-1]))
        assert torch.equal(read[:, 0], encoder.start.expand(2, -1))

    def test_a_task_without_direction_sees_both_sides(self) -> None:
        model = model_of("c4-mlm", "tiny").eval()
        tokens = torch.randint(0, 256, (1, 20))
        other = tokens.clone()
        other[0, 15] = (other[0, 15] + 1) % 256
        assert (model(tokens) - model(other)).abs().amax(-1)[0, :15].max() > 1e-6

    def test_who_cannot_be_causal_is_unsupported(self) -> None:
        card = catalog.task("copy")
        with pytest.raises(Unsupported, match="linformer cannot be causal"):
            heads.build(backends.get("linformer"), card.facts(), card.presets["tiny"].model, 64)

    @pytest.mark.parametrize(("task", "pooling"), [("copy", "mean"), ("listops", "none")])
    def test_pooling_goes_with_the_kind(self, task: str, pooling: str) -> None:
        with pytest.raises(SpecError, match=f"model.pooling {pooling}"):
            model_of(task, "tiny", pooling=pooling)


class TestTraining:
    def data(self, count: int = 6, length: int = 8) -> TaskData:
        random = np.random.default_rng(0)
        parts = [split(random.integers(0, 256, (count, length)).tolist()) for _ in range(3)]
        return TaskData(*parts, source="generated", fingerprint="")

    def test_the_gradient_does_not_depend_on_how_a_batch_is_cut(self, tmp_path: Path) -> None:
        random = np.random.default_rng(3)
        rows = [random.integers(0, 256, size).tolist() for size in (3, 9, 30, 4, 60, 8)]
        data = dataclasses.replace(self.data(), train=split(rows, given=[1, 0, 5, 2, 10, 0]))
        weights, passes = [], []
        for number, tokens in enumerate((64, 100_000)):
            spec = spec_for(**{"train.micro_tokens": tokens, "train.batch": 6, "train.steps": 1})
            torch.manual_seed(0)
            model = model_of("copy", "tiny").double()
            trainer = trained(model, data, spec, tmp_path / str(number))
            trainer._step(1)
            passes.append(trainer.counts.passes)
            weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert passes[0] > passes[1] == 1
        assert torch.allclose(*weights, atol=1e-9)

    def test_the_step_of_lowest_loss_is_chosen(self, tmp_path: Path) -> None:
        data = self.data()
        trainer = trained(Constant(256), data, spec_for(), tmp_path)
        first = trainer.score(data.validation, 1)
        assert first.bits_per_byte == pytest.approx(8.0, abs=1e-6)
        worse = first.model_copy(update={"loss": first.loss + 1, "accuracy": 1.0})
        assert trainer._better(first, worse) and not trainer._better(worse, first)

    @pytest.mark.parametrize("name", ["full", "local[window=16]", "linear"])
    def test_random_bytes_cost_eight_bits_after_training_too(self, name: str, tmp_path: Path) -> None:
        random = np.random.default_rng(5)
        parts = [split(random.integers(0, 256, (count, 32)).tolist()) for count in (64, 8, 200)]
        data = TaskData(*parts, source="generated", fingerprint="")
        spec = spec_for(name, **{"train.steps": 60, "train.batch": 16, "train.eval_every": 60})
        torch.manual_seed(0)
        model = heads.build(backends.load(spec.attention), spec.task, spec.model, spec.data.length)
        outcome = trained(model, data, spec, tmp_path).fit()
        assert outcome is not None and outcome.metrics.test.bits_per_byte > 8.0 - 0.05


class TestMetrics:
    def test_values_in_words(self) -> None:
        assert metrics.with_unit("accuracy", 0.4621) == "46.2%"
        assert metrics.with_unit("bits_per_dim", 2.9134) == "2.913 bits per dimension"
        assert metrics.with_unit("perplexity", 18.7) == "perplexity 18.70"
        assert metrics.with_unit("perplexity", 3463852021887.07) == "perplexity 3.46e+12"

    def test_the_best_is_the_highest_accuracy_and_the_lowest_of_all_else(self) -> None:
        assert metrics.best("accuracy", [0.1, 0.3]) == 0.3
        assert metrics.best("perplexity", [0.1, 0.3]) == 0.1

    def test_a_perplexity_that_no_number_holds_is_infinite(self) -> None:
        assert metrics.from_nats("perplexity", 1e4) == math.inf
        assert metrics.from_nats("bits_per_dim", 1.9408) == pytest.approx(2.8, abs=1e-4)
