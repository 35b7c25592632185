"""Positions inside attention: plain n x n maths for each backend and kind, what moves with a shift, what is refused."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from conftest import changed
from oracles import classic, merge, pairs, project
from torch import Tensor

from lrbench import attention, plan, testing
from lrbench.backends import positions
from lrbench.backends.base import LayerConfig, Mixer
from lrbench.errors import SpecError, Unsupported
from lrbench.models import heads
from lrbench.models.encoder import Encoder
from lrbench.registry import backends
from lrbench.specs import Grid, ModelSpec, Positions, RunSpec

KINDS = [kind for kind in Positions.__args__ if kind not in positions.OUTSIDE]
SLOPES = [2.0**-4, 2.0**-8, 2.0**-2]  # of three heads: both of two, and the first of four


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def doubles() -> Iterator[None]:
    """Tables of positions are made in the precision that is set."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


# --- the plain forms ---


def wave(at: int, dim: int) -> list[float]:
    angles = [at / 10000 ** (2 * (feature // 2) / dim) for feature in range(dim)]
    return [math.cos(angle) if feature % 2 else math.sin(angle) for feature, angle in enumerate(angles)]


def turned(x: Tensor) -> Tensor:
    """Pairs as complex numbers."""
    seq, half = x.shape[2], x.shape[3] // 2
    rate = torch.tensor([10000 ** (-j / half) for j in range(half)], dtype=torch.float64)
    angle = torch.arange(seq)[:, None] * rate
    z = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.complex(angle.cos(), angle.sin())
    return torch.cat([z.real, z.imag, x[..., 2 * half :]], -1)


def three(mixer: Mixer, x: Tensor, names: str = "{}") -> list[Tensor]:
    """q, k and v of a kind that acts on them."""
    kind = mixer.cfg.positions
    placed = x
    if kind == "pia":
        placed = x + torch.tensor([wave(i, x.shape[2]) for i in range(x.shape[1])], dtype=torch.float64)
    linears = [getattr(mixer, names.format(name)) for name in ("query", "key", "value")]
    q, k, v = (project(part, given, mixer) for part, given in zip(linears, (placed, placed, x), strict=True))
    return [turned(q), turned(k), v] if kind == "rotary" else [q, k, v]


def bucket(distance: int, causal: bool) -> int:
    """As in the paper's own code, of key minus query."""
    count, far, relative, found = 32, 128, -distance, 0
    if causal:
        n = max(-relative, 0)
    else:
        count //= 2
        found, n = (count if relative > 0 else 0), abs(relative)
    exact = count // 2
    if n < exact:
        return found + n
    grown = exact + math.floor(math.log(n / exact) / math.log(far / exact) * (count - exact) + 1e-9)
    return found + min(grown, count - 1)


def scores(mixer: Mixer, q: Tensor, k: Tensor) -> Tensor:
    kind, place, (seq, width) = mixer.cfg.positions, mixer.place, q.shape[2:]
    i, j, _ = pairs(seq, False)
    if kind == "xl":
        waves = torch.tensor([wave(at, mixer.cfg.dim) for at in range(-seq + 1, seq)], dtype=torch.float64)
        r = (waves @ place.relative.weight.T).view(2 * seq - 1, -1, width)[i - j + seq - 1]  # i j heads width
        return (
            torch.einsum("rhid,rhjd->rhij", q + place.u, k) + torch.einsum("rhid,ijhd->rhij", q + place.v, r)
        ) / math.sqrt(width)
    plain = torch.einsum("rhid,rhjd->rhij", q, k) / math.sqrt(width)
    if kind == "alibi":
        return plain - torch.tensor(SLOPES, dtype=torch.float64)[:, None, None] * (i - j).abs()
    if kind == "t5":
        found = torch.tensor([[bucket(a - b, mixer.cfg.causal) for b in range(seq)] for a in range(seq)])
        return plain + place.table[:, found]
    return plain


def divided(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


def window_and_globals(mixer: Mixer, x: Tensor, mask: Tensor, window: int = 10**6, dilation: int = 1) -> Tensor:
    i, j, allowed = pairs(x.shape[1], mixer.cfg.causal)
    count = getattr(mixer, "globals", 0)
    near = ((i - j).abs() <= window * dilation) & ((i - j) % dilation == 0)
    q, k, v = three(mixer, x)
    mixed = divided(scores(mixer, q, k).exp() * (allowed & (near | (j < count)) & mask[:, None, None])) @ v
    if count:
        q, k, v = three(mixer, x, "{}_global")
        mixed = torch.where(i < count, divided(scores(mixer, q, k).exp() * mask[:, None, None]) @ v, mixed)
    return merge(mixed, mixer)


def kernels(mixer: Mixer, x: Tensor, mask: Tensor, phi: Callable[[Mixer, Tensor], Tensor]) -> Tensor:
    i, j, allowed = pairs(x.shape[1], mixer.cfg.causal)
    q, k, v = three(mixer, x)
    weights = phi(mixer, q) @ phi(mixer, k).transpose(-1, -2) * (allowed & mask[:, None, None])
    if mixer.cfg.positions == "alibi":
        weights = weights * (torch.tensor(SLOPES, dtype=torch.float64)[:, None, None] * (j - i)).exp()
    return merge(divided(weights) @ v, mixer)


def elu_plus_one(mixer: Mixer, x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.exp())


class Case(NamedTuple):
    name: str
    settings: dict[str, Any]
    kinds: tuple[str, ...]
    reference: Callable[[Mixer, Tensor, Tensor], Tensor]


CASES = [
    *(Case("full", {"impl": impl}, tuple(KINDS), window_and_globals) for impl in ("fused", "math")),
    *(Case("local", {"window": w}, tuple(KINDS), partial(window_and_globals, window=w)) for w in (0, 5, 70)),
    *(
        Case("longformer", sizes, ("rotary", "pia"), partial(window_and_globals, **sizes))
        for sizes in ({"window": w, "dilation": g} for w, g in ((5, 1), (3, 2)))
    ),
    Case("performer", {"features": 11}, ("rotary", "pia"), partial(kernels, phi=classic.positive)),
    Case("performer", {"features": 11, "kernel": "relu"}, ("pia",), partial(kernels, phi=classic.rectified)),
    Case("linear", {}, ("pia", "alibi"), partial(kernels, phi=elu_plus_one)),
]


def found() -> list[Any]:
    """Each case, kind and direction that is not refused."""
    return [
        pytest.param(case, kind, causal, id=f"{case.name}[{','.join(map(str, case.settings.values()))}]-{kind}{tail}")
        for case in CASES
        for kind in case.kinds
        for causal, tail in ((False, ""), (True, "-causal"))
        if causal or (case.name, kind) != ("linear", "alibi")
    ]


def made(case: Case, kind: str, causal: bool, max_len: int = 151, **changes: Any) -> Mixer:
    """In float64, with learned numbers large enough to matter."""
    with doubles():
        mixer = testing.Factory(backends.get(case.name).cls, case.settings, causal, positions=kind)(max_len, **changes)
    for seed, parameter in enumerate(mixer.place.parameters()):
        torch.nn.init.normal_(parameter, std=0.7, generator=torch.Generator().manual_seed(seed))
    if case.name == "longformer" and mixer.globals:  # copies at first; the test needs them to differ
        torch.nn.init.normal_(mixer.key_global.weight, std=0.3, generator=torch.Generator().manual_seed(3))
    return mixer


def inputs(seq: int, seed: int = 1) -> Tensor:
    return torch.randn(3, seq, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def masks(seq: int) -> list[Tensor | None]:
    gaps = torch.rand(3, seq, generator=torch.Generator().manual_seed(5)) < 0.6
    few = max(1, seq // 3)
    left = testing.real_tokens(seq, few, seq, 0, left=True)
    return [None, testing.real_tokens(seq, seq, few, 1), left, gaps]


def test_every_kind_that_a_backend_names_has_an_oracle() -> None:
    named = {(name, kind) for name in backends.shipped() for kind in backends.get(name).cls.positions}
    assert named == {(case.name, kind) for case in CASES for kind in case.kinds}


@pytest.mark.parametrize(("case", "kind", "causal"), found())
def test_a_kind_and_its_gradients_equal_the_plain_form(case: Case, kind: str, causal: bool) -> None:
    mixer = made(case, kind, causal)
    leaves = list(mixer.place.parameters())
    for seq in (1, 2, 19, 151):
        for mask in masks(seq):
            x = inputs(seq).requires_grad_()
            shown = torch.ones(3, seq, dtype=torch.bool) if mask is None else mask
            weight = inputs(seq, seed=4) * shown[..., None]  # padded rows may hold anything
            mine, plain = mixer(x, mask=mask) * weight, case.reference(mixer, x, shown) * weight
            assert (mine - plain).abs().max() < 1e-10, seq
            got, expected = (
                torch.autograd.grad(y.sum(), [x, *leaves], allow_unused=True, materialize_grads=True)
                for y in (mine, plain)
            )
            assert (got[0] - expected[0])[shown].abs().max() < 1e-9, seq
            assert all((one - other).abs().max() < 1e-9 for one, other in zip(got[1:], expected[1:], strict=True)), seq


@pytest.mark.parametrize(
    ("text", "kind", "causal"),
    [
        ("full", "alibi", True),
        ("full", "xl", False),
        ("local[window=5]", "rotary", False),
        ("local[window=5]", "pia", True),
        ("local[window=5]", "alibi", False),
        ("local[window=5]", "t5", True),
        ("local[window=5]", "xl", False),
        ("longformer[window=5]", "rotary", False),
        ("longformer[window=5]", "pia", False),
        ("performer", "rotary", True),
        ("linear", "alibi", True),
    ],
)
def test_a_kind_keeps_the_contract(text: str, kind: str, causal: bool) -> None:
    backend = backends.get(text)
    make = testing.Factory(backend.cls, backend.options, causal, positions=kind)
    moves = kind == "pia" or text == "performer"  # random features are turned against the vectors
    checks = [check for check in testing.PROBES if not (moves and check is testing.padding_amount)]
    probes = [testing.probe(check, make) for check in (*checks, *((testing.causality,) if causal else ()))]
    assert [probe for probe in probes if not probe.passed] == []


# --- what a shift changes ---


RELATIVE = [param for param in found() if param.values[1] != "pia" and param.values[0].name != "performer"]


@torch.no_grad()
def shifted(mixer: Mixer, seq: int = 60, by: int = 77) -> float:
    """By how much tokens come out otherwise behind padding."""
    x = inputs(seq)
    behind = mixer(torch.nn.functional.pad(x, (0, 0, by, 0)), mask=(torch.arange(seq + by) >= by).expand(3, -1))
    return float((behind[:, by:] - mixer(x)).abs().max())


@pytest.mark.parametrize(("case", "kind", "causal"), RELATIVE)
def test_relative_kinds_do_not_see_a_shift(case: Case, kind: str, causal: bool) -> None:
    assert shifted(made(case, kind, causal, readout=0)) < 1e-12


def test_infused_positions_see_a_shift() -> None:
    assert shifted(made(CASES[0], "pia", False)) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_tells_tokens_apart_that_are_alike_but_for_their_place(kind: str) -> None:
    x = inputs(40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    plain, placed = made(CASES[0], "none", False), made(CASES[0], kind, False)
    assert (plain(x[:, order]) - plain(x)[:, order]).abs().max() < 1e-12
    assert (placed(x[:, order]) - placed(x)[:, order]).abs().max() > 1e-3


def test_infused_positions_reach_queries_and_keys_but_no_value() -> None:
    mixer, x = made(CASES[0], "pia", False), inputs(40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    for place, changes in enumerate((True, True, False)):
        moved = mixer.projected(x[:, order], None)[place] - mixer.projected(x, None)[place][:, :, order]
        assert bool(moved.abs().max() > 1e-3) is changes
    torch.nn.init.zeros_(mixer.query.weight)  # uniform weights: what is left are means of values
    assert (mixer(x[:, order]) - mixer(x)[:, order]).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["rotary", "pia"])
def test_positions_go_on_beyond_the_longest_length_as_told(kind: str) -> None:
    x = inputs(90)
    assert torch.equal(made(CASES[0], kind, False, max_len=64)(x), made(CASES[0], kind, False, max_len=151)(x))


# --- numbers worked out by hand ---


def test_buckets_are_those_of_t5() -> None:
    later_and_before, before = positions.buckets(causal=False), positions.buckets(causal=True)
    both = {
        0: 0,
        1: 1,
        7: 7,
        8: 8,
        11: 8,
        12: 9,
        15: 9,
        16: 10,
        22: 10,
        23: 11,
        32: 12,
        64: 14,
        90: 14,
        91: 15,
        128: 15,
    }
    both |= {-distance: 16 + found for distance, found in both.items() if distance}
    assert {distance: later_and_before[128 + distance] for distance in both} == both
    causal = {-128: 0, -1: 0, 0: 0, 15: 15, 16: 16, 18: 16, 19: 17, 32: 21, 64: 26, 112: 30, 113: 31, 128: 31}
    assert {distance: before[128 + distance] for distance in causal} == causal


def test_what_is_farther_than_128_falls_into_the_outermost_bucket() -> None:
    place = positions.Buckets(2, 8, causal=False)
    bias = place.bias(torch.zeros(1, 2, 300, 4), 0, 300)[0]
    assert torch.equal(bias[:, 299, 0], place.table[:, 15]) and torch.equal(bias[:, 0, 299], place.table[:, 31])


def test_slopes_are_those_of_alibi_for_8_and_for_12_heads() -> None:
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert positions.slopes(8) == eight
    assert positions.slopes(12) == pytest.approx([*eight, 0.70710678, 0.35355339, 0.17677670, 0.08838835])
    assert [len(positions.slopes(count)) for count in range(1, 20)] == list(range(1, 20))


def test_rotary_turns_the_first_pair_by_one_radian_a_token() -> None:
    x = torch.zeros(1, 1, 3, 4)
    x[..., 0] = 1.0
    q, _ = positions.Rotary(8, 4).turned(x, x)
    expected = torch.tensor([[math.cos(i), 0.0, math.sin(i), 0.0] for i in range(3)])
    assert torch.allclose(q[0, 0], expected)


def test_slanted_columns_are_laid_upright() -> None:
    x = torch.tensor([[20, 21, 22, 23, 24, 25], [10, 11, 12, 13, 14, 15], [0, 1, 2, 3, 4, 5]], dtype=torch.float32)
    assert positions.skewed(x, 4).tolist() == [[22, 23, 24, 25], [11, 12, 13, 14], [0, 1, 2, 3]]


# --- memory and precision of causal ALiBi ---


def test_causal_alibi_is_told_to_the_fused_kernel_without_a_bias() -> None:
    make = testing.Factory(backends.get("full").cls, {}, causal=True, positions="alibi")
    with testing.LargestTensor() as watch:
        make(2048)(make.inputs(2048), mask=testing.real_tokens(2048, 2000, 1000))
    assert watch.elements < 2048**2 / 8


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.04), (torch.float16, 0.04)])
def test_causal_alibi_is_as_exact_at_the_end_of_a_long_input(dtype: torch.dtype, bound: float) -> None:
    seq, last = 4096, 32
    mixer = attention("full", dim=96, heads=12, max_len=seq, causal=True, positions="alibi")
    q, k, v = (torch.randn(1, 12, seq, 8, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (1, 2, 3))
    got = mixer.attend(q, k, v, None)[:, :, -last:].double()
    i, j = torch.arange(seq - last, seq)[:, None], torch.arange(seq)
    steep = torch.tensor(positions.slopes(12), dtype=torch.float64)[:, None, None]
    exact = q[:, :, -last:].double() @ k.double().transpose(-1, -2) / math.sqrt(8) - steep * (i - j)
    expected = exact.masked_fill(j > i, -torch.inf).softmax(-1) @ v.double()
    assert (got - expected).abs().max() < bound


# --- refusals and notes ---


@pytest.mark.parametrize(
    ("text", "kind", "causal", "message", "others"),
    [
        ("linformer", "rotary", False, "linformer cannot use rotary positions", "none, learned, sinusoidal,"),
        ("linformer", "pia", False, "linformer cannot use pia positions", "none, learned, sinusoidal,"),
        ("longformer", "alibi", False, "longformer cannot use alibi positions", "rotary, pia,"),
        ("performer", "t5", True, "performer cannot use t5 positions", "rotary, pia,"),
        ("performer[kernel=relu]", "rotary", False, "performer cannot use rotary positions with kernel=relu", "pia,"),
        ("linear", "rotary", True, "linear cannot use rotary positions", "pia, alibi,"),
        ("linear", "alibi", False, "linear cannot use alibi positions unless causal", "sinusoidal, pia, or"),
        ("full", "rotray", False, "full cannot use rotray positions", "rotary, pia, alibi, t5, xl,"),
    ],
)
def test_a_kind_that_a_backend_cannot_honour_is_refused_by_name(
    text: str, kind: str, causal: bool, message: str, others: str
) -> None:
    with pytest.raises(Unsupported) as refusal:
        attention(text, dim=8, heads=2, causal=causal, positions=kind)
    assert refusal.value.message == message and others in refusal.value.hint


@pytest.mark.parametrize("kind", positions.OUTSIDE)
def test_what_the_model_adds_itself_is_no_business_of_a_mixer(kind: str) -> None:
    x = torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    told = attention("linformer", dim=8, heads=2, positions=kind)(x)
    torch.manual_seed(0)
    assert torch.equal(told, attention("linformer", dim=8, heads=2)(x))


def test_a_mixer_that_names_no_kind_refuses_all_that_act_inside() -> None:
    class Plain(Mixer):
        """Says nothing of positions."""

    for kind in KINDS:
        with pytest.raises(Unsupported, match=f"plain cannot use {kind} positions"):
            Plain(LayerConfig(8, 2, 4, 16, positions=kind))


def test_rotary_needs_two_features_a_head() -> None:
    with pytest.raises(SpecError, match="head_dim is 1"):
        attention("full", dim=8, heads=8, positions="rotary")


@pytest.mark.parametrize(
    ("text", "kind", "causal", "told"),
    [
        ("full", "t5", True, "n x n weights"),
        ("full", "xl", False, "n x n weights"),
        ("full", "alibi", False, "heads x n x n"),
        ("full", "alibi", True, None),
        ("full", "rotary", False, None),
        ("full[impl=math]", "xl", False, None),
        ("local", "t5", False, "no fused kernel on the CPU"),
        ("local", "xl", False, "no fused kernel on the CPU"),
        ("local", "alibi", False, None),
    ],
)
def test_what_a_kind_costs_beyond_the_backend_is_noted(text: str, kind: str, causal: bool, told: str | None) -> None:
    notes = attention(text, dim=8, heads=2, causal=causal, positions=kind).notes
    assert notes == [] if told is None else told in notes[0]


@pytest.mark.parametrize("name", backends.shipped())
def test_a_backend_says_whether_it_takes_more_than_the_longest_length(name: str) -> None:
    mixer, x = attention(name, dim=8, heads=2, max_len=16).eval(), torch.ones(1, 17, 8)
    if mixer.any_length:
        assert mixer(x).shape == x.shape
    else:
        with pytest.raises(Unsupported):
            mixer(x)


# --- the model ---


SIZES = ModelSpec(layers=3, dim=12, heads=3, head_dim=5, mlp_dim=20, pooling="mean")
OWN = {"t5": 32 * 3, "xl": 3 * 12 * 15 + 2 * 15, "learned": 16 * 12}


@pytest.mark.parametrize("name", ["full", "local[window=4]"])
@pytest.mark.parametrize("kind", Positions.__args__)
def test_a_model_trains_a_step_with_every_kind_and_counts_its_parameters(name: str, kind: str) -> None:
    backend, spec = backends.get(name), SIZES.model_copy(update={"positions": kind})
    torch.manual_seed(0)
    model = heads.Classifier(Encoder(spec, partial(backend.cls, **backend.options), 11, 16), 12, 20, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(1, 11, (4, 16), generator=torch.Generator().manual_seed(1))
    mask = testing.real_tokens(16, 16, 9, 1, 12)

    def loss() -> Tensor:
        return torch.nn.functional.cross_entropy(model(tokens, mask), torch.tensor([0, 1, 2, 3]))

    before = loss()
    before.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    optimizer.step()
    assert loss() < before
    counted = heads.count(model)
    assert counted.positional == OWN.get(kind, 0)
    assert counted.embedding == 11 * 12 + counted.positional
    assert counted.total == counted.embedding + counted.non_embedding == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_the_embedding_gets_nothing_where_positions_act_inside_or_nowhere(kind: str) -> None:
    encoder = Encoder(SIZES.model_copy(update={"positions": kind}), backends.get("full").cls, 11, 16)
    x = torch.randn(1, 16, 12)
    assert torch.equal(encoder.positions(x), x)
    assert [block.mixer.cfg.positions for block in encoder.blocks] == [kind] * 3


def test_layers_share_what_the_papers_share() -> None:
    def places(kind: str) -> list[Any]:
        encoder = Encoder(SIZES.model_copy(update={"positions": kind}), backends.get("full").cls, 11, 16)
        return [block.mixer.place for block in encoder.blocks]

    first, _, third = places("t5")
    assert third.table is first.table
    first, _, third = places("xl")
    assert third.u is first.u and third.v is first.v and third.relative.weight is not first.relative.weight


def test_a_run_chooses_its_positions_by_a_field(toy_spec: RunSpec) -> None:
    toy = Path(__file__).parent / "toy" / "toy.yaml"
    wanted = Grid(models=["full"], tasks=[str(toy)], preset="tiny", set={"model.positions": "rotary"})
    (cell,) = plan.cells(wanted, Path("unused"))
    assert cell.spec.model.positions == "rotary" and toy_spec.model.positions == "sinusoidal"
    with pytest.raises(SpecError) as refusal:
        list(plan.cells(wanted.model_copy(update={"set": {"model.positions": "rotray"}}), Path("unused")))
    assert "rotary" in refusal.value.hint


def test_no_positions_and_a_mean_know_no_order(toy_spec: RunSpec) -> None:
    spec = changed(toy_spec, model={"positions": "none", "pooling": "mean"}).model
    encoder = Encoder(spec, backends.get("full").cls, 11, 16).eval()
    tokens = torch.arange(1, 11)[None]
    assert torch.allclose(encoder(tokens), encoder(tokens.flip(1)), atol=1e-5)
