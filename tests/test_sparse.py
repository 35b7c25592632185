"""Sparse patterns: who sees whom, exactly; limits, options and refusals, and what Combiner adds to them."""

from typing import Any

import pytest
import torch
from oracles import pairs
from oracles import sparse as oracle
from torch import Tensor

from lrbench import attention, testing
from lrbench.backends.base import LayerConfig
from lrbench.backends.combiner import Combiner
from lrbench.backends.full import Full
from lrbench.backends.sparse import Sparse
from lrbench.errors import SpecError
from lrbench.registry import backends

PATTERNS = ("fixed", "logsparse", "axial")
patterns = pytest.mark.parametrize("pattern", PATTERNS)
directions = pytest.mark.parametrize("causal", [False, True])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def matrix(cls: type[Sparse | Combiner], seq: int, causal: bool, mask: Tensor | None = None, **settings: Any) -> Tensor:
    """p(j | i) of one head: what comes out where the values are unit vectors."""
    mixer = cls(LayerConfig(6, 1, seq, seq, causal=causal), **settings).double().eval()
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, seq, seq, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        return mixer.attend(q, k, torch.eye(seq, dtype=torch.float64)[None, None], mask)[0, 0]


def seen_by(last: int, causal: bool = True, seq: int = 17, **settings: Any) -> list[int]:
    return matrix(Sparse, seq, causal, **settings)[last].nonzero()[:, 0].tolist()


# --- the contract ---


@patterns
@directions
def test_every_pattern_keeps_the_contract(pattern, causal):
    probes = testing.conformance(Sparse, {"pattern": pattern}, causal)
    assert [probe for probe in probes if not probe.passed] == []


@directions
def test_logsparse_grows_more_slowly_than_the_order_of_the_others(causal):
    make = testing.Factory(Sparse, {"pattern": "logsparse"}, causal)
    assert testing.growth(make, (1024, 4096)) < 1.2


# --- who sees whom ---


def test_patterns_are_those_of_the_papers():
    assert seen_by(14, pattern="fixed", span=4) == [3, 7, 11, 12, 13, 14]
    assert seen_by(6, False, pattern="fixed", span=4) == [3, 4, 5, 6, 7, 11, 15]
    assert seen_by(16, pattern="logsparse") == [0, 8, 12, 14, 15, 16]
    assert seen_by(5, False, pattern="logsparse") == [1, 3, 4, 5, 6, 7, 9, 13]
    assert seen_by(13, pattern="axial", width=5) == [3, 8, 10, 11, 12, 13]
    assert seen_by(6, False, pattern="axial", width=5) == [1, 5, 6, 7, 8, 9, 11, 16]


@directions
@pytest.mark.parametrize("readout", [0, 1, 3])
@pytest.mark.parametrize(
    "settings", [{"pattern": "fixed", "span": 5}, {"pattern": "logsparse"}, {"pattern": "axial", "width": 5}]
)
def test_gradients_reach_what_the_pattern_shows_and_nothing_else(settings, readout, causal):
    make = testing.Factory(Sparse, settings, causal, readout=readout)
    mixer = make(23).double()
    jacobian = torch.autograd.functional.jacobian(mixer, make.inputs(23, rows=1).double())[0, :, :, 0]
    i, j, allowed = pairs(23, causal)
    assert torch.equal(jacobian.abs().amax((1, 3)) > 0, allowed & oracle.shown(mixer, i, j))


@directions
def test_the_last_token_of_a_span_is_not_seen_where_it_is_padding(causal):
    mask = torch.ones(1, 16, dtype=torch.bool)
    mask[:, 7] = False
    found = matrix(Sparse, 16, causal, mask, pattern="fixed", span=4)
    assert found[:, 7].abs().max() == 0 and found[7].abs().max() == 0
    assert found[8:, 4:7].abs().max() == 0  # and no other stands in for it
    assert (found[mask[0]].sum(1) - 1).abs().max() < 1e-14


@pytest.mark.parametrize(
    ("settings", "plan"),
    [
        ({"pattern": "fixed", "span": 4}, {"plan": "fixed", "span": 4}),
        ({"pattern": "axial", "width": 5}, {"plan": "axial-vertical", "width": 5}),
        ({"pattern": "axial", "width": 5}, {"plan": "axial-horizontal", "width": 5}),
    ],
)
@directions
def test_combiner_sees_what_the_pattern_shows_and_all_the_rest(settings, plan, causal):
    _, _, allowed = pairs(23, causal)
    few, whole = (matrix(cls, 23, causal, **own) > 0 for cls, own in ((Sparse, settings), (Combiner, plan)))
    assert torch.equal(whole, allowed)
    assert (whole & ~few).any() and not (few & ~whole).any()


@pytest.mark.parametrize(
    ("seq", "settings"),
    [
        (13, {"pattern": "fixed", "span": 13}),
        (13, {"pattern": "fixed", "span": 1}),
        (13, {"pattern": "axial", "width": 16}),
        (13, {"pattern": "axial", "width": 1}),
        (3, {"pattern": "logsparse"}),
    ],
)
@directions
def test_a_pattern_that_leaves_nothing_out_is_full_attention(seq, settings, causal):
    mine, full = (testing.Factory(cls, own, causal, readout=0) for cls, own in ((Sparse, settings), (Full, {})))
    x = full.inputs(seq).double()
    assert (mine(seq).double()(x) - full(seq).double()(x)).abs().max() < 1e-12
    if settings["pattern"] != "logsparse":
        assert "full attention" in mine(seq).notes[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"pattern": "fixed", "span": 12},
        {"pattern": "fixed", "span": 2},
        {"pattern": "axial", "width": 12},
        {"pattern": "axial", "width": 2},
        {"pattern": "logsparse"},
    ],
)
@directions
def test_a_pattern_that_leaves_something_out_is_not_and_has_no_note(settings, causal):
    mine, full = (testing.Factory(cls, own, causal, readout=0) for cls, own in ((Sparse, settings), (Full, {})))
    x = full.inputs(13).double()
    assert (mine(13).double()(x) - full(13).double()(x)).abs().max() > 1e-3
    assert mine(13).notes == []


def test_a_readout_token_has_a_row_of_its_own():
    plain = testing.Factory(Sparse, {"pattern": "axial", "width": 13}, readout=1)(13)
    assert plain.front == 12 and plain.notes == []  # as wide as the input, and yet two rows
    assert "full attention" in testing.Factory(Sparse, {"pattern": "axial", "width": 13}, readout=0)(13).notes[0]


# --- options ---


@patterns
def test_no_pattern_adds_parameters(pattern):
    mine, full = (testing.Factory(cls, own)() for cls, own in ((Sparse, {"pattern": pattern}), (Full, {})))
    assert testing.parameter_shapes(mine) == testing.parameter_shapes(full)


@pytest.mark.parametrize(
    ("settings", "written"),
    [({}, {"pattern": "fixed", "span": 8}), ({"pattern": "axial"}, {"pattern": "axial", "width": 8})],
)
def test_defaults_are_what_the_options_say_and_options_have_an_effect(settings, written):
    size = "width" if "width" in written else "span"
    made = [testing.Factory(Sparse, each) for each in (settings, written, written | {size: 9})]
    one, same, other = (make(64)(make.inputs(64)) for make in made)
    assert torch.equal(one, same)
    assert (one - other).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("pattern", "option", "fitting"),
    [("logsparse", "span", "fixed"), ("axial", "span", "fixed"), ("fixed", "width", "axial")]
    + [("logsparse", "width", "axial")],
)
def test_an_option_of_another_pattern_is_refused_with_the_way_out(pattern, option, fitting):
    with pytest.raises(SpecError) as refusal:
        testing.Factory(Sparse, {"pattern": pattern, option: 4})()
    assert refusal.value.message == f"option {option} is 4, and pattern {pattern} has no use for it"
    assert refusal.value.hint == f"leave {option} out, or choose pattern {fitting}"


@pytest.mark.parametrize(("pattern", "option"), [("fixed", "span"), ("axial", "width")])
@pytest.mark.parametrize("value", [0, -3])
def test_sizes_below_1_are_refused_by_name_and_value(pattern, option, value):
    with pytest.raises(SpecError, match=f"option {option} is {value}"):
        testing.Factory(Sparse, {"pattern": pattern, option: value})()


def test_an_unknown_pattern_is_refused():
    with pytest.raises(SpecError, match="pattern"):
        backends.get("sparse[pattern=strided]")


def test_options_are_typed_as_on_the_command_line():
    mixer = attention("sparse[pattern=axial,width=4]", dim=8, heads=2, max_len=16)
    assert (mixer.pattern, mixer.width) == ("axial", 4)


@patterns
@directions
def test_dropout_acts_on_all_weights_in_training_only(pattern, causal):
    make = testing.Factory(Sparse, {"pattern": pattern}, causal)
    mixer, x = make(dropout=1.0), make.inputs(64)
    assert torch.equal(mixer(x), make()(x))
    assert mixer.train()(x).abs().max() == 0
