"""Commented copies of what ships with lrbench, to start from: attentions, task cards, suites."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

from lrbench import catalog
from lrbench._version import __version__
from lrbench.errors import SpecError, UnknownName
from lrbench.files import write_new
from lrbench.registry import attentions, backends, shipped_file

ENDINGS = {"attention": ".py", "task": ".yaml", "suite": ".yaml"}

ATTENTION = """\
# A copy of the attention {name!r} of lrbench {version}, to start from. It needs nothing but an installed lrbench.
#
#   lrbench check {file}     what every attention must hold, measured
#   lrbench run -m {file},full -t listops --preset tiny
#   lrbench scale -m {file},full --lengths 512..4096
#
# What to change:
# - the name of the class, and the first line of the text below, which says what it is;
# - `attend`: q, k and v are (rows, heads, seq, head_dim); in `mask` (rows, seq) True marks a real token, None says that
#   nothing is padded. Keys and values of padded tokens arrive as zeros. A method that needs other projections derives
#   from `Mixer` and writes `forward` (x to y of the same shape), one that brings norms and feed-forward from `Block`;
# - options: keyword-only arguments of `__init__` with types and defaults, typed as FILE:{cls}[option=value];
# - `order`, the growth of cost with length, and `can_be_causal`: promises that `lrbench check` measures.

"""
TASK = """\
# A copy of the task card {name!r} of lrbench {version}, to start from.
#
#   lrbench data show {file} --preset tiny
#   lrbench run -m full -t {file} --preset tiny
#
# What to change: `summary`, `presets` (data size, model size and recipe, always together) and where data come from.
# `loader` names a loader of lrbench, or one of your own beside this file: ./mine.py:load. Raise `version` whenever
# results stop being comparable.

"""
SUITE = """\
# A copy of the suite {name!r} of lrbench {version}, to start from.
#
#   lrbench {command} --suite {file} --dry-run     what it would do, and at what cost
#   lrbench {command} --suite {file}
#
# `grid` is models x tasks x seeds for `lrbench run`, `scale` a study for `lrbench scale`; the words are those of the
# command lines, and flags override them. `set` changes any field of a run: {{train.steps: 200}}.

"""


def write_starter(kind: str, name: str, file: Path) -> str:
    """Write the copy; a command to go on with.

    Raises:
        UnknownName: no such kind, or nothing shipped of that name.
        SpecError: the file is there already, or cannot be one.
    """
    if kind not in ENDINGS:
        raise UnknownName("kind", kind, ENDINGS)
    if file.is_dir():
        raise SpecError(f"{file}: it is a folder", f"name a file: {file / f'my_{_stem(name)}{ENDINGS[kind]}'}")
    text, command = MAKERS[kind](name, file)
    if file.suffix != ENDINGS[kind]:
        raise SpecError(
            f"{file}: a copy of this kind ends in {ENDINGS[kind]}", f"try {file.with_suffix(ENDINGS[kind])}"
        )
    try:
        write_new(file, text)
    except FileExistsError:
        raise SpecError(f"{file} is there already and is not overwritten", f"try {_free(file)}") from None
    except OSError as error:
        raise SpecError(f"{file}: {error.strerror}", "name a file in a folder that can be written to") from None
    return command


def _attention(name: str, file: Path) -> tuple[str, str]:
    if name not in backends.shipped():
        raise UnknownName("attention", name, backends.shipped())
    source = shipped_file(name).read_text(encoding="utf-8")
    cls = attentions(ast.parse(source))[0]
    typed = _typed(file)
    return ATTENTION.format(name=name, version=__version__, file=typed, cls=cls) + source, f"lrbench check {typed}"


def _task(name: str, file: Path) -> tuple[str, str]:
    source = _card("tasks", "task", name)
    # under the old name its results would be taken for those of the shipped task
    renamed = re.sub(r"^name:.*$", f"name: {file.stem}", source, count=1, flags=re.MULTILINE)
    typed = _typed(file)
    return TASK.format(name=name, version=__version__, file=typed) + renamed, f"lrbench data show {typed} --preset tiny"


def _suite(name: str, file: Path) -> tuple[str, str]:
    source = _card("configs", "suite", name)
    command = "run" if catalog.suite(name).grid else "scale"
    typed = _typed(file)
    header = SUITE.format(name=name, version=__version__, file=typed, command=command)
    return header + source, f"lrbench {command} --suite {typed} --dry-run"


MAKERS: dict[str, Callable[[str, Path], tuple[str, str]]] = {"attention": _attention, "task": _task, "suite": _suite}


def _card(folder: catalog.Kind, kind: str, name: str) -> str:
    known = {path.stem: path for path in catalog.shipped(folder).glob("*.yaml")}
    if name not in known:
        raise UnknownName(kind, name, known)
    return known[name].read_text(encoding="utf-8")


def _typed(file: Path) -> str:
    """The path as it is typed where a bare name would mean something shipped."""
    return str(file) if file.is_absolute() or file.parts[0] == ".." else f"./{file}"


def _stem(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def _free(file: Path) -> Path:
    """A name beside it that is not taken."""
    number = 2
    while (other := file.with_stem(f"{file.stem}_{number}")).exists():
        number += 1
    return other
