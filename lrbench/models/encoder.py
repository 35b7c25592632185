"""The encoder of the Long-Range Arena: embedding, positions, pre-norm blocks, one vector a sequence or one a token.

Tay et al. 2021 (arXiv:2011.04006) and its released code: token embedding N(0, 1), fixed sinusoids or learned
positions, blocks of mixer and GELU feed-forward, final LayerNorm, first-token or mean pooling. One deviation:
the mean runs over real tokens only, where the released code averages padding too. Other kinds of positions act in the
mixers, and nothing is added to the embedding. Where tokens are to be predicted, a learned vector stands before the
first one and the last one is not read: every token is predicted, the first one too, and no id is spent on a start.
While `checkpointing` is on, training keeps the inputs of blocks alone and computes the rest again for the backward
pass, from the same random numbers (Chen et al. 2016, arXiv:1604.06174).
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lrbench.backends import positions
from lrbench.backends.base import Block, LayerConfig, Mixed, Mixer, check_divisible, joined, parted
from lrbench.specs import ModelSpec

MakeMixer = Callable[[LayerConfig], Mixer]


class MixerBlock(nn.Module):
    """norm, mixer, add, norm, feed-forward, add."""

    def __init__(self, mixer: Mixer, dim: int, mlp_dim: int, dropout: float) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_norm = nn.LayerNorm(dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp_dim, dim), nn.Dropout(dropout)
        )

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"] | Mixed:
        """One residual layer."""
        mixed, loss = parted(self.mixer(self.mixer_norm(x), mask=mask))
        x = x + self.drop(mixed)
        return joined(x + self.mlp(self.mlp_norm(x)), [loss])


class Encoder(nn.Module):
    """Token ids to one vector a row, or with `pooling` "none" to one a token.

    Args:
        spec: sizes.
        make_mixer: builds the attention of one layer.
        vocabulary: rows of the embedding, padding included.
        length: the longest input in tokens, without the CLS position.
        causal: whether a token may see only itself and what stands before it.
        shifted: whether each position reads the token before it, the first one a learned start.
    """

    def __init__(
        self,
        spec: ModelSpec,
        make_mixer: MakeMixer,
        vocabulary: int,
        length: int,
        causal: bool = False,
        shifted: bool = False,
    ) -> None:
        super().__init__()
        self.pooling, self.readout = spec.pooling, int(spec.pooling == "cls")
        self.checkpointing = False
        max_len = length + self.readout
        self.embedding = nn.Embedding(vocabulary, spec.dim)
        self.start = nn.Parameter(torch.randn(spec.dim)) if shifted else None
        if self.readout:
            self.cls = nn.Parameter(torch.zeros(spec.dim))
        added = spec.positions in ("learned", "sinusoidal")
        self.positions = Positions(spec.positions, max_len, spec.dim) if added else nn.Identity()
        self.drop = nn.Dropout(spec.dropout)
        mixers = stack(make_mixer, spec.layers, lambda index, first: layer_config(spec, max_len, causal, index, first))
        self.blocks = nn.ModuleList(as_block(mixer, spec.dim, spec.mlp_dim, spec.dropout) for mixer in mixers)
        self.norm = nn.LayerNorm(spec.dim)

    def forward(
        self, tokens: Int[Tensor, "rows seq"], mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows dim"] | Float[Tensor, "rows seq dim"] | Mixed:
        """Encode. In `mask` True marks a real token; None says that nothing is padded.

        While training, with the sum of the losses that mixers bring.
        """
        x = self.embedding(tokens)
        if self.start is not None:
            x = torch.cat([self.start.expand(len(x), 1, -1), x[:, :-1]], dim=1)
        if self.readout:
            x = torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)
            mask = None if mask is None else nn.functional.pad(mask, (1, 0), value=True)
        x = self.drop(self.positions(x))
        losses = []
        for block in self.blocks:
            x, loss = parted(self.through(block, x, mask))
            losses.append(loss)
        return joined(self.pooled(self.norm(x), mask), losses)

    def through(
        self, block: nn.Module, x: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None
    ) -> Float[Tensor, "rows seq dim"] | Mixed:
        """One block."""
        if self.checkpointing and self.training:
            return checkpoint(block, x, mask=mask, use_reentrant=False, preserve_rng_state=True)
        return block(x, mask=mask)

    def pooled(
        self, x: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None
    ) -> Float[Tensor, "rows dim"] | Float[Tensor, "rows seq dim"]:
        """What the answer is read from."""
        if self.pooling == "none":
            return x
        return x[:, 0] if self.readout else masked_mean(x, mask)


def stack(make_mixer: MakeMixer, layers: int, config: Callable[[int, Mixer | None], LayerConfig]) -> list[Mixer]:
    """The mixers of so many layers; a kind of block that is half a layer comes twice as often.

    Args:
        config: from the number of a mixer and the first one to what the mixer is told.
    """
    mixers = [make_mixer(config(0, None))]
    for index in range(1, layers * (mixers[0].per_layer if isinstance(mixers[0], Block) else 1)):
        mixers.append(make_mixer(config(index, mixers[0])))
    return mixers


def as_block(mixer: Mixer, dim: int, mlp_dim: int, dropout: float) -> nn.Module:
    """A whole layer: a block as it is, norms and a feed-forward around what only mixes."""
    return mixer if isinstance(mixer, Block) else MixerBlock(mixer, dim, mlp_dim, dropout)


class Positions(nn.Module):
    """Adds learned positions, N(0, 0.02), or sinusoids of base 10,000: even features sine, odd features cosine."""

    def __init__(self, kind: str, max_len: int, dim: int) -> None:
        super().__init__()
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        else:
            self.register_buffer("table", positions.sinusoids(torch.arange(max_len), dim), persistent=False)

    def forward(self, x: Float[Tensor, "rows seq dim"]) -> Float[Tensor, "rows seq dim"]:
        """x + table."""
        return x + self.table[: x.shape[1]]


def masked_mean(x: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None) -> Float[Tensor, "rows dim"]:
    """The mean over real tokens; zeros for a row that has none."""
    if mask is None:
        return x.mean(1)
    return x.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def layer_config(spec: ModelSpec, max_len: int, causal: bool, index: int, first: Mixer | None) -> LayerConfig:
    """What layer `index` tells its mixer."""
    return LayerConfig(
        dim=spec.dim,
        heads=spec.heads,
        head_dim=spec.head_dim or check_divisible(spec.dim, spec.heads),
        max_len=max_len,
        causal=causal,
        dropout=spec.attention_dropout,
        readout=int(spec.pooling == "cls"),
        index=index,
        layers=spec.layers,
        first=first,
        mlp_dim=spec.mlp_dim,
        hidden_dropout=spec.dropout,
        positions=spec.positions,
    )
