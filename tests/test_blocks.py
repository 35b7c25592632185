"""Whole residual layers, losses of their own, and forward passes folded from steps."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lrbench.backends.base import Block, LayerConfig, Mixed, Mixer, fold_segments, joined, parted
from lrbench.measure.region import Region
from lrbench.models.encoder import Encoder, MixerBlock
from lrbench.models.heads import Classifier
from lrbench.points import PointSpec
from lrbench.registry import backends
from lrbench.specs import ModelSpec

HERE = Path(__file__)
SIZES = ModelSpec(layers=3, dim=8, heads=2, mlp_dim=20, dropout=0.25)


class Half(Block):
    """Half a layer."""

    per_layer = 2

    def __init__(self, cfg: LayerConfig) -> None:
        super().__init__(cfg)
        self.scale = nn.Parameter(torch.ones(cfg.dim))

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return x + self.scale * x


class Extra(Mixer):
    """Mixes nothing; `odd` gets its gradient from the loss of its own alone."""

    def __init__(self, cfg: LayerConfig, *, weight: float = 1.0) -> None:
        super().__init__(cfg)
        self.weight = weight
        self.odd = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor | Mixed:
        return Mixed(x, self.weight * self.odd.square()) if self.training else x


def test_a_block_that_is_half_a_layer_comes_twice_as_often_and_gets_no_feed_forward_around_it() -> None:
    encoder = Encoder(SIZES, Half, 11, 16)
    assert [type(block) for block in encoder.blocks] == [Half] * 6
    assert [block.cfg.index for block in encoder.blocks] == list(range(6))
    assert encoder.blocks[5].cfg.first is encoder.blocks[0]
    assert (encoder.blocks[0].cfg.mlp_dim, encoder.blocks[0].cfg.hidden_dropout) == (20, 0.25)
    assert [type(block) for block in Encoder(SIZES, Extra, 11, 16).blocks] == [MixerBlock] * 3


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_losses_of_layers_add_up_while_training_and_are_absent_otherwise(weight: float) -> None:
    model = Classifier(Encoder(SIZES, partial(Extra, weight=weight), 11, 16), 8, 20, 4)
    tokens = torch.randint(1, 11, (2, 16))
    logits, loss = parted(model(tokens))
    assert logits.shape == (2, 4) and loss is not None and float(loss.detach()) == 3 * weight * 9
    loss.backward()
    assert float(model.encoder.blocks[1].mixer.odd.grad) == 6 * weight
    assert parted(model.eval()(tokens))[1] is None


def test_what_is_measured_of_a_block_says_so_and_includes_the_loss_of_its_own() -> None:
    half = backends.spec(f"{HERE}:Half")
    region = Region(PointSpec(attention=half, length=4, width=8, heads=2))
    region.first_output()
    region.run()
    assert region.notes == ["2 units stand for one layer, feed-forward and norms included"]
    assert torch.allclose(region.module(region.x), 4 * region.x)

    extra = Region(PointSpec(attention=backends.spec(f"{HERE}:Extra"), length=4, width=8, heads=2))
    extra.first_output()
    extra.run()
    assert float(extra.mixers[0].odd.grad) == 6


@pytest.mark.parametrize("masked", [True, False])
def test_a_fold_hands_state_and_mask_from_segment_to_segment_and_adds_losses_up(masked: bool) -> None:
    def step(x: Tensor, state: Tensor | None, *, mask: Tensor | None = None) -> tuple[Mixed, Tensor]:
        before = torch.zeros(x.shape[0]) if state is None else state
        kept = x if mask is None else x * mask[..., None]
        return Mixed(x + before[:, None, None], kept.sum()), before + kept.sum((1, 2))

    x = torch.arange(14.0).view(2, 7, 1)
    mask = torch.arange(7) < torch.tensor([[7], [2]]) if masked else None
    y, loss = parted(fold_segments(step, x, 3, mask))
    sums = (x if mask is None else x * mask[..., None])[..., 0]
    before = torch.stack([sums[:, : 3 * (t // 3)].sum(1) for t in range(7)], 1)
    assert torch.equal(y[..., 0], x[..., 0] + before)
    assert loss is not None and float(loss) == float(sums.sum())
    assert isinstance(joined(x, [None, None]), Tensor)
