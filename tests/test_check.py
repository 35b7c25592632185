"""`lrbench check` and `lrbench cp`: verdicts, exit codes, plug-ins that break, copies that stand alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TOY, Called

from lrbench import catalog, gate, testing
from lrbench.errors import Unsupported
from lrbench.files import write_new
from lrbench.registry import backends

README = Path(__file__).parents[1] / "README.md"
OFFENDERS = Path(__file__).parent / "offenders"
MINE = """from lrbench.backends.base import HeadMixer


class Mine(HeadMixer):
    def attend(self, q, k, v, mask):
"""
PLAIN = f"{MINE}        return v\n"
ATTEND = "        return fused_attention(q, k, v, mask, False, 0)\n"
FUSED = f"from lrbench.backends.full import fused_attention\n{MINE}{ATTEND}"
DIES = f"{MINE}        import os\n        os.kill(os.getpid(), 9)\n"
PRINTS = FUSED.replace("        return", "        print('{rubbish')\n        return")
NARROW = f"""from lrbench.backends.base import check_divisible
{PLAIN}
    def __init__(self, cfg):
        super().__init__(cfg)
        check_divisible(cfg.dim, cfg.heads)
"""


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


# verdicts


def test_a_backend_that_holds_what_it_must_is_a_table_of_eighty_columns_and_exit_0(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call("check", "performer")
    assert code == 0, out
    assert max(map(len, out.splitlines())) <= 80
    assert "performer, not causal: passed" in out and "performer, causal: passed" in out
    assert "note: dropout falls on the mixed values" in out
    assert "[1/1] performer: passed" in err


def test_a_planted_fault_is_exit_1_and_one_line_that_names_the_probe(call: Callable[..., Called]) -> None:
    code, out, _ = call("check", f"{OFFENDERS / 'leaker.py'}:Leaker", "--causal")
    (line,) = [line for line in out.splitlines() if line.startswith("Leaker, causal: ") and " > " in line]
    assert code == 1 and line.startswith("Leaker, causal: causality failed: ") and "n=" in line


def test_the_same_for_machines(call: Callable[..., Called]) -> None:
    code, out, _ = call("check", f"{OFFENDERS / 'leaker.py'}:Leaker,linformer", "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert code == 1 and set(found) == {"passed", "checks", "warnings"} and not found["passed"]
    leaker, linformer = found["checks"]
    assert set(leaker) == {"model", "source", "status", "reason", "seconds", "verdicts"}
    assert (leaker["model"], leaker["status"], linformer["status"]) == ("Leaker", "failed", "passed")
    assert [(v["causal"], v["status"]) for v in leaker["verdicts"]] == [(False, "passed"), (True, "failed")]
    assert [(v["causal"], v["status"]) for v in linformer["verdicts"]] == [(False, "passed"), (True, "unsupported")]
    assert linformer["verdicts"][1]["reason"] == "linformer cannot be causal"
    probes = {probe["name"]: probe for probe in leaker["verdicts"][1]["probes"]}
    assert {name for name, probe in probes.items() if probe["status"] == "failed"} == {"causality"}
    leak = probes["causality"]
    assert set(leak) == {"name", "status", "measured", "bound", "sense", "detail", "line"}
    assert leak["measured"] > leak["bound"] == 1e-5 and leak["sense"] == "at most"
    skipped = probes["step is forward"]
    assert skipped["status"] == "skipped" and skipped["measured"] is skipped["bound"] is None and skipped["detail"]


def test_many_backends_are_a_line_each_and_failures_in_full() -> None:
    from rich.console import Console

    from lrbench.reporting.checks import render

    finding = gate.Finding(
        name="causality", status="failed", measured=None, bound=1e-5, sense="at most", detail="[x]" * 40, line=""
    )
    verdicts = [
        gate.Verdict(causal=False, status="passed", notes=["a note [in brackets]"]),
        gate.Verdict(causal=True, status="failed", probes=[finding]),
    ]
    answers = [gate.Answer(model=f"m{i}", source="", status="passed", verdicts=verdicts[:1]) for i in range(4)]
    answers.append(gate.Answer(model="bad[w=1]", source="", status="failed", verdicts=verdicts))
    answers.append(gate.Answer(model="dead", source="", status="error", reason="the process was ended by SIGKILL"))
    console = Console(width=80, record=True)
    for part in render(answers):
        console.print(part)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "bad[w=1], causal: failed" in text and "not causal: passed" not in text
    assert "SIGKILL" in text and "a note [in" in text


def test_one_that_dies_takes_nothing_with_it_and_one_that_prints_spoils_nothing(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    dies, prints = write(tmp_path, DIES, "dies.py"), write(tmp_path, PRINTS, "prints.py")
    code, out, _ = call("check", f"{dies}:Mine", prints, "--no-causal", "--json")
    first, second = json.loads(out)["checks"]
    assert code == 1 and first["status"] == "error" and "SIGKILL" in first["reason"] and second["status"] == "passed"


def test_a_class_that_raises_is_a_failure_and_says_so(call: Callable[..., Called], tmp_path: Path) -> None:
    raises = write(tmp_path, PLAIN + "\n    def __init__(self, cfg):\n        raise ValueError('what a pity')\n")
    code, out, _ = call("check", raises, "--no-causal")
    assert code == 1 and "Mine, not causal: construction failed" in out and "ValueError: what a pity" in out


def test_an_attention_that_looks_at_nothing_else_fails_where_others_are_expected_to_be_seen(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    code, out, _ = call("check", write(tmp_path, PLAIN), "--no-causal", "--json")
    (verdict,) = json.loads(out)["checks"][0]["verdicts"]
    assert code == 1
    assert {p["name"] for p in verdict["probes"] if p["status"] == "failed"} == {"mask matters", "gradients"}


# what is refused


REFUSED: dict[str, tuple[str, str, str, str]] = {
    "no class": ("x = 1\n", "", "it defines no public class", "lrbench cp attention local"),
    "two": (FUSED + "\n\nclass Other(Mine):\n    pass\n", "", "found Mine, Other", "mine.py:Mine"),
    "no mixer": ("class Mine:\n    pass\n", ":Mine", "Mine is no attention backend", "HeadMixer"),
    "a function": ("def Mine():\n    pass\n", ":Mine", "unknown class 'Mine'", "none is known"),
    "misspelt": (FUSED, ":Mien", "unknown class 'Mien'", "did you mean 'Mine'?"),
    "syntax": ("class Mine(\n", "", "SyntaxError", "mend the file"),
    "raises": ("\nraise ValueError('oh')\n\n\nclass Mine:\n    pass\n", "", "mine.py:2: ValueError: oh", "mend"),
    "exits": ("raise SystemExit(0)\n", ":Mine", "mine.py:1: SystemExit", "mend"),
    "option": (FUSED, ":Mine[window=3]", "window: unknown", ""),
}

RECORDED = {("scale", "raises"), ("scale", "exits")}


# what a file does when it is imported is its points' matter in a study, which goes on
@pytest.mark.parametrize(
    ("command", "case"),
    [(each, case) for each in ("check", "run", "scale") for case in REFUSED if (each, case) not in RECORDED],
)
def test_a_file_without_a_suitable_class_is_two_lines_and_exit_2(
    call: Callable[..., Called], tmp_path: Path, command: str, case: str
) -> None:
    text, suffix, error, way_out = REFUSED[case]
    file = write(tmp_path, text)
    flags = {"run": ["-t", TOY, "--preset", "tiny", "-m"], "scale": ["--lengths", "16", "-m"], "check": []}[command]
    code, out, err = call(command, *flags, f"{file}{suffix}")
    assert code == 2 and out == "", err
    assert err.splitlines()[-2].startswith("error: ") and error in err.splitlines()[-2]
    assert way_out in err.splitlines()[-1] and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "error", "way_out"),
    [
        (["perfomer"], "unknown model 'perfomer'", "did you mean 'performer'?"),
        (["local[window=-1]"], "option window is -1", "at least 0"),
        (["local[windw=1]"], "windw", "window"),
        (["linformer", "--causal"], "linformer cannot be causal", "list models"),
        (["no/where.py"], "no/where.py: no such file", "class"),
        (["no_such_package.attn:Fancy"], "no_such_package", "package"),
        (["local", "--lengths", "8"], "no such option: --lengths", "--help"),
        ([""], "nothing to check", "lrbench check"),
        ([], "missing argument", "--help"),
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_two_lines_and_exit_2(
    call: Callable[..., Called], arguments: list[str], error: str, way_out: str
) -> None:
    code, out, err = call("check", *arguments)
    assert code == 2 and out == "", err
    assert error in err.splitlines()[-2] and way_out in err.splitlines()[-1]


def test_a_backend_that_divides_its_width_is_told_both_numbers(call: Callable[..., Called], tmp_path: Path) -> None:
    code, _, err = call("check", f"{write(tmp_path, NARROW)}:Mine")
    assert code == 2 and "error: model Mine: dim 13 is not divisible by heads 3" in err


def test_a_helper_class_beside_an_attention_confuses_nobody(tmp_path: Path) -> None:
    file = write(tmp_path, "from torch import nn\n\n\nclass Helper(nn.Module):\n    pass\n\n\n" + PLAIN)
    assert backends.spec(str(file)).name == "Mine"
    text = (
        "from lrbench.backends.local import Local as Base\n\n\nclass Help:\n    pass\n\n\nclass My(Base):\n    pass\n"
    )
    assert backends.spec(str(write(tmp_path, text))).name == "My"


# plug-ins


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that offers one attention that works and four that do not, beside one that ships."""
    folder = tmp_path / "installed"
    (folder / "theirs-1.0.dist-info").mkdir(parents=True)
    (folder / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = ["fine = theirs:Mine", "raising = theirs_broken:Mine", "gone = no_such_package.attn:Fancy"]
    points += ["classless = theirs:Nothing", "mixless = theirs:Other"]
    text = "\n".join(["[lrbench.attention]", *points, ""])
    (folder / "theirs-1.0.dist-info" / "entry_points.txt").write_text(text)
    write(folder, f"{FUSED}\n\nclass Other:\n    pass\n", "theirs.py")
    write(folder, "raise RuntimeError('oh dear')\n", "theirs_broken.py")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(backends, "shipped", lambda: ["linear"])
    return folder


def test_broken_plug_ins_are_warnings_by_name_and_the_rest_is_checked(
    call: Callable[..., Called], plugins: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, out, _ = call("check", "all", "--json")
    found = json.loads(out)
    assert code == 0 and found["passed"]
    assert [(check["model"], check["status"]) for check in found["checks"]] == [
        ("linear", "passed"),
        ("fine", "passed"),
    ]
    assert found["checks"][1]["source"] == "package theirs:Mine"
    for name, why in {"raising": "oh dear", "gone": "no_such", "classless": "Nothing", "mixless": "Mixer"}.items():
        (line,) = [line for line in found["warnings"] if line.startswith(f"plug-in {name} was left out")]
        assert why in line and line in caplog.text


def test_a_broken_plug_in_asked_for_by_name_is_an_error(call: Callable[..., Called], plugins: Path) -> None:
    code, _, err = call("check", "all", "raising")
    assert code == 2 and "error: package theirs_broken:Mine: RuntimeError: oh dear" in err


def test_all_leaves_broken_plug_ins_out_of_runs(
    call: Callable[..., Called], plugins: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tiny = ("--preset", "tiny", "--steps", 1, "--limit", 8, "--threads", 1, "--out", tmp_path / "r", "--json")
    code, out, _ = call("run", "-m", "all", "-t", "listops", *tiny)
    assert code == 0 and [record["model"]["name"] for record in json.loads(out)] == ["linear", "fine"]
    assert "plug-in raising is left out" in caplog.text and "plug-in gone is left out" in caplog.text


def test_listing_does_not_trip_over_broken_plug_ins(
    call: Callable[..., Called], plugins: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, out, _ = call("list", "models", "--json")
    listed = {row["name"]: row for row in json.loads(out)["models"]}
    assert code == 0 and {"linear", "fine", "raising", "gone"} <= set(listed)
    assert listed["gone"]["summary"] == "broken: there is no module no_such_package.attn" and listed["gone"]["broken"]
    assert "plug-in gone: there is no module" in caplog.text
    assert "theirs_broken" not in sys.modules


# copies


@pytest.mark.parametrize("name", ["local", "performer"])
def test_a_copy_of_an_attention_stands_alone_and_passes(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call("cp", "attention", name, "./mine.py")
    assert code == 0 and out == "mine.py\n" and "lrbench check ./mine.py" in err
    text = (tmp_path / "mine.py").read_text()
    assert text.startswith("# A copy of the attention") and max(map(len, text.splitlines())) <= 120
    assert all(word in text for word in ("lrbench check ./mine.py", "lrbench run -m ./mine.py,full", "order"))
    code, out, _ = call("check", "./mine.py")
    assert code == 0, out
    code, out, _ = call("run", "-m", "./mine.py", "-t", TOY, "--preset", "tiny", "--json")
    assert code == 0 and json.loads(out)[0]["model"]["source"].startswith("file mine.py")


@pytest.mark.parametrize("name", backends.shipped())
def test_every_attention_can_be_copied_and_its_class_is_found(
    call: Callable[..., Called], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "mine.py"
    assert call("cp", "attention", name, file)[0] == 0
    found, shipped = backends.get(str(file)), backends.get(name)
    assert found.cls.__name__ == shipped.cls.__name__ and found.options == shipped.options


def test_a_copied_card_and_a_copied_suite_are_used_as_they_are(call: Callable[..., Called], tmp_path: Path) -> None:
    for name in catalog.names("tasks"):
        card = tmp_path / f"my-{name}.yaml"
        assert call("cp", "task", name, card)[0] == 0
        mine = catalog.task(str(card))
        assert mine.name == f"my-{name}" and mine.presets == catalog.task(name).presets
    for name in catalog.names("configs"):
        suite = tmp_path / f"mine-{name}.yaml"
        assert call("cp", "suite", name, suite)[0] == 0
        assert catalog.suite(str(suite)) == catalog.suite(name)
        assert yaml.safe_load(suite.read_text())["summary"]


@pytest.mark.parametrize(
    ("arguments", "error", "way_out"),
    [
        (["attentoin", "local", "new.py"], "unknown kind 'attentoin'", "did you mean 'attention'?"),
        (["attention", "locl", "new.py"], "unknown attention 'locl'", "did you mean 'local'?"),
        (["task", "listop", "new.yaml"], "unknown task 'listop'", "did you mean 'listops'?"),
        (["suite", "reproduc", "new.yaml"], "unknown suite 'reproduc'", "did you mean 'reproduce'?"),
        (["attention", "local", "there.py"], "there.py is there already and is not overwritten", "try there_3.py"),
        (["attention", "local", "."], "it is a folder", "my_local.py"),
        (["attention", "local", "no/where.py"], "no/where.py", "folder"),
        (["attention", "local", "new.txt"], "ends in .py", "try new.py"),
        (["task", "listops", "new.py"], "ends in .yaml", "try new.yaml"),
    ],
    ids=" ".join,
)
def test_a_copy_that_cannot_be_is_two_lines_and_changes_nothing(
    call: Callable[..., Called],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    error: str,
    way_out: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("there.py", "there_2.py"):
        write(tmp_path, "mine\n", name)
    code, out, err = call("cp", *arguments)
    assert code == 2 and out == "", err
    assert error in err.splitlines()[-2] and way_out in err.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"there.py", "there_2.py"}
    assert (tmp_path / "there.py").read_text() == "mine\n"


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_replaces_none_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError("no links here")

    def too_late(source: Path, target: Path) -> None:
        target.write_text("theirs")
        raise FileExistsError

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    write_new(tmp_path / "a", "mine")
    monkeypatch.setattr(os, "link", too_late)
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "b", "mine")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", "other")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "mine", "b": "theirs"}


@pytest.mark.skipif(not README.exists(), reason="needs the whole checkout")
@pytest.mark.parametrize("causal", [False, True])
def test_the_attention_that_the_readme_shows_holds_what_it_must(tmp_path: Path, causal: bool) -> None:
    (shown,) = [part for part in README.read_text().split("```python\n")[1:] if "class Mine" in part]
    backend = backends.get(str(write(tmp_path, shown.partition("```")[0])))
    probes = testing.conformance(backend.cls, backend.options, causal)
    assert [probe for probe in probes if not probe.passed] == []


# from python


def test_the_gate_is_a_call_too() -> None:
    (answer,), warnings = gate.check(["linformer"], causal=False)
    assert answer.status == "passed" and answer.failures == [] and warnings == []
    with pytest.raises(Unsupported):
        gate.check(["linformer"], causal=True)


def test_ctrl_c_ends_a_check_and_its_children(tmp_path: Path) -> None:
    import signal
    import time

    import psutil

    sleeps = write(tmp_path, f"{MINE}        import time\n        time.sleep(60)\n")
    process = subprocess.Popen([sys.executable, "-m", "lrbench", "check", f"{sleeps}:Mine"], stderr=subprocess.PIPE)
    for _ in range(300):
        children = psutil.Process(process.pid).children()
        if children and time.time() - children[0].create_time() > 1:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
