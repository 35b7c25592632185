"""What is measured: one module at one length, run forward, forward and backward, or segment by segment."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from lrbench.backends.base import Block, LayerConfig, Mixed, Mixer, check_divisible, joined, parted
from lrbench.errors import Unsupported
from lrbench.models.encoder import as_block, stack
from lrbench.points import PointSpec
from lrbench.registry import backends

BLOCKS = 2  # of level `model`
MLP_RATIO = 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Region:
    """One `PointSpec` made ready: parameters float32, a normal input [batch length width], autocast as in training.

    `prepare` then `run`: what happens between those two is what a figure is about. The incoming gradient is drawn at
    the first run, when the output's shape and precision are known; so the first run is never the measured one.

    Args:
        fake: make tensors without memory. The module is built for real and copied, for building may look at numbers.

    Raises:
        Unsupported: the backend cannot take this length, causality or mode.
    """

    def __init__(self, spec: PointSpec, fake: FakeTensorMode | None = None) -> None:
        self.spec = spec
        self.device = torch.device(spec.device)
        torch.manual_seed(spec.seed)
        with self.device:
            made = mixers(spec)
            parts: tuple[list[Mixer], nn.Module] = (made, around(made, spec))
            if fake is not None:
                with FakeCopyMode(fake):
                    parts = copy.deepcopy(parts)
            self.mixers, self.module = parts
            self.eager = self.module
            with fake or nullcontext():
                self.x = torch.randn(spec.batch, spec.length, spec.width)
        self.module.train(spec.mode == "train")
        self.x.requires_grad_(spec.mode == "train")
        self.gradient: Tensor | None = None
        if spec.compile:
            self.module = cast(nn.Module, torch.compile(self.module, dynamic=False))

    def prepare(self) -> None:
        """Clear the gradients."""
        self.module.zero_grad(set_to_none=True)
        self.x.grad = None

    def run(self) -> Tensor:
        """The region. The output [batch length width] is the caller's to hold or to drop."""
        with self.context():
            y, loss = parted(self.stream() if self.spec.mode == "stream" else self.module(self.x))
        if self.spec.mode == "train":
            gradient = self.gradient_like(y)
            torch.autograd.backward(*(([y], [gradient]) if loss is None else ([y, loss], [gradient, None])))
        return y

    def first_output(self) -> None:
        """Draw the incoming gradient after a forward pass alone."""
        if self.spec.mode == "train":
            with torch.no_grad(), self.context():
                y, _ = parted(self.module(self.x))
            self.gradient_like(y)

    def stream(self) -> Tensor:
        """Segments in order, each given the states that the last one left; the output of the last."""
        mixers = cast(list[Any], self.mixers)
        states = [None] * len(mixers)
        for part in self.x.split(mixers[0].segment, dim=1):
            y = part
            for place, mixer in enumerate(mixers):
                y, states[place] = mixer.step(y, states[place])
        return cast(Tensor, y)

    def context(self) -> AbstractContextManager[Any]:
        """Autocast below float32, and inference mode unless gradients are asked for."""
        stack = ExitStack()
        if self.spec.mode != "train":
            stack.enter_context(torch.inference_mode())
        if self.spec.dtype != "fp32":
            stack.enter_context(torch.autocast(self.device.type, dtype=DTYPES[self.spec.dtype]))
        return stack

    def gradient_like(self, y: Tensor) -> Tensor:
        """The incoming gradient: standard normal, the same at each call."""
        if self.gradient is None:
            self.gradient = torch.randn_like(y)
        return self.gradient

    def tensors(self) -> list[Tensor]:
        """All that is live before the region: parameters, buffers, input, incoming gradient."""
        given = [self.x] if self.gradient is None else [self.x, self.gradient]
        return [*self.eager.parameters(), *self.eager.buffers(), *given]

    def gradients(self) -> list[Tensor]:
        """Of the input and of the parameters, where there are any."""
        leaves = [self.x, *self.eager.parameters()]
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    @property
    def notes(self) -> list[str]:
        """What the backend says of itself once it has run."""
        whole = [note_of_block(mixer) for mixer in self.mixers if isinstance(mixer, Block)]
        return list(dict.fromkeys([*whole, *(note for mixer in self.mixers for note in mixer.notes)]))


def mixers(spec: PointSpec) -> list[Mixer]:
    """The attentions of the point: one for a layer, `BLOCKS` for a model."""
    backend = backends.load(spec.attention)

    def config(index: int, first: Mixer | None) -> LayerConfig:
        return LayerConfig(
            dim=spec.width,
            heads=spec.heads,
            head_dim=check_divisible(spec.width, spec.heads),
            max_len=spec.length,
            causal=spec.causal,
            index=index,
            first=first,
            mlp_dim=MLP_RATIO * spec.width,
        )

    made = stack(partial(backend.cls, **backend.options), BLOCKS if spec.level == "model" else 1, config)
    if spec.mode == "stream":
        check_streams(made, spec)
    return made


def check_streams(made: list[Mixer], spec: PointSpec) -> None:
    """Refuse what cannot be read in parts.

    Raises:
        Unsupported
    """
    if not made[0].streams:
        causal = "" if spec.causal or not made[0].can_be_causal else "; some can with --causal"
        raise Unsupported(f"{spec.attention.label} cannot stream", f"choose --mode forward or train{causal}")
    if spec.level == "model":
        raise Unsupported("a stream is measured layer by layer", "choose --level layer")


def around(made: list[Mixer], spec: PointSpec) -> nn.Module:
    """What stands for one attention alone, or whole layers."""
    if spec.level == "layer":
        return Chain(made) if len(made) > 1 else made[0]
    return Chain([as_block(mixer, spec.width, MLP_RATIO * spec.width, 0.0) for mixer in made])


class Chain(nn.Sequential):
    """One module after the other, with the losses that they bring."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(*modules)

    def forward(self, x: Tensor) -> Tensor | Mixed:
        """The last one's output."""
        losses = []
        for module in self:
            x, loss = parted(module(x))
            losses.append(loss)
        return joined(x, losses)


def note_of_block(block: Block) -> str:
    """What is in a layer that brings its own feed-forward."""
    many = f"{block.per_layer} units stand for one layer, " if block.per_layer > 1 else ""
    return f"{many}feed-forward and norms included"


def storage_bytes(tensors: list[Tensor]) -> int:
    """Bytes behind tensors, each storage once."""
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())
