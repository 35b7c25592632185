"""From encoded sequences to answers, and the model of a run built from its spec."""

from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lrbench.backends.base import Mixed, Mixer, joined, parted
from lrbench.backends.positions import Place
from lrbench.errors import SpecError
from lrbench.models.encoder import Encoder, Positions
from lrbench.records import Parameters
from lrbench.registry import Backend
from lrbench.specs import ModelSpec, Task


class Classifier(nn.Module):
    """Encoder, then dense, ReLU, dense: the classification head of the Long-Range Arena."""

    def __init__(self, encoder: Encoder, dim: int, mlp_dim: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(dim, mlp_dim), nn.ReLU(), nn.Linear(mlp_dim, classes))

    def forward(
        self, tokens: Int[Tensor, "rows seq"], mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows classes"] | Mixed:
        """Logits; while training, with the loss that mixers bring."""
        encoded, loss = parted(self.encoder(tokens, mask))
        return joined(self.head(encoded), [loss])


class Matcher(nn.Module):
    """One encoder for both documents of a pair, then a classifier that sees how they compare.

    [x1, x2, x1 * x2, x1 - x2], dense, ReLU, dense: Tay et al. 2021. Their released code never sets the flag for that
    and runs [x1, x2] through one more layer of half the width: `head` "concat". A pair's documents are neighbouring
    rows. The last feature tells the order, so swapping documents may change the answer.
    """

    def __init__(self, encoder: Encoder, spec: ModelSpec, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.compare = four_features if spec.head == "four" else concatenated
        wide, half = spec.mlp_dim, spec.mlp_dim // 2
        if spec.head == "four":
            layers = [nn.Linear(4 * spec.dim, wide), nn.ReLU(), nn.Linear(wide, classes)]
        else:
            layers = [nn.Linear(2 * spec.dim, wide), nn.ReLU(), nn.Linear(wide, half)]
            layers += [nn.ReLU(), nn.Linear(half, classes)]
        self.head = nn.Sequential(*layers)

    def forward(
        self, tokens: Int[Tensor, "rows seq"], mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "batch classes"] | Mixed:
        """Logits for each pair of rows; while training, with the loss that mixers bring."""
        encoded, loss = parted(self.encoder(tokens, mask))
        return joined(self.head(self.compare(encoded[0::2], encoded[1::2])), [loss])


class Predictor(nn.Module):
    """An answer at every position: encoder, then one dense layer to the logits."""

    def __init__(self, encoder: Encoder, dim: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(dim, classes)

    def forward(
        self, tokens: Int[Tensor, "rows seq"], mask: Bool[Tensor, "rows seq"] | None = None
    ) -> Float[Tensor, "rows seq classes"] | Mixed:
        """Logits, of a `shifted` encoder those of the token itself; while training, with the loss that mixers bring."""
        encoded, loss = parted(self.encoder(tokens, mask))
        return joined(self.head(encoded), [loss])


Model = Classifier | Matcher | Predictor


def four_features(
    first: Float[Tensor, "batch dim"], second: Float[Tensor, "batch dim"]
) -> Float[Tensor, "batch features"]:
    """[x1, x2, x1 * x2, x1 - x2]."""
    return torch.cat([first, second, first * second, first - second], dim=-1)


def concatenated(
    first: Float[Tensor, "batch dim"], second: Float[Tensor, "batch dim"]
) -> Float[Tensor, "batch features"]:
    """[x1, x2]."""
    return torch.cat([first, second], dim=-1)


def build(backend: Backend, task: Task, spec: ModelSpec, length: int) -> Model:
    """The model of a run.

    Raises:
        Unsupported: the backend refuses what the task or the sizes ask of it.
        SpecError: sizes or options that do not go together.
    """
    if task.kind != "match" and spec.head != "four":
        raise SpecError(f"model.head {spec.head}: {task.name} has one document an example", "leave model.head out")
    if task.everywhere != (spec.pooling == "none"):
        wants = "none, as each position has its answer" if task.everywhere else "cls or mean"
        raise SpecError(f"model.pooling {spec.pooling}: {task.name} needs {wants}", "leave it as on the card")
    make_mixer = partial(backend.cls, **backend.options)
    encoder = Encoder(spec, make_mixer, task.vocabulary, length, task.causal, shifted=task.kind == "predict")
    if task.kind == "match":
        return Matcher(encoder, spec, task.classes)
    if task.everywhere:
        return Predictor(encoder, spec.dim, task.classes)
    return Classifier(encoder, spec.dim, spec.mlp_dim, task.classes)


def count(model: Model) -> Parameters:
    """Numbers of parameters, shared ones counted once; those of positions inside attention are positional too."""
    encoder = model.encoder
    total = sum(p.numel() for p in model.parameters())
    tables = {p for part in encoder.modules() if isinstance(part, (Positions, Place)) for p in part.parameters()}
    positional = sum(p.numel() for p in tables)
    embedding = encoder.embedding.weight.numel() + positional
    return Parameters(
        total=total,
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        embedding=embedding,
        positional=positional,
        non_embedding=total - embedding,
    )


def notes(model: nn.Module) -> list[str]:
    """What the mixers of a model have to tell its reader, each once."""
    found = [note for module in model.modules() if isinstance(module, Mixer) for note in module.notes]
    return list(dict.fromkeys(found))
