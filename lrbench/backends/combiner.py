"""Every token sees some tokens directly and all others through regions.

Combiner (Ren et al. 2021). softmax(Q Kᵀ / √d) V is a mean of v_j by p(j | i). Cut what i may see into tokens that are
seen directly and regions R, with p(j | i) = p(R | i) · p(j | R): the mean over a region does not depend on i and is
computed once. One softmax is over the scores of direct tokens and of regions; the key and the query of a region are
elementwise maxima over its tokens. Weights are positive on all that may be seen and sum to 1; nothing is random. It is
an approximation, exact where regions hold one token or there are none. Plans (module `regions`), time and memory:

    fixed             own span, other spans                          n · (span + n / span)
    logsparse         the last tokens, blocks that double            n · log n
    axial-row         own row, other rows seen through the column    n · (rows + columns)
    axial-vertical    own row and column, parts of other columns     n · (rows + 2 columns), not causal 3
    axial-horizontal  own row and column, parts of other rows        n · (3 rows + columns)
    mixture           both of these                                  n · (3 rows + 2 columns), not causal 3 and 3
    learnable         own cluster, other clusters                    n · (span + n / span)

`order` is that of spans and columns near √n, as by default; logsparse is below it, and a span kept while n grows leaves
n² / span. Summaries of vertical and horizontal
parts cost another n · rows and n · columns.

Deviations: places count from a row's first real token, and logsparse, where it is not causal, cuts what follows from
the last real one, so that padding changes nothing. On a grid a readout token has a row of its own, not to shift the
image. Own spans and rows are no regions of themselves unless `own_as_region`, which the authors' code does. Vertical
and horizontal parts use true maxima, their code running sums. Learnable tokens are put into clusters by their keys
alone, and clusters are cut into spans of equal size, which cannot be causal.
"""

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lrbench.backends import ops
from lrbench.backends.base import LayerConfig
from lrbench.backends.regions.axial import crossed, row_major
from lrbench.backends.regions.logsparse import logsparse
from lrbench.backends.regions.placed import Placed, usual_size
from lrbench.backends.regions.spans import clustered, fixed
from lrbench.backends.regions.tokens import Tokens
from lrbench.errors import Unsupported

Plan = Literal["fixed", "logsparse", "axial-row", "axial-vertical", "axial-horizontal", "mixture", "learnable"]
AXIAL = ("axial-row", "axial-vertical", "axial-horizontal", "mixture")
POOLED = ("fixed", "logsparse", "axial-vertical", "axial-horizontal", "mixture", "learnable")
DECAY = 0.999  # of the running means that are centroids, as in the Routing Transformer


class Combiner(Placed):
    """Full attention by regions. None stands for a default; an option of other plans is refused.

    Args:
        plan: what is seen directly and what the regions are.
        span: tokens of a span, for `fixed` and `learnable`; by default the power of two nearest √max_len.
        width: columns of the grid, for `axial-…` and `mixture`; the same default. For an image, its width.
        abstraction: what region keys and queries are maxima of, for all but `axial-row`: of keys and queries (`max`,
            the default), or of relu(W k) and relu(W' q), with W and W' shared by heads (`deepsets`, 2 · head_dim²
            parameters).
        row_key: the key of a row in a column, for `axial-row`: learned from the row's attention there and the layer's
            input (`proj`, the default, 2 · dim · heads · head_dim + 2 · dim parameters), or the raw key (`none`).
        mixture: one softmax over the regions of both plans (`joint`, the default), or the mean of both outputs
            (`average`).
        buckets: clusters of `learnable`; by default the power of two nearest √max_len.
        own_as_region: whether the own span or row is one of the regions as well, as in the authors' code; for `fixed`
            and `axial-row` where not causal.
    """

    paper, order, can_be_causal = "2107.05768", "n^1.5", True
    centroids: Tensor

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        plan: Plan = "fixed",
        span: int | None = None,
        width: int | None = None,
        abstraction: Literal["max", "deepsets"] | None = None,
        row_key: Literal["proj", "none"] | None = None,
        mixture: Literal["joint", "average"] | None = None,
        buckets: int | None = None,
        own_as_region: bool = False,
    ) -> None:
        super().__init__(cfg)
        self.plan, usual = plan, usual_size(cfg.max_len)
        self.span = self.size("span", span, usual, "fixed", "learnable")
        self.width = self.size("width", width, usual, *AXIAL)
        self.buckets = self.size("buckets", buckets, usual, "learnable")
        for option, value, plans in (
            ("abstraction", abstraction, POOLED),
            ("row_key", row_key, ("axial-row",)),
            ("mixture", mixture, ("mixture",)),
            ("own_as_region", own_as_region or None, ("fixed", "axial-row")),
        ):
            self.only_for(option, value, *plans)
        if cfg.causal and plan == "learnable":
            raise Unsupported(
                "combiner[plan=learnable] cannot be causal: a later token can move an earlier one to another region",
                "choose another plan, such as plan=fixed",
            )
        if cfg.causal and own_as_region:
            raise Unsupported(
                "combiner[own_as_region=true] cannot be causal: the own region holds later tokens",
                "leave own_as_region out",
            )
        self.average, self.own = mixture == "average", own_as_region
        self.set_up_abstraction(abstraction == "deepsets")
        self.set_up_row_key(plan == "axial-row" and row_key != "none")
        self.set_up_clusters()

    def set_up_abstraction(self, deepsets: bool) -> None:
        """W of queries and W of keys, if there are any."""
        width = self.cfg.head_dim
        self.pool_query, self.pool_key = (
            nn.Linear(width, width, bias=False) if deepsets else None for _ in range(2)
        )  # fmt: skip

    def set_up_row_key(self, learned: bool) -> None:
        """Out of the row's attention, and to keys again."""
        dim, width = self.cfg.dim, self.cfg.heads * self.cfg.head_dim
        self.row_out = nn.Linear(width, dim, bias=False) if learned else None
        self.row_norm = nn.LayerNorm(dim) if learned else None
        self.row_key = nn.Linear(dim, width, bias=False) if learned else None

    def set_up_clusters(self) -> None:
        """Centroids, and what a training step adds to them."""
        if self.plan != "learnable":
            return
        centroids = torch.randn(self.cfg.heads, self.buckets, self.cfg.head_dim)
        self.register_buffer("centroids", F.normalize(centroids, dim=-1))
        self.pending: Tensor | None = None

    @property
    def notes(self) -> list[str]:
        """Whether there are regions of more than one token at all."""
        longest = self.cfg.max_len
        if self.plan in ("fixed", "learnable") and (self.span == 1 or self.span >= longest):
            return [f"a span of {self.span} for inputs of at most {longest} tokens: full attention"]
        exact_column = self.width == 1 and (self.plan != "axial-row" or self.row_key is None)
        if self.plan in AXIAL and (exact_column or longest + self.front <= self.width):
            return [f"a width of {self.width} for inputs of at most {longest} tokens: full attention"]
        return []

    def before_step(self) -> None:
        """Move centroids to the means of the keys that were put to them since the last step."""
        if self.plan != "learnable" or self.pending is None:
            return
        count = self.pending[..., -1:]
        mean = F.normalize(self.pending[..., :-1] / count.clamp_min(1.0), dim=-1)
        moved = F.normalize(DECAY * self.centroids + (1 - DECAY) * mean, dim=-1)
        self.centroids.copy_(torch.where(count > 0, moved, self.centroids))
        self.pending = None

    def planned(self, t: Tokens, x: Tensor | None, padded: bool) -> Float[Tensor, "rows heads padded head_dim"]:
        """The plan at work."""
        causal = self.cfg.causal
        if self.pool_query is not None and self.pool_key is not None:
            t = t._replace(asking=self.pool_query(t.q).relu(), offering=self.pool_key(t.k).relu())
        if self.plan == "fixed":
            return fixed(t, self.span, causal, self.own)
        if self.plan == "logsparse":
            return logsparse(t, causal, padded)
        if self.plan == "learnable":
            return clustered(t, self.clusters(t, x), self.span)
        grid = t.padded(self.width, self.front).folded(self.width)
        if self.plan == "axial-row":
            row_key = None if self.row_key is None else partial(self.learned_row_key, x=x)
            mixed = row_major(grid, causal, self.own, row_key)
        elif self.average:
            mixed = (crossed(grid, causal, vertical=True) + crossed(grid, causal, horizontal=True)) / 2
        else:
            vertical, horizontal = (self.plan in (f"axial-{way}", "mixture") for way in ("vertical", "horizontal"))
            mixed = crossed(grid, causal, vertical, horizontal)
        return mixed.flatten(2, 3)[:, :, self.front :]

    def learned_row_key(
        self, attended: Float[Tensor, "rows heads n m head_dim"], x: Float[Tensor, "rows seq dim"] | None
    ) -> Float[Tensor, "rows heads n m head_dim"]:
        """Keys from what attention along the row has found, and from the layer's input."""
        assert self.row_out is not None and self.row_norm is not None and self.row_key is not None and x is not None
        grid = attended.shape[2:4]
        x = F.pad(x, (0, 0, self.front, grid.numel() - self.front - x.shape[1]))
        found = self.row_out(attended.flatten(2, 3).transpose(1, 2).flatten(-2))
        found = F.dropout(found, self.cfg.dropout, self.training) + x
        return self.split(self.row_key(self.row_norm(found))).unflatten(2, grid)

    @torch.no_grad()
    def clusters(self, t: Tokens, x: Float[Tensor, "rows seq dim"] | None) -> Int[Tensor, "rows heads seq"]:
        """The centroid nearest to each key by its direction.

        In full precision, for a token that half precision puts elsewhere changes regions.
        """
        with ops.full_precision(t.k):
            key = t.k if x is None or t.k.dtype == x.dtype else self.split(self.key(x))
            key = F.normalize(key.to(ops.wide(key.dtype)), dim=-1)
            cluster = (key @ self.centroids.to(key.dtype).transpose(-1, -2)).argmax(-1)
            if self.training:
                self.remember(key * t.seen[..., None], t.seen.expand_as(cluster), cluster)
        return cluster

    def remember(
        self,
        key: Float[Tensor, "rows heads seq head_dim"],
        seen: Bool[Tensor, "rows heads seq"],
        cluster: Int[Tensor, "rows heads seq"],
    ) -> None:
        """Add up the keys of each cluster, and how many they are, for `before_step`."""
        both = torch.cat([key, seen[..., None].to(key.dtype)], -1).transpose(0, 1).flatten(1, 2)
        place = cluster.transpose(0, 1).flatten(1, 2)[..., None].expand_as(both)
        sums = both.new_zeros(self.cfg.heads, self.buckets, both.shape[-1]).scatter_add_(1, place, both)
        self.pending = sums if self.pending is None else self.pending + sums
