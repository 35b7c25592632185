"""The gated attention family: published equalities, golden vectors, streaming, and what each option changes."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from oracles import gated as plain
from torch import Tensor, nn

from lrbench import testing
from lrbench.backends import chunks, gated, squared
from lrbench.backends.base import LayerConfig, Mixer, fold_segments
from lrbench.backends.flash import Flash
from lrbench.backends.flash_quad import FlashQuad
from lrbench.backends.mc_tfm_pp import McTfmPp
from lrbench.backends.transformer_pp import TransformerPp
from lrbench.errors import SpecError, Unsupported
from lrbench.models.encoder import Encoder
from lrbench.registry import backends
from lrbench.specs import ModelSpec

GOLDEN = Path(__file__).parents[2] / "shared" / "spec" / "golden" / "flash.json"
golden = pytest.mark.skipif(not GOLDEN.is_file(), reason=f"no golden vectors in {GOLDEN}")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def double(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def stirred(mixer: Mixer) -> Mixer:
    """Other numbers for parameters that start alike."""
    for index, (name, parameter) in enumerate(mixer.named_parameters()):
        if name.endswith(("gamma", "beta", "bias", "gain", "table")):
            nn.init.normal_(parameter, std=0.8, generator=torch.Generator().manual_seed(index))
    return mixer.double()


def made(cls: type[Mixer], max_len: int = 64, causal: bool = False, **options) -> Mixer:
    return stirred(testing.Factory(cls, {"s": 6, **options}, causal)(max_len))


def mixing(unit: Mixer, seq: int, mask: Tensor | None = None) -> Tensor:
    """What a unit makes of drawn heads and values."""
    heads = tuple(drawn(2, seq, unit.s, seed=i) for i in range(len(unit.gamma)))
    return unit.mix(heads, drawn(2, seq, 26, seed=9) * (1 if mask is None else mask[..., None]), mask)


# --- golden vectors ---


@golden
def test_rotary_positions_and_the_rotary_bias_are_those_of_the_golden_vectors():
    vectors = json.loads(GOLDEN.read_text())
    assert (gated.rotated(double(vectors["rope_in"])) - double(vectors["rope_out"])).abs().max() < 1e-9
    bias = gated.RelativeBias("rotary", 4, 4, causal=False).double()
    bias.table.data = double([vectors["rope_bias_a"], vectors["rope_bias_b"]])
    found = squared.toeplitz(bias(4).detach(), 4, 4, 0)
    assert (found - double(vectors["rope_bias"])).abs().max() < 1e-8


@golden
@pytest.mark.parametrize("case", range(4))
def test_mixed_chunks_are_those_of_the_golden_vectors(case):
    vectors = json.loads(GOLDEN.read_text())
    expected = vectors["mixed_chunk"][case]
    unit = testing.Factory(Flash, {"chunk": 3, "s": 4}, expected["causal"], dim=3)(7).double()
    unit.bias.table.data = double(vectors["w"])
    valid = expected["valid"]
    mask = torch.arange(7)[None] < valid
    heads = tuple(double(vectors[name])[None] for name in ("quad_q", "quad_k", "lin_q", "lin_k"))

    def mixed(v: Tensor, given: Tensor | None) -> Tensor:
        return unit.mix(heads, (v * mask[0, :, None])[None], given)[0, :valid]

    for given in (mask, None) if valid == 7 else (mask,):
        assert (mixed(double(vectors["v"]), given) - double(expected["out"])).abs().max() < 1e-8
        weights = mixed(torch.eye(7, dtype=torch.float64), given)
        assert (weights - double(expected["weights"])).abs().max() < 1e-8


@golden
@pytest.mark.parametrize("case", range(4))
def test_whole_units_are_those_of_the_golden_vectors(case):
    vectors = json.loads(GOLDEN.read_text())
    given, expected = vectors["layer_inputs"], vectors["layers"][case]
    quad = expected["kind"] == "quad"
    cls, options = (FlashQuad, {}) if quad else (Flash, {"chunk": 3})
    unit = testing.Factory(cls, {"s": 4, **options}, expected["causal"], dim=4)(7).double()
    unit.expand.weight.data, unit.expand.bias.data = double(given["W"]).T, double(given["bw"])
    unit.out.weight.data, unit.out.bias.data = double(given["Wo"]).T, double(given["bo"])
    pairs = 2 if quad else 4
    unit.gamma.data, unit.beta.data = double(given["gamma"])[:pairs], double(given["beta"])[:pairs]
    unit.bias.table.data = double(given["wq" if quad else "w_local"])
    assert (unit(double(given["x"])[None])[0] - double(expected["out"])).abs().max() < 1e-8


# --- one chunk, one part ---


@pytest.mark.parametrize("seq", [1, 7, 12])
def test_one_causal_chunk_is_the_quadratic_unit(seq):
    quad = made(FlashQuad, 12, causal=True)
    mixed = made(Flash, 12, causal=True, chunk=12)
    mixed.load_state_dict(quad.state_dict())
    assert torch.equal(mixing(mixed, seq), mixing(quad, seq))
    assert "one chunk of 12: nothing is before it" in mixed.notes[0]
    roomy = made(Flash, 13, causal=True, chunk=12)
    roomy.bias.table.data = quad.bias.table.data
    assert (mixing(roomy, seq) - mixing(quad, seq)).abs().max() < 1e-15 and roomy.notes == []


@pytest.mark.parametrize("seq", [1, 7, 12])
def test_one_chunk_of_both_directions_is_the_quadratic_unit_and_a_mean(seq):
    quad, mixed = made(FlashQuad, 12), made(Flash, 12, chunk=12)
    quad.bias.table.data = mixed.bias.table.data
    lq, lk, v = drawn(2, seq, 6, seed=2), drawn(2, seq, 6, seed=3), drawn(2, seq, 26, seed=9)
    assert (mixing(mixed, seq) - mixing(quad, seq) - lq @ (lk.transpose(1, 2) @ v) / seq).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_parts_alone_are_a_block_diagonal_and_a_mean_and_add_up(causal):
    both, near, far = (made(Flash, causal=causal, chunk=8, parts=parts) for parts in ("both", "local", "global"))
    near.bias.table.data = both.bias.table.data
    heads = tuple(drawn(1, 21, 6, seed=i) for i in range(4))
    v = torch.eye(26, dtype=torch.float64)[None, :21]
    blocks, mean = near.mix(heads[:2], v, None), far.mix(heads[2:], v, None)
    assert (both.mix(heads, v, None) - blocks - mean).abs().max() < 1e-12
    place = torch.arange(21) // 8
    assert blocks[0, :, :21][place[:, None] != place].abs().max() == 0
    assert (len(near.gamma), len(far.gamma), far.bias) == (2, 2, None)


def test_chunks_of_one_without_the_local_part_are_linear_attention_over_the_past():
    unit = made(Flash, causal=True, chunk=1, parts="global")
    q, k, v = drawn(1, 20, 6), drawn(1, 20, 6, seed=1), drawn(1, 20, 26, seed=2)
    y = unit.mix((q, k), v, None)
    assert y[:, 0].abs().max() == 0
    for i in range(1, 20):
        assert (y[0, i] - (k[0, :i] @ q[0, i]) @ v[0, :i] / i).abs().max() < 1e-12


def test_the_global_part_is_exactly_zero_in_the_first_causal_chunk_also_where_nothing_is_seen():
    unit = made(Flash, causal=True, chunk=8, parts="global")
    assert mixing(unit, 21)[:, :8].abs().max() == 0
    mask = testing.real_tokens(21, 5, 0, left=True)
    found = mixing(unit, 21, mask)
    assert found.isfinite().all() and found[0, :16].abs().max() == 0 and found[1].abs().max() == 0


def test_sums_over_a_chunk_in_place_of_means_grow_along_the_sequence():
    by_count, by_chunk = (made(Flash, causal=True, chunk=4, parts="global", global_norm=g) for g in ("mean", "chunk"))
    ratio = mixing(by_chunk, 20)[:, 4:] / mixing(by_count, 20)[:, 4:]
    assert (ratio.unflatten(1, (4, 4)).mean((0, 2, 3)) - torch.arange(1, 5)).abs().max() < 1e-9


# --- causality ---


@pytest.mark.parametrize("name", ["flash-quad", "flash[chunk=8]", "flash[chunk=8,function=laplace]"])
def test_a_future_ten_million_times_as_loud_changes_no_bit_of_the_past(name):
    backend = backends.get(name)
    unit = testing.Factory(backend.cls, {**backend.options, "s": 6}, True)(64)
    heads, v = [drawn(1, 40, 6, seed=i).float() for i in range(len(unit.gamma))], drawn(1, 40, 26, seed=9).float()
    quiet = unit.mix(tuple(heads), v, None)
    for last in (0, 11, 16, 38):
        later = torch.where(torch.arange(40) > last, 1e7, 1.0)[:, None]
        loud = unit.mix(tuple(head * later.sqrt() for head in heads), v * later, None)
        assert torch.equal(loud[:, : last + 1], quiet[:, : last + 1])
        assert not torch.equal(loud[:, last + 1 :], quiet[:, last + 1 :])


@pytest.mark.parametrize("cls", [FlashQuad, Flash])
def test_no_gradient_reaches_the_future(cls):
    unit = made(cls, causal=True, **({"chunk": 8} if cls is Flash else {}))
    heads = [drawn(1, 30, 6, seed=i).requires_grad_() for i in range(len(unit.gamma))]
    v = drawn(1, 30, 26, seed=9).requires_grad_()
    unit.mix(tuple(heads), v, None)[:, 19].sum().backward()
    assert all(x.grad[:, 20:].abs().max() == 0 and x.grad[:, :20].any() for x in (*heads, v))


# --- positions ---


@pytest.mark.parametrize("kind", ["toeplitz", "rotary", "t5"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_of_a_shorter_input_is_the_corner_of_that_of_a_longer_one(kind, causal):
    bias = gated.RelativeBias(kind, 200, 6, causal).double()
    nn.init.normal_(bias.table, generator=torch.Generator().manual_seed(1))
    long, short = (squared.toeplitz(bias(n).detach(), n, n, 0) for n in (200, 31))
    assert (long[:31, :31] - short).abs().max() < 1e-12
    assert (long[100:131, 100:131] - short).abs().max() < 1e-12
    assert (long - plain.bias_matrix(bias, 200, causal)).abs().max() < 1e-12


def test_auto_is_a_table_up_to_512_and_two_vectors_above():
    assert [gated.RelativeBias("auto", n, 6, False).table.numel() for n in (1, 512, 513)] == [1, 1023, 12]
    assert gated.relative_bias("none", 4, 4, False) is None


def test_a_table_refuses_what_is_longer_than_it():
    make = testing.Factory(FlashQuad, {})
    with pytest.raises(Unsupported) as refusal:
        make(128)(make.inputs(129))
    assert all(text in f"{refusal.value.message} {refusal.value.hint}" for text in ("128", "129", "data.length"))
    single = testing.Factory(Flash, {"chunk": 128}, causal=True)
    with pytest.raises(Unsupported, match="built for 128 tokens"):
        single(128)(make.inputs(129))


def test_rotary_scores_depend_on_distance_alone_and_an_odd_feature_stays():
    q, k = drawn(1, 7).expand(50, 7), drawn(1, 7, seed=1).expand(50, 7)
    scores = gated.rotated(q) @ gated.rotated(k).T
    assert (scores[:-9, :-9] - scores[9:, 9:]).abs().max() < 1e-12
    assert (scores[0] - scores[0, 0]).abs().max() > 0.1
    assert torch.equal(gated.rotated(q)[:, 6], q[:, 6])


# --- weights in strips ---


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("few", [150, 70, 1])
def test_weights_in_strips_equal_weights_at_once_with_all_gradients(few, biased, causal, monkeypatch):
    monkeypatch.setattr(squared, "STRIP", 1)
    assert len(list(squared.strips(150, 150))) == 3
    given = [drawn(2, few, 6), drawn(2, 150, 6, seed=1), drawn(2, 150, 8, seed=2), drawn(307, seed=3)]
    found = []
    for keep in (False, True):
        q, k, v, bias = (x.clone().requires_grad_() for x in given)
        y = gated.attend(
            q, k, v, function="relu2", n=7, bias=bias if biased else None, causal=causal, keep=keep
        )  # fmt: skip
        wanted = (q, k, v, bias) if biased else (q, k, v)
        found.append([y, *torch.autograd.grad((y * drawn(*y.shape, seed=4)).sum(), wanted)])
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() < 1e-9 * other.abs().max() and other.any()


def test_sums_of_diagonals_undo_nothing_but_positions():
    x = drawn(2, 5, 9)
    expected = torch.stack([x.diagonal(d, -2, -1).sum(-1) for d in range(-4, 9)], -1)
    assert (squared.diagonals(x) - expected).abs().max() < 1e-12


def test_the_quadratic_unit_keeps_no_weights_unless_asked_to():
    kept, fused = (testing.growth(testing.Factory(FlashQuad, {"impl": impl, "s": 6})) for impl in ("math", "fused"))
    assert kept > 1.9 and fused < 1.3


# --- functions ---


def test_laplace_meets_the_square_in_value_and_slope():
    x = double(0.5**0.5).requires_grad_()
    y = gated.laplace(x)
    (slope,) = torch.autograd.grad(y, x)
    assert float(y.detach()) == pytest.approx(0.5) and float(slope) == pytest.approx(2**0.5)
    assert float(gated.laplace(torch.zeros(()))) == pytest.approx(0.0061, abs=1e-4)


def test_a_softmax_has_no_n():
    for cls in (FlashQuad, Flash):
        with pytest.raises(SpecError, match="length is 'valid'"):
            made(cls, function="softmax", length="valid")


# --- the unit ---


@pytest.mark.parametrize("cls", [FlashQuad, Flash])
def test_with_the_identity_as_attention_a_unit_is_a_gated_feed_forward(cls, monkeypatch):
    unit, x = made(cls), drawn(2, 9, 13)
    monkeypatch.setattr(unit, "mix", lambda heads, v, mask: v)
    h = plain.normed(unit.norm, x)
    u, v, _ = (h @ unit.expand.weight.T + unit.expand.bias).split([26, 26, 6], -1)
    expected = x + (plain.silu(u) * plain.silu(v)) @ unit.out.weight.T + unit.out.bias
    assert (unit(x) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("cls", [FlashQuad, Flash])
def test_with_a_gate_of_one_a_unit_is_the_one_without(cls):
    unit, bare, x = made(cls), made(cls, gate=False), drawn(2, 9, 13)
    state = unit.state_dict()
    unit.expand.weight.data[:26] = 0
    unit.expand.bias.data[:26] = 1.2784645427610738  # silu of it is 1
    state |= {f"expand.{name}": state[f"expand.{name}"][26:] for name in ("weight", "bias")}
    bare.load_state_dict(state)
    assert (unit(x) - bare(x)).abs().max() < 1e-12


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("causal", [False, True])
def test_parameters_are_as_many_as_published(causal):
    def config(max_len: int) -> LayerConfig:
        return LayerConfig(768, 12, 64, max_len, causal=causal)

    d, e, s = 768, 1536, 128
    own = d * (2 * e + s) + (2 * e + s) + e * d + d
    assert count(FlashQuad(config(512))) == own + 2 * 2 * s + 1 + 1023
    assert count(FlashQuad(config(4096))) == own + 2 * 2 * s + 1 + 2 * s
    assert count(Flash(config(4096))) == own + 2 * 4 * s + 1 + 511
    assert count(Flash(config(4096), norm="layernorm")) == own + 2 * 4 * s + 2 * d + 511
    embedding = 32000 * d
    assert round((24 * count(Flash(config(4096))) + embedding) / 1e6, 1) == 112.0
    transformer = TransformerPp(config(4096))
    assert transformer.mlp.out.in_features == 2048
    assert round((12 * count(transformer) + embedding) / 1e6, 1) == 109.6
    assert count(McTfmPp(config(4096))) == count(transformer) + 2 * 4 * d + 12 * 511


def test_two_units_stand_for_a_layer_and_one_for_a_whole_one():
    sizes = ModelSpec(layers=3, dim=8, heads=2, mlp_dim=24, dropout=0.25)
    for cls, many in ((FlashQuad, 6), (Flash, 6), (TransformerPp, 3), (McTfmPp, 3)):
        encoder = Encoder(sizes, cls, 11, 16)
        assert [type(block) for block in encoder.blocks] == [cls] * many
        encoder(torch.ones(2, 16, dtype=torch.int64)).sum().backward()
    assert encoder.blocks[0].mlp.out.in_features == 16


@pytest.mark.parametrize("typed", ["transformer++", "transformer-pp", "mc-tfm++[chunk=8]", "mc-tfm-pp[chunk=8]"])
def test_names_with_pluses_are_found_and_listed_once(typed):
    spec = backends.spec(typed)
    assert spec.name in {"transformer-pp", "mc-tfm-pp"} and spec.name in backends.names()
    assert backends.spec(backends.typed(spec)) == spec
    assert not any("+" in name for name in backends.names())


# --- streaming ---


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 8},
        {"chunk": 8, "shift": True, "norm": "layernorm"},
        {"chunk": 8, "function": "softmax", "global_norm": "chunk"},
        {"chunk": 8, "function": "laplace", "length": "valid", "rel_bias": "rotary"},
        {"chunk": 8, "parts": "local"},
        {"chunk": 8, "parts": "global"},
        {"chunk": 40},
    ],
    ids=str,
)
def test_steps_of_any_size_fold_to_the_forward_pass(options, masked):
    unit, x = made(Flash, 35, causal=True, **options), drawn(2, 35, 13)
    mask = torch.rand(2, 35, generator=torch.Generator().manual_seed(3)) < 0.7 if masked else None
    expected = unit(x, mask=mask)
    for segment in (1, 5, unit.segment, 20):
        assert (fold_segments(unit.step, x, segment, mask) - expected).abs().max() < 1e-12


def test_a_state_does_not_grow():
    unit = made(Flash, 400, causal=True, chunk=8)
    sizes, state = [], None
    for _ in range(50):
        _, state = unit.step(drawn(1, 8, 13), state)
        sizes.append(sum(part.numel() for part in (state.sums, state.seen, state.shown, *state.near)))
    assert set(sizes) == {6 * 26 + 1} and state.position == 400


def test_only_a_causal_unit_streams():
    unit = made(Flash)
    assert not unit.streams
    with pytest.raises(Unsupported, match="cannot stream unless it is causal"):
        unit.step(torch.zeros(1, 4, unit.cfg.dim), None)
    assert made(Flash, causal=True, chunk=8).streams and made(Flash, causal=True, chunk=8).segment == 8


# --- padding ---


@pytest.mark.parametrize(
    ("name", "causal", "expected"),
    [
        ("flash[chunk=8]", False, []),
        ("flash[chunk=7]", False, ["left"]),
        ("flash[chunk=8,shift=true,norm=layernorm]", True, []),
        ("flash[chunk=8,first_to_all=true]", False, ["left"]),
        ("mc-tfm++[chunk=8]", False, []),
        ("mc-tfm++[chunk=7]", True, ["left"]),
    ],
)
def test_short_chunks_keep_the_contract_but_for_padding_that_moves_them(name, causal, expected):
    backend = backends.get(name)
    failed = [probe for probe in testing.conformance(backend.cls, backend.options, causal) if not probe.passed]
    assert [(probe.name, probe.detail) for probe in failed] == [("padding amount", side) for side in expected]


# --- options ---


def test_the_first_token_attends_to_all_and_the_others_as_before():
    unit, bare = (made(Flash, chunk=4, first_to_all=on) for on in (True, False))
    x, mask = drawn(3, 15, 13), testing.real_tokens(15, 15, 9, 1)
    reference = plain.flash(4, first_to_all=True)
    assert ((unit(x, mask=mask) - reference(unit, x, mask)) * mask[..., None]).abs().max() < 1e-12
    assert torch.equal(unit(x)[:, 1:], bare(x)[:, 1:])
    far = x.clone().requires_grad_()
    unit(far)[:, 0].sum().backward()
    assert far.grad[:, -1].any()
    for refused in ({"causal": True}, {"parts": "global"}):
        with pytest.raises(SpecError, match="first_to_all"):
            made(Flash, chunk=4, first_to_all=True, **refused)


def test_nothing_but_what_is_before_a_single_chunk_is_refused():
    with pytest.raises(SpecError, match="parts is 'global'"):
        made(Flash, 12, causal=True, chunk=12, parts="global")


OPTIONS = {
    FlashQuad: {
        "s": 5,
        "expansion": 1.5,
        "function": "ns",
        "length": "valid",
        "rel_bias": "t5",
        "rotary": False,
        "gate": False,
        "norm": "layernorm",
        "shift": True,
        "init": "paper",
    },
    Flash: {"chunk": 7, "parts": "local", "first_to_all": True},
    TransformerPp: {"glu_act": "relu"},
    McTfmPp: {"chunk": 7, "rel_bias": "none", "glu_act": "gelu"},
}
OPTIONS[Flash] |= OPTIONS[FlashQuad]


@pytest.mark.parametrize(
    ("cls", "option"),
    [pytest.param(cls, name, id=f"{cls.__name__}-{name}") for cls in OPTIONS for name in OPTIONS[cls]],
)
def test_every_option_has_an_effect(cls, option):
    x = testing.Factory(cls, {}).inputs(20)
    before, after = (testing.Factory(cls, options)(64)(x) for options in ({}, {option: OPTIONS[cls][option]}))
    assert (before - after).abs().max() > 1e-6


def test_the_paper_draws_weights_that_start_as_a_function_of_position():
    unit = testing.Factory(FlashQuad, {"init": "paper"}, dim=130)(64)
    assert all(0.015 < float(part.detach().std()) < 0.025 for part in (unit.expand.weight, unit.out.weight, unit.gamma))
    assert not unit.beta.any() and not unit.expand.bias.any()


@pytest.mark.parametrize("name", ["flash-quad", "flash[chunk=4]", "transformer++", "mc-tfm++[chunk=4]"])
@pytest.mark.parametrize("kind", ["dropout", "hidden_dropout"])
def test_both_kinds_of_dropout_act_in_training_only(name, kind):
    backend = backends.get(name)
    make = testing.Factory(backend.cls, backend.options)
    mixer, x = make(**{kind: 0.5}), make.inputs(19)
    assert torch.equal(mixer(x), make()(x))
    torch.manual_seed(1)
    first = mixer.train()(x)
    assert not torch.equal(first, mixer(x))


def test_what_cannot_be_fused_is_noted():
    make = partial(testing.Factory, FlashQuad)
    assert make({})().notes == [] and make({"impl": "math", "function": "softmax"})().notes == []
    assert "softmax has no fused form" in make({"function": "softmax"})().notes[0]
    assert "training builds n x n weights" in make({})(dropout=0.1).notes[0]
    assert "one chunk of 256" in testing.Factory(McTfmPp, {})(256).notes[0]
    assert chunks.one_chunk(8, LayerConfig(8, 1, 8, 9)) == []
