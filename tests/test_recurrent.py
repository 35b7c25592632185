"""Methods that read a sequence in parts: memories, what is compressed, what is learned from it, and streams."""

from typing import Any

import pytest
import torch
from oracles import classic
from oracles.recurrent import Slot, squeezed
from torch import Tensor

from lrbench import testing
from lrbench.backends.base import LayerConfig, Mixer, parted
from lrbench.backends.compressive import Compressive, most_used
from lrbench.backends.transformer_xl import Past, Shift, TransformerXL, forgotten
from lrbench.errors import SpecError, Unsupported
from lrbench.registry import backends

SMALL = [
    "transformer-xl[segment=8,memory=16]",
    "transformer-xl[segment=16,memory=0]",
    "compressive[segment=8,memory=8,compressed=4,rate=2]",
    "compressive[segment=8,memory=4,compressed=7,rate=4,compression=dilated]",
    "compressive[segment=8,memory=16,compressed=3,rate=4,compression=most-used]",
]
MANY = [  # segments in a thousand tokens: shorter ones take minutes and find no more
    "transformer-xl[segment=16,memory=16]",
    "compressive[segment=16,memory=16,compressed=12,rate=4,compression=dilated]",
    "compressive[segment=16,memory=32,compressed=8,rate=4,compression=most-used]",
]
STREAMING = [*SMALL, "linear", "performer", "performer[kernel=relu]"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def factory(text: str, causal: bool = True, **sizes: Any) -> testing.Factory:
    backend = backends.get(text)
    return testing.Factory(backend.cls, backend.options, causal, **sizes)


def compressive(compression: str = "conv", **options: Any) -> Compressive:
    """Eight features; segments of 4, memory of 8, 3 compressed slots of 2."""
    settings = {"segment": 4, "memory": 8, "compressed": 3, "rate": 2, "compression": compression, **options}
    torch.manual_seed(0)
    return Compressive(LayerConfig(8, 2, 4, 64, causal=True), **settings).double()


def counted(first: int, last: int) -> Tensor:
    """Rows of the numbers from first to last, in eight equal features."""
    return torch.arange(float(first), last + 1.0, dtype=torch.float64)[None, :, None].expand(1, -1, 8)


def held(state: Past) -> list[float]:
    return state.rows[0, :, 0].tolist()


# --- the contract, with many segments ---


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("text", MANY)
def test_small_segments_keep_the_contract(text, causal):
    backend = backends.get(text)
    probes = testing.conformance(backend.cls, backend.options, causal)
    assert [probe for probe in probes if not probe.passed] == []


@pytest.mark.parametrize("text", SMALL)
def test_no_later_token_is_felt_across_segments_not_even_in_training(text):
    make = factory(text)
    mixer = make().train()
    x, loud = make.inputs(45), make.loud(45)
    expected, _ = parted(mixer(x))
    for last in (6, 7, 8, 22, 31, 43):
        changed = torch.cat([x[:, : last + 1], loud[:, last + 1 :]], dim=1)
        assert testing.gap(parted(mixer(changed))[0][:, : last + 1], expected[:, : last + 1]) < 1e-6
        assert not torch.allclose(parted(mixer(changed))[0][:, last + 1 :], expected[:, last + 1 :], atol=1e-2)


@pytest.mark.parametrize("text", SMALL)
def test_not_causal_a_segment_sees_itself_and_the_past_only(text):
    make = factory(text, causal=False)
    mixer, x, loud = make(), make.inputs(40), make.loud(40)
    changed = torch.cat([x[:, :32], loud[:, 32:]], 1)
    assert testing.gap(mixer(changed)[:, :32], mixer(x)[:, :32]) < 1e-6
    last = torch.cat([x[:, :39], loud[:, 39:]], 1)
    assert (mixer(last) - mixer(x))[:, 32].abs().max() > 1e-3


# --- limits in which it is another method ---


def neutral(mixer: TransformerXL) -> TransformerXL:
    """Positions and biases say nothing: only q·k is left."""
    for parameter in (mixer.relative.weight, mixer.content_bias, mixer.position_bias):
        torch.nn.init.zeros_(parameter)
    return mixer


@pytest.mark.parametrize("seq", [5, 16, 41])
def test_with_all_in_memory_and_no_positions_it_is_full_causal_attention(seq):
    full, recurrent = factory("full"), factory("transformer-xl[segment=8,memory=41]")
    x = full.inputs(seq).double()
    mixer = neutral(recurrent(64).double())
    plain = full(64).double()
    plain.load_state_dict(mixer.state_dict(), strict=False)
    assert (mixer(x) - plain(x)).abs().max() < 1e-12


def test_with_all_in_memory_segments_change_nothing_through_several_layers():
    cut, whole = (factory(f"transformer-xl[segment={n},memory=41]") for n in (8, 41))
    x = y = cut.inputs(41).double()
    for index in range(3):
        x = x + cut(64, index=index).double()(x)
        y = y + whole(64, index=index).double()(y)
    assert (x - y).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_means_of_one_row_are_a_longer_memory(causal):
    compressed = factory("compressive[segment=8,memory=8,compressed=11,rate=1,compression=mean]", causal)
    plain = factory("transformer-xl[segment=8,memory=19]", causal)
    mask = testing.real_tokens(60, 60, 13)
    x = plain.inputs(60)
    assert torch.equal(compressed(64)(x, mask=mask), plain(64)(x, mask=mask))


def test_one_layer_is_equivariant_to_shifts_by_whole_segments():
    make = factory("transformer-xl[segment=8,memory=8]")
    x, mixer = make.inputs(64).double(), make().double()
    assert (mixer(x)[:, 32:] - mixer(x[:, 16:])[:, 16:]).abs().max() < 1e-12


@pytest.mark.parametrize(("keys", "distances"), [(9, 9), (5, 5), (9, 13), (1, 5)])
def test_the_shift_is_a_lookup_and_its_gradient_the_sum_over_lookups(keys, distances):
    seq = 5 if keys >= 5 else 1
    distances = keys if distances == keys else keys + seq - 1
    x = torch.randn(2, 3, seq, distances, dtype=torch.float64, requires_grad=True)
    i, j = torch.arange(seq)[:, None], torch.arange(keys)[None]
    place = seq - 1 - i + j
    inside = place < distances  # causal: the rest is what must be masked
    expected = x.gather(-1, place.clamp(max=distances - 1).expand(2, 3, -1, -1)) * inside
    found = Shift.apply(x, keys) * inside
    assert torch.equal(found, expected)
    weight = torch.randn(seq, keys, dtype=torch.float64)
    (mine,), (plain,) = (torch.autograd.grad((y * weight).sum(), x, retain_graph=True) for y in (found, expected))
    assert torch.equal(mine, plain)


def test_biases_are_shared_by_layers_and_maps_of_distances_are_not():
    make = factory("transformer-xl")
    first = make(64)
    second = make(64, index=1, first=first)
    count = sum(parameter.numel() for parameter in first.parameters())
    assert count == 5 * 13 * 15 + 2 * 15
    assert second.content_bias is first.content_bias and second.position_bias is first.position_bias
    assert second.relative is not first.relative


@pytest.mark.parametrize(
    ("compression", "extra"),
    [("mean", 0), ("max", 0), ("most-used", 0), ("conv", 2 * 64 + 8), ("dilated", 2 * 64 + 8 + 3 * 3 * 8)],
)
def test_compressions_have_the_parameters_that_they_say(compression, extra):
    mixer = compressive(compression)
    assert sum(p.numel() for p in mixer.parameters()) == 5 * 64 + 16 + extra


# --- first in, first out ---


def test_memory_holds_the_last_rows_in_order():
    mixer = TransformerXL(LayerConfig(8, 2, 4, 64), segment=4, memory=6).double()
    state = None
    for number, expected in enumerate([range(1, 5), range(3, 9), range(7, 13)]):
        _, state = mixer.step(counted(4 * number + 1, 4 * number + 4), state)
        assert held(state) == list(expected)


def test_what_leaves_the_memory_is_compressed_in_order_and_the_oldest_is_dropped():
    mixer, state, found = compressive("mean"), None, []
    for number in range(6):
        _, state = mixer.step(counted(4 * number + 1, 4 * number + 4), state)
        found.append(held(state))
    assert found == [
        [*range(1, 5)],
        [*range(1, 9)],
        [1.5, 3.5, *range(5, 13)],
        [3.5, 5.5, 7.5, *range(9, 17)],
        [7.5, 9.5, 11.5, *range(13, 21)],
        [11.5, 13.5, 15.5, *range(17, 25)],
    ]


def test_rows_of_a_segment_longer_than_the_memory_are_compressed_at_once():
    mixer, state, found = compressive("max", segment=6, memory=2), None, []
    for number in range(3):
        _, state = mixer.step(counted(6 * number + 1, 6 * number + 6), state)
        found.append(held(state))
    assert found == [[2, 4, 5, 6], [6, 8, 10, 11, 12], [12, 14, 16, 17, 18]]


def test_a_part_of_a_segment_is_read_and_not_remembered():
    mixer, x = compressive().eval(), torch.randn(2, 11, 8, dtype=torch.float64)
    _, state = mixer.step(x[:, :4], None)
    _, state = mixer.step(x[:, 4:8], state)
    grown = [mixer.step(x[:, 8:stop], state) for stop in (9, 10, 11)]
    assert all(torch.equal(later.rows, state.rows) for _, later in grown)
    assert (grown[-1][0] - mixer(x)[:, 8:]).abs().max() < 1e-12


def test_rates_must_divide_what_they_compress():
    for option in ("segment", "memory"):
        with pytest.raises(SpecError, match=f"option {option} is 9"):
            compressive(**{"segment": 4, "memory": 8, option: 9})


def test_the_most_used_rows_are_those_that_get_most_attention():
    rows, real = counted(1, 6), torch.ones(1, 6, dtype=torch.bool)
    used = torch.tensor([[0.3, 0.9, 0.1, 0.5, 0.2, 0.8]])
    kept, some = most_used(rows, real, used, 3)
    assert kept[0, :, 0].tolist() == [2, 4, 6] and some.all()
    kept, some = most_used(rows, real & (rows[..., 0] != 2), used, 3)
    assert kept[0, :, 0].tolist() == [1, 4, 6] and some.all()


def test_what_is_looked_for_is_kept():
    """Keys and queries are the rows; two that stand out get the attention of all queries like them."""
    mixer = neutral(compressive("most-used", segment=4, memory=4, compressed=8))
    for linear in (mixer.query, mixer.key):
        torch.nn.init.eye_(linear.weight)
    x = 0.01 * torch.randn(1, 8, 8, dtype=torch.float64)
    x[:, [1, 2, 4, 5, 6, 7]] += 9.0
    _, state = mixer.step(x[:, :4], None)
    _, state = mixer.step(x[:, 4:], state)
    assert torch.equal(state.rows, x[:, [1, 2, 4, 5, 6, 7]])


# --- padding and documents ---


def test_a_row_of_padding_pushes_nothing():
    mixer, x = compressive("mean").eval(), torch.randn(2, 4, 8, dtype=torch.float64)
    state = alone = None
    for number in range(6):
        hidden = torch.ones(2, 4, dtype=torch.bool)
        hidden[1] = number not in (1, 4)
        _, state = mixer.step(x + number, state, mask=hidden)
        if number not in (1, 4):
            _, alone = mixer.step(x[1:] + number, alone)
    assert state.seen is not None
    assert torch.equal(state.rows[1:][state.seen[1:]], alone.rows[0][-int(state.seen[1].sum()) :])
    assert state.seen[1].sum() == alone.rows.shape[1] and state.seen[0].all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("text", SMALL)
def test_ragged_rows_come_out_as_alone(text, causal):
    make = factory(text, causal)
    mixer, x, counts = make(), make.inputs(70, rows=4), (70, 33, 16, 1)
    y = mixer(
        torch.where(testing.real_tokens(70, *counts)[..., None], x, torch.nan), mask=testing.real_tokens(70, *counts)
    )
    for row, count in enumerate(counts):
        assert testing.gap(y[row, :count], mixer(x[row : row + 1, :count])[0]) < 1e-5


def test_a_mean_is_over_real_rows_and_a_slot_of_none_is_hidden():
    mixer, real = compressive("mean", memory=0), torch.tensor([[True, False, False, False]])
    _, state = mixer.step(counted(1, 4), None, mask=real)
    assert held(state) == [1, 0] and state.seen is not None and state.seen.tolist() == [[True, False]]


@pytest.mark.parametrize("text", SMALL)
def test_a_row_that_forgets_begins_anew_and_others_go_on(text):
    make = factory(text)
    mixer, x = make(), make.inputs(64)
    state = None
    for part in x[:, :32].split(mixer.segment, 1):
        _, state = mixer.step(part, state)
    cleared = forgotten(state, torch.tensor([True, False]))
    part = x[:, 32 : 32 + mixer.segment]
    mine, _ = mixer.step(part, cleared)
    assert testing.gap(mine[0], mixer.step(part[:1], None)[0][0]) < 1e-6
    assert testing.gap(mine[1], mixer.step(part, state)[0][1]) < 1e-6
    if state.rows.shape[1]:
        assert testing.gap(mine[0], mixer.step(part, state)[0][0]) > 1e-3


# --- what is learned ---


@pytest.mark.parametrize("compression", ["conv", "dilated"])
def test_each_loss_teaches_its_own(compression):
    mixer = compressive(compression)
    x = torch.randn(2, 32, 8, dtype=torch.float64, requires_grad=True)
    y, loss = parted(mixer(x))
    assert loss is not None and loss > 0
    own = {name for name, _ in mixer.named_parameters() if name.startswith("compress.")}
    names, parameters = zip(*mixer.named_parameters(), strict=True)
    for objective, taught in ((y.square().sum(), set(names) - own), (loss, own)):
        found = torch.autograd.grad(objective, parameters, retain_graph=True, allow_unused=True)
        assert {name for name, grad in zip(names, found, strict=True) if grad is not None and grad.any()} == taught
    assert torch.autograd.grad(loss, x, allow_unused=True, retain_graph=True) == (None,)
    assert all(parameter.requires_grad for parameter in parameters)


def test_the_loss_is_the_mean_squared_difference_of_what_attention_reads():
    mixer, x = compressive(memory=4, weight=0.7), torch.randn(3, 8, 8, dtype=torch.float64)
    mask = testing.real_tokens(8, 8, 6, 3)
    _, loss = parted(mixer(x, mask=mask))
    rows = []
    for row in range(3):
        hidden = mask[row, :, None] * x[row]
        old, h = hidden[:4], hidden[4:]
        slots = squeezed(mixer, [(Slot(old[t], bool(mask[row, t])), 0.0) for t in range(4)])
        new, some = torch.stack([slot.content for slot in slots]), torch.tensor([slot.real for slot in slots])
        squares = (read_by(mixer, h, old, mask[row, :4]) - read_by(mixer, h, new, some)).square().mean((0, 2))
        rows.append(squares.mean() * float(mask[row, 4:].all()))  # without padding, that segment ends early
    assert loss is not None
    assert loss.item() == pytest.approx(0.7 * float(torch.stack(rows).mean()), rel=1e-9)


def test_the_loss_knows_nothing_of_padding():
    """A batch may be cut into passes in any way."""
    mixer, x = compressive(memory=8), torch.randn(1, 20, 8, dtype=torch.float64)
    for seq in range(1, 21):
        _, alone = parted(mixer(x[:, :seq]))
        padded = torch.nn.functional.pad(x[:, :seq], (0, 0, 0, 24 - seq), value=3.0)
        _, beside = parted(mixer(padded, mask=torch.arange(24)[None] < seq))
        assert alone is not None and beside is not None
        assert beside.item() == pytest.approx(alone.item(), rel=1e-12), seq
    assert alone > 0


def read_by(mixer: Mixer, h: Tensor, rows: Tensor, real: Tensor) -> Tensor:
    q, k, v = (
        classic.project(part, x[None], mixer) for part, x in ((mixer.query, h), (mixer.key, rows), (mixer.value, rows))
    )
    return (classic.softmax_of(q, k, real[None, None, None]) @ v)[0].detach()


def test_the_loss_falls_when_it_is_followed():
    mixer, x = compressive(), torch.randn(4, 32, 8, dtype=torch.float64)
    optimizer = torch.optim.Adam(mixer.compress.parameters(), 0.01)
    losses = []
    for _ in range(60):
        _, loss = parted(mixer(x))
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_loss_is_brought_in_training_only_and_also_where_nothing_is_compressed():
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    assert parted(compressive().eval()(x))[1] is None
    assert parted(compressive("mean")(x.repeat(1, 8, 1)))[1] is None
    mixer = compressive()
    _, loss = parted(mixer(x))
    assert loss is not None and loss == 0
    loss.backward()
    assert all(not parameter.grad.any() for parameter in mixer.compress.parameters())


def test_no_gradient_flows_into_the_past():
    make = factory("transformer-xl[segment=8,memory=8]")
    x = make.inputs(16).requires_grad_()
    make()(x)[:, 8:].sum().backward()
    assert not x.grad[:, :8].any() and x.grad[:, 8:].any()


# --- streams ---


def folded(mixer: Mixer, x: Tensor, mask: Tensor | None, part: int) -> Tensor:
    state, outs = None, []
    for start in range(0, x.shape[1], part):
        y, state = mixer.step(
            x[:, start : start + part], state, mask=None if mask is None else mask[:, start : start + part]
        )
        outs.append(y)
    return torch.cat(outs, 1)


@pytest.mark.parametrize("text", STREAMING)
def test_steps_in_turn_give_what_forward_gives(text):
    make = factory(text)
    mixer, x = make(300), make.inputs(300, rows=3)
    assert mixer.streams
    for mask in (None, testing.real_tokens(300, 300, 130, 3), testing.real_tokens(300, 300, 130, 0, left=True)):
        shown = torch.ones(3, 300, dtype=torch.bool) if mask is None else mask
        y = folded(mixer, x, mask, mixer.segment)
        assert testing.gap(y[shown], mixer(x, mask=mask)[shown]) < 1e-5


@pytest.mark.parametrize("text", SMALL)
def test_steps_give_gradients_and_losses_as_forward_does(text):
    make = factory(text)
    mixer, x = make().double().train(), make.inputs(40).double()
    weight, found = make.inputs(40, seed=3).double(), []
    for by in ("forward", "step"):
        mixer.zero_grad()
        state, total, at = None, 0.0, 0
        for part in x.split(40 if by == "forward" else mixer.segment, 1):
            out, state = (mixer(part), None) if by == "forward" else mixer.step(part, state)
            y, loss = parted(out)
            total = total + (y * weight[:, at : at + y.shape[1]]).sum() + (0.0 if loss is None else loss)
            at += y.shape[1]
        total.backward()
        found.append([total.detach(), *(parameter.grad for parameter in mixer.parameters())])
    assert all(torch.allclose(one, other, atol=1e-10) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("text", ["linear", "performer", "performer[kernel=relu]"])
@pytest.mark.parametrize("part", [1, 7, 200])
def test_sums_of_the_past_may_be_cut_anywhere(text, part):
    make = factory(text)
    mixer, x = make(300).double(), make.inputs(100).double()
    x = x * torch.linspace(0.1, 8, 100)[:, None]  # levels rise again and again
    assert (folded(mixer, x, None, part) - mixer(x)).abs().max() < 1e-9


@pytest.mark.parametrize("text", ["linear", "performer"])
def test_sums_are_kept_in_single_precision(text):
    make = factory(text)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, state = make().step(make.inputs(40), None)
        y, state = make().step(make.inputs(40), state)
    assert state.sums.dtype == torch.float32 and y.dtype == torch.bfloat16


@pytest.mark.parametrize("text", ["linear", "performer"])
def test_what_is_not_causal_does_not_pretend_to_stream(text):
    mixer = factory(text, causal=False)()
    assert not mixer.streams
    with pytest.raises(Unsupported, match="cannot stream unless it is causal"):
        mixer.step(torch.zeros(1, 4, 13), None)


@pytest.mark.parametrize(("text", "kind"), [("linear", "alibi"), ("linear", "pia"), ("performer", "rotary")])
def test_a_running_sum_that_would_have_to_know_where_it_is_does_not_stream(text, kind):
    mixer = factory(text)(positions=kind)
    assert not mixer.streams
    with pytest.raises(Unsupported, match=f"cannot stream with positions {kind}"):
        mixer.step(torch.zeros(1, 4, 13), None)


@pytest.mark.parametrize("text", STREAMING)
@torch.no_grad()
def test_a_stream_takes_as_much_memory_however_long_it_is(text):
    make = factory(text)
    mixer, sizes = make(100_000), []
    for parts in (8, 32):
        state = None
        with testing.LargestTensor() as watch:
            for number in range(parts):
                _, state = mixer.step(make.inputs(mixer.segment, rows=1, seed=number), state)
        kept = sum(leaf.untyped_storage().nbytes() for leaf in state if isinstance(leaf, Tensor))
        sizes.append((watch.elements, kept))
    assert sizes[0] == sizes[1]
