"""Combiner's plans: valid distributions over all that may be seen, golden vectors, limits, options and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import combiner as oracle
from oracles import pairs
from torch import Tensor

from lrbench import attention, testing
from lrbench.backends.base import LayerConfig
from lrbench.backends.combiner import Combiner
from lrbench.backends.full import Full
from lrbench.backends.regions.placed import usual_size
from lrbench.errors import SpecError, Unsupported
from lrbench.registry import backends

GOLDEN = Path(__file__).parents[2] / "shared" / "spec" / "golden" / "combiner.json"
golden = pytest.mark.skipif(not GOLDEN.is_file(), reason=f"no golden vectors in {GOLDEN}")

PLANS: dict[str, dict[str, Any]] = {
    "fixed": {"plan": "fixed"},
    "fixed, own": {"plan": "fixed", "own_as_region": True},
    "fixed, deepsets": {"plan": "fixed", "abstraction": "deepsets"},
    "logsparse": {"plan": "logsparse"},
    "logsparse, deepsets": {"plan": "logsparse", "abstraction": "deepsets"},
    "row": {"plan": "axial-row"},
    "row, raw": {"plan": "axial-row", "row_key": "none"},
    "row, own": {"plan": "axial-row", "own_as_region": True},
    "vertical": {"plan": "axial-vertical"},
    "horizontal": {"plan": "axial-horizontal"},
    "mixture": {"plan": "mixture"},
    "average": {"plan": "mixture", "mixture": "average"},
    "learnable": {"plan": "learnable", "buckets": 3},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ways(*left_out: str) -> list[Any]:
    """All plans in the directions that they have."""
    return [
        pytest.param(settings, causal, id=f"{name}{', causal' * causal}")
        for name, settings in PLANS.items()
        if name not in left_out
        for causal in ((False,) if name == "learnable" or "own_as_region" in settings else (False, True))
    ]


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def alone(head_dim: int, seq: int, causal: bool = False, readout: int = 0, **settings: Any) -> Combiner:
    """One head, to call `attend` on."""
    torch.manual_seed(0)
    return Combiner(LayerConfig(6, 1, head_dim, seq, causal=causal, readout=readout), **settings).double().eval()


def matrix(seq: int, causal: bool = False, mask: Tensor | None = None, **settings: Any) -> Tensor:
    """p(j | i): what comes out where the values are unit vectors."""
    mixer = alone(seq, seq, causal, **settings)
    q, k = normal(1, 1, seq, seq), normal(1, 1, seq, seq, seed=2)
    with torch.no_grad():
        return mixer.attend(q, k, torch.eye(seq, dtype=torch.float64)[None, None], mask)[0, 0]


# --- the contract ---


@pytest.mark.parametrize(("settings", "causal"), ways())
def test_every_plan_keeps_the_contract(settings, causal):
    probes = testing.conformance(Combiner, settings, causal)
    assert [probe for probe in probes if not probe.passed] == []


@pytest.mark.parametrize("causal", [False, True])
def test_logsparse_grows_more_slowly_than_the_order_of_the_others(causal):
    # two lengths of 8 and of 12 levels: whole groups of levels
    assert testing.growth(testing.Factory(Combiner, {"plan": "logsparse"}, causal), (256, 4096)) < 1.2


# --- distributions ---


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("settings", "causal"), ways())
def test_weights_sum_to_1(settings, causal, masked):
    mixer = alone(5, 23, causal, **settings)
    mask = testing.real_tokens(23, 17, 23) if masked else None
    ones = torch.ones(2, 1, 23, 5, dtype=torch.float64)
    mixed = mixer.attend(normal(2, 1, 23, 5), normal(2, 1, 23, 5, seed=2), ones, mask, normal(2, 23, 6, seed=3))
    shown = torch.ones(2, 23, dtype=torch.bool) if mask is None else mask
    assert (mixed[:, 0] - shown[..., None].double()).abs().max() < 1e-14


@pytest.mark.parametrize("seq", [1, 2, 3, 9, 17, 23])
@pytest.mark.parametrize(("settings", "causal"), ways("row", "row, own"))  # there values change keys
def test_weights_are_positive_exactly_on_what_may_be_seen(settings, causal, seq):
    found = matrix(seq, causal, **settings)
    _, _, allowed = pairs(seq, causal)
    assert torch.equal(found > 0, allowed)
    assert (found >= 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_direct_tokens_and_regions_are_a_partition(causal):
    for seq in (*range(1, 20), 32, 33):
        sets = {
            "fixed": oracle.spans(list(range(seq)), 4, causal),
            "logsparse": oracle.logsparse(seq, causal),
            **{
                kind: oracle.axial((kind,), seq, causal, width, front)
                for kind, width, front in (("row", 4, 3), ("vertical", 5, 0), ("horizontal", 3, 2))
            },
        }
        for plan, found in sets.items():
            for i, seen in found.items():
                listed = sorted([*seen.direct, *(j for region in seen.regions for j in region.members)])
                assert listed == list(range(i + 1 if causal else seq)), (plan, seq, i)


@pytest.mark.parametrize("causal", [False, True])
def test_logsparse_needs_only_logarithmically_many_terms(causal):
    for seen in oracle.logsparse(33, causal).values():
        assert len(seen.direct) + len(seen.regions) <= 1 + (1 if causal else 2) * 6


def test_blocks_that_share_a_region_have_rank_1_and_direct_ones_full_rank():
    found = matrix(32, plan="fixed", span=8)
    for i in range(4):
        for j in range(4):
            block = found[8 * i : 8 * i + 8, 8 * j : 8 * j + 8]
            assert torch.linalg.matrix_rank(block, rtol=1e-10) == (8 if i == j else 1)


@pytest.mark.parametrize(
    ("seq", "settings"),
    [
        (13, {"plan": "fixed", "span": 16}),
        (13, {"plan": "fixed", "span": 1}),
        (13, {"plan": "axial-row", "width": 13, "row_key": "none"}),
        (13, {"plan": "axial-row", "width": 1, "row_key": "none"}),
        (13, {"plan": "axial-vertical", "width": 1}),
        (13, {"plan": "axial-horizontal", "width": 13}),
        (13, {"plan": "mixture", "width": 1}),
        (13, {"plan": "learnable", "span": 1}),
        (13, {"plan": "learnable", "span": 13}),
        (2, {"plan": "logsparse"}),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_without_regions_of_several_tokens_it_is_full_attention(seq, settings, causal):
    if causal and settings["plan"] == "learnable":
        pytest.skip("cannot be causal")
    mine, full = (testing.Factory(cls, own, causal, readout=0) for cls, own in ((Combiner, settings), (Full, {})))
    x = full.inputs(seq).double()
    assert (mine(seq).double()(x) - full(seq).double()(x)).abs().max() < 1e-12
    if settings["plan"] != "logsparse":
        assert "full attention" in mine(seq).notes[0]


@pytest.mark.parametrize(("settings", "causal"), ways())
def test_regions_of_several_tokens_are_no_full_attention_and_have_no_note(settings, causal):
    mine, full = (testing.Factory(cls, own, causal, readout=0) for cls, own in ((Combiner, settings), (Full, {})))
    x = full.inputs(64).double()
    assert (mine(64).double()(x) - full(64).double()(x)).abs().max() > 1e-3
    assert mine(64).notes == []


@pytest.mark.parametrize(("settings", "causal"), ways())
def test_gradients_reach_all_that_may_be_seen_and_nothing_else(settings, causal):
    make = testing.Factory(Combiner, settings, causal)
    jacobian = torch.autograd.functional.jacobian(make(17).double(), make.inputs(17, rows=1).double())[0, :, :, 0]
    reached = jacobian.abs().amax((1, 3)) > 0
    _, _, allowed = pairs(17, causal)
    assert torch.equal(reached, allowed)


# --- padding ---


@pytest.mark.parametrize("causal", [False, True])
def test_a_region_of_nothing_but_padding_counts_as_absent(causal):
    mask = torch.ones(1, 16, dtype=torch.bool)
    mask[:, 4:8] = False
    found = matrix(16, causal, mask, plan="fixed", span=4)
    assert found[:, 4:8].abs().max() == 0 and found[4:8].abs().max() == 0
    real = mask[0]
    assert (found[real].sum(1) - 1).abs().max() < 1e-14
    assert (found[real][:, real] > 0).sum() == (78 if causal else 144)


@pytest.mark.parametrize(("settings", "causal"), ways())
def test_a_single_token_sees_itself(settings, causal):
    v = normal(1, 1, 1, 5, seed=3)
    mixed = alone(5, 9, causal, **settings).attend(normal(1, 1, 1, 5), v + 1, v, None, normal(1, 1, 6))
    assert (mixed - v).abs().max() < 1e-14


@pytest.mark.parametrize("readout", [0, 1, 3])
def test_a_readout_token_does_not_shift_the_image(readout):
    found = matrix(16 + readout, plan="axial-row", width=4, row_key="none", readout=readout)[readout:, readout:]
    first = found[:, :4] / found[:, :4].sum(1, keepdim=True)  # how a token's share of the first row is split
    assert (first[4::4] - first[4]).abs().max() < 1e-12  # alike for all tokens of a column in other rows
    assert (first[5::4] - first[4]).abs().max() > 1e-3


# --- golden vectors ---


def golden_cases() -> list[Any]:
    cases = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"] if GOLDEN.is_file() else []
    return [pytest.param(case, id=f"{case['name']}{'-causal' * case['causal']}") for case in cases]


def golden_settings(case: dict[str, Any]) -> dict[str, Any]:
    named = {"fixed-padded": "fixed", "axial-rowmajor": "axial-row", "axial-mixture-joint": "mixture"}
    settings = {"plan": named.get(case["name"], case["name"]), "span": case.get("span"), "width": case.get("cols")}
    return settings | ({"row_key": "none"} if settings["plan"] == "axial-row" else {})


@golden
@pytest.mark.parametrize("case", golden_cases())
def test_golden_vectors_come_out(case):
    held = json.loads(GOLDEN.read_text(encoding="utf-8"))
    length, valid = case.get("length", 8), case.get("valid", 8)
    mask = None if valid == length else testing.real_tokens(length, valid)
    q, k, v = (torch.tensor(held[name], dtype=torch.float64)[None, None, :length] for name in "qkv")
    mixed = alone(2, 8, case["causal"], **golden_settings(case)).attend(q, k, v, mask)[0, 0, :valid]
    assert (mixed - torch.tensor(case.get("out", case.get("out_valid")), dtype=torch.float64)).abs().max() < 1e-9


# --- options ---


def count(settings: dict[str, Any]) -> int:
    return sum(parameter.numel() for parameter in testing.Factory(Combiner, settings)().parameters())


def test_only_deepsets_and_learned_row_keys_add_parameters():
    plain = sum(parameter.numel() for parameter in testing.Factory(Full, {})().parameters())
    for settings in PLANS.values():
        extra = 2 * 5 * 5 if "abstraction" in settings else 0
        if settings["plan"] == "axial-row" and "row_key" not in settings:
            extra = 2 * 13 * 15 + 2 * 13
        assert count(settings) == plain + extra, settings


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"plan": "fixed", "span": 4}, {"plan": "fixed", "span": 5}),
        ({"plan": "learnable", "span": 4}, {"plan": "learnable", "span": 5}),
        ({"plan": "learnable", "buckets": 2}, {"plan": "learnable", "buckets": 9}),
        ({"plan": "axial-row", "width": 4}, {"plan": "axial-row", "width": 5}),
        ({"plan": "axial-vertical", "width": 4}, {"plan": "axial-vertical", "width": 5}),
        ({"plan": "axial-horizontal", "width": 4}, {"plan": "axial-horizontal", "width": 5}),
        ({"plan": "mixture", "width": 4}, {"plan": "mixture", "width": 5}),
        ({"plan": "mixture", "mixture": "joint"}, {"plan": "mixture", "mixture": "average"}),
        ({"plan": "axial-row", "row_key": "proj"}, {"plan": "axial-row", "row_key": "none"}),
        ({"plan": "fixed", "own_as_region": True}, {"plan": "fixed"}),
        ({"plan": "axial-row", "own_as_region": True}, {"plan": "axial-row"}),
        *(
            ({"plan": plan, "abstraction": "deepsets"}, {"plan": plan, "abstraction": "max"})
            for plan in ("fixed", "logsparse", "axial-vertical", "axial-horizontal", "mixture", "learnable")
        ),
    ],
)
def test_every_option_has_an_effect(one, other):
    outs = []
    for settings in (one, other):
        make = testing.Factory(Combiner, settings)
        outs.append(make(64)(make.inputs(64)))
    assert (outs[0] - outs[1]).abs().max() > 1e-3


def test_defaults_are_what_the_options_say():
    for settings, written in (
        ({"plan": "fixed"}, {"plan": "fixed", "span": 8, "abstraction": "max"}),
        ({"plan": "axial-row"}, {"plan": "axial-row", "width": 8, "row_key": "proj"}),
        ({"plan": "mixture"}, {"plan": "mixture", "width": 8, "mixture": "joint"}),
        ({"plan": "learnable"}, {"plan": "learnable", "span": 8, "buckets": 8}),
    ):
        one, other = (testing.Factory(Combiner, each) for each in (settings, written))
        assert torch.equal(one(64)(one.inputs(64)), other(64)(one.inputs(64)))
    lengths = {1: 1, 64: 8, 1024: 32, 2048: 64, 4096: 64, 8192: 128, 16384: 128}
    assert {length: usual_size(length) for length in lengths} == lengths


def test_the_averaged_mixture_is_the_mean_of_its_plans():
    outs = {
        plan: matrix(20, plan=plan, width=4, **more)
        for plan, more in (("axial-vertical", {}), ("axial-horizontal", {}), ("mixture", {"mixture": "average"}))
    }
    assert (outs["mixture"] * 2 - outs["axial-vertical"] - outs["axial-horizontal"]).abs().max() < 1e-15


@pytest.mark.parametrize(
    ("plan", "option", "value"),
    [
        *((plan, "span", 4) for plan in ("logsparse", "axial-row", "axial-vertical", "axial-horizontal", "mixture")),
        *((plan, "width", 4) for plan in ("fixed", "logsparse", "learnable")),
        *((plan, "buckets", 4) for plan in ("fixed", "axial-row")),
        *((plan, "mixture", "joint") for plan in ("fixed", "axial-vertical")),
        *((plan, "row_key", "none") for plan in ("fixed", "axial-vertical", "mixture")),
        *((plan, "own_as_region", True) for plan in ("logsparse", "axial-vertical", "mixture", "learnable")),
        ("axial-row", "abstraction", "max"),
    ],
)
def test_an_option_of_another_plan_is_refused_with_the_way_out(plan, option, value):
    with pytest.raises(SpecError) as refusal:
        testing.Factory(Combiner, {"plan": plan, option: value})()
    assert f"option {option} is {value!r}, and plan {plan}" in refusal.value.message
    assert f"leave {option} out" in refusal.value.hint


@pytest.mark.parametrize(("plan", "option"), [("fixed", "span"), ("mixture", "width"), ("learnable", "buckets")])
@pytest.mark.parametrize("value", [0, -3])
def test_sizes_below_1_are_refused_by_name_and_value(plan, option, value):
    with pytest.raises(SpecError, match=f"option {option} is {value}"):
        testing.Factory(Combiner, {"plan": plan, option: value})()


@pytest.mark.parametrize("setting", ["plan=sparse", "plan=fixed,abstraction=sum", "plan=axial-row,row_key=raw"])
def test_an_unknown_choice_is_refused(setting):
    with pytest.raises(SpecError, match=setting.split(",")[-1].partition("=")[0]):
        backends.get(f"combiner[{setting}]")


def test_options_are_typed_as_on_the_command_line():
    mixer = attention("combiner[plan=axial-row,width=4,row_key=none,own_as_region=true]", dim=8, heads=2, max_len=16)
    assert (mixer.plan, mixer.width, mixer.row_key, mixer.own) == ("axial-row", 4, None, True)


@pytest.mark.parametrize(
    ("settings", "told", "way_out"),
    [
        ({"plan": "learnable"}, "cannot be causal", "choose another plan"),
        ({"plan": "fixed", "own_as_region": True}, "cannot be causal", "leave own_as_region out"),
    ],
)
def test_what_cannot_be_causal_says_so_and_what_to_do(settings, told, way_out):
    with pytest.raises(Unsupported) as refusal:
        testing.Factory(Combiner, settings, causal=True)()
    assert told in refusal.value.message and way_out in refusal.value.hint


@pytest.mark.parametrize(("settings", "causal"), ways())
def test_dropout_acts_in_training_only(settings, causal):
    make = testing.Factory(Combiner, settings, causal)
    mixer, x = make(dropout=0.5), make.inputs(19)
    expected = make()(x)
    assert torch.equal(mixer(x), expected)
    torch.manual_seed(1)
    assert not torch.allclose(mixer.train()(x), expected, atol=1e-2)


# --- clusters ---


def test_centroids_move_toward_the_keys_put_to_them_and_only_before_a_step():
    mixer, x = alone(5, 16, plan="learnable", buckets=2), normal(3, 16, 6)
    first = mixer.centroids.clone()
    mixer(x)
    mixer.before_step()
    assert torch.equal(mixer.centroids, first)
    mixer.train()(x)
    assert torch.equal(mixer.centroids, first)
    mixer.before_step()
    key = torch.nn.functional.normalize(mixer.key(x), dim=-1).flatten(0, 1)
    cluster = (key @ first[0].T).argmax(-1)
    for number in range(2):
        mean = torch.nn.functional.normalize(key[cluster == number].mean(0), dim=0)
        moved = torch.nn.functional.normalize(0.999 * first[0, number] + 0.001 * mean, dim=0)
        assert (mixer.centroids[0, number] - moved).abs().max() < 1e-12
    again = mixer.centroids.clone()
    mixer.before_step()
    assert torch.equal(mixer.centroids, again)


def test_padding_moves_no_centroid():
    moved = []
    for fill in (0.0, 50.0):
        mixer, mask = alone(5, 16, plan="learnable", buckets=2).train(), testing.real_tokens(16, 9)
        mixer(torch.where(mask[..., None], normal(1, 16, 6), fill), mask=mask)
        mixer.before_step()
        moved.append(mixer.centroids)
    short = alone(5, 16, plan="learnable", buckets=2).train()
    short(normal(1, 16, 6)[:, :9])
    short.before_step()
    assert torch.equal(*moved) and (moved[0] - short.centroids).abs().max() < 1e-12


def test_a_cluster_without_keys_keeps_its_centroid():
    mixer = alone(5, 16, plan="learnable", buckets=30).train()
    first = mixer.centroids.clone()
    mixer(normal(1, 2, 6))
    mixer.before_step()
    assert 1 <= int((mixer.centroids != first).any(-1).sum()) <= 2
