"""Finds and reads task cards and suites, and resolves a card's preset with its overrides.

Looked up in this order: an explicit path, the folders of LRBENCH_PATH, installed packages (entry point group
`lrbench.cards`: a module whose folder holds `tasks/` or `configs/`), what ships with lrbench.
"""

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml

from lrbench.errors import SpecError, UnknownName, nearest
from lrbench.specs import Preset, PresetName, Suite, TaskCard, parse, read_yaml

Kind = Literal["tasks", "configs"]


def shipped(kind: Kind | Literal["results/published"]) -> Path:
    """The folder of shipped cards, suites or published figures, in a wheel or in a checkout."""
    packed = Path(str(files("lrbench"))) / "_shipped" / kind
    return packed if packed.is_dir() else Path(__file__).parents[1] / kind


def names(kind: Kind) -> list[str]:
    """The names of all cards or suites that can be found."""
    return sorted({path.stem for folder in _folders(kind) for path in folder.glob("*.yaml")})


def find(kind: Kind, name: str) -> Path:
    """The file behind a name or a path. Two files of one name are an error that names both."""
    if name.endswith((".yaml", ".yml")):
        return Path(name).expanduser()
    found = [path for folder in _folders(kind) if (path := folder / f"{name}.yaml").is_file()]
    if len(found) > 1:
        raise SpecError(f"{name!r} stands twice: {found[0]} and {found[1]}", "give the path of the one you mean")
    if not found:
        raise UnknownName({"tasks": "task", "configs": "suite"}[kind], name, names(kind))
    return found[0]


def claim_files() -> list[Path]:
    """The files of claims in all folders that may hold suites."""
    return [path for folder in _folders("configs") for path in sorted((folder / "claims").glob("*.yaml"))]


def task(name: str) -> TaskCard:
    """Read the card of a task. A loader given as a file is taken relative to the card."""
    path = find("tasks", name)
    card = parse(TaskCard, read_yaml(path), shown(path))
    module, _, function = card.loader.partition(":")
    if module.endswith(".py"):
        card = card.model_copy(update={"loader": f"{path.parent / module}:{function or 'load'}"})
    return card


def suite(name: str) -> Suite:
    """Read a suite."""
    path = find("configs", name)
    return parse(Suite, read_yaml(path), shown(path))


def parse_sets(texts: list[str]) -> dict[str, Any]:
    """`key=value` texts of `--set` as a mapping; values are YAML scalars or lists."""
    sets: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise SpecError(f"--set {text!r} is not key=value", "write for example --set train.steps=200")
        try:
            sets[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SpecError(f"--set {text!r}: the value is not valid YAML", "quote it") from None
    return sets


def resolve(card: TaskCard, preset: PresetName, sets: Mapping[str, Any]) -> Preset:
    """The card's preset with `sets` (dotted keys) applied on top."""
    if preset not in card.presets:
        raise UnknownName("preset", preset, card.presets, f"task {card.name}")
    tree = card.presets[preset].model_dump()
    for key, value in sets.items():
        _assign(tree, key, value)
    return parse(Preset, tree, "--set")


def leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping flattened to dotted keys; options stay whole where they are empty."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(leaves(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _assign(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    branch: Any = tree
    for part in path:
        branch = branch.get(part) if isinstance(branch, dict) else None
    # the loader's own options are checked against its signature, not against the card
    free = path == ["data", "options"]
    if not isinstance(branch, dict) or (last not in branch and not free):
        raise SpecError(f"--set {key}: unknown key", nearest(key, sorted(leaves(tree))))
    branch[last] = value


def _folders(kind: Kind) -> list[Path]:
    """Every folder that may hold cards or suites, each once."""
    given = [Path(part).expanduser() for part in os.environ.get("LRBENCH_PATH", "").split(os.pathsep) if part]
    folders = [*given, *(folder / kind for folder in given), *_plugin_folders(kind), shipped(kind)]
    return list({folder.resolve(): folder for folder in folders if folder.is_dir()}.values())


def _plugin_folders(kind: Kind) -> list[Path]:
    specs = [find_spec(point.module) for point in entry_points(group="lrbench.cards")]
    return [Path(place) / kind for spec in specs if spec for place in spec.submodule_search_locations or []]


def shown(path: Path) -> str:
    """The path as a user would type it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
