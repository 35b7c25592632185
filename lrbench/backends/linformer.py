"""Keys and values projected to a fixed number of slots.

Linformer (Wang et al. 2020): softmax(Q (E K)ᵀ / √d) F V with learned E, F of k × max_len. Time and memory n · k.

E K is taken as (E X) Wk wherever heads share E, which saves the two projections of all tokens. A shorter input uses the
first columns of E and F; a longer one is refused, unless they may be interpolated. Weights are over slots, not over
tokens, and every slot mixes all tokens: it cannot be causal.

Besides the learned map, from the paper's section 4: slots that are means, or a convolution, of segments of
max_len / k tokens. They take any length, with more slots beyond max_len. Deviation: the convolution has one kernel for
all channels, so that it is a map of tokens to slots like E.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lrbench.backends.base import HeadMixer, LayerConfig, check_option, of_layer
from lrbench.errors import SpecError, Unsupported


class Linformer(HeadMixer):
    """Low-rank attention for inputs up to `max_len`.

    Args:
        k: slots. A list has a number for each layer.
        sharing: `none` has E and F for each head, `headwise` for each layer, `key-value` has E = F, `layerwise` one E
            for all layers. Parameters besides the projections: 2 · heads · k · max_len, 2 · k · max_len, k · max_len
            a layer, and k · max_len in all.
        proj: `learned` for E and F; `pool` for means of segments, `conv` for sums of them with ⌈max_len / k⌉ learned
            weights in place of k · max_len.
        resize: what to do with an input of n > max_len tokens: `refuse` it, or `interp`olate E and F along tokens,
            times max_len / n.
    """

    paper, order, can_be_causal = "2006.04768", "n", False
    any_length = False
    key_slots: nn.Parameter | None

    def __init__(
        self,
        cfg: LayerConfig,
        *,
        k: int | list[int] = 128,
        sharing: Literal["none", "headwise", "key-value", "layerwise"] = "headwise",
        proj: Literal["learned", "pool", "conv"] = "learned",
        resize: Literal["refuse", "interp"] = "refuse",
    ) -> None:
        super().__init__(cfg)
        self.k, self.sharing, self.proj, self.resize = of_layer("k", k, cfg), sharing, proj, resize
        check_option("k", self.k, self.k >= 1, "of at least 1")
        self.segment = -(-cfg.max_len // self.k)  # tokens
        if proj != "learned":
            check_option("resize", resize, resize == "refuse", f"with proj=learned only: {proj} takes any length")
        if proj == "pool":
            check_option("sharing", sharing, sharing == "headwise", "with learned or conv: means share nothing")
        first = cfg.first if sharing == "layerwise" and isinstance(cfg.first, Linformer) else None
        if first and first.k != self.k:
            raise SpecError(
                f"sharing=layerwise has one E, but k is {first.k} in layer 1 and {self.k} in layer {cfg.index + 1}",
                "choose one k for all layers, or another sharing",
            )
        self.key_slots = first.key_slots if first else self.slots()
        self.value_slots = self.slots() if sharing in ("none", "headwise") else self.key_slots

    @property
    def notes(self) -> list[str]:
        """Whether there are fewer slots than tokens, and what stands in for E and F."""
        longest = self.cfg.max_len
        found = [f"{self.k} slots for inputs of at most {longest} tokens save nothing"] if self.k >= longest else []
        if self.proj != "learned":
            found.append(f"proj={self.proj}: a slot for every {self.segment} tokens, instead of learned maps")
        if self.resize == "interp":
            found.append(f"resize=interp: learned maps are stretched for inputs longer than {longest} tokens")
        return found

    def slots(self) -> nn.Parameter | None:
        """E or F, or the kernel; each slot starts as a random mean of unit variance."""
        if self.proj == "pool":
            return None
        shape = (self.segment,) if self.proj == "conv" else (self.k, self.cfg.max_len)
        weight = torch.empty(self.cfg.heads, *shape) if self.sharing == "none" else torch.empty(shape)
        return nn.Parameter(nn.init.normal_(weight, std=shape[-1] ** -0.5))

    def forward(
        self, x: Float[Tensor, "rows seq dim"], *, mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq dim"]:
        """Project tokens to slots, attend to those."""
        seq, longest = x.shape[1], self.cfg.max_len
        if seq > longest and self.proj == "learned" and self.resize == "refuse":
            raise Unsupported(
                f"linformer was built for {longest} tokens and got {seq}",
                f"raise max_len (the task's data.length) to at least {seq}, or choose resize=interp, proj=pool or conv",
            )
        seen = None
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # slots mix all tokens: padding must go before
            if self.proj != "learned":  # else a row's slots would depend on how much it is padded
                seen = self.segments(mask[..., None])[..., 0].any(-1)[:, None, None]
        q, (k, v) = self.split(self.query(x)), self.slot_keys_and_values(x, mask)
        mixed = F.scaled_dot_product_attention(q, k, v, seen, self.cfg.dropout if self.training else 0.0)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def slot_keys_and_values(
        self, x: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None
    ) -> tuple[Tensor, Tensor]:
        """E K and F V, each rows heads slots head_dim."""
        if self.key_slots is None or self.value_slots is None:
            slots = self.means(x, mask)
            return self.split(self.key(slots)), self.split(self.value(slots))
        e, f = self.key_slots, self.value_slots
        if self.sharing == "none":
            return self.to_slots(e, self.split(self.key(x))), self.to_slots(f, self.split(self.value(x)))
        keys = self.to_slots(e, x)  # rows slots dim
        values = keys if f is e else self.to_slots(f, x)
        return self.split(self.key(keys)), self.split(self.value(values))

    def to_slots(self, weight: Tensor, x: Float[Tensor, "*rows seq width"]) -> Float[Tensor, "*rows slots width"]:
        """E x, with the first columns of E or with all of it stretched; or the convolution."""
        seq, longest = x.shape[-2], self.cfg.max_len
        if self.proj == "conv":
            return (weight[..., None, None, :] @ self.segments(x)).squeeze(-2)
        if seq <= longest:
            return weight[..., :seq] @ x
        tables = weight.view(-1, self.k, longest)
        return F.interpolate(tables, seq, mode="linear").mul(longest / seq).view(*weight.shape[:-1], seq) @ x

    def means(
        self, x: Float[Tensor, "rows seq dim"], mask: Bool[Tensor, "rows seq"] | None
    ) -> Float[Tensor, "rows slots dim"]:
        """The mean over the real tokens of each segment."""
        real = torch.ones_like(x[..., :1]) if mask is None else mask[..., None].to(x.dtype)
        return self.segments(x).sum(-2) / self.segments(real).sum(-2).clamp_min(1.0)

    def segments(self, x: Tensor) -> Tensor:
        """... seq width to ... slots segment width; the last one is filled up with zeros."""
        return F.pad(x, (0, 0, 0, -x.shape[-2] % self.segment)).unflatten(-2, (-1, self.segment))
