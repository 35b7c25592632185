"""Whole studies of plug-ins that do what they should not, of limits, interruptions and resumption."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin_points import linux, point

from lrbench import scaledrift
from lrbench.errors import SpecError
from lrbench.measure import budget
from lrbench.measure.children import Child, Forked, Inline
from lrbench.points import PointSpec, ScalePoint
from lrbench.registry import backends
from lrbench.scalefits import fits
from lrbench.study import FILE, Silent, Study, StudyOptions, log_ratios, run_study

pytestmark = linux
QUICK = {"budget_s": 0.0, "control": False}
OFFENDERS = Path(__file__).parent / "offenders"


@pytest.fixture(scope="module")
def host() -> Iterator[Forked]:
    with Forked() as server:
        yield server


@pytest.fixture(autouse=True)
def _one_server(host: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies share a server here, and the machine is not measured: both take seconds."""
    monkeypatch.setattr("lrbench.study.children", lambda device, in_process: Inline() if in_process else Lent(host))
    monkeypatch.setattr("lrbench.study._Driver._machine", lambda driver: ({"load_average": [0.0]}, 1e11))


class Lent(Forked):
    """Children of a server that goes on."""

    def __init__(self, host: Forked) -> None:
        self._host = host

    def __exit__(self, *_: object) -> None: ...

    def start(self, *args: Any, **kwargs: Any) -> Child:
        return self._host.start(*args, **kwargs)


class Noted(Silent):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.planned: list[PointSpec] = []
        self.finished: list[ScalePoint] = []
        self.passes: list[tuple[str, int, str]] = []

    def plan(self, points: Sequence[PointSpec], finished: Sequence[ScalePoint]) -> None:
        self.planned = list(points)

    def at(self, point: PointSpec, what: Any) -> None:
        self.passes.append((point.attention.name, point.length, what))

    def done(self, point: ScalePoint) -> None:
        self.finished.append(point)


def study(points: Sequence[PointSpec], folder: Path, listener: Noted | None = None, **options: Any) -> Study:
    return run_study(points, StudyOptions(folder=folder, **{**QUICK, **options}), listener)


def statuses(found: Study) -> list[tuple[str, int, str]]:
    return [(point.model, point.length, point.status) for point in found.points]


def small(model: str, length: int, **fields: Any) -> PointSpec:
    return point(model, length, width=32, heads=2, **fields)


def test_u3_whatever_fails_is_a_row_and_the_others_are_measured(tmp_path: Path) -> None:
    names = ["full", *(f"raiser.py:Raiser[where={where}]" for where in ("init", "forward", "backward"))]
    names += ["crasher.py:Crasher", "printer.py:Printer"]
    found = study([small(name, 64, mode="train") for name in names], tmp_path)
    assert [point.status for point in found.points] == ["ok", "error", "error", "error", "oom", "ok"]
    for raised, where in zip(found.points[1:4], ("init", "forward", "backward"), strict=True):
        assert raised.reason == f"ValueError: in {where}"
    first = found.points[0]
    assert first.time_ms and first.memory_bytes and first.flops and first.tokens_per_s
    assert first.memory_bytes.predicted and first.fraction_of_matmul_peak
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [line["status"] for line in lines] == [point.status for point in found.points]


def test_i3_longer_points_of_a_curve_that_ran_out_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrbench.measure.point.GRACE_S", 0.5)
    names = ["exploder.py:Exploder", "hanger.py:Hanger", "full"]
    points = [small(name, length) for name in names for length in (64, 128)]
    found = study(points, tmp_path, time_limit_s=1.0, memory_limit_bytes=1 << 29)
    assert [point.status for point in found.points] == ["oom", "skipped", "timeout", "skipped", "ok", "ok"]
    assert found.points[1].reason == "oom at length 64"


@pytest.mark.parametrize(
    ("model", "error", "way_out"),
    [
        ("raiser.py:Raiser[wher=init]", "model Raiser: wher: unknown field", "did you mean 'where'?"),
        ("sleeper.py:Sleeper[ms=long]", "model Sleeper: ms: ", "found 'long'"),
        ("sleeper.py:Sleepr", "unknown class 'Sleepr'", "did you mean 'Sleeper'?"),
    ],
)
def test_options_that_a_file_does_not_take_are_refused_before_the_first_point(
    tmp_path: Path, model: str, error: str, way_out: str
) -> None:
    noted = Noted()
    with pytest.raises(SpecError) as refused:
        study([small("full", 64), small(model, 64)], tmp_path / "study", noted)
    assert error in refused.value.message and way_out in refused.value.hint
    assert not noted.passes and not (tmp_path / "study").exists()


@pytest.mark.parametrize("line", ["raise ValueError('what a pity')", "import os; os._exit(3)", "raise SystemExit"])
def test_a_file_that_breaks_when_imported_is_a_row(tmp_path: Path, line: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{line}\nclass Mine: ...\n")
    spec = PointSpec(attention=backends.spec(f"{file}[option=1]"), length=64, width=32, heads=2, threads=1)
    found = study([small("full", 64, mode="train"), spec], tmp_path / "study")
    assert [point.status for point in found.points] == ["ok", "error"]


def test_what_will_not_fit_is_not_run(tmp_path: Path) -> None:
    noted = Noted()
    points = [small(name, length) for name in ("full", "full[impl=math]") for length in (64, 8192, 16384)]
    found = study(points, tmp_path, noted, memory_limit_bytes=10**9, time=False)
    large = [point for point in found.points if point.settings][1:]
    assert [(point.status, point.predicted) for point in large] == [("oom", True), ("skipped", False)]
    assert "MiB" in large[0].reason
    kept = [point.memory_bytes for point in large]
    assert all(memory and memory.extra is None and memory.total is None for memory in kept)
    peak = 3 * 4 * 2 * 8192**2  # bytes: n × n thrice, float32, two heads
    predicted = [memory.predicted for memory in kept if memory and memory.predicted]
    assert predicted == pytest.approx([peak, 4 * peak], rel=0.02)
    within = fits(found.points, None, [2 * peak])["full[impl=math]"].longest_within[0]
    assert (within.length, within.over, within.extrapolated) == (64, 16384, False)
    assert within.estimate == pytest.approx(8192 * 2**0.5, rel=0.02)
    assert found.points[2].status == "ok"
    assert ("full", 16384, "memory") in noted.passes
    assert len([entry for entry in noted.passes if entry[1] > 64]) == 2


def test_what_will_take_too_long_is_not_run(tmp_path: Path) -> None:
    points = [small(name, length) for name in ("full", "sleeper.py:Sleeper[ms=100]") for length in (64, 256)]
    found = study(points, tmp_path, time_limit_s=1.0)
    assert [(point.status, point.predicted) for point in found.points][2:] == [("ok", False), ("timeout", True)]
    forced = study(points, tmp_path / "forced", time_limit_s=1.0, force=True)
    assert forced.points[3].status == "ok"


def test_h6_a_point_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    both = study([point("full", length, mode="train") for length in (2048, 256)], tmp_path / "both", time=False)
    alone = study([point("full", 256, mode="train")], tmp_path / "alone", time=False)
    one, other = both.points[1].memory_bytes, alone.points[0].memory_bytes
    assert one and other and (one.extra, one.total, one.saved) == (other.extra, other.total, other.saved)


def test_i8_memory_grows_as_the_backends_say(tmp_path: Path) -> None:
    names = ["longformer", "performer", "linformer", "local", f"{OFFENDERS / 'quadratic.py'}:Quadratic"]
    lengths = [1024, 2048, 4096]
    specs = [point(name, length, width=64, heads=1) for name in names for length in lengths]
    found = study(specs, tmp_path, time=False)
    for place, name in enumerate(names):
        peaks = [each.memory_bytes.extra for each in found.points[3 * place : 3 * place + 3] if each.memory_bytes]
        exponent = np.polyfit(np.log(lengths), np.log(peaks), 1)[0]
        assert exponent >= 1.7 if "quadratic" in name else exponent <= 1.2, name


def test_an_a_a_control_is_timed_beside_the_others(tmp_path: Path) -> None:
    points = [small(name, length) for name in ("full", "local") for length in (64, 128)]
    found = study(points, tmp_path, control=True, budget_s=9.0, least_generations=2, most_generations=2, precision=1e-9)
    copies = [point for point in found.points if point.control]
    assert [point.length for point in copies] == [64, 128]
    assert found.noise is not None and found.noise.floor is not None and found.noise.floor > 0
    original = next(point for point in found.points if point.spec == copies[0].spec and not point.control)
    assert found.noise.ratios[64] == pytest.approx([math.exp(value) for value in log_ratios(copies[0], original)])
    assert all("precision_missed" in point.flags for point in copies)
    assert found.reference == "full"


def test_a_study_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    points = [small(name, length) for name in ("full", "local") for length in (64, 128)]
    whole = study(points, tmp_path)
    path = tmp_path / FILE
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:3]) + "\n" + lines[3][:50])  # ended while the last length was written
    noted = Noted()
    again = study(points, tmp_path, noted)
    assert [spec.length for spec in noted.planned] == [128, 128]
    assert statuses(again) == statuses(whole)
    assert again.points[0] == whole.points[0]
    noted = Noted()
    assert study(points, tmp_path, noted).points == again.points
    assert noted.planned == [] and noted.passes == []
    noted = Noted()
    study(points, tmp_path, noted, resume=False)
    assert len(noted.planned) == 4


def on_machine(monkeypatch: pytest.MonkeyPatch, **environment: Any) -> None:
    monkeypatch.setattr("lrbench.study._Driver._machine", lambda driver: (environment, 1e11))


@pytest.mark.parametrize("change", [{"cpu_model": "a faster one"}, {"torch": "3.0"}])
def test_a_study_that_another_machine_began_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    machine = {"cpu_model": "a slow one", "torch": "2.0", "load_average": [0.5]}
    on_machine(monkeypatch, **machine)
    study([small("full", 64)], tmp_path)
    before = (tmp_path / FILE).read_text()
    points = [small("full", length) for length in (64, 128)]
    on_machine(monkeypatch, **(machine | change))
    with pytest.raises(SpecError) as refused:
        study(points, tmp_path)
    assert "begun on another machine" in refused.value.message and "--no-resume" in refused.value.hint
    assert (tmp_path / FILE).read_text() == before
    on_machine(monkeypatch, **(machine | {"load_average": [3.0]}))
    assert len(study(points, tmp_path).points) == 2
    on_machine(monkeypatch, **(machine | change))
    assert len(study(points, tmp_path, resume=False).points) == 2
    assert scaledrift.environment(tmp_path)[next(iter(change))] == next(iter(change.values()))


def test_clocks_of_gpus_make_no_other_machine() -> None:
    def machine(clock: str, name: str = "A") -> dict[str, Any]:
        return {"cpu_model": "one", "gpus": [{"name": name, "memory_mib": "1", "clock_mhz": clock}]}

    assert not scaledrift.other_machine(machine("1"), machine("2"), "cuda")
    assert "gpus was A there and is B here" in scaledrift.other_machine(machine("1"), machine("1", "B"), "cuda")
    assert not scaledrift.other_machine(machine("1"), machine("1", "B"), "cpu")
    assert not scaledrift.other_machine({}, machine("1"), "cuda")


def test_another_spec_is_another_point(tmp_path: Path) -> None:
    study([small("full", 64)], tmp_path)
    noted = Noted()
    study([small("full", 64, seed=1)], tmp_path, noted)
    assert len(noted.planned) == 1


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path) -> None:
    class Impatient(Noted):
        def at(self, point: PointSpec, what: Any) -> None:
            if point.length == 128:
                raise KeyboardInterrupt

    points = [small("full", length) for length in (64, 128)]
    with pytest.raises(KeyboardInterrupt):
        study(points, tmp_path, Impatient())
    noted = Noted()
    study(points, tmp_path, noted)
    assert [spec.length for spec in noted.planned] == [128]


def test_past_the_budget_a_point_is_timed_once(tmp_path: Path) -> None:
    points = [small("sleeper.py:Sleeper[ms=30]", length) for length in (64, 128)]
    found = study(points, tmp_path, budget_s=0.1, least_generations=3)
    assert [len(rounds) for point in found.points if point.time_ms for rounds in point.time_ms.rounds] == [1, 1]
    assert all({"single_generation", "precision_missed"} <= set(point.flags) for point in found.points)


def test_without_children_points_say_so(tmp_path: Path) -> None:
    found = study([small("full", 64)], tmp_path, in_process=True)
    assert found.points[0].status == "ok" and "in_process" in found.points[0].flags


def test_a_study_of_nothing_or_of_unlike_points_is_refused(tmp_path: Path) -> None:
    for points in ([], [small("full", 64), small("full", 64)], [small("full", 64), small("full", 64, dtype="bf16")]):
        with pytest.raises(SpecError):
            study(points, tmp_path)


def test_each_length_gets_what_it_needs_and_an_equal_part_of_the_rest() -> None:
    assert budget.share(100.0, 100.0, {1: 10.0, 2: 20.0, 4: 40.0}, 1) == 20.0
    assert budget.share(100.0, 5.0, {1: 10.0, 2: 20.0}, 1) == 10.0
    assert budget.share(100.0, 5.0, {1: 1.0, 2: 20.0}, 1) == 5.0


def test_longer_calls_are_foreseen_by_operations_or_by_the_square() -> None:
    assert budget.grown(1.0, (10, 30), (1, 2)) == 3.0
    assert budget.grown(1.0, (None, 30), (1, 2)) == 4.0
    assert budget.likely_s(50.0, 400, 100.0) == 10.0
    assert budget.likely_s(50.0, None, 100.0) == budget.likely_s(50.0, 400, None) == 50.0
