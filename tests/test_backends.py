"""Every backend: an independent oracle each, the contract for all, and faults that were reported elsewhere."""

import copy
import math
import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from oracles import Reference, classic, combiner, gated, pairs, recurrent, sparse
from torch import Tensor

from lrbench import attention, testing
from lrbench.backends import ops, tiles
from lrbench.backends.base import Block, LayerConfig, Mixed, Mixer, check_divisible
from lrbench.backends.full import Full
from lrbench.backends.local import Local
from lrbench.backends.performer import Performer, orthogonal
from lrbench.errors import SpecError, Unsupported
from lrbench.models.encoder import Encoder
from lrbench.probes.approximations import approximation
from lrbench.probes.elsewhere import state_elsewhere
from lrbench.probes.streams import step_is_forward
from lrbench.registry import backends
from lrbench.specs import ModelSpec

OFFENDERS = Path(__file__).parent / "offenders"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Oracle(NamedTuple):
    settings: dict[str, Any]
    reference: Reference
    longest: int = 151


ORACLES: dict[str, list[Oracle]] = {
    "full": [Oracle({"impl": impl}, classic.softmax_over(lambda i, j: True)) for impl in ("fused", "math")],
    "local": [
        Oracle({"window": w}, classic.softmax_over(lambda i, j, w=w: (i - j).abs() <= w)) for w in (0, 5, 70, 128)
    ],
    "longformer": [
        Oracle({"window": w, "dilation": g}, classic.window_and_globals(w, g))
        for w, g in ((5, 1), (70, 1), (3, 2), (5, 7), (4, [1, 3, 3]), (9, [2, 1, 2]))
    ],
    "linformer": [Oracle({"k": 7, "sharing": s}, classic.slots) for s in ("none", "headwise", "key-value", "layerwise")]
    + [
        Oracle({"k": 7, "proj": "conv", "sharing": s}, classic.segments(classic.kernel_of_segments))
        for s in ("none", "headwise", "key-value", "layerwise")
    ]
    + [Oracle({"k": 7, "proj": "pool"}, classic.segments(None))],
    "performer": [
        Oracle({"features": 11}, classic.kernel_matrix(classic.positive)),
        Oracle({"features": 131}, classic.kernel_matrix(classic.positive)),
        Oracle({"features": 11, "kernel": "relu"}, classic.kernel_matrix(classic.rectified)),
    ],
    "linear": [Oracle({}, classic.token_by_token)],
    "combiner": [
        Oracle({"plan": plan, **options}, combiner.reference, longest=47)
        for plan, options in (
            ("fixed", {"span": 8}),
            ("fixed", {"span": 12, "abstraction": "deepsets"}),
            ("logsparse", {}),
            ("axial-row", {}),
            ("axial-row", {"width": 10, "row_key": "none"}),
            ("axial-vertical", {"width": 10}),
            ("axial-horizontal", {}),
            ("mixture", {"width": 19, "abstraction": "deepsets"}),
            ("mixture", {"width": 10, "mixture": "average"}),
            ("learnable", {"span": 9, "buckets": 5}),
        )
    ],
    "sparse": [
        Oracle({"pattern": pattern, **options}, sparse.reference)
        for pattern, options in (
            ("fixed", {}),
            ("fixed", {"span": 12}),
            ("fixed", {"span": 1}),
            ("logsparse", {}),
            ("axial", {}),
            ("axial", {"width": 10}),
            ("axial", {"width": 152}),
        )
    ],
    "transformer-xl": [
        Oracle({"segment": n, "memory": m}, recurrent.remembered())
        for n, m in ((3, 7), (8, 0), (8, 20), (16, 16), (200, 9))
    ],
    "compressive": [
        Oracle({"segment": n, "memory": m, "compressed": c, "rate": r, "compression": by}, recurrent.compressed())
        for n, m, c, r, by in (
            (8, 8, 5, 4, "conv"),
            (16, 8, 9, 4, "dilated"),
            (8, 16, 3, 2, "mean"),
            (9, 6, 0, 3, "max"),
            (12, 12, 4, 3, "most-used"),
        )
    ],
    "flash-quad": [
        Oracle({}, gated.quad()),
        Oracle({"impl": "math", "s": 7, "norm": "layernorm", "shift": True}, gated.quad(shift=True)),
        Oracle({"function": "ns", "length": "valid", "rel_bias": "t5"}, gated.quad("ns", "valid")),
        Oracle({"function": "softmax", "rel_bias": "rotary", "rotary": False}, gated.quad("softmax", rotary=False)),
        Oracle({"function": "laplace", "length": "valid", "gate": False}, gated.quad("laplace", "valid", gate=False)),
        Oracle({"length": "valid", "rel_bias": "none", "expansion": 1.3}, gated.quad(length="valid")),
    ],
    "flash": [
        Oracle({}, gated.flash(256)),
        Oracle({"chunk": 8}, gated.flash(8)),
        Oracle({"chunk": 1}, gated.flash(1)),
        Oracle({"chunk": 10, "parts": "local", "rel_bias": "rotary"}, gated.flash(10, "local")),
        Oracle({"chunk": 10, "parts": "global", "shift": True}, gated.flash(10, "global", shift=True)),
        Oracle({"chunk": 50, "function": "softmax", "rel_bias": "t5"}, gated.flash(50, function="softmax")),
        Oracle({"chunk": 9, "function": "ns", "length": "valid"}, gated.flash(9, function="ns", length="valid")),
        Oracle(
            {"chunk": 19, "function": "laplace", "length": "valid", "rotary": False, "gate": False},
            gated.flash(19, function="laplace", length="valid", rotary=False, gate=False),
        ),
    ],
    "transformer-pp": [
        Oracle({}, gated.layer(gated.rotary_heads)),
        Oracle({"impl": "math", "glu_act": "sigmoid"}, gated.layer(gated.rotary_heads, lambda x: 1 / (1 + (-x).exp()))),
    ],
    "mc-tfm-pp": [
        Oracle({}, gated.layer(gated.mixed_heads(256))),
        Oracle({"chunk": 8}, gated.layer(gated.mixed_heads(8))),
        Oracle({"chunk": 19, "rel_bias": "rotary"}, gated.layer(gated.mixed_heads(19))),
        Oracle({"chunk": 7, "rel_bias": "t5", "glu_act": "relu"}, gated.layer(gated.mixed_heads(7), torch.relu)),
        Oracle({"chunk": 7, "rel_bias": "none"}, gated.layer(gated.mixed_heads(7))),
    ],
}


def masks(seq: int) -> dict[str, Tensor | None]:
    few = max(1, seq // 3)
    gaps = torch.rand(3, seq, generator=torch.Generator().manual_seed(5)) < 0.6
    return {
        "none": None,
        "right": testing.real_tokens(seq, seq, few, 1),
        "left": testing.real_tokens(seq, few, seq, 0, left=True),
        "gaps": gaps,
    }


def directions(name: str, settings: dict[str, Any]) -> tuple[bool, ...]:
    can_be_causal = backends.get(name).cls.can_be_causal and settings.get("plan") != "learnable"
    return (False, True) if can_be_causal else (False,)


def cases() -> list[Any]:
    found = []
    for name, oracles in ORACLES.items():
        for oracle in oracles:
            for causal in directions(name, oracle.settings):
                settings = ",".join(f"{key}={value}" for key, value in oracle.settings.items()).replace(" ", "")
                for readout in (0, 1, 3) if name == "longformer" else (1,):
                    place = f"{name}[{settings}]{'-causal' * causal}-{readout}"
                    found.append(pytest.param(name, oracle, causal, readout, id=place))
    return found


def test_every_backend_has_an_oracle():
    assert set(ORACLES) == set(backends.shipped())


@pytest.mark.parametrize(("name", "oracle", "causal", "readout"), cases())
def test_a_backend_and_its_gradient_equal_the_plain_form(name, oracle, causal, readout):
    make = testing.Factory(backends.get(name).cls, oracle.settings, causal, readout=readout)
    mixer = make(oracle.longest).double()
    if readout and name == "longformer" and not causal:  # copies at first; the test needs them to differ
        torch.nn.init.normal_(mixer.key_global.weight, std=0.3, generator=torch.Generator().manual_seed(3))
    for index, (part, parameter) in enumerate(mixer.named_parameters()):
        if part.endswith(("gamma", "beta")):  # queries and keys would be the same at first
            torch.nn.init.normal_(parameter, std=0.8, generator=torch.Generator().manual_seed(index))
    for seq in (1, 2, 19, oracle.longest):
        for kind, mask in masks(seq).items():
            x = make.inputs(seq, rows=3).double().requires_grad_()
            shown = torch.ones(3, seq, dtype=torch.bool) if mask is None else mask
            weight = make.inputs(seq, rows=3, seed=4).double() * shown[..., None]  # padded rows may hold anything
            mine, plain = mixer(x, mask=mask) * weight, oracle.reference(mixer, x, shown) * weight
            assert (mine - plain).abs().max() < 1e-10, (seq, kind)
            (got,), (expected,) = (torch.autograd.grad(y.sum(), x) for y in (mine, plain))
            assert (got - expected)[shown].abs().max() < 1e-9, (seq, kind)


# --- the contract ---

CONTRACT = [
    pytest.param(name, causal, id=f"{name}{'-causal' * causal}")
    for name in backends.shipped()
    for causal in ((False, True) if backends.get(name).cls.can_be_causal else (False,))
]


@pytest.mark.parametrize(("name", "causal"), CONTRACT)
def test_a_backend_keeps_the_contract(name, causal):
    backend = backends.get(name)
    probes = testing.conformance(backend.cls, backend.options, causal)
    assert [probe for probe in probes if not probe.passed] == []
    assert len(probes) == len(testing.PROBES) + causal


@pytest.mark.parametrize(
    "name",
    [
        "longformer[window=9,globals=2]",
        "longformer[window=8,globals=1,dilation=[1,3,3]]",
        "linformer[k=16,proj=pool]",
        "linformer[k=16,proj=conv]",
        "linformer[k=16,proj=conv,sharing=none]",
        "linformer[k=16,resize=interp]",
    ],
)
def test_an_option_of_an_encoder_keeps_the_contract(name):
    backend = backends.get(name)
    assert [probe for probe in testing.conformance(backend.cls, backend.options) if not probe.passed] == []


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "local[window=8]",
        "longformer[window=8]",
        "longformer[window=8,dilation=3]",
        "longformer[window=[8,16],dilation=[1,1,4]]",
    ],
)
def test_a_window_of_8_keeps_the_contract(name, causal):  # lucidrains/local-attention#21
    backend = backends.get(name)
    probes = testing.conformance(backend.cls, backend.options, causal)
    assert [probe for probe in probes if not probe.passed] == []


CAUGHT_BY = {
    "leaker": {"causality"},
    "mask_ignorer": {
        "mask matters",
        "padding content",
        "padding amount",
        "padding gradient",
        "hidden row",
        "lengths",
    },
    "value_masker": {"padding amount", "lengths"},
    "sorter": {"causality", "bfloat16 error", "float16 error"},
    "nan_maker": {"hidden row"},
    "batch_mixer": {"row independence"},
    "nondeterministic": {"determinism", "state round trip", "state elsewhere"},
    "counter": {"determinism"},
    "dead_parameter": {"gradients"},
    "rememberer": {"turns"},
    "quadratic": {"memory growth", "operations growth"},
    "order_liar": {"operations growth"},
    "approximation_liar": {"approximation"},
    "aux_leaker": {"padding gradient"},
    "float_maker": {"shape and dtype"},
    "global_state": {"state elsewhere"},
    "half_overflow": {"float16 error"},
    "mask_switch": {"full mask", "row independence", "lengths"},
    "rounder": {"float32 error"},
    "step_drifter": {"step is forward"},
}


def test_every_probe_catches_an_offender():
    named = {probe.name for probe in testing.conformance(Local, {}, causal=True)}
    assert named == set().union(*CAUGHT_BY.values())


def test_a_probe_that_does_not_apply_is_skipped_with_a_reason_and_fails_nothing():
    skipped = {probe.name: probe for probe in testing.conformance(Local, {}) if probe.skipped}
    assert set(skipped) == {"step is forward", "approximation"}
    assert all(probe.passed and probe.detail for probe in skipped.values())
    assert str(skipped["step is forward"]) == "step is forward skipped: it has no `step`: it does not stream"


def test_a_class_that_no_other_process_finds_is_skipped_there():
    class Hidden(Local):
        pass

    found = state_elsewhere(testing.Factory(Hidden, {}))
    assert found.skipped and "another process" in found.detail


def test_what_goes_wrong_in_the_other_process_is_told(tmp_path):
    (tmp_path / "once.py").write_text(ONCE)
    found = testing.probe(state_elsewhere, testing.Factory(backends.get(f"{tmp_path / 'once.py'}").cls, {}))
    assert not found.passed and "in the other process: ValueError: not here" in found.detail
    assert state_elsewhere(testing.Factory(Local, {})).passed  # and it is there for the next


ONCE = f"""import os
from lrbench.backends.local import Local

class Once(Local):
    def __init__(self, cfg, **settings):
        super().__init__(cfg, **settings)
        if os.getpid() != {os.getpid()}:
            raise ValueError("not here")
"""


def test_an_error_falls_with_features_as_the_power_says_and_the_power_is_minus_a_half():
    found = approximation(testing.Factory(Performer, {}))
    assert found.passed and -0.6 < found.measured < -0.4
    assert approximation(testing.Factory(Performer, {"kernel": "relu"})).skipped


def test_a_method_that_streams_without_saying_how_much_at_a_time_is_caught():
    class Vague(offender("step_drifter")):
        segment = None

    found = step_is_forward(testing.Factory(Vague, {}, causal=True))
    assert not found.passed and "segment" in found.detail


def test_a_whole_residual_layer_goes_through_the_same_gate():
    probes = testing.conformance(Layer, {}, causal=True)
    assert [probe for probe in probes if not probe.passed] == []


class Layer(Block):
    """A norm, an attention, the sum; and a loss of its own."""

    can_be_causal = True

    def __init__(self, cfg):
        super().__init__(cfg)
        self.norm, self.mixer = torch.nn.LayerNorm(cfg.dim), Full(cfg)

    def forward(self, x, *, mask=None):
        y = x + self.mixer(self.norm(x), mask=mask)
        return Mixed(y, 1e-2 * self.mixer.out.weight.square().sum()) if self.training else y


def test_what_cannot_be_built_has_failed_and_what_is_refused_is_raised():
    class Breaks(Local):
        def __init__(self, cfg):
            raise ValueError("what a\npity")

    (found,) = testing.conformance(Breaks, {})
    assert (found.name, found.detail, found.passed) == ("construction", "ValueError: what a pity", False)
    with pytest.raises(Unsupported):
        testing.conformance(backends.get("linformer").cls, {}, causal=True)


def test_notes_tell_what_a_method_found_out_while_it_ran():
    class Falls(Local):
        fell = False

        @property
        def notes(self):
            return ["the slow path was taken"] if self.fell else []

        def attend(self, q, k, v, mask):
            self.fell = q.shape[2] > 500
            return super().attend(q, k, v, mask)

    assert testing.notes(Falls, {"window": 8}) == ["the slow path was taken"]


def test_every_offender_is_known():
    assert set(CAUGHT_BY) == {path.stem for path in OFFENDERS.glob("*.py")}


def offender(name: str) -> type[Mixer]:
    return backends.get(f"{OFFENDERS / name}.py:{name.title().replace('_', '')}").cls


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_an_offender_is_caught_by_the_probes_meant_for_it(name):
    cls = offender(name)
    probes = testing.conformance(cls, {}, causal=cls.can_be_causal)
    assert {probe.name for probe in probes if not probe.passed} == CAUGHT_BY[name]


@pytest.mark.parametrize("name", ["leaker", "sorter"])
def test_leaks_that_gradients_do_not_show_exist(name):
    make = testing.Factory(offender(name), {}, causal=True)
    x = make.inputs(64).requires_grad_()
    make()(x)[:, 31].sum().backward()
    assert x.grad[:, 32:].abs().max() == 0
    assert not testing.causality(make).passed


def test_a_probe_that_raises_has_failed_and_says_why():
    found = testing.probe(testing.lengths, testing.Factory(Mixer, {}))
    assert (found.passed, found.detail) == (False, "NotImplementedError: ")


def test_orders_are_read_as_powers():
    texts = {"n": 1, "n log n": 1, "n^1.5": 1.5, "n sqrt(n)": 1.5, "n^2": 2, "who knows": 2}
    assert {text: testing.power(text) for text in texts} == texts


# --- memory ---


def test_quadratic_tensors_are_seen_in_the_textbook_form_and_not_in_the_fused_one():
    textbook, fused = (
        testing.growth(testing.Factory(backends.get("full").cls, {"impl": impl})) for impl in ("math", "fused")
    )
    assert textbook > 1.9
    assert fused < 1.1


def test_causal_full_attention_with_padding_keeps_no_scores():
    make = testing.Factory(backends.get("full").cls, {}, causal=True)
    with testing.LargestTensor() as watch:
        make()(make.inputs(2048), mask=testing.real_tokens(2048, 2000, 1000))
    assert watch.elements < 2048**2 / 8


# --- full ---


def test_attention_dropout_off_the_fused_path_is_noted():
    cls = backends.get("full").cls
    make = testing.Factory(cls, {})
    assert make().notes == []
    assert "no fused kernel" in make(dropout=0.1).notes[0]


@pytest.mark.parametrize(
    "name",
    [
        "full",
        "full[impl=math]",
        "local",
        "longformer",
        "linformer",
        "performer",
        "linear",
        "transformer-xl",
        "flash-quad",
        "flash[chunk=4]",
    ],
)
def test_dropout_acts_in_training_only(name):
    backend = backends.get(name)
    make = testing.Factory(backend.cls, backend.options)
    mixer, x = make(dropout=0.5), make.inputs(19)
    expected = make()(x)
    assert torch.equal(mixer(x), expected)
    torch.manual_seed(1)
    assert not torch.allclose(mixer.train()(x), expected, atol=1e-2)
    mean = torch.stack([mixer(x) for _ in range(200)]).mean(0)
    assert (mean - expected).abs().mean() < 0.3 * expected.abs().mean()


# --- local and longformer ---


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["local", "longformer"])
@pytest.mark.parametrize("seq", [1, 2, 31, 64])
def test_a_window_as_long_as_the_input_equals_full_attention(name, causal, seq):  # lucidrains/local-attention#4
    windowed, full = (
        testing.Factory(backends.get(other).cls, options, causal, readout=0)
        for other, options in ((name, {"window": 64}), ("full", {}))
    )
    x = full.inputs(seq).double()
    assert (windowed().double()(x) - full().double()(x)).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", [5, 8, 9, 17])
def test_exactly_the_documented_tokens_are_seen(seq, causal):  # lucidrains/local-attention#5
    make = testing.Factory(backends.get("local").cls, {"window": 4}, causal)
    mixer = make().double()
    jacobian = torch.autograd.functional.jacobian(mixer, make.inputs(seq, rows=1).double())[0, :, :, 0]
    i, j, allowed = pairs(seq, causal)
    assert torch.equal(jacobian.abs().amax((1, 3)) > 0, allowed & ((i - j).abs() <= 4))


def test_a_global_key_in_the_window_counts_once():
    make = testing.Factory(backends.get("longformer").cls, {"window": 9}, readout=2)
    ones = torch.ones(2, 3, 50, 5, dtype=torch.float64)
    q, k = (torch.randn(2, 3, 50, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    assert (make().double().attend(q, k, ones, None) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("readout", [0, 1])
def test_the_first_token_hears_the_farthest_one_only_if_it_is_global(readout):
    make = testing.Factory(backends.get("longformer").cls, {"window": 8}, readout=readout)
    x = make.inputs(100).requires_grad_()
    make()(x)[:, 0].sum().backward()
    assert bool(x.grad[:, -1].any()) == bool(readout)


def test_global_projections_exist_only_where_they_are_used_and_start_as_copies():
    cls = backends.get("longformer").cls
    counts = {
        (causal, readout): sum(p.numel() for p in testing.Factory(cls, {}, causal, readout=readout)().parameters())
        for causal in (False, True)
        for readout in (0, 1)
    }
    own = 3 * 13 * 15
    assert counts == {(False, 0): 780, (False, 1): 780 + own, (True, 0): 780, (True, 1): 780}
    mixer = testing.Factory(cls, {}, readout=1)()
    assert torch.equal(mixer.key.weight, mixer.key_global.weight)


@pytest.mark.parametrize("readout", [0, 2])
def test_global_tokens_may_be_more_than_the_answer_is_read_from(readout):
    settings = {"window": 4, "dilation": [1, 2, 1], "globals": 3}
    make = testing.Factory(backends.get("longformer").cls, settings, readout=readout)
    mixer, reference = make().double(), classic.window_and_globals(4, [1, 2, 1], 3)
    torch.nn.init.normal_(mixer.value_global.weight, generator=torch.Generator().manual_seed(3))
    for seq in (2, 4, 60):
        x, mask = make.inputs(seq, rows=3).double(), testing.real_tokens(seq, seq, 1, seq - 1, left=True)
        for shown in (torch.ones_like(mask), mask):
            assert (mixer(x, mask=shown) - reference(mixer, x, shown))[shown].abs().max() < 1e-10


def test_windows_differ_by_layer_and_dilations_by_layer_and_head():
    backend = backends.get("longformer[window=[8,16],dilation=[1,[1,2,4]]]")
    made = [backend.cls(LayerConfig(6, 3, 2, 64, index=index, layers=2), **backend.options) for index in (0, 1)]
    assert [mixer.window for mixer in made] == [8, 16]
    assert [mixer.dilations for mixer in made] == [[1, 1, 1], [1, 2, 4]]
    assert backends.get("longformer[dilation=[1,1,2,4]]").options["dilation"] == [1, 1, 2, 4]


@pytest.mark.parametrize(
    ("setting", "sizes", "told"),
    [
        ("longformer[window=[8]]", {"index": 1, "layers": 2}, ["window", "1 values", "2 layers"]),
        ("longformer[window=[8,8,8]]", {"layers": 2}, ["window", "3 values", "2 layers"]),
        ("longformer[window=[8,8]]", {"index": 2}, ["window", "2 values", "layer 3"]),
        ("longformer[window=[8,-1]]", {"index": 1}, ["window", "-1"]),
        ("longformer[dilation=[1,2]]", {}, ["dilation", "2 values", "3 heads"]),
        ("longformer[dilation=[1,0,2]]", {}, ["dilation", "0"]),
        ("longformer[dilation=[1,[1,2]]]", {"index": 1, "layers": 2}, ["dilation", "2 values", "3 heads"]),
        ("longformer[dilation=[[1,1,2]]]", {"layers": 2}, ["dilation", "1 values", "2 layers"]),
        ("linformer[k=[8,4]]", {"layers": 3}, ["k", "2 values", "3 layers"]),
        ("linformer[k=[8,0]]", {"index": 1}, ["k", "0"]),
        ("linformer[proj=pool,sharing=none]", {}, ["sharing", "none"]),
        ("linformer[proj=conv,resize=interp]", {}, ["resize", "interp"]),
    ],
)
def test_options_of_layers_and_heads_are_refused_with_both_numbers(setting, sizes, told):
    backend = backends.get(setting)
    with pytest.raises(SpecError) as refusal:
        backend.cls(LayerConfig(6, 3, 2, 64, **sizes), **backend.options)
    assert all(text in f"{refusal.value.message} {refusal.value.hint}" for text in told)


def test_a_list_of_another_length_than_the_model_has_layers_is_refused():
    backend = backends.get("longformer[window=[8,16,32]]")
    sizes = ModelSpec(layers=2, dim=8, heads=2, mlp_dim=8)
    with pytest.raises(SpecError, match="3 values for 2 layers"):
        Encoder(sizes, partial(backend.cls, **backend.options), vocabulary=16, length=64)


def test_causal_longformer_refuses_global_tokens():
    with pytest.raises(Unsupported, match="causal with globals 2"):
        testing.Factory(backends.get("longformer").cls, {"globals": 2}, causal=True)()


def test_shifting_a_long_input_shifts_what_a_window_computes():
    make = testing.Factory(backends.get("local").cls, {"window": 16})
    x = make.inputs(400).double()
    mixer = make().double()
    assert (mixer(x)[:, 65 + 20 : 300] - mixer(x[:, 65:])[:, 20 : 300 - 65]).abs().max() < 1e-12


# --- linformer ---


def test_linformer_with_identity_maps_equals_full_attention():
    slotted, full = (
        testing.Factory(backends.get(name).cls, options)(41).double()
        for name, options in (("linformer", {"k": 41}), ("full", {}))
    )
    torch.nn.init.eye_(slotted.key_slots), torch.nn.init.eye_(slotted.value_slots)
    x = torch.randn(2, 41, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert (slotted(x) - full(x)).abs().max() < 1e-12


def test_linformer_refuses_causality_by_name():  # tatp22/linformer-pytorch#16
    with pytest.raises(Unsupported, match="linformer cannot be causal"):
        testing.Factory(backends.get("linformer").cls, {}, causal=True)()


def test_linformer_takes_shorter_inputs_and_refuses_longer_ones_with_both_numbers():  # lucidrains/linformer#8
    make = testing.Factory(backends.get("linformer").cls, {})
    mixer = make(128)
    for seq in (1, 17, 127, 128):
        assert mixer(make.inputs(seq)).shape == (2, seq, 13)
    with pytest.raises(Unsupported) as refusal:
        mixer(make.inputs(129))
    assert all(text in f"{refusal.value.message} {refusal.value.hint}" for text in ("128", "129", "data.length"))


def test_a_causal_mask_would_not_have_helped_linformer():
    make = testing.Factory(backends.get("linformer").cls, {"k": 16})
    x = make.inputs(64).requires_grad_()
    make()(x)[:, 5].sum().backward()
    assert x.grad[:, -1].any()


@pytest.mark.parametrize(
    ("sharing", "extra"), [("none", 2 * 3 * 7 * 64), ("headwise", 2 * 7 * 64), ("key-value", 7 * 64), ("layerwise", 0)]
)
def test_linformer_shares_what_it_says(sharing, extra):
    make = testing.Factory(backends.get("linformer").cls, {"k": 7, "sharing": sharing})
    first = make(64)
    second = make(64, index=1, first=first)
    assert len({*second.parameters()} - {*first.parameters()}) == 4 + {"none": 2, "headwise": 2, "key-value": 1}.get(
        sharing, 0
    )
    both = torch.nn.ModuleList([first, second])
    assert sum(p.numel() for p in both.parameters()) == 2 * 780 + (2 * extra or 7 * 64)


def test_layers_may_have_fewer_slots_but_not_of_one_shared_map():
    backend = backends.get("linformer[k=[8,4]]")
    made = [backend.cls(LayerConfig(6, 3, 2, 64, index=index, layers=2), **backend.options) for index in (0, 1)]
    assert [mixer.key_slots.shape for mixer in made] == [(8, 64), (4, 64)]
    shared = backends.get("linformer[k=[8,4],sharing=layerwise]")
    first = shared.cls(LayerConfig(6, 3, 2, 64, layers=2), **shared.options)
    with pytest.raises(SpecError, match="k is 8 in layer 1 and 4 in layer 2"):
        shared.cls(LayerConfig(6, 3, 2, 64, index=1, layers=2, first=first), **shared.options)


@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value", "layerwise"])
def test_linformer_stretches_its_maps_over_longer_inputs_only_where_asked(sharing):
    def stretched(mixer, seq):
        """Linear between the middles of columns, constant beyond the outer ones."""
        place = ((torch.arange(seq, dtype=torch.float64) + 0.5) * 40 / seq - 0.5).clamp(0, 39)
        left = place.long().clamp(max=38)
        part, tables = place - left, (mixer.key_slots, mixer.value_slots)
        return tuple((t[..., left] * (1 - part) + t[..., left + 1] * part) * 40 / seq for t in tables)

    make = testing.Factory(backends.get("linformer").cls, {"k": 7, "sharing": sharing, "resize": "interp"})
    mixer = make(40).double()
    for seq, tables in ((39, classic.first_columns), (40, stretched), (41, stretched), (97, stretched)):
        x, mask = make.inputs(seq).double(), testing.real_tokens(seq, seq, seq // 2)
        assert (mixer(x, mask=mask) - classic.slots_of(tables)(mixer, x, mask))[mask].abs().max() < 1e-10
    assert any("longer than 40" in note for note in mixer.notes)


@pytest.mark.parametrize(("proj", "extra"), [("pool", 0), ("conv", 2 * 6)])
def test_slots_of_segments_take_any_length(proj, extra):
    reference = classic.segments(classic.kernel_of_segments if proj == "conv" else None)
    make = testing.Factory(backends.get("linformer").cls, {"k": 7, "proj": proj})
    mixer = make(40).double()
    assert sum(p.numel() for p in mixer.parameters()) == 780 + extra
    for seq in (5, 40, 41, 100):
        x, mask = make.inputs(seq).double(), testing.real_tokens(seq, seq, 1)
        assert (mixer(x, mask=mask) - reference(mixer, x, mask))[mask].abs().max() < 1e-10
    assert any(f"proj={proj}" in note and "6 tokens" in note for note in mixer.notes)


# --- performer ---


def performer(head_dim: int, features: int, **options: Any) -> Performer:
    torch.manual_seed(0)
    return Performer(LayerConfig(head_dim, 1, head_dim, 64), features=features, **options).double().eval()


def redrawn(mixer: Performer, draws: int):
    for seed in range(draws):
        mixer.seed.fill_(seed)
        mixer.draw()
        yield mixer


def test_performer_converges_to_softmax_attention_at_the_rate_of_monte_carlo():
    q, k, v = (
        torch.randn(1, 1, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (1, 2, 3)
    )
    q, k = 0.3 * q, 0.3 * k
    exact = (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v
    counts, errors = (32, 128, 512, 2048), []
    for count in counts:
        squares = [(m.attend(q, k, v, None) - exact).square().mean() for m in redrawn(performer(64, count), 40)]
        errors.append(float(torch.stack(squares).mean().sqrt()))
    x, y = torch.tensor(counts).double().log(), torch.tensor(errors).double().log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert -0.58 < slope < -0.42


def estimates(directions: Tensor, total: Tensor) -> Tensor:
    """exp(w·(q' + k') - (|q'|² + |k'|²) / 2) / exp(q'·k') for each direction, with q' + k' = total."""
    return (directions @ total - total.square().sum() / 2).exp()


def test_features_are_unbiased_also_along_the_axes():
    draws = 20000
    directions = orthogonal(8 * draws, 8, torch.Generator().manual_seed(1))
    means = estimates(directions, torch.full((8,), 0.3, dtype=torch.float64)).view(draws, 8).mean(1)
    assert abs(means.mean() - 1) < 4 * means.std() / math.sqrt(draws)
    assert directions.mean(0).abs().max() < 4 / math.sqrt(8 * draws)


def test_the_variance_of_features_is_that_of_the_formula_and_orthogonality_lowers_it():
    draws, total = 40000, torch.full((8,), math.sqrt(0.7 / 8), dtype=torch.float64)
    squares = (estimates(orthogonal(8 * draws, 8, torch.Generator().manual_seed(2)), total) - 1).view(draws, 8)
    formula = math.exp(0.7) - 1
    assert squares[:, 0].square().mean() == pytest.approx(formula, rel=0.1)
    assert 0.8 < squares.mean(1).square().mean() / (formula / 8) < 0.93


def test_directions_are_orthogonal_within_blocks_and_as_long_as_gaussian_ones():
    directions = orthogonal(23, 7, torch.Generator().manual_seed(3))
    gram = directions @ directions.T
    block = torch.arange(23) // 7
    same = (block[:, None] == block) & ~torch.eye(23, dtype=torch.bool)
    assert gram[same].abs().max() < 1e-12
    assert orthogonal(7000, 7, torch.Generator().manual_seed(4)).square().sum(1).mean() == pytest.approx(7, rel=0.03)


def test_performer_redraws_at_counted_steps_only_and_touches_no_other_random_number():
    mixer = performer(8, 19, redraw=3).train()
    first, rng = mixer.directions.clone(), torch.get_rng_state()
    for _ in range(5):
        mixer(torch.ones(1, 9, 8, dtype=torch.float64))
    changes = []
    for _ in range(7):
        before = mixer.directions.clone()
        mixer.before_step()
        changes.append(not torch.equal(before, mixer.directions))
    assert changes == [False, False, False, True, False, False, True]
    assert torch.equal(rng, torch.get_rng_state())
    assert not torch.equal(first, mixer.directions)


def test_performer_goes_on_redrawing_alike_after_a_resume():
    one, other = performer(8, 19, redraw=2), performer(8, 19, redraw=2)
    other.seed.fill_(99)
    one.before_step()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    first = one.directions.clone()
    for mixer in (one, other, one, other):
        mixer.before_step()
    assert torch.equal(one.directions, other.directions) and not torch.equal(one.directions, first)


@pytest.mark.parametrize(
    "text, told",
    [
        ("local[window=63]", "covers inputs of at most 64 tokens"),
        ("longformer[window=63]", "covers inputs of at most 64 tokens"),
        ("linformer[k=64]", "save nothing"),
        ("local[window=62]", None),
        ("longformer[window=62]", None),
        ("longformer[window=63,dilation=2]", None),
        ("linformer[k=63]", None),
        ("transformer-xl[segment=64]", "holds inputs of at most 64 tokens"),
        ("transformer-xl[segment=63]", None),
        ("compressive[segment=32,memory=32]", "never read"),
        ("compressive[segment=32,memory=28]", None),
        ("compressive[segment=28,memory=28]", None),
    ],
)
def test_settings_that_make_a_method_another_are_noted(text: str, told: str | None):
    notes = attention(text, dim=8, heads=2, max_len=64).notes
    assert notes == [] if told is None else told in notes[0]


def test_a_thousand_eval_calls_change_no_buffer():  # lucidrains/performer-pytorch#10
    mixer = performer(8, 19, redraw=1)
    state = copy.deepcopy(mixer.state_dict())
    with torch.no_grad():
        for _ in range(1000):
            mixer(torch.ones(1, 5, 8, dtype=torch.float64))
    assert all(torch.equal(value, state[name]) for name, value in mixer.state_dict().items())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_inputs_in_half_precision_stay_finite(dtype, causal):  # facebookresearch/xformers#96
    torch.manual_seed(0)
    mixer = Performer(LayerConfig(64, 1, 64, 1024, causal=causal))
    x = (30 * torch.randn(2, 1024, 64)).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = mixer(x)
    y.float().mean().backward()
    assert all(tensor.isfinite().all() for tensor in (y, x.grad, *(p.grad for p in mixer.parameters())))


# --- tiles ---


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["performer[features=19]", "performer[features=150]", "performer[kernel=relu]"])
def test_tiles_of_any_size_compute_what_whole_tensors_do(name, causal, monkeypatch):
    backend = backends.get(name)
    make = testing.Factory(backend.cls, backend.options, causal)
    mixer, x = make().double(), 2 * make.inputs(300, rows=3).double().requires_grad_()
    mask, weight = testing.real_tokens(300, 300, 0, 77), make.inputs(300, rows=3, seed=4).double()

    def passes(tile, cache):
        monkeypatch.setattr(tiles, "worthwhile", lambda _: tile > 0)
        monkeypatch.setattr(tiles, "TILE", tile)
        monkeypatch.setattr(tiles, "CACHE", cache)
        y = mixer(x, mask=mask)
        return (y * mask[..., None], *torch.autograd.grad((y * weight)[mask].sum(), [x, *mixer.parameters()]))

    whole = passes(0, 0)
    # one head at a time, two heads of a row, two rows, and all there is
    for tile, cache in ((32, 1), (64, 64 * 2 * 32), (128, 128 * 6 * 160), (512, 2**30)):
        for mine, plain in zip(passes(tile, cache), whole, strict=True):
            assert (mine - plain).abs().max() < 1e-10 * plain.abs().max(), (tile, cache)


@pytest.mark.parametrize("causal", [False, True])
def test_features_are_kept_by_no_tile(causal):
    make = testing.Factory(backends.get("performer").cls, {"features": 64}, causal)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda x: x):
        make(4096)(make.inputs(4096, rows=1).requires_grad_())
    assert max(kept) < 4096 * 3 * 64 / 2


# --- linear ---


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_over_long_inputs_are_kept_in_single_precision(dtype, causal):  # idiap/fast-transformers#32
    mixer = backends.get("linear").cls(LayerConfig(2, 1, 2, 70000, causal=causal))
    ones = torch.ones(1, 1, 70000, 2, dtype=dtype)
    with torch.autocast("cpu", dtype=dtype):
        assert (mixer.attend(ones, ones, ones, None) - 1).abs().max() < 1e-2


# --- all ---


@pytest.mark.parametrize(("name", "causal"), CONTRACT)
def test_a_hidden_row_mixes_to_exact_zeros(name, causal):  # pytorch/pytorch#103749
    backend = backends.get(name)
    make = testing.Factory(backend.cls, backend.options, causal)
    y = make()(make.loud(64), mask=testing.real_tokens(64, 0, 40))
    assert y[0].abs().max() == 0


@pytest.mark.parametrize(("name", "causal"), CONTRACT)
@pytest.mark.parametrize(("dim", "heads"), [(96, 1), (192, 2), (65, 5), (63, 9), (8, 8), (7, 7)])
def test_odd_widths_of_heads_work(name, causal, dim, heads):  # meta-pytorch/attention-gym#32
    backend = backends.get(name)
    make = testing.Factory(backend.cls, backend.options, causal, dim, heads, check_divisible(dim, heads))
    x = make.inputs(33).requires_grad_()
    y = make()(x)
    y.square().sum().backward()
    assert y.shape == x.shape and y.isfinite().all() and x.grad.isfinite().all()


def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers():
    with pytest.raises(SpecError, match="dim 64 is not divisible by heads 5"):
        check_divisible(64, 5)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("local", "window", -1),
        ("longformer", "window", -2),
        ("longformer", "dilation", 0),
        ("longformer", "globals", -1),
        ("linformer", "k", 0),
        ("performer", "features", 0),
        ("performer", "redraw", -1),
        ("transformer-xl", "segment", 0),
        ("transformer-xl", "memory", -1),
        ("compressive", "compressed", -1),
        ("compressive", "rate", 0),
        ("compressive", "weight", -0.5),
        ("flash-quad", "s", 0),
        ("flash-quad", "expansion", 0.01),
        ("flash", "chunk", 0),
        ("flash", "global_norm", "chunk"),
        ("mc-tfm-pp", "chunk", 0),
    ],
)
def test_an_option_out_of_range_is_refused_by_name_and_value(name, option, value):
    with pytest.raises(SpecError) as refusal:
        testing.Factory(backends.get(name).cls, {option: value})()
    assert option in refusal.value.message and repr(value) in refusal.value.message


@pytest.mark.parametrize(
    "setting",
    [
        "full[impl=flash]",
        "linformer[sharing=some]",
        "linformer[proj=max]",
        "linformer[resize=cut]",
        "performer[kernel=cosine]",
        "compressive[compression=zip]",
    ],
)
def test_an_unknown_choice_is_refused_by_name(setting):
    option = setting.partition("[")[2].partition("=")[0]
    with pytest.raises(SpecError, match=option):
        backends.get(setting)


@pytest.mark.parametrize("name", backends.shipped())
def test_a_backend_says_in_a_line_what_it_is(name):
    assert 10 < len(backends.summary(name)) <= 70
    assert backends.get(name).cls.paper


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [("local", {"window": 5}), ("local", {"window": 1}), ("longformer", {"window": 6, "dilation": [1, 3]})],
)
@pytest.mark.parametrize("seq", [65, 96, 100])
def test_a_long_input_taken_in_parts_is_mixed_as_a_whole(name, options, causal, seq, monkeypatch):
    cfg = LayerConfig(dim=16, heads=2, head_dim=8, max_len=seq, causal=causal)
    torch.manual_seed(0)
    more = {"globals": 2} if name == "longformer" and not causal else {}
    mixer = backends.get(name).cls(cfg, **options, **more).double().eval()
    x = torch.randn(2, seq, 16, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(seq) < torch.tensor([[seq], [seq - 20]])
    found = []
    for long in (32_768, 32):
        monkeypatch.setattr(ops, "LONG", long)
        y = mixer(x, mask=mask)
        found.append((y, torch.autograd.grad(y.square().sum(), x)[0]))
    for whole, parts in zip(*found, strict=True):
        assert torch.allclose(whole, parts, atol=1e-12)
