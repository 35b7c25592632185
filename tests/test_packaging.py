"""What is built holds all that is needed and nothing else, and works away from the checkout."""

import json
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from lrbench._version import __version__

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="builds need the whole checkout"),
]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, into: Path, *kinds: str) -> Path:
    """The one file that was built."""
    run(sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", into, source)
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "--wheel")


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "--sdist")


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def expected() -> set[str]:
    """The package's files and the shipped data, as they lie in the checkout."""
    code = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("lrbench/**/*.py")}
    data = {
        path.relative_to(ROOT).as_posix() for kind in ("tasks", "configs") for path in ROOT.glob(f"{kind}/**/*.yaml")
    }
    assets = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("lrbench/reporting/assets/*")}
    figures = {f"lrbench/_shipped/results/published/{path.name}" for path in ROOT.glob("results/published/*.csv")}
    return code | assets | figures | {f"lrbench/_shipped/{name}" for name in data}


def test_wheel_holds_every_module_card_and_suite(wheel: Path) -> None:
    assert expected() <= members(wheel)
    for kind in ("_shipped/tasks", "_shipped/results/published", "reporting/assets"):
        assert any(name.startswith(f"lrbench/{kind}/") for name in members(wheel))


def test_wheel_holds_nothing_foreign(wheel: Path) -> None:
    metadata = {name for name in members(wheel) if name.startswith(f"lrbench-{__version__}.dist-info/")}
    others = members(wheel) - expected() - metadata
    assert {name for name in others if Path(name).suffix != ".typed"} == set()
    assert all(name.startswith("lrbench/") for name in others)


def test_wheel_declares_the_command_and_its_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"lrbench-{__version__}.dist-info"
        about = message_from_string(archive.read(f"{info}/METADATA").decode())
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    assert "lrbench = lrbench.cli:main" in scripts
    assert about["Version"] == __version__
    assert about["Requires-Python"] == ">=3.10"
    needs = [need for need in about.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert all(">=" in need and "<" in need for need in needs), needs


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return tmp_path / f"lrbench-{__version__}"


def test_sdist_carries_the_tests_and_builds_the_same_wheel(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    for name in ("tests/test_packaging.py", "constraints.txt", "Makefile", "pyproject.toml", "LICENSE"):
        assert (unpacked / name).is_file(), name
    assert members(build(unpacked, tmp_path / "again", "--wheel")) == members(wheel)


def test_stray_files_stay_out_of_the_wheel(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    for name in ("tasks/stray.py", "tests/tasks/stray.yaml", "lrbench/stray.pt", "results/stray.yaml", "stray.py"):
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).touch()
    assert members(build(unpacked, tmp_path / "again", "--wheel")) == members(wheel)


def test_installed_wheel_lists_its_tasks_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which borrows the dependencies of this one instead of installing them anew."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    python = next(path for path in tmp_path.glob("env/*/python*") if path.stem == "python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    where = run(python, "-c", "import lrbench; print(lrbench.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path))
    listed = run(python.with_name("lrbench"), "list", "tasks", "--json", cwd=tmp_path)
    json.loads(listed)
    assert all(path.stem in listed for path in ROOT.glob("tasks/*.yaml"))
    assert str(ROOT) not in listed
