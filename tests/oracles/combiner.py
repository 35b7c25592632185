"""Combiner from its definition: index sets, p(region | i) · p(j | region), and a dense matrix row by row."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lrbench.backends.base import Mixer
from oracles import merge, project


class Region(NamedTuple):
    members: tuple[int, ...]
    through: int | None = None  # the place whose query and key stand for the region, where that is not a maximum


class Sees(NamedTuple):
    direct: tuple[int, ...]
    regions: tuple[Region, ...]


def spans(order: list[int], span: int, causal: bool, own: bool = False) -> dict[int, Sees]:
    """By places in `order`, which is the sequence itself or sorted by clusters."""
    pieces = [tuple(order[start : start + span]) for start in range(0, len(order), span)]
    found = {}
    for number, piece in enumerate(pieces):
        for at, i in enumerate(piece):
            rest = [p for n, p in enumerate(pieces) if n < number or (not causal and (n > number or own))]
            found[i] = Sees(piece[: at + 1] if causal else piece, tuple(Region(p) for p in rest))
    return found


def doubling(i: int) -> tuple[list[int], list[tuple[int, ...]]]:
    """What the bits of i say of the tokens before it."""
    direct = [i - 1] if i % 2 else []
    blocks = []
    for level in range(1, i.bit_length()):
        if i >> level & 1:
            high = i >> level << level
            blocks.append(tuple(range(high - 2**level, high)))
    return direct, blocks


def logsparse(seq: int, causal: bool) -> dict[int, Sees]:
    found = {}
    for i in range(seq):
        direct, blocks = doubling(i)
        if not causal:
            ahead, more = doubling(seq - 1 - i)
            direct = direct + [seq - 1 - j for j in ahead]
            blocks = blocks + [tuple(sorted(seq - 1 - j for j in block)) for block in more]
        found[i] = Sees((*direct, i), tuple(Region(block) for block in blocks))
    return found


def axial(kinds: tuple[str, ...], seq: int, causal: bool, width: int, front: int, own: bool = False) -> dict[int, Sees]:
    """Token i lies at place i + front of the grid."""
    places = {divmod(i + front, width): i for i in range(seq)}
    found = {}
    for (row, column), i in places.items():
        direct = {j for (r, u), j in places.items() if r == row and (u <= column or not causal)}
        regions: list[Region] = []
        rows = [r for r in sorted({r for r, _ in places}) if (r < row if causal else r != row or own)]
        columns = [u for u in range(width) if u != column]
        if "row" in kinds:
            for r in rows:
                members = tuple(j for (a, _), j in places.items() if a == r)
                regions.append(Region(members, through=r * width + column))
        else:
            direct |= {j for (r, u), j in places.items() if u == column and (r <= row or not causal)}
        if "vertical" in kinds:
            for u in columns:
                regions.append(Region(tuple(j for (a, b), j in places.items() if b == u and a < row)))
                if not causal:
                    regions.append(Region(tuple(j for (a, b), j in places.items() if b == u and a > row)))
        if "horizontal" in kinds:
            for r in rows:
                regions.append(Region(tuple(j for (a, b), j in places.items() if a == r and b < column)))
                regions.append(Region(tuple(j for (a, b), j in places.items() if a == r and b > column)))
        found[i] = Sees(tuple(sorted(direct)), tuple(region for region in regions if region.members))
    return found


def sees(mixer: Mixer, seq: int, order: list[int] | None = None) -> list[dict[int, Sees]]:
    """The sets of the mixer's plan; several where outputs are averaged. Places from the first real token."""
    causal, plan = mixer.cfg.causal, mixer.plan
    if plan in ("fixed", "learnable"):
        return [spans(list(range(seq)) if order is None else order, mixer.span, causal, mixer.own)]
    if plan == "logsparse":
        return [logsparse(seq, causal)]
    front = -mixer.cfg.readout % mixer.width
    kinds = ("vertical", "horizontal") if plan == "mixture" else (plan.removeprefix("axial-"),)
    parts = [(kind,) for kind in kinds] if mixer.average else [kinds]
    return [axial(part, seq, causal, mixer.width, front, mixer.own) for part in parts]


class Row(NamedTuple):
    """One row of the batch from its first real token on, heads first."""

    q: Tensor
    k: Tensor
    v: Tensor
    x: Tensor
    real: list[bool]


def weights_of(query: Tensor, keys: list[Tensor]) -> Tensor:
    scores = torch.stack([(query * key).sum(-1) for key in keys], -1) / math.sqrt(query.shape[-1])  # heads keys
    return scores.softmax(-1)


class Summaries:
    """Keys of regions and p(j | region), each worked out once."""

    def __init__(self, mixer: Mixer, row: Row) -> None:
        self.mixer, self.row = mixer, row
        self.known: dict[Region, tuple[Tensor, Tensor]] = {}
        self.front = -mixer.cfg.readout % mixer.width if mixer.plan.startswith("axial") else 0

    def __call__(self, region: Region, members: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        if region not in self.known:
            self.known[region] = self.pooled(members) if region.through is None else self.seen_through(region, members)
        return self.known[region]

    def pooled(self, members: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        query, key = self.row.q[:, list(members)], self.row.k[:, list(members)]
        if self.mixer.pool_query is not None:
            query, key = (
                (part @ linear.weight.T).clamp(min=0)
                for part, linear in ((query, self.mixer.pool_query), (key, self.mixer.pool_key))
            )
        query, key = query.amax(1), key.amax(1)
        return key, weights_of(query, [self.row.k[:, j] for j in members])

    def at(self, x: Tensor, place: int) -> Tensor:
        """What lies at a place of the grid; past the ends of the sequence, zeros."""
        j = place - self.front
        return x[:, j] if 0 <= j < x.shape[1] and self.row.real[j] else torch.zeros_like(x[:, 0])

    def seen_through(self, region: Region, members: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        place, mixer = region.through, self.mixer
        inside = weights_of(self.at(self.row.q, place), [self.row.k[:, j] for j in members])
        if mixer.row_key is None:
            return self.at(self.row.k, place), inside
        attended = torch.einsum("hj,hjd->hd", inside, self.row.v[:, list(members)])
        found = attended.flatten() @ mixer.row_out.weight.T + self.at(self.row.x[None], place)[0]
        found = (found - found.mean()) / (found.var(unbiased=False) + 1e-5).sqrt()
        found = found * mixer.row_norm.weight + mixer.row_norm.bias
        return (found @ mixer.row_key.weight.T).view(mixer.cfg.heads, -1), inside


def probabilities(mixer: Mixer, row: Row, sets: dict[int, Sees]) -> Tensor:
    """The matrix p(j | i) of one row, heads first; nothing for padding."""
    seq = row.q.shape[1]
    matrix = row.q.new_zeros(mixer.cfg.heads, seq, seq)
    summaries, rows = Summaries(mixer, row), []
    for i in range(seq):
        if not row.real[i]:
            rows.append(matrix[:, i])
            continue
        direct = [j for j in sets[i].direct if row.real[j]]
        shown = [(region, tuple(j for j in region.members if row.real[j])) for region in sets[i].regions]
        shown = [(region, members) for region, members in shown if members]
        parts = [summaries(region, members) for region, members in shown]
        joint = weights_of(row.q[:, i], [*(row.k[:, j] for j in direct), *(key for key, _ in parts)])
        line = matrix[:, i].index_add(1, torch.tensor(direct), joint[:, : len(direct)])
        for number, ((_, members), (_, inside)) in enumerate(zip(shown, parts, strict=True)):
            share = joint[:, len(direct) + number, None] * inside
            line = line.index_add(1, torch.tensor(members), share)
        rows.append(line)
    return torch.stack(rows, 1)


def dense(mixer: Mixer, row: Row) -> Tensor:
    """p(j | i) of one row; clusters differ from head to head."""
    seq = row.q.shape[1]
    if mixer.plan != "learnable":
        found = [probabilities(mixer, row, sets) for sets in sees(mixer, seq)]
        return sum(found) / len(found)
    heads = []
    for head in range(mixer.cfg.heads):
        angles = torch.cosine_similarity(row.k[head][:, None], mixer.centroids[head][None], dim=-1)
        cluster = angles.argmax(-1).tolist()
        order = sorted((j for j in range(seq) if row.real[j]), key=lambda j: (cluster[j], j))
        (sets,) = sees(mixer, seq, order)
        heads.append(probabilities(mixer, row, sets)[head])
    return torch.stack(heads)


def reference(mixer: Any, x: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (project(part, x, mixer) for part in (mixer.query, mixer.key, mixer.value))
    rows = []
    for number, shown in enumerate(mask):
        real = shown.nonzero()[:, 0].tolist()
        mixed = torch.zeros_like(q[number])
        if real:
            start, end = real[0], real[-1] + 1
            row = Row(
                *(part[number][:, start:end] for part in (q, k, v)), x[number, start:end], shown[start:end].tolist()
            )
            mixed = torch.cat([mixed[:, :start], dense(mixer, row) @ row.v, mixed[:, end:]], 1)
        rows.append(mixed)
    return merge(torch.stack(rows), mixer)
