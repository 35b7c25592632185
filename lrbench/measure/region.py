"""What is measured: one module at one length, run forward, forward and backward, or segment by segment."""

import copy
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from lrbench.backends.base import LayerConfig, Mixer, check_divisible
from lrbench.errors import Unsupported
from lrbench.models.encoder import MixerBlock
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
            y = self.stream() if self.spec.mode == "stream" else self.forward()
        if self.spec.mode == "train":
            y.backward(self.gradient_like(y))
        return y

    def first_output(self) -> None:
        """Draw the incoming gradient after a forward pass alone."""
        if self.spec.mode == "train":
            with torch.no_grad(), self.context():
                y = self.forward()
            self.gradient_like(y)

    def forward(self) -> Tensor:
        """One forward pass."""
        y = self.module(self.x)
        return cast(Tensor, y[0] if isinstance(y, tuple) else y)

    def stream(self) -> Tensor:
        """Segments in order, each given the state that the last one left; the output of the last."""
        (mixer,) = cast(list[Any], self.mixers)
        state = None
        for part in self.x.split(mixer.segment, dim=1):
            y, state = mixer.step(part, state)
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
        return list(dict.fromkeys(note for mixer in self.mixers for note in mixer.notes))


def mixers(spec: PointSpec) -> list[Mixer]:
    """The attentions of the point: one for a layer, `BLOCKS` for a model."""
    backend = backends.load(spec.attention)
    made: list[Mixer] = []
    for index in range(BLOCKS if spec.level == "model" else 1):
        config = LayerConfig(
            dim=spec.width,
            heads=spec.heads,
            head_dim=check_divisible(spec.width, spec.heads),
            max_len=spec.length,
            causal=spec.causal,
            index=index,
            first=made[0] if made else None,
        )
        made.append(backend.cls(config, **backend.options))
    if spec.mode == "stream":
        check_streams(made, spec)
    return made


def check_streams(made: list[Mixer], spec: PointSpec) -> None:
    """Refuse what has no `step`.

    Raises:
        Unsupported
    """
    if not (hasattr(made[0], "step") and hasattr(made[0], "segment")):
        raise Unsupported(f"{spec.attention.label} has no step: it cannot stream", "choose --mode forward or train")
    if spec.level == "model":
        raise Unsupported("a stream is measured layer by layer", "choose --level layer")


def around(made: list[Mixer], spec: PointSpec) -> nn.Module:
    """The attention alone, or pre-norm blocks around it."""
    if spec.level == "layer":
        return made[0]
    return nn.Sequential(*(MixerBlock(mixer, spec.width, MLP_RATIO * spec.width, 0.0) for mixer in made))


def storage_bytes(tensors: list[Tensor]) -> int:
    """Bytes behind tensors, each storage once."""
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())
