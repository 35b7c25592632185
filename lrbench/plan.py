"""From what was asked for to the cells that answer it, without torch."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from lrbench import catalog
from lrbench._version import __version__
from lrbench.errors import SpecError
from lrbench.fairness import deviations
from lrbench.registry import backends
from lrbench.specs import Grid, Preset, RunSpec, Suite, TaskCard, parse
from lrbench.train import strategies

GRID_FIELDS = {"data.source", "data.limit"}  # have words of their own in a grid


@dataclass(frozen=True)
class Cell:
    """One model on one task from one seed, and where its results go."""

    spec: RunSpec
    run_id: str
    folder: Path
    deviations: list[str]


@dataclass(frozen=True)
class Cost:
    """Upper bounds, before anything is run: every sequence counted at the full length of the task, or of its stage."""

    train_tokens: int
    flops: float  # of training with full attention
    memory_bytes: int  # weights, gradients, optimiser and one forward pass


def cells(grid: Grid, out: Path) -> list[Cell]:
    """Every cell of a grid, seeds outermost: what is there when it is interrupted can be compared."""
    if grid.seeds in (0, []) or (isinstance(grid.seeds, int) and grid.seeds < 0):
        raise SpecError("seeds: at least one is needed", "for example --seeds 3, or --seed 0")
    seeds = list(range(grid.seeds)) if isinstance(grid.seeds, int) else list(dict.fromkeys(grid.seeds))
    models = [backends.spec(text) for text in _all(grid.models, backends.usable)]
    cards = {name: catalog.task(name) for name in _all(grid.tasks, partial(catalog.names, "tasks"))}
    resolved = [(name, card, resolve(card, grid)) for name, card in cards.items()]
    found = []
    for seed, (name, card, preset), model in product(seeds, resolved, models):
        spec = RunSpec(
            attention=model,
            task=card.facts(),
            card=name,
            files=loader_files(card, preset),
            preset=grid.preset,
            seed=seed,
            data=preset.data,
            model=preset.model,
            train=preset.train,
            device=checked_device(grid.device),
            dtype=grid.dtype,
            threads=grid.threads,
            compile=grid.compile,
        )
        found.append(_cell(spec, out, deviations(card.presets[grid.preset], preset)))
    return found


def resolve(card: TaskCard, grid: Grid) -> Preset:
    """The card's preset with the grid's overrides, its data source settled."""
    own = card.presets[grid.preset].data.source if grid.preset in card.presets else ""
    sets = {**grid.set, "data.source": data_source(card, grid.data or own)}
    if grid.limit is not None:
        sets["data.limit"] = grid.limit
    return catalog.resolve(card, grid.preset, sets)


def data_source(card: TaskCard, asked: str) -> str:
    """Where the examples come from: a word that the card knows, or the path of a folder or file."""
    if not asked:
        return card.sources[0]
    if asked in card.sources:  # "path" itself is a preset that waits for --data
        return asked
    if "path" in card.sources and Path(asked).expanduser().exists():
        return asked
    words = ", ".join("a folder or file" if source == "path" else source for source in card.sources)
    layout = f"; as a path: {' '.join(card.layout.split())}" if card.layout else ""
    raise SpecError(f"--data {asked}: task {card.name} has no such source", f"it has: {words}{layout}")


def checked_device(device: str) -> str:
    """`device` if its form is right; whether it is there is seen where the cell runs."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
        raise SpecError(f"--device {device}: unknown device", "choose auto, cpu, cuda, cuda:1 or mps")
    return device


def as_suite(spec: RunSpec) -> Suite:
    """The suite that repeats exactly this run, whatever becomes of its card's presets."""
    tree = Preset(data=spec.data, model=spec.model, train=spec.train).model_dump(mode="json")
    sets = {key: value for key, value in catalog.leaves(tree).items() if key not in GRID_FIELDS}
    return parse(
        Suite,
        {
            "summary": f"repeats {spec.attention.label} on {spec.task.name}, seed {spec.seed}",
            "grid": {
                "models": [backends.typed(spec.attention)],
                "tasks": [spec.card],
                "seeds": [spec.seed],
                "preset": spec.preset,
                "set": sets,
                "data": spec.data.source,
                "limit": spec.data.limit,
                "device": spec.device,
                "dtype": spec.dtype,
                "threads": spec.threads,
                "compile": spec.compile,
            },
        },
        "config.yaml",
    )


def cost(spec: RunSpec) -> Cost:
    """What a cell costs at most: six operations a weight and token, twelve a pair of tokens and channel.

    Of these a third is the forward pass, which checkpointing does twice.
    """
    model, train = spec.model, spec.train
    width = model.heads * (model.head_dim or model.dim // model.heads)
    weights = model.layers * (4 * model.dim * width + 2 * model.dim * model.mlp_dim)
    logits = spec.task.classes if spec.task.everywhere else 0
    weights += model.dim * logits
    tokens, flops = 0, 0.0
    for examples, length in strategies.planned(train):
        row = length or spec.data.length
        read = examples * spec.task.rows * (spec.data.length if spec.task.kind in strategies.IN_PIECES else row)
        tokens += read
        flops += read * (6.0 * weights + 12.0 * model.layers * row * width)
    flops *= 4 / 3 if train.checkpointing else 1
    # live for the backward pass: some eight vectors of the model's width and two of the feed-forward's a layer, or with
    # checkpointing of one layer, and its input of each; and of the logits themselves, their probabilities and gradient
    layer = 8 * model.dim + 2 * model.mlp_dim
    layers = layer + model.layers * model.dim if train.checkpointing else model.layers * layer
    activations = train.micro_tokens * (layers + 3 * logits)
    return Cost(tokens, flops, 4 * (4 * weights + activations))


def loader_files(card: TaskCard, preset: Preset) -> str | None:
    """A digest of the user's own files that decide what the data are: a loader, a folder of examples."""
    loader = [Path(card.loader.partition(":")[0])] if ".py" in card.loader else []
    place = Path(preset.data.source).expanduser()
    if preset.data.source in card.sources:
        examples = []
    else:
        examples = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    digest = hashlib.sha256()
    for path in loader:
        digest.update(path.read_bytes())
    for path in examples:
        # sizes and times, for the files may be larger than is read in passing; the record holds their content's digest
        digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16] if loader or examples else None


def _cell(spec: RunSpec, out: Path, deviating: list[str]) -> Cell:
    run_id = f"{spec.preset}-s{spec.seed}-{spec.key(__version__)}"
    folder = out / "runs" / _slug(spec.task.name) / _slug(spec.attention.label) / run_id
    return Cell(spec, run_id, folder, deviating)


def _slug(text: str) -> str:
    """A short folder name that every file system takes; the run's key tells long names apart."""
    return re.sub(r"[^\w.+]+", "-", text).strip("-")[:60]


def _all(given: list[str], known: Callable[[], list[str]]) -> list[str]:
    return list(dict.fromkeys(name for item in given for name in (known() if item == "all" else [item])))
