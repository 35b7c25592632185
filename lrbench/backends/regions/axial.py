"""Plans on a grid of rows and columns, in which the sequence lies row by row.

Every token sees its own row directly. `row_major` has each other whole row as a region, seen through the token's
column. `crossed` sees the own column directly too, and has as regions, `vertical`, the parts of each other column above
and below the own row; or, `horizontal`, the parts of each other row left and right of the own column; or both; or none.
Causal, the own row ends at the token, columns and parts of columns above the own row are left, and rows before the own
one.

With n rows of m columns, time and memory are (n · m) · (n + m) times a small number.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lrbench.backends.regions.tokens import (
    Regions,
    Tokens,
    chances,
    dropped,
    expected,
    others,
    unshown,
    upto,
)


class Terms(NamedTuple):
    """What the tokens of one line of the grid see of that line. The first `direct` terms are tokens."""

    key: Float[Tensor, "rows heads lines terms head_dim"]
    value: Float[Tensor, "rows heads lines terms head_dim"]
    allowed: Bool[Tensor, "#rows 1 #lines queries terms"]
    direct: int


def row_major(
    grid: Tokens, causal: bool, own: bool, row_key: Callable[[Tensor], Tensor] | None
) -> Float[Tensor, "rows heads n m head_dim"]:
    """Rows as regions. A row's query and value in a column are those of plain attention there, along the row.

    Its key is the raw key there, or what `row_key` makes of that value.
    """
    rows = direct(grid, causal, True)
    value = expected(grid.q, grid, grid.seen[..., None, :])
    key = grid.k if row_key is None else row_key(value)
    some = grid.seen.any(-1)[:, :, None].expand(-1, -1, grid.q.shape[3], -1)  # rows 1 m n
    down = Regions(key, value, grid.seen).changed(lambda x: x.transpose(2, 3), some)
    return merged(grid, rows, as_terms(down, elsewhere(grid.q.shape[2], causal, grid.q.device) | own))


def crossed(
    grid: Tokens, causal: bool, vertical: bool = False, horizontal: bool = False
) -> Float[Tensor, "rows heads n m head_dim"]:
    """The own row and column, and parts of columns, or of rows, or both, in one softmax."""
    turned = grid.transposed()
    rows, columns = [direct(grid, causal, True)], [direct(turned, causal, False)]
    if vertical:
        parts = [before(turned)] if causal else [before(turned), after(turned)]
        rows += [as_terms(flipped(part), others(grid.q.shape[3], grid.q.device)) for part in parts]
    if horizontal:
        rest = elsewhere(grid.q.shape[2], causal, grid.q.device)
        columns += [as_terms(flipped(part), rest) for part in (before(grid), after(grid))]
    return merged(grid, joined(rows), joined(columns))


def elsewhere(size: int, causal: bool, device: torch.device) -> Bool[Tensor, "size size"]:
    """Which lines are before line i, or are any other."""
    return upto(size, device, 1) if causal else others(size, device)


def direct(lines: Tokens, causal: bool, itself: bool) -> Terms:
    """The tokens of the own line, up to oneself if causal."""
    size, device = lines.q.shape[3], lines.q.device
    allowed = elsewhere(size, causal, device)
    if itself:
        allowed = allowed | ~others(size, device)
    return Terms(lines.k, lines.v, lines.seen[..., None, :] & allowed, size)


def as_terms(regions: Regions, allowed: Bool[Tensor, "terms terms"]) -> Terms:
    """Regions that the tokens of a line see, all but those that are empty or their own."""
    return Terms(regions.key, regions.value, regions.some[..., None, :] & allowed, 0)


def joined(terms: list[Terms]) -> Terms:
    """Side by side."""
    key, value = torch.cat([part.key for part in terms], -2), torch.cat([part.value for part in terms], -2)
    return Terms(key, value, torch.cat([part.allowed for part in terms], -1), terms[0].direct)


def flipped(regions: Regions) -> Regions:
    """Rows of a grid as columns."""
    return regions.changed(lambda x: x.transpose(2, 3), regions.some.transpose(2, 3))


def before(lines: Tokens) -> Regions:
    """For each place of each line the region of what lies before it on that line."""
    some = (lines.seen.cumsum(-1) - lines.seen.to(torch.int64)) > 0
    query, key = (
        F.pad(unshown(x, lines.seen).cummax(-2).values[..., :-1, :], (0, 0, 1, 0)).masked_fill(~some[..., None], 0.0)
        for x in (lines.asking, lines.offering)
    )
    allowed = lines.seen[..., None, :] & upto(lines.q.shape[3], lines.q.device, 1)
    return Regions(key, expected(query, lines, allowed), some)


def after(lines: Tokens) -> Regions:
    """The same for what lies behind it."""
    found = before(lines.reversed())
    return found.changed(lambda x: x.flip(-2), found.some.flip(-1))


def merged(grid: Tokens, rows: Terms, columns: Terms) -> Float[Tensor, "rows heads n m head_dim"]:
    """One softmax over what each token sees along its row and along its column."""
    along = grid.q @ rows.key.transpose(-1, -2)
    down = (grid.q.transpose(2, 3) @ columns.key.transpose(-1, -2)).transpose(2, 3)
    weights = chances(torch.cat([along, down], -1), torch.cat([rows.allowed, columns.allowed.transpose(2, 3)], -1))
    beside, above = weights.split([along.shape[-1], down.shape[-1]], -1)
    beside, above = (
        torch.cat([dropped(part[..., : terms.direct], grid.dropout), part[..., terms.direct :]], -1)
        if grid.dropout
        else part
        for part, terms in ((beside, rows), (above, columns))
    )
    return beside @ rows.value + (above.transpose(2, 3) @ columns.value).transpose(2, 3)
