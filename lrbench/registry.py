"""Finds attention backends and loaders by name. Nothing is registered: a file's name is its name.

`performer`, `longformer[window=128]`, `./mine.py:MyAttention`, `their_pkg.attn:Fancy`, or an installed
package's entry point. Listing imports nothing.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, create_model

from lrbench.errors import LrbenchError, SpecError, UnknownName
from lrbench.files import digest
from lrbench.specs import AttentionSpec, parse

log = logging.getLogger(__name__)
BACKENDS = Path(__file__).parent / "backends"
LOADERS = Path(__file__).parent / "loaders"
# files of the folder that are no backend
SHARED = {"__init__", "base", "chunks", "gated", "ops", "positions", "running", "squared", "tiles"}
BASES = {"Mixer", "HeadMixer", "Block"}  # what a backend derives from
GROUP = "lrbench.attention"


@dataclass(frozen=True)
class Backend:
    """A backend class and its checked options: `backend.cls(cfg, **backend.options)`."""

    name: str
    cls: type
    options: dict[str, Any]


class Backends:
    """The attention backends: shipped files first, then installed packages' entry points."""

    def names(self) -> list[str]:
        """Every name that `get` knows, without importing anything."""
        return [*self.shipped(), *(name for name in self._plugins() if name not in self.shipped())]

    def shipped(self) -> list[str]:
        """The names of the files of `lrbench/backends`."""
        return sorted(_shown(path.stem) for path in BACKENDS.glob("*.py") if path.stem not in SHARED)

    def summary(self, name: str) -> str:
        """The first line of a backend's docstring, read without importing it."""
        if name in self.shipped():
            return first_line(shipped_file(name))
        return f"from {self._plugins()[name].value}"

    def about(self, name: str) -> dict[str, Any]:
        """What a backend says of itself, read from its file without importing it."""
        about: dict[str, Any] = {"name": name, "summary": self.summary(name), "source": "lrbench"}
        if name in self.shipped():
            return about | _traits(shipped_file(name))
        point = self._plugins()[name]
        about["source"] = point.value
        if fault := _fault(point):
            log.warning("plug-in %s: %s", name, fault)
            return about | {"summary": f"broken: {fault}", "broken": True}
        return about

    def usable(self) -> list[str]:
        """What `all` stands for: all that ships, and plug-ins that can be imported; a broken one is a warning."""
        found = self.names()
        for name in found[len(self.shipped()) :]:
            try:
                self.get(name)
            except LrbenchError as error:
                log.warning("plug-in %s is left out: %s", name, error.message)
                found = [other for other in found if other != name]
        return found

    def spec(self, text: str) -> AttentionSpec:
        """Parse what a user typed. Names are checked, nothing shipped is imported."""
        target, settings = split_settings(text)
        if is_file(target):
            path, name = _file_and_class(target)
            return AttentionSpec(name=name, settings=settings, source=str(path), digest=digest(path))
        if (shipped := target.replace("++", "-pp")) in self.shipped():
            return AttentionSpec(name=shipped, settings=settings)
        if target in self._plugins():
            return AttentionSpec(name=target, settings=settings, source=f"package {self._plugins()[target].value}")
        if re.fullmatch(r"[\w.]+:\w+", target):
            module, name = target.split(":")
            return AttentionSpec(name=name, settings=settings, source=f"module {module}")
        raise UnknownName("model", target, self.names())

    def typed(self, spec: AttentionSpec) -> str:
        """The text that `spec` parses to the same."""
        prefix = spec.source.removeprefix("module ") if spec.source.startswith("module ") else ""
        prefix = spec.source if spec.digest else prefix
        return typed_settings(f"{prefix}:{spec.name}" if prefix else spec.name, spec.settings)

    def load(self, spec: AttentionSpec) -> Backend:
        """Import the class and check its settings against its signature."""
        if spec.source == "lrbench":
            cls = single_class(importlib.import_module(f"lrbench.backends.{_stem(spec.name)}"), spec.name)
        elif spec.source.startswith("package "):
            cls = _imported(spec.source, self._plugins()[spec.name].load)
        elif spec.source.startswith("module "):
            module = _imported(spec.source, lambda: importlib.import_module(spec.source.removeprefix("module ")))
            cls = _attribute(module, spec.name, spec.source)
        else:
            cls = _attribute(load_file(Path(spec.source)), spec.name, spec.source)
        check_mixer(cls, spec)
        return Backend(spec.name, cls, check_options(cls, spec.settings, f"model {spec.name}"))

    def get(self, text: str) -> Backend:
        """`load(spec(text))`."""
        return self.load(self.spec(text))

    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=GROUP)}


backends = Backends()


def split_settings(text: str) -> tuple[str, dict[str, Any]]:
    """`name[a=1,b=x]` → name and settings, values read as YAML."""
    match = re.fullmatch(r"([^\[\]]+?)\s*(?:\[(.*)\])?", text.strip(), flags=re.DOTALL)
    if match is None:
        raise SpecError(
            f"model {text!r} is not of the form name[option=value,…]", "write for example 'local[window=64]'"
        )
    settings: dict[str, Any] = {}
    for item in split_list(match[2] or ""):
        key, equals, value = item.partition("=")
        if not equals:
            raise SpecError(f"model {text!r}: {item!r} is not option=value", "write for example 'local[window=64]'")
        settings[key.strip()] = yaml.safe_load(value)
    return match[1], settings


def typed_settings(name: str, settings: dict[str, Any]) -> str:
    """The inverse of `split_settings`."""
    inner = ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items())
    return f"{name}[{inner}]" if inner else name


def split_list(text: str) -> list[str]:
    """Split at commas outside brackets; drop blanks and repetitions."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


def options(function: Callable[..., Any]) -> type[BaseModel]:
    """The keyword-only parameters of a signature as a model that forbids extras."""
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            kind = Any if parameter.annotation is parameter.empty else parameter.annotation
            fields[parameter.name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    return create_model("Options", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields)


def check_options(function: Callable[..., Any], settings: dict[str, Any], where: str) -> dict[str, Any]:
    """`settings` with the types of the signature and its defaults filled in."""
    parsed = parse(options(function), settings, where)
    return {name: getattr(parsed, name) for name in type(parsed).model_fields}


def check_mixer(item: Any, spec: AttentionSpec) -> None:
    """Refuse what is no attention backend."""
    from lrbench.backends.base import Mixer

    if not (inspect.isclass(item) and issubclass(item, Mixer)):
        raise SpecError(
            f"{spec.source}: {spec.name} is no attention backend: it is not derived from lrbench.backends.base.Mixer",
            "derive the class from HeadMixer, Mixer or Block; 'lrbench cp attention local FILE.py' writes an example",
        )


def single_class(module: ModuleType, name: str) -> type:
    """The one public Mixer subclass that a backend's file defines."""
    from lrbench.backends.base import Mixer

    found = [
        item
        for item in vars(module).values()
        if inspect.isclass(item) and issubclass(item, Mixer) and item.__module__ == module.__name__
        if not item.__name__.startswith("_")
    ]
    if len(found) != 1:
        raise SpecError(f"{name}: expected one public attention class, found {len(found)}", "name it: FILE.py:CLASS")
    return found[0]


def load_loader(name: str) -> Callable[..., Any]:
    """The `load` function behind a card's loader: a module of `lrbench.loaders`, or `FILE.py:FUNCTION`."""
    file, _, function = name.partition(".py:")
    if function:
        found = getattr(load_file(Path(f"{file}.py")), function, None)
        if not callable(found):
            raise SpecError(f"{file}.py: no function {function!r}", "name it in the card: FILE.py:FUNCTION")
        return found
    known = [path.stem for path in LOADERS.glob("*.py") if "load" in _functions(path)]
    if name not in known:
        raise UnknownName("loader", name, known)
    return importlib.import_module(f"lrbench.loaders.{name}").load


def is_file(target: str) -> bool:
    """A file is meant only by its suffix: `mine.py`, `./mine.py:MyAttention`."""
    return bool(re.search(r"\.py(:\w+)?$", target))


def load_file(path: Path) -> ModuleType:
    """Import a user's file under a name that holds its digest; a failure names file, line and cause."""
    name = f"lrbench_file_{digest(path)[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SpecError(f"{path}:{_line_in(path, error)}: {type(error).__name__}: {error}", "mend the file") from error
    return module


def first_line(path: Path) -> str:
    """The first line of a module's docstring, without importing the module."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def shipped_file(name: str) -> Path:
    """The file of a shipped backend."""
    return BACKENDS / f"{_stem(name)}.py"


def attentions(tree: ast.Module) -> list[str]:
    """The public classes of a file that derive from a base of ours; where none does so by name, all of them."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    imported = [
        (node.module, name.asname or name.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    ]
    modules = {name for module, name in imported if module == "lrbench.backends"}
    ours = BASES | {name for module, name in imported if str(module).startswith("lrbench.backends.")}
    for node in classes:  # a base stands before what derives from it
        bases = [ast.unparse(base).rpartition(".") for base in node.bases]
        if any(name in ours or module in modules for module, _, name in bases):
            ours.add(node.name)
    public = [node.name for node in classes if not node.name.startswith("_")]
    return [name for name in public if name in ours] or public


def _traits(path: Path) -> dict[str, Any]:
    """What a backend's public class says of itself: paper, growth of cost, and what it can do."""
    traits: dict[str, Any] = {"paper": "", "order": "n^2", "can_be_causal": False, "positions": (), "any_length": True}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for line in node.body:
                target = line.target if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [None])[0]
                if isinstance(target, ast.Name) and target.id in traits:
                    traits[target.id] = ast.literal_eval(line.value)  # type: ignore[attr-defined]
                elif isinstance(target, ast.Tuple):
                    names = [getattr(name, "id", "") for name in target.elts]
                    traits |= {k: v for k, v in zip(names, ast.literal_eval(line.value), strict=True) if k in traits}  # type: ignore[attr-defined]
    return traits


def _file_and_class(target: str) -> tuple[Path, str]:
    file, _, name = target.rpartition(":") if not target.endswith(".py") else (target, "", "")
    path = Path(file).expanduser()
    if not path.is_file():
        raise SpecError(f"{path}: no such file", "give the path of a Python file, then ':' and a class")
    if name:
        return path, name
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise SpecError(f"{path}:{error.lineno}: SyntaxError: {error.msg}", "mend the file") from error
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text", "give the path of a Python file") from None
    classes = attentions(tree)
    if not classes:
        raise SpecError(
            f"{path}: it defines no public class",
            "derive one from lrbench.backends.base.HeadMixer; 'lrbench cp attention local FILE.py' writes an example",
        )
    if len(classes) > 1:
        raise SpecError(
            f"{path}: expected one public class, found {', '.join(classes)}", f"name it: {path}:{classes[0]}"
        )
    return path, classes[0]


def _attribute(module: ModuleType, name: str, where: str) -> type:
    item = getattr(module, name, None)
    if not inspect.isclass(item):
        known = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and not key.startswith("_")
        ]
        raise UnknownName("class", name, known, where)
    return item


def _imported(source: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise SpecError(f"{source}: {type(error).__name__}: {error}", "mend or uninstall the package") from error


def _fault(point: EntryPoint) -> str:
    """Why an entry point cannot work, as far as can be told without importing anything."""
    match = EntryPoint.pattern.match(point.value)
    if match is None:
        return f"{point.value!r} is not of the form module:Class"
    package = match["module"].partition(".")[0]
    return "" if importlib.util.find_spec(package) else f"there is no module {match['module']}"


def _line_in(path: Path, error: BaseException) -> int:
    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.absolute()
    ]
    return next((line for line in reversed(lines) if line), 1)


def _functions(path: Path) -> set[str]:
    """The functions that a module defines, without importing it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _shown(stem: str) -> str:
    return stem.replace("_", "-")


def _stem(name: str) -> str:
    return name.replace("-", "_")
