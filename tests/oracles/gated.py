"""Gated units and mixed chunks: every weight of an n x n matrix, then one product."""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from oracles import Reference, merge, project, softmax_of


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def turn(x: Tensor) -> Tensor:
    """Pairs of features (i, i + half) as complex numbers, times exp(i · angle)."""
    seq, half = x.shape[-2], x.shape[-1] // 2
    angles = [[p * 10000.0 ** (-i / half) for i in range(half)] for p in range(seq)]
    unit = torch.polar(
        torch.ones(seq, half, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64).view(seq, half)
    )
    pairs = torch.complex(x[..., :half].contiguous(), x[..., half : 2 * half].contiguous()) * unit
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * half :]], -1)


def bucket(offset: int, causal: bool = False) -> int:
    """Raffel et al. 2020, figure of 32 buckets up to a distance of 128; offset is key minus query."""
    if causal:
        first, count, distance = 0, 32, max(-offset, 0)
    else:
        first, count, distance = (16 if offset > 0 else 0), 16, abs(offset)
    exact = count // 2
    if distance < exact:
        return first + distance
    return first + min(exact + int(math.log(distance / exact) / math.log(128 / exact) * (count - exact)), count - 1)


def bucket_causal(offset: int) -> int:
    return bucket(offset, True)


@cache
def places(seq: int, place: Callable[[int], int]) -> Tensor:
    return torch.tensor([[place(j - i) for j in range(seq)] for i in range(seq)])


def bias_matrix(bias, seq: int, causal: bool) -> Tensor:
    """b[i, j] for i, j < seq."""
    if bias is None:
        return torch.zeros(seq, seq, dtype=torch.float64)
    if bias.kind == "rotary":
        one, other = (turn(bias.table[..., None, part, :].expand(*bias.table.shape[:-2], seq, -1)) for part in (0, 1))
        return one @ other.transpose(-1, -2)
    if bias.kind == "toeplitz":
        return bias.table[..., places(seq, int) + (bias.table.shape[-1] - 1) // 2]
    return bias.table[..., places(seq, bucket_causal if causal else bucket)] * bias.scale


def normed(norm, x: Tensor) -> Tensor:
    if isinstance(norm, torch.nn.LayerNorm):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    return x * norm.gain / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@cache
def relations(seq: int, chunk: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Which j a token i sees in its chunk, and which in the mean."""
    near, far = torch.zeros(2, seq, seq, dtype=torch.bool)
    for i in range(seq):
        for j in range(seq):
            near[i, j] = i // chunk == j // chunk and (j <= i or not causal)
            far[i, j] = j // chunk < i // chunk or not causal
    return near, far


def weighed(function: str, scores: Tensor, bias: Tensor, n: Tensor, s: int, allowed: Tensor) -> Tensor:
    """The weight of every pair from its bare product q · k; allowed is rows x seq x seq."""
    if function == "softmax":
        exps = (scores / math.sqrt(s) + bias).exp() * allowed
        total = exps.sum(-1, keepdim=True)
        return exps / torch.where(total == 0, 1.0, total)
    if function == "ns":
        return (scores / math.sqrt(s) + bias).clamp(min=0) ** 2 / n * allowed
    if function == "relu2":
        return (scores / n + bias).clamp(min=0) ** 2 * allowed
    centre, spread = math.sqrt(1 / 2), math.sqrt(1 / (4 * math.pi))
    return 0.5 * (1 + torch.erf((scores / n + bias - centre) / (spread * math.sqrt(2)))) * allowed


def mean_weights(q: Tensor, k: Tensor, allowed: Tensor, divisor: int | None) -> Tensor:
    count = allowed.sum(-1, keepdim=True).clamp(min=1) if divisor is None else divisor
    return q @ k.transpose(-1, -2) / count * allowed


def unit(attention: Callable[..., Tensor], rotary: bool = True, gate: bool = True, shift: bool = False) -> Reference:
    def reference(mixer, x, mask):
        shown = mask[..., None].double()
        h = normed(mixer.norm, x)
        if shift:
            half = x.shape[-1] // 2
            h = h * shown
            late = torch.stack([h[:, t - 1] if t else torch.zeros_like(h[:, 0]) for t in range(x.shape[1])], 1)
            h = torch.cat([late[..., :half], h[..., half:]], -1)
        e, s = mixer.out.weight.shape[1], mixer.gamma.shape[1]
        wide = silu(h @ mixer.expand.weight.T + mixer.expand.bias)
        u = wide[..., :e] if gate else 1.0
        v, z = wide[..., -e - s : -s], wide[..., -s:]
        heads = [z * scale + move for scale, move in zip(mixer.gamma, mixer.beta, strict=True)]
        weights = attention(mixer, [turn(head) for head in heads] if rotary else heads, mask)
        return x + (u * (weights @ (v * shown))) @ mixer.out.weight.T + mixer.out.bias

    return reference


def quad(function: str = "relu2", length: str = "fixed", **options: bool) -> Reference:
    """relu(q·k / n + b)² over all pairs."""

    def attention(mixer, heads, mask):
        seq, causal = mask.shape[1], mixer.cfg.causal
        allowed = relations(seq, seq, causal)[0] & mask[:, None]
        n = allowed.sum(-1, keepdim=True).clamp(min=1) if length == "valid" else torch.tensor(mixer.cfg.max_len)
        scores = heads[0] @ heads[1].transpose(-1, -2)
        return weighed(function, scores, bias_matrix(mixer.bias, seq, causal), n, heads[0].shape[-1], allowed)

    return unit(attention, **options)


def flash(
    chunk: int,
    parts: str = "both",
    function: str = "relu2",
    length: str = "fixed",
    global_norm: str = "mean",
    first_to_all: bool = False,
    **options: bool,
) -> Reference:
    """The block-diagonal matrix of the chunks plus the matrix of the mean."""

    def attention(mixer, heads, mask):
        seq, causal, s = mask.shape[1], mixer.cfg.causal, heads[0].shape[-1]
        near, far = (allowed & mask[:, None] for allowed in relations(seq, chunk, causal))
        total = torch.zeros(len(mask), seq, seq, dtype=torch.float64)
        if parts != "global":
            n = near.sum(-1, keepdim=True).clamp(min=1) if length == "valid" else torch.tensor(chunk)
            scores = heads[0] @ heads[1].transpose(-1, -2)
            table = bias_matrix(mixer.bias, min(chunk, seq), causal)  # within a chunk, and seen at each chunk
            place = torch.arange(seq) % chunk
            total = total + weighed(function, scores, table[place][:, place], n, s, near)
        if parts != "local" and not (causal and mixer.cfg.max_len <= chunk):
            total = total + mean_weights(heads[-2], heads[-1], far, chunk if global_norm == "chunk" else None)
        if first_to_all:
            first = softmax_of(heads[0][:, :1], heads[1], mask[:, None])
            total = torch.cat([first, total[:, 1:]], 1)
        return total

    return unit(attention, **options)


def layer(heads: Callable[..., Tensor], act: Callable[[Tensor], Tensor] = silu) -> Reference:
    """Norm, heads, add, norm, gated feed-forward, add."""

    def reference(mixer, x, mask):
        x = x + heads(mixer.mixer, normed(mixer.mixer_norm, x), mask)
        inner = normed(mixer.mlp_norm, x) @ mixer.mlp.into.weight.T + mixer.mlp.into.bias
        gate, value = inner.tensor_split(2, -1)
        return x + (act(gate) * value) @ mixer.mlp.out.weight.T + mixer.mlp.out.bias

    return reference


def rotary_heads(mixer, x: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
    near, _ = relations(x.shape[1], x.shape[1], mixer.cfg.causal)
    return merge(softmax_of(turn(q), turn(k), near & mask[:, None, None]) @ v, mixer)


def mixed_heads(chunk: int) -> Callable[..., Tensor]:
    def heads(mixer, x: Tensor, mask: Tensor) -> Tensor:
        seq, causal = x.shape[1], mixer.cfg.causal
        q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
        near, far = (allowed & mask[:, None, None] for allowed in relations(seq, chunk, causal))
        made = [turn(x * a + b) for x, a, b in zip((q, k, q, k), mixer.gamma, mixer.beta, strict=False)]
        place = torch.arange(seq) % chunk
        table = bias_matrix(mixer.bias, min(chunk, seq), causal)[..., place, :][..., place]
        scores = made[0] @ made[1].transpose(-1, -2)
        total = weighed("softmax", scores, table, torch.tensor(1), q.shape[-1], near)
        if len(made) == 4:
            total = total + mean_weights(made[2], made[3], far, None)
        return merge(total @ v, mixer)

    return heads
