"""Keys and values projected to a fixed number of slots.

Linformer (Wang et al. 2020): softmax(Q (E K)ᵀ / √d) F V with learned E, F of k × max_len. Time and memory n · k.

E K is taken as (E X) Wk wherever heads share E, which saves the two projections of all tokens. A shorter input uses the
first columns of E and F. Weights are over slots, not over tokens, and every slot mixes all tokens: it cannot be causal.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrbench.backends.base import HeadMixer, LayerConfig, check_option
from lrbench.errors import Unsupported


class Linformer(HeadMixer):
    """Low-rank attention for inputs up to `max_len`.

    Args:
        k: slots.
        sharing: `none` has E and F for each head, `headwise` for each layer, `key-value` has E = F, `layerwise` one E
            for all layers. Parameters besides the projections: 2 · heads · k · max_len, 2 · k · max_len, k · max_len
            a layer, and k · max_len in all.
    """

    paper, order, can_be_causal = "2006.04768", "n", False
    any_length = False
    key_slots: nn.Parameter

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        k: int = 128,
        sharing: Literal["none", "headwise", "key-value", "layerwise"] = "headwise",
    ) -> None:
        super().__init__(cfg)
        check_option("k", k, k >= 1, "of at least 1")
        self.k, self.sharing = k, sharing
        first = cfg.first if sharing == "layerwise" else None
        self.key_slots = first.key_slots if isinstance(first, Linformer) else self.slots()
        self.value_slots = self.slots() if sharing in ("none", "headwise") else self.key_slots

    @property
    def notes(self) -> list[str]:
        """Whether there are fewer slots than tokens."""
        longest = self.cfg.max_len
        return [f"{self.k} slots for inputs of at most {longest} tokens save nothing"] if self.k >= longest else []

    def slots(self) -> nn.Parameter:
        """E or F; each slot starts as a random mean of unit variance."""
        shape = (self.k, self.cfg.max_len)
        weight = torch.empty(self.cfg.heads, *shape) if self.sharing == "none" else torch.empty(shape)
        return nn.Parameter(nn.init.normal_(weight, std=self.cfg.max_len**-0.5))

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """Project tokens to slots, attend to those."""
        seq, longest = x.shape[1], self.cfg.max_len
        if seq > longest:
            raise Unsupported(
                f"linformer was built for {longest} tokens and got {seq}",
                f"raise max_len (the task's data.length) to at least {seq}",
            )
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # slots mix all tokens: padding must go before
        q, (k, v) = self.split(self.query(x)), self.slot_keys_and_values(x)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.cfg.dropout if self.training else 0.0)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def slot_keys_and_values(self, x: Float[Tensor, "rows seq dim"]) -> tuple[Tensor, Tensor]:
        """E K and F V, each rows heads k head_dim."""
        e, f = self.key_slots[..., : x.shape[1]], self.value_slots[..., : x.shape[1]]
        if self.sharing == "none":
            return e @ self.split(self.key(x)), f @ self.split(self.value(x))
        keys = e @ x  # rows k dim
        values = keys if self.value_slots is self.key_slots else f @ x
        return self.split(self.key(keys)), self.split(self.value(values))
