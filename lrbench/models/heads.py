"""From encoded sequences to answers, and the model of a run built from its spec."""

from functools import partial

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lrbench.backends.base import Mixed, Mixer, joined, parted
from lrbench.backends.positions import Place
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


def build(backend: Backend, task: Task, spec: ModelSpec, length: int) -> Classifier:
    """The model of a run.

    Raises:
        Unsupported: the backend refuses what the task or the sizes ask of it.
        SpecError: sizes or options that do not go together.
    """
    encoder = Encoder(spec, partial(backend.cls, **backend.options), task.vocabulary, length)
    return Classifier(encoder, spec.dim, spec.mlp_dim, task.classes)


def count(model: Classifier) -> Parameters:
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
