"""Measures of exact claims: what each gives of the shipped methods, and that it sees a fault."""

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import profile

from lrbench.backends import chunks, combiner, flash, gated, linformer, longformer, ops, positions
from lrbench.backends.base import HeadMixer
from lrbench.backends.compressive import Compressive
from lrbench.backends.full import Full
from lrbench.claims.measures import (
    contract,
    gating,
    lengths,
    operations,
    parameters,
    reach,
    streaming,
    weights,
    windows,
)
from lrbench.claims.measures import positions as infused
from lrbench.errors import SpecError, Unsupported

ROUNDING = 1e-12
PLANS = ("fixed", "logsparse", "axial-row", "axial-vertical", "axial-horizontal", "mixture", "learnable")
PLAN_AND_WAY = [(plan, causal) for plan in PLANS for causal in (False, True) if not causal or plan != "learnable"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def wrapped(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Let a function or method return something else than it would."""
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **more: change(real(*args, **more)))


# --- gated units ---


def test_a_unit_is_a_gated_feed_forward_or_attention_in_its_limits():
    assert gating.limits().value < ROUNDING


def test_limits_see_values_without_their_activation(monkeypatch):
    wrapped(monkeypatch, gated.GatedUnit, "opened", lambda opened: opened._replace(values=2 * opened.values))
    assert gating.limits().value > 0.1


def test_limits_see_a_gate_alone_that_is_wrong(monkeypatch):
    real = gated.Gate.forward
    monkeypatch.setattr(gated.Gate, "forward", staticmethod(lambda ctx, gate, mixed: real(ctx, 2 * gate, mixed)))
    assert gating.limits().value > 0.1


def test_limits_see_attention_alone_that_is_wrong(monkeypatch):
    monkeypatch.setattr(gated, "rotated", lambda x, at=None: x)
    assert gating.limits().value > 0.1


def test_limits_see_a_residual_that_is_missing(monkeypatch):
    real = gated.GatedUnit.closed
    monkeypatch.setattr(
        gated.GatedUnit, "closed", lambda self, x, *rest: real(self, x, *rest) - x
    )  # fmt: skip
    assert gating.limits().value > 0.1


@pytest.mark.parametrize("causal", [False, True])
def test_local_and_global_parts_add_up(causal):
    assert gating.parts_add(causal=causal).value < ROUNDING


@pytest.mark.parametrize("causal", [False, True])
def test_parts_see_a_global_mean_over_other_counts(causal, monkeypatch):
    real = chunks.over
    monkeypatch.setattr(chunks, "over", lambda q, counts: real(q, counts + 1))
    assert gating.parts_add(causal=causal).value > 1e-3


@pytest.mark.parametrize("part", ["local", "global"])
def test_parts_see_one_that_is_another_when_alone(part, monkeypatch):
    real = flash.Flash.mix
    monkeypatch.setattr(
        flash.Flash, "mix", lambda self, *given: real(self, *given) * (2 if self.parts_of == part else 1)
    )
    assert gating.parts_add().value > 0.1


def test_parts_see_a_chunk_too_many_in_causal_sums(monkeypatch):
    monkeypatch.setattr(chunks, "before", lambda x: x.cumsum(1))
    assert gating.parts_add(causal=True).value > 1e-3


# --- weights ---


@pytest.mark.parametrize("plan", PLANS)
def test_rows_of_every_plan_sum_to_1(plan):
    found = weights.row_sums(model=f"combiner[plan={plan}]")
    assert found.value < 1e-14 and found.n == (1 if plan == "learnable" else 2)


def test_row_sums_see_weights_that_are_too_large(monkeypatch):
    wrapped(monkeypatch, combiner.Combiner, "attend", lambda mixed: 1.25 * mixed)
    assert weights.row_sums().value == pytest.approx(0.25)


@pytest.mark.parametrize(("plan", "causal"), PLAN_AND_WAY)
def test_every_plan_has_full_support(plan, causal):
    assert 1 > weights.least_weight(model=f"combiner[plan={plan}]", causal=causal).value > 0


@pytest.mark.parametrize("causal", [False, True])
def test_the_least_weight_of_a_window_is_0(causal):
    assert weights.least_weight(model="local[window=4]", causal=causal).value == 0


def test_the_least_weight_sees_a_pair_that_is_cut(monkeypatch):
    def cut(mixed: Tensor) -> Tensor:
        return mixed.index_put((*torch.tensor([[0], [0], [30], [3]]),), mixed.new_zeros(()))

    wrapped(monkeypatch, combiner.Combiner, "attend", cut)
    found = weights.least_weight()
    assert found.value == 0 and "token 30 looks at token 3" in found.detail


def test_a_method_without_weights_over_tokens_is_refused():
    with pytest.raises(SpecError, match="linformer"):
        weights.row_sums(model="linformer")


# --- parameters ---


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("combiner", 0),
        ("combiner[abstraction=deepsets]", 2 * 16**2),
        ("combiner[plan=axial-row]", 2 * 64 * 64 + 2 * 64),
        ("linformer[k=32]", 2 * 32 * 256),
    ],
)
def test_parameters_beyond_those_of_full_attention_are_counted(model, expected):
    assert parameters.added(model=model).value == expected
    assert parameters.added(model="full", against=model).value == -expected


def test_added_parameters_see_a_bias(monkeypatch):
    real = combiner.Combiner.set_up_clusters

    def biased(self: combiner.Combiner) -> None:
        real(self)
        self.bias = torch.nn.Parameter(torch.zeros(64))

    monkeypatch.setattr(combiner.Combiner, "set_up_clusters", biased)
    assert parameters.added().value == 64


# --- operations ---


@pytest.mark.parametrize("model", ["combiner", "combiner[plan=mixture]", "flash"])
def test_only_stock_operations_are_called(model):
    assert operations.foreign(model=model).value == 0


def test_foreign_operations_see_a_kernel_of_somebodys_own(monkeypatch):
    library = torch.library.Library("lrbench_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
    real = combiner.Combiner.split
    monkeypatch.setattr(
        combiner.Combiner, "split", lambda self, x: real(self, x + torch.ops.lrbench_test.twice(x.detach()))
    )
    found = operations.foreign()
    assert found.value == 3 and "lrbench_test.twice" in found.detail  # queries, keys and values


@pytest.mark.parametrize(
    ("model", "causal", "expected"),
    [
        ("linformer", False, 1),
        ("flash", True, 1),
        ("combiner", False, 1.5),
        ("combiner", True, 1.5),
        ("full[impl=math]", True, 2),
    ],
)
def test_the_largest_tensor_grows_as_the_method_says(model, causal, expected):
    assert operations.largest_tensor(model=model, causal=causal).value == pytest.approx(expected, abs=0.01)


def test_the_largest_tensor_sees_n_x_n(monkeypatch):
    real = linformer.Linformer.to_slots
    monkeypatch.setattr(
        linformer.Linformer, "to_slots", lambda self, weight, x: real(self, weight, x + 0 * (x @ x.mT) @ x)
    )
    found = operations.largest_tensor(model="linformer")
    assert found.value == pytest.approx(2) and "4096, 4096" in found.detail


class Counted(profile):
    """As if each call took the same time."""

    def key_averages(self, *args: Any, **more: Any) -> Any:
        found = super().key_averages(*args, **more)
        return [SimpleNamespace(key=event.key, self_cpu_time_total=event.count) for event in found]


class Timed(Counted):
    """As if a step had been this."""

    def key_averages(self, *args: Any, **more: Any) -> Any:
        fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
        times = {"aten::mm": 30, fused: 20, "aten::mul": 25, "MmBackward0": 15, "mine::mm": 10}
        return [SimpleNamespace(key=name, self_cpu_time_total=time) for name, time in times.items()]


def test_the_share_of_products_is_that_of_products_and_fused_attention(monkeypatch):
    monkeypatch.setattr(operations, "profile", Timed)
    found = operations.matmul_share(length=16, repeats=2)
    assert (found.low, found.value, found.high, found.n) == (0.5, 0.5, 0.5, 2)


def test_the_share_of_products_sees_work_that_is_none(monkeypatch):
    monkeypatch.setattr(operations, "profile", Counted)
    before = operations.matmul_share(model="full", length=16, repeats=2)
    real = HeadMixer.split
    monkeypatch.setattr(HeadMixer, "split", lambda self, x: real(self, x + sum(x.detach().sin() for _ in range(99))))
    after = operations.matmul_share(model="full", length=16, repeats=2)
    assert before.value / 2 > after.value > 0


def test_the_profiler_writes_nothing_to_stderr(capfd):
    found = operations.matmul_share(length=16, repeats=2)
    assert 0 < found.value < 1 and found.low < found.value < found.high
    assert capfd.readouterr().err == ""


# --- streaming ---


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("flash[chunk=8]", None),
        ("flash[chunk=8]", 1),
        ("flash[chunk=8]", 3),
        ("performer", 1),
        ("transformer-xl", None),
    ],
)
def test_steps_are_the_forward_pass(model, tokens):
    found = streaming.gap(model=model, tokens=tokens)
    assert found.value < ROUNDING
    assert tokens is None or f" {tokens} a step" in found.detail


@pytest.mark.parametrize("tokens", [1, 3, None])
def test_the_gap_sees_a_state_that_forgets(tokens, monkeypatch):
    wrapped(monkeypatch, flash.Flash, "within", lambda out: (out[0], out[1]._replace(sums=out[1].sums * 0.5)))
    assert streaming.gap(model="flash[chunk=8]", tokens=tokens).value > 1e-3


def test_what_does_not_stream_has_no_gap():
    with pytest.raises(SpecError, match="does not stream"):
        streaming.gap(model="full")


# --- lengths ---


@pytest.mark.parametrize(("model", "expected"), [("linformer", 1), ("linformer[resize=interp]", 0), ("full", 0)])
def test_a_refusal_of_longer_inputs_is_told(model, expected):
    assert lengths.refused(model=model).value == expected


@pytest.mark.parametrize("raised", [RuntimeError("64 and 65 do not match"), Unsupported("too long: 65")])
def test_a_refusal_that_is_unclear_is_none(raised, monkeypatch):
    real = linformer.Linformer.forward

    def forward(self: linformer.Linformer, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        if x.shape[1] > 64:
            raise raised
        return real(self, x, mask=mask)

    monkeypatch.setattr(linformer.Linformer, "forward", forward)
    assert lengths.refused().value == 0


def test_a_refusal_is_not_enough_where_shorter_inputs_are_not_finite(monkeypatch):
    wrapped(monkeypatch, linformer.Linformer, "forward", lambda y: y if y.shape[1] != 7 else y * torch.nan)
    found = lengths.refused()
    assert found.value == 0 and "[7]" in found.detail


@pytest.mark.parametrize(
    ("model", "expected"), [("longformer", 1), ("combiner[span=8]", 1), ("combiner", 0), ("linformer", 0)]
)
def test_whether_longer_inputs_are_taken_as_built_for_them_is_told(model, expected):
    assert lengths.accepted(model=model).value == expected


@pytest.mark.parametrize("fault", ["depends on max_len", "nan", "raises"])
def test_longer_inputs_that_come_out_wrong_are_not_taken(fault, monkeypatch):
    real = longformer.Longformer.forward

    def forward(self: longformer.Longformer, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        y = real(self, x, mask=mask)
        if fault == "raises" and x.shape[1] > self.cfg.max_len:
            raise IndexError
        return y * (self.cfg.max_len if fault == "depends on max_len" else torch.nan if fault == "nan" else 1)

    monkeypatch.setattr(longformer.Longformer, "forward", forward)
    assert lengths.accepted().value == 0


# --- reach ---


@pytest.mark.parametrize(
    ("model", "layers", "causal", "expected"),
    [
        ("longformer[window=3]", 2, True, 2 * 3),
        ("longformer[window=3,dilation=2]", 3, True, 3 * 3 * 2),
        ("longformer[window=3,dilation=2]", 3, False, 3 * 3 * 2),
        ("longformer[window=[2,5]]", 2, True, 7),
        ("transformer-xl[segment=3,memory=6]", 2, True, 2 * 6),
        ("compressive[segment=4,memory=4,compressed=2,rate=2]", 2, True, 2 * (4 + 2 * 2)),
        ("compressive[segment=4,memory=4,compressed=3,rate=4,compression=mean]", 2, True, 2 * (4 + 4 * 3)),
    ],
)
def test_the_reach_of_a_stack_is_that_of_the_papers(model, layers, causal, expected):
    found = reach.stack(model=model, layers=layers, causal=causal, length=80)
    assert found.value == expected
    assert reach.stack(model=model, layers=layers, causal=causal, length=80, expected=expected).value == 1


def test_the_reach_sees_a_dilation_that_is_forgotten(monkeypatch):
    wrapped(monkeypatch, longformer, "of_heads", lambda dilations: [1 for _ in dilations])
    assert reach.stack(layers=3, length=80, expected=24).value == 0.5


def test_the_reach_sees_a_memory_that_is_cut(monkeypatch):
    wrapped(monkeypatch, Compressive, "compacted", lambda compact: compact._replace(rows=compact.rows[:, :0]))
    model = "compressive[segment=4,memory=4,compressed=2,rate=2,compression=mean]"
    assert reach.stack(model=model, layers=2, length=80, expected=16).value == 0.5


def test_an_input_too_short_for_what_is_expected_is_refused():
    with pytest.raises(SpecError, match="no reach of 79"):
        reach.stack(length=80, expected=79)


def test_global_tokens_reach_all_pairs_in_two_layers():
    found = reach.through_globals()
    # each of 64 tokens reaches 8 to either side, less what is beyond the ends
    assert found.value == 1 and f"{(64 * 17 - 2 * sum(range(1, 9))) / 64**2:.3f} of pairs" in found.detail


def test_pairs_see_a_global_token_that_reads_only_its_window(monkeypatch):
    real = longformer.Longformer.attend_globally
    monkeypatch.setattr(
        longformer.Longformer,
        "attend_globally",
        lambda self, x, placed, mask: real(self, x[:, :5], placed[:, :5], mask),
    )
    assert 0.2 < reach.through_globals().value < 1


def test_windows_that_reach_all_pairs_prove_nothing():
    with pytest.raises(SpecError, match="reaches all pairs of 64 tokens"):
        reach.through_globals(model="longformer[window=40,globals=1]")


# --- positions and windows ---


def test_values_are_free_of_infused_positions():
    assert infused.values_free().value < ROUNDING


def test_values_see_positions_that_get_into_them(monkeypatch):
    real = HeadMixer.projected

    def projected(self: HeadMixer, x: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        return *real(self, x, mask)[:2], real(self, self.placed(x, mask), mask)[2]

    monkeypatch.setattr(HeadMixer, "projected", projected)
    found = infused.values_free()
    assert found.value > 1e-3 and "derivative 0.0" not in found.detail


def test_values_see_positions_that_reach_no_query(monkeypatch):
    monkeypatch.setattr(positions.Infused, "inputs", lambda self, x: x)
    assert infused.values_free().value > 1e-3


@pytest.mark.parametrize("model", ["longformer", "local"])
def test_a_window_of_all_tokens_is_softmax_attention(model):
    assert windows.is_softmax(model=model).value < ROUNDING


def test_softmax_sees_a_window_that_is_shorter(monkeypatch):
    real = ops.banded
    monkeypatch.setattr(ops, "banded", lambda *args, window, **more: real(*args, window=window - 5, **more))
    assert windows.is_softmax().value > 1e-3


def test_softmax_sees_a_global_key_that_counts_twice(monkeypatch):
    monkeypatch.setattr(torch, "zeros_like", torch.ones_like)
    assert windows.is_softmax().value > 1e-3


# --- the contract ---


def test_no_probe_of_the_contract_fails_and_refusals_are_told():
    found = contract.failures(models=("linformer",))
    assert found.value == 0 and found.n > 15 and "1 directions refused" in found.detail


def test_failures_see_a_method_that_looks_ahead(monkeypatch):
    wrapped(monkeypatch, Full, "attend", lambda mixed: mixed + mixed.mean(2, keepdim=True))
    found = contract.failures(models=("full",))
    assert found.value >= 1 and "full: causality failed" in found.detail


# --- all of them ---


@pytest.mark.parametrize(
    "measure",
    [
        gating.limits,
        gating.parts_add,
        weights.row_sums,
        weights.least_weight,
        parameters.added,
        operations.foreign,
        operations.largest_tensor,
        streaming.gap,
        lengths.refused,
        lengths.accepted,
        reach.stack,
        reach.through_globals,
        infused.values_free,
        windows.is_softmax,
    ],
)
def test_a_measure_has_defaults_gives_the_same_twice_and_disturbs_no_random_numbers(measure):
    kinds = {parameter.kind for parameter in inspect.signature(measure).parameters.values()}
    assert kinds <= {inspect.Parameter.KEYWORD_ONLY}
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    found = measure()
    assert torch.equal(torch.get_rng_state(), expected)
    assert measure() == found and found.low == found.value == found.high and math.isfinite(found.value)
