"""Measures that draw, train or time: what they say where the answer is known, and that a fault shows in the value."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lrbench.backends import local, performer
from lrbench.backends.full import Full
from lrbench.claims import intervals, rounds
from lrbench.claims.measures import blocks, conversion, decoding, features, spectra, swapping, training
from lrbench.errors import SpecError
from lrbench.registry import backends

SMALL = {"layers": 2, "length": 32, "steps": 40}  # learns which letters there are, and a little more
GROWING = '''
import torch
from lrbench.backends.base import Mixer

CLOCK = [0.0]


class Growing(Mixer):
    """Keeps all it has read, and each token costs a tick for each of those."""

    can_be_causal, segment = True, 4

    def step(self, x, state, *, mask=None):
        state = x if state is None else torch.cat([state, x], 1)
        CLOCK[0] += state.shape[1]
        return x, state
'''
MORE = """
from torch import nn
from lrbench.backends.full import Full


class More(Full):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.more = nn.Linear(3, 3)
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the measures take for the time."""
    now = [0.0]
    monkeypatch.setattr(rounds, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def small() -> training.Trained:
    return training.trained(task="enwik8", **SMALL)


def orthogonal(change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of which the directions are spoilt."""
    right = performer.orthogonal
    monkeypatch.setattr(performer, "orthogonal", lambda *arguments: change(right(*arguments)))


def test_one_value_has_no_interval_and_several_have() -> None:
    one, few = intervals.averaged([2.0], "x"), intervals.averaged([1.0, 3.0, 2.0], "x")
    assert (one.value, one.low, one.high, one.n) == (2, None, None, 1)
    assert few.value == 2 and few.low < 1 and few.high > 3 and few.n == 3


def test_a_geometric_mean_of_inverses_is_the_inverse() -> None:
    found, turned = intervals.geometric([1, 2, 4], ""), intervals.geometric([1, 1 / 2, 1 / 4], "")
    assert found.value == pytest.approx(2) and found.low < 2 < found.high
    assert turned.low == pytest.approx(1 / found.high) and turned.value == pytest.approx(1 / found.value)
    assert intervals.geometric([3.0], "").low is None


def test_calls_take_turns_and_the_first_round_does_not_count(clock: list[float]) -> None:
    called = []

    def call(name: str, cost: float) -> None:
        clock[0] += cost if len(called) >= 2 else 100 * cost**2
        called.append(name)

    found = rounds.ratios(lambda: call("one", 3), lambda: call("other", 2), 3)
    assert found == [1.5] * 3
    assert called == ["other", "one", "one", "other", "other", "one", "one", "other"]


def test_the_error_of_random_features_falls_as_their_root() -> None:
    found = features.error_slope(features=(16, 64, 256), seeds=12)
    assert -0.6 < found.value < -0.4 and found.low < found.value < found.high and found.n == 12


def test_features_too_short_or_repeated_show_in_the_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"features": (16, 64, 256), "seeds": 6}
    with monkeypatch.context() as patch:
        orthogonal(lambda rows: rows[:16].repeat(len(rows) // 16, 1), patch)
        assert abs(features.error_slope(**settings).value) < 0.1
    orthogonal(lambda rows: 0.5 * rows, monkeypatch)
    assert features.error_slope(**settings).value > -0.3


@pytest.mark.parametrize("part", ["numerator", "denominator"])
def test_sums_of_random_features_are_unbiased(part: str) -> None:
    found = features.bias(part=part, draws=300)
    assert found.low < 0 < found.high and found.high - found.low < 0.06 and found.n == 300


@pytest.mark.parametrize("part", ["numerator", "denominator"])
def test_features_too_long_are_biased(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    orthogonal(lambda rows: 1.1 * rows, monkeypatch)
    assert features.bias(part=part, draws=300).low > 0.02


def test_a_constant_added_to_features_is_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    right = performer._Exponential.raw
    monkeypatch.setattr(performer._Exponential, "raw", lambda *a, **k: torch.log(right(*a, **k).exp() + 0.05))
    assert features.bias(draws=300).low > 0.02


def test_random_numbers_elsewhere_are_not_disturbed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    features.bias(draws=2)
    training.trained(task="enwik8", layers=1, length=16, steps=2)
    decoding.per_token(model="flash[chunk=8,s=8]", short=16, long=32, dim=16, rounds=2)
    assert torch.equal(torch.rand(3), expected)


def test_training_lowers_the_loss_and_is_done_once(small: training.Trained) -> None:
    assert training.loss(small.model, small.rows) < training.loss(training.fresh(small.spec), small.rows) - 1
    assert training.trained(task="enwik8", **SMALL) is small


def test_a_window_over_everything_leaves_the_model_as_it_is(small: training.Trained) -> None:
    same = swapping.swapped(small, "local[window=31]", 2)
    torch.testing.assert_close(same(small.rows.tokens), small.model(small.rows.tokens), atol=1e-4, rtol=1e-4)


def test_only_the_first_layers_are_swapped_and_in_a_copy(small: training.Trained) -> None:
    before = small.model(small.rows.tokens)
    swapped = swapping.swapped(small, "performer", 1)
    assert [type(block.mixer) for block in swapped.encoder.blocks] == [performer.Performer, Full]
    assert not torch.allclose(swapped(small.rows.tokens), before)
    assert torch.equal(small.model(small.rows.tokens), before)


def test_draws_of_features_differ_by_seed(small: training.Trained) -> None:
    one, same, other = (swapping.swapped(small, "performer", 2, seed)(small.rows.tokens) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_an_attention_with_other_parameters_cannot_be_swapped_in(small: training.Trained, tmp_path: Path) -> None:
    file = tmp_path / "more.py"
    file.write_text(MORE)
    with pytest.raises(SpecError, match="parameters.*mixer.more") as found:
        swapping.swapped(small, str(file), 2)
    assert "performer" in found.value.hint


def test_errors_of_a_swap_grow_with_layers() -> None:
    found = swapping.growth(**SMALL, draws=3)
    assert found.value > 1 and found.n == 3 and "at 1, " in found.detail and "at 2" in found.detail


def test_a_swap_that_does_nothing_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "swapped", lambda found, *_: found.model)
    assert swapping.growth(**SMALL, draws=2).value == 1


def test_a_swap_that_always_swaps_the_same_layers_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    right = swapping.swapped
    monkeypatch.setattr(swapping, "swapped", lambda found, attention, layers, seed: right(found, attention, 1, seed))
    assert swapping.growth(**SMALL, draws=2).value == pytest.approx(1)


HURTING = {**SMALL, "attention": "local[window=0]", "draws": 2}


def test_updates_win_back_some_of_what_a_swap_costs() -> None:
    found = swapping.recovers(**HURTING, more=40)
    assert 0.05 < found.value < 1 and found.n == 2


def test_updates_that_change_nothing_win_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "_continued", lambda found, model, steps: model)
    assert swapping.recovers(**HURTING, more=1).value == pytest.approx(0)


def test_progress_that_the_unswapped_model_makes_too_is_no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    gain, right = 0.25, swapping.loss
    done = []
    monkeypatch.setattr(swapping, "_continued", lambda found, model, steps: done.append(model) or model)
    monkeypatch.setattr(swapping, "loss", lambda model, rows: right(model, rows) - gain * any(model is m for m in done))
    assert swapping.recovers(**HURTING, more=1).value == pytest.approx(0)


def test_a_swap_without_cost_leaves_nothing_to_win_back() -> None:
    with pytest.raises(SpecError, match="costs no loss"):
        swapping.recovers(**{**HURTING, "attention": "full"}, more=1)


def test_a_window_over_everything_keeps_all_and_one_of_a_token_does_not() -> None:
    whole = conversion.kept(attention="longformer[window=31]", **SMALL, seeds=2)
    assert whole.value == pytest.approx(1, abs=1e-5) and whole.n == 2
    single = conversion.kept(attention="longformer[window=0]", **SMALL, seeds=2)
    assert single.value < 0.999 and single.low < single.value - 1e-4  # trainings differ


def test_a_conversion_that_loses_the_weights_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "swapped", lambda found, *_: training.fresh(found.spec))
    assert conversion.kept(**SMALL, seeds=2).value == pytest.approx(0)


def test_maps_are_what_the_layers_mix_by() -> None:
    found = training.trained(task="c4-mlm", layers=2, length=32, steps=2)
    tokens = found.rows.tokens[:3]
    seen: list[tuple[Tensor, Tensor]] = []
    for block in found.model.encoder.blocks:
        block.mixer.register_forward_hook(lambda mixer, inputs, y: seen.append((inputs[0], y)))
    with torch.no_grad():
        maps = spectra.maps(found.model, tokens)
    assert maps.shape == (2, 3, 4, 32, 32)
    for block, weights, (x, y) in zip(found.model.encoder.blocks, maps, seen, strict=True):
        mixed = weights.float() @ block.mixer.projected(x, None)[2]
        torch.testing.assert_close(block.mixer.out(mixed.transpose(1, 2).flatten(-2)), y, atol=1e-5, rtol=1e-4)
        block.mixer._forward_hooks.clear()
    assert not any(block.mixer._forward_pre_hooks for block in found.model.encoder.blocks)


def test_singular_values_are_counted_by_their_squares() -> None:
    known = torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.float64))  # squares 9, 4, 1, 1, 1 of 16
    flat = torch.full((5, 5), 0.2, dtype=torch.float64)
    assert [float(spectra.of(known, energy)) for energy in (0.5, 0.6, 0.82, 0.9, 1)] == [0.2, 0.4, 0.6, 0.8, 1]
    assert spectra.of(torch.stack([flat, torch.eye(5).double()]), 0.9).tolist() == [0.2, 1]


def test_spectra_are_shares_and_tell_the_maps_from_shuffled_ones() -> None:
    found = spectra.share(layers=2, length=32, steps=2, examples=4)
    assert 1 / 32 <= found.low < found.value < found.high < 0.5 and found.n == 4
    assert "untrained" in found.detail and "shuffled rows" in found.detail


def test_maps_of_full_rank_show_in_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "maps", lambda model, tokens: torch.eye(32).double().expand(2, len(tokens), 4, 32, 32))
    assert spectra.share(layers=2, length=32, steps=2, examples=4).value == 29 / 32


def test_a_gathered_window_is_exact_attention_in_a_band() -> None:
    q, k, v = torch.randn(3, 2, 3, 11, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    far = (torch.arange(11)[:, None] - torch.arange(11)).abs() > 3
    expected = (q @ k.transpose(-1, -2) * 5**-0.5).masked_fill(far, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(blocks.gathered(q, k, v, 3), expected, atol=1e-12, rtol=0)


WINDOW = {"length": 37, "window": 5, "heads": 2, "head_dim": 7}


def test_a_gathered_window_is_timed_against_blocks() -> None:
    found = blocks.against_gather(**WINDOW, rounds=3)
    assert 0 < found.low <= found.value <= found.high and found.n == 3


def test_the_ratio_is_that_of_the_gathered_window_to_blocks(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = blocks.gathered, local.Local.attend

    def costing(cost: float, right: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: object) -> Tensor:
            clock[0] += cost
            return right(*arguments)

        return call

    monkeypatch.setattr(blocks, "gathered", costing(6, slow))
    monkeypatch.setattr(local.Local, "attend", costing(2, quick))
    found = blocks.against_gather(**WINDOW, rounds=3)
    assert found.value == pytest.approx(3) and found.low == pytest.approx(3)


def test_windows_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = blocks.gathered
    monkeypatch.setattr(blocks, "gathered", lambda q, k, v, window: right(q, k, v, window + 1))
    with pytest.raises(ArithmeticError, match="differs from local"):
        blocks.against_gather(**WINDOW, rounds=3)


def test_flash_keeps_as_much_of_many_tokens_as_of_few() -> None:
    found = decoding.per_token(model="flash[chunk=8,s=8]", short=16, long=64, dim=16, rounds=3)
    kept = [word for word in found.detail.split() if word.replace(",", "").isdigit()]
    assert kept[0] == kept[2] != "0" and kept[1::2] == ["16", "64"]
    assert 0 < found.low <= found.value <= found.high and found.n == 3


def test_a_state_that_grows_shows_in_time_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "growing.py"
    file.write_text(GROWING)
    ticks = sys.modules[backends.get(str(file)).cls.__module__].CLOCK
    monkeypatch.setattr(rounds, "perf_counter", lambda: ticks[0])
    found = decoding.per_token(model=str(file), short=8, long=32, dim=16, rounds=3)
    assert found.value == pytest.approx((33 + 34 + 35 + 36) / (9 + 10 + 11 + 12))
    assert "512 bytes kept after 8 tokens, 2,048 after 32" in found.detail


def test_a_model_that_does_not_stream_is_refused() -> None:
    with pytest.raises(SpecError, match="full does not stream"):
        decoding.per_token(model="full", short=8, long=16)
