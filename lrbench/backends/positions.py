"""Where tokens stand, told to an attention: the kinds that act inside it, each a module that a `HeadMixer` asks.

`pia` adds sinusoids to what queries and keys are made from (Press et al. 2021), `rotary` turns queries and keys (Su et
al. 2021), and three add to the scores: `alibi` (Press et al. 2022), `t5` (Raffel et al. 2020), `xl` (Dai et al. 2019).
A position is the index in the padded row, so padding on the left moves what is not relative: `pia`, and the random
features that rotated vectors are multiplied with.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lrbench.backends import ops
from lrbench.errors import SpecError

OUTSIDE = ("none", "learned", "sinusoidal")  # what the model adds to its embedding, or nothing: not a mixer's business
BASE = 10000.0


class Place(nn.Module):
    """Tells nothing; the kinds override what they act on."""

    learned = False  # has a bias that needs a gradient, for which there are few fused kernels

    def inputs(self, x: Float[Tensor, "rows seq dim"]) -> Float[Tensor, "rows seq dim"]:
        """What queries and keys are made from. Values are made from x."""
        return x

    def turned(
        self, q: Float[Tensor, "rows heads asking head_dim"], k: Float[Tensor, "rows heads seq head_dim"]
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys that know where they stand, both from the first token on; queries may be fewer."""
        return q, k

    def bias(
        self, q: Float[Tensor, "rows heads *blocks some head_dim"], ahead: int, keys: int
    ) -> Float[Tensor, "#rows heads *#blocks some keys"] | None:
        """What is added to scores already scaled, or None: query i stands `ahead` + i - j places after key j."""
        return None


class Infused(Place):
    """Position-infused attention: queries from x + p, keys from x + p, values from x, with p the sinusoids.

    Time and memory n · dim.
    """

    def __init__(self, max_len: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("table", constant(sinusoids(exactly(max_len), dim)), persistent=False)
        self.table: Tensor

    def inputs(self, x: Float[Tensor, "rows seq dim"]) -> Float[Tensor, "rows seq dim"]:
        """x + p."""
        seq, dim = x.shape[1:]
        table = self.table if seq <= len(self.table) else sinusoids(exactly(seq), dim).to(self.table)
        return x + table[:seq]


class Rotary(Place):
    """Turns features j and j + d/2 by the angle i · 10000^(-2j/d): q_i · k_j then depends on i - j only.

    An odd feature at the end is left as it is. Time n · head_dim a head.
    """

    def __init__(self, max_len: int, head_dim: int) -> None:
        super().__init__()
        if head_dim < 2:
            raise SpecError(f"rotary positions turn pairs of features: head_dim is {head_dim}", "choose fewer heads")
        self.register_buffer("table", constant(turns(exactly(max_len), head_dim)), persistent=False)
        self.table: Tensor

    def turned(
        self, q: Float[Tensor, "rows heads asking head_dim"], k: Float[Tensor, "rows heads seq head_dim"]
    ) -> tuple[Tensor, Tensor]:
        """Both turned."""
        seq, head_dim = k.shape[2:]
        table = self.table if seq <= self.table.shape[1] else turns(exactly(seq), head_dim).to(self.table)
        return rotated(q, table[:, : q.shape[2]]), rotated(k, table[:, :seq])


class Alibi(Place):
    """-slope · |i - j|, a slope a head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        exact = torch.tensor(slopes(heads), device="cpu", dtype=torch.float64)
        self.register_buffer("slopes", constant(exact), persistent=False)
        self.slopes: Tensor

    def bias(
        self, q: Float[Tensor, "rows heads *blocks some head_dim"], ahead: int, keys: int
    ) -> Float[Tensor, "1 heads *#blocks some keys"]:
        """heads · some · keys numbers, without a gradient."""
        distance = distances(q, ahead, keys).abs()
        return for_each_block(-self.slopes[:, None, None] * distance, q)

    def products(self, q: Float[Tensor, "rows heads seq head_dim"]) -> tuple[list[Tensor], list[Tensor]]:
        """slope · (j - i) as a sum of products of a query's coordinates and a key's.

        j comes in digits of base 256, for bfloat16 holds eight bits. i may be rounded, since softmax does not see what
        is a query's own; it comes first, so that sums are small before scores are added to them.
        """
        seq = q.shape[2]
        slopes = self.slopes[:, None] * q.shape[-1] ** 0.5  # what scores are divided by
        at = torch.arange(seq, device=q.device)
        powers = [256**digit for digit in reversed(range(max(1, -(-(seq - 1).bit_length() // 8))))]
        own = (slopes * at).clamp(max=torch.finfo(q.dtype).max / 4)
        keys = [torch.ones_like(at), *(at // power % 256 for power in powers)]
        return [-own, *(slopes * power for power in powers)], keys


class Buckets(Place):
    """A learned number for each head and each of 32 buckets of distances, shared by all layers."""

    learned = True

    def __init__(self, heads: int, dim: int, causal: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, 32) * dim**-0.5)
        self.register_buffer("buckets", torch.tensor(buckets(causal)), persistent=False)
        self.buckets: Tensor
        self.causal = causal

    def bias(
        self, q: Float[Tensor, "rows heads *blocks some head_dim"], ahead: int, keys: int
    ) -> Float[Tensor, "1 heads *#blocks some keys"]:
        """Looked up for each distance, then laid out."""
        some = q.shape[-2]
        reach = (len(self.buckets) - 1) // 2
        found = self.table[:, self.buckets[reach + falling(q, ahead, some, keys).clamp(-reach, reach)]]
        return for_each_block(skewed(found[:, None].expand(-1, some, -1), keys), q)


class Distances(Place):
    """Transformer-XL: (q_i + u) · k_j + (q_i + v) · r_(i-j), r = W sin(i-j); u and v are shared by all layers.

    Parameters dim · heads · head_dim a layer and 2 · heads · head_dim in all. Doubles the time of scores.
    """

    learned = True
    u: nn.Parameter
    v: nn.Parameter

    def __init__(self, heads: int, head_dim: int, dim: int, first: Place | None) -> None:
        super().__init__()
        self.relative = nn.Linear(dim, heads * head_dim, bias=False)
        nn.init.xavier_uniform_(self.relative.weight)
        if isinstance(first, Distances):
            self.u, self.v = first.u, first.v
        else:
            self.u, self.v = (nn.Parameter(torch.randn(heads, 1, head_dim) * 0.02) for _ in range(2))

    def turned(
        self, q: Float[Tensor, "rows heads asking head_dim"], k: Float[Tensor, "rows heads seq head_dim"]
    ) -> tuple[Tensor, Tensor]:
        """The queries that meet keys."""
        return q + self.u.to(q.dtype), k

    def bias(
        self, q: Float[Tensor, "rows heads *blocks some head_dim"], ahead: int, keys: int
    ) -> Float[Tensor, "rows heads *blocks some keys"]:
        """The queries that meet distances; those that come have u in them already."""
        heads, _, head_dim = self.u.shape
        at = falling(q, ahead, q.shape[-2], keys).to(ops.wide(q.dtype))
        r = self.relative(sinusoids(at, self.relative.in_features)).unflatten(-1, (heads, head_dim)).transpose(0, 1)
        blocks = (1,) * (q.dim() - 4)
        asked = q + (self.v - self.u).to(q.dtype).unflatten(0, (heads, *blocks))
        return skewed(asked * head_dim**-0.5 @ r.transpose(-1, -2).unflatten(0, (heads, *blocks)), keys)


def place(
    kind: str, *, max_len: int, dim: int, heads: int, head_dim: int, causal: bool, first: Place | None = None
) -> Place:
    """The module of a kind. `first` is that of layer 0, which some share."""
    if kind == "pia":
        return Infused(max_len, dim)
    if kind == "rotary":
        return Rotary(max_len, head_dim)
    if kind == "alibi":
        return Alibi(heads)
    if kind == "t5":
        return first if isinstance(first, Buckets) else Buckets(heads, dim, causal)
    return Distances(heads, head_dim, dim, first) if kind == "xl" else Place()


def sinusoids(at: Float[Tensor, " some"] | Int[Tensor, " some"], dim: int) -> Float[Tensor, "some dim"]:
    """sin(i / 10000^(2j/dim)) at features 2j, the cosine at 2j + 1. Vaswani et al. 2017."""
    dtype = at.dtype if at.is_floating_point() else torch.get_default_dtype()
    rate = torch.exp(torch.arange(0, dim, 2, device=at.device, dtype=dtype) * (-math.log(BASE) / dim))
    angle = at[:, None] * rate  # some ceil(dim/2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :dim]


def turns(at: Float[Tensor, " some"], head_dim: int) -> Float[Tensor, "2 some half"]:
    """Cosines and sines of i · 10000^(-2j/d)."""
    half = head_dim // 2
    angle = at[:, None] * BASE ** -(torch.arange(half, device=at.device, dtype=at.dtype) / half)
    return torch.stack([angle.cos(), angle.sin()])


def rotated(
    x: Float[Tensor, "*lead seq width"], table: Float[Tensor, "2 seq half"]
) -> Float[Tensor, "*lead seq width"]:
    """Each pair of features turned, in at least the precision of the table."""
    cos, sin = table
    half = cos.shape[-1]
    first, second, odd = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, odd], dim=-1).to(x.dtype)


def slopes(heads: int) -> list[float]:
    """2^(-8h/heads) for h from 1; where heads is no power of two, those of the power below and every second above."""
    power = 2 ** int(math.log2(heads))
    own = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return own + [2.0 ** (-4 * h / power) for h in range(1, 2 * (heads - power), 2)]


def buckets(causal: bool, count: int = 32, far: int = 128) -> list[int]:
    """The buckets of the distances i - j from -far to far; what is farther falls into the outermost.

    Half of those of a direction hold one distance each, the others grow in size. Both ways, later keys have the upper
    half of all; causal, there are none.
    """
    count = count if causal else count // 2
    single = count // 2

    def bucket(distance: int) -> int:
        if distance < single:
            return distance
        grown = math.log2(distance / single) / math.log2(far / single) * (count - single)
        return min(single + int(grown), count - 1)

    behind = [bucket(distance) for distance in range(far + 1)]
    later = [0 if causal else count + bucket(distance) for distance in range(far, 0, -1)]
    return later + behind


def distances(q: Tensor, ahead: int, keys: int) -> Int[Tensor, "some keys"]:
    """i - j."""
    return ahead + torch.arange(q.shape[-2], device=q.device)[:, None] - torch.arange(keys, device=q.device)


def falling(q: Tensor, ahead: int, some: int, keys: int) -> Int[Tensor, " distances"]:
    """All that there are of i - j, the largest first, as `skewed` takes them."""
    return torch.arange(ahead + some - 1, ahead - keys, -1, device=q.device)


def skewed(x: Float[Tensor, "*batch some distances"], keys: int) -> Float[Tensor, "*batch some keys"]:
    """From columns that are distances, the largest first, to columns that are keys: row i begins at some - 1 - i.

    One number less a row turns the slant into a column: a view, and no index. Dai et al. 2019, appendix B.
    """
    some, width = x.shape[-2:]
    if some == 1:
        return x[..., :keys]
    return x.flatten(-2)[..., some - 1 : some * width - 1].unflatten(-1, (some, width - 1))[..., :keys]


def for_each_block(bias: Float[Tensor, "heads some keys"], q: Tensor) -> Float[Tensor, "1 heads *ones some keys"]:
    """The same for all rows, and for all blocks where there are any."""
    return bias.unflatten(0, (1, len(bias), *(1,) * (q.dim() - 4)))


def exactly(length: int) -> Float[Tensor, " length"]:
    """0, 1, … in float64, where every device may ask for it."""
    return torch.arange(length, device="cpu", dtype=torch.float64)


def constant(table: Tensor) -> Tensor:
    """As parameters are made: on the device and in the precision that are set."""
    return table.to(torch.get_default_device(), torch.get_default_dtype())
