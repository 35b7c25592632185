"""The import rules hold, and a breach of each is caught."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# file: a planted line, and the contract that must catch it
PLANTED = {
    "records.py": ("import torch", "without torch"),
    "specs.py": ("import lrbench.trial", "who may import whom"),
    "plan.py": ("def late():\n    import lrbench.models.encoder", "without torch"),
    "stats.py": ("import pandas", "numpy and scipy only"),
    "cli/__init__.py": ("import torch", "command line reaches torch"),
    "executors/base.py": ("import lrbench.trial", "executors know jobs"),
    "backends/base.py": ("import lrbench.specs", "backends know no task"),
    "loaders/base.py": ("import accelerate", "only the training loop"),
    "unplaced.py": ("", "who may import whom"),
}
# what `--help`, `list` and `report` go through
LIGHT = ("errors", "specs", "records", "catalog", "registry", "plan", "stats", "environment", "memory", "report", "cli")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """The verdict on the package that lies in the folder."""
    command = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command as main; main()"
    return subprocess.run([sys.executable, "-c", command, "--no-cache"], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "lrbench", tmp_path / "lrbench", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_package_keeps_the_rules(copy: Path) -> None:
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", PLANTED)
def test_a_planted_breach_is_caught(copy: Path, file: str) -> None:
    line, contract = PLANTED[file]
    with (copy / "lrbench" / file).open("a") as module:
        module.write(f"\n{line}\n")
    done = lint_imports(copy)
    assert done.returncode == 1, done.stdout
    broken = [row for row in done.stdout.splitlines() if " BROKEN" in row]
    assert any(contract in row for row in broken), done.stdout


def test_light_modules_load_without_torch() -> None:
    names = [f"lrbench.{name}" for name in LIGHT if importlib.util.find_spec(f"lrbench.{name}")]
    script = f"import sys, {', '.join(names)}; print(*({{'torch', 'accelerate', 'datasets'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
