"""The packages that a user would otherwise install, as mixers: what `bench/backends.py` measures ours beside.

`pip install -r bench/peers.txt`. Settings are those under which a package does the same work as ours. A peer without
an output projection gets one, as ours have one.
"""

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from lrbench.backends.base import Block, HeadMixer, LayerConfig, Mixed, Mixer, fold_segments
from lrbench.errors import Unsupported

WINDOW, GLOBALS, SLOTS, GROUP, QUERIES = 128, 1, 256, 256, 128
SEGMENT, MEMORY, COMPRESSED, RATE = 512, 512, 128, 4


def package(name: str) -> ModuleType:
    """The module, or a reason why this peer is missing from a table."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unsupported(f"not installed: {error.name}", "pip install -r bench/peers.txt") from error


class Projections(HeadMixer):
    """The four projections that all of ours share, and nothing between them."""

    order, can_be_causal = "n", True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """q + k + v, so that all three are used."""
        return q + k + v


class GatedProjections(Block):
    """The projections and the gate of a gated unit with expansion 2, two of which stand for a layer."""

    order, can_be_causal, per_layer = "n", True, 2

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        self.norm, self.width = nn.LayerNorm(cfg.dim), 2 * cfg.dim
        self.into, self.out = nn.Linear(cfg.dim, 2 * self.width + QUERIES), nn.Linear(self.width, cfg.dim)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The gate times the values."""
        gate, value, _ = nn.functional.silu(self.into(self.norm(x))).split((self.width, self.width, QUERIES), -1)
        return x + self.out(gate * value)


class LocalAttention(Mixer):
    """local-attention: an exact window of 128 to each side, with rotary positions."""

    order, can_be_causal = "n", True

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        made = package("local_attention.transformer").LocalMHA
        sizes = {"dim": cfg.dim, "window_size": WINDOW, "dim_head": cfg.head_dim, "heads": cfg.heads}
        self.core = made(**sizes, causal=cfg.causal, exact_windowsize=True)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """As the package calls it."""
        return self.core(x, mask=mask)


class Longformer(Mixer):
    """transformers' Longformer: 128 to each side, the first token global."""

    order, can_be_causal = "n", False

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        config = package("transformers").LongformerConfig(
            hidden_size=cfg.dim,
            num_attention_heads=cfg.heads,
            attention_window=[2 * WINDOW],
            attention_probs_dropout_prob=0.0,
        )
        made = package("transformers.models.longformer.modeling_longformer").LongformerSelfAttention
        self.core, self.out = made(config, layer_id=0), nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Its masks are numbers: positive is global, negative hidden."""
        seen = x.new_zeros(x.shape[:2])
        if mask is not None:
            seen = seen.masked_fill(~mask, -10000.0)
        seen[:, :GLOBALS] = 10000.0
        masks = {"is_index_masked": seen < 0, "is_index_global_attn": seen > 0, "is_global_attn": True}
        return self.out(self.core(x, attention_mask=seen, **masks)[0])


class Linformer(Mixer):
    """linformer: 256 slots."""

    order, can_be_causal = "n", False

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        self.core = package("linformer").LinformerSelfAttention(cfg.dim, seq_len=cfg.max_len, k=SLOTS, heads=cfg.heads)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """It has no padding mask."""
        return self.core(x)


class Performer(Mixer):
    """performer-pytorch: softmax kernel, d ln d features."""

    order, can_be_causal = "n", True

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        made = package("performer_pytorch").SelfAttention
        self.core = made(cfg.dim, heads=cfg.heads, dim_head=cfg.head_dim, causal=cfg.causal)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """As the package calls it."""
        return self.core(x, mask=mask)


class LinearAttention(Mixer):
    """linear-attention-transformer: softmax features; causal token by token."""

    order, can_be_causal = "n", True

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        made = package("linear_attention_transformer.linear_attention_transformer").SelfAttention
        self.core = made(cfg.dim, cfg.heads, causal=cfg.causal)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """As the package calls it."""
        return self.core(x, input_mask=mask)


class Flash(Block):
    """FLASH-pytorch: a gated unit with groups of 256, two of which stand for a layer."""

    order, can_be_causal, per_layer = "n", True, 2

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        rotary = package("rotary_embedding_torch").RotaryEmbedding(dim=32)
        sizes = {"dim": cfg.dim, "group_size": GROUP, "query_key_dim": QUERIES, "expansion_factor": 2.0}
        made = package("flash_pytorch").FLASH
        self.core = made(**sizes, causal=cfg.causal, shift_tokens=False, rotary_pos_emb=rotary)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """As the package calls it."""
        return self.core(x, mask=mask)


class Compressive(Mixer):
    """compressive-transformer-pytorch over segments of 512: memory 512, compressed memory 128, by convolution."""

    order, can_be_causal = "n", True

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        if not cfg.causal:
            raise Unsupported("it is causal only", "leave it out")
        made = package("compressive_transformer_pytorch.compressive_transformer_pytorch").SelfAttention
        sizes = {"seq_len": SEGMENT, "mem_len": MEMORY, "cmem_len": COMPRESSED, "cmem_ratio": RATE}
        self.core = made(cfg.dim, **sizes, heads=cfg.heads)
        keys = SEGMENT + MEMORY + COMPRESSED
        self.places = nn.Parameter(torch.randn(cfg.heads, keys, cfg.head_dim) * 0.02)

    def step(self, x: Tensor, state: Any, *, mask: Tensor | None = None) -> tuple[Mixed, Any]:
        """One segment; memories get no gradient, as in the package's model."""
        y, memories, loss = self.core(x, memories=state, pos_emb=self.places, input_mask=mask)
        return Mixed(y, loss.sum()), tuple(memory.detach() for memory in memories)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor | Mixed:
        """Segment by segment."""
        return fold_segments(self.step, x, SEGMENT, mask)
