"""The acceptance tests of the measuring core: plug-ins and formulas whose memory, time and operations are known.

Tests of time are tried twice, for the machine may be busy; tests of memory never.
"""

import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from plugin_points import PLUGINS, linux, point

from lrbench.errors import Missing
from lrbench.measure import energy, memory, timing
from lrbench.measure.children import Child, Children, Forked, Inline, Spawned
from lrbench.measure.failures import Failure, classify
from lrbench.measure.host import Limits
from lrbench.measure.point import Found, assemble, measure_memory, time_flags
from lrbench.measure.predict import extrapolated
from lrbench.measure.race import CONTENDED, REPEATED, Race, Rules, Times, log_ratios
from lrbench.points import MemoryBytes, PointSpec

MIB = 1 << 20
LIMIT_S = 60.0
pytestmark = linux


def truth(spec: PointSpec, scores: int, outputs: int) -> int:
    """Bytes of so many n × n scores of all heads, and so many values."""
    return 4 * spec.length * (scores * spec.heads * spec.length + outputs * spec.width)


@pytest.fixture(scope="module")
def host() -> Iterator[Forked]:
    with Forked() as server:
        yield server


def measured(host: Children, spec: PointSpec, data_bytes: int | None = None) -> Found:
    """The memory pass."""
    found = Found()
    measure_memory(host, spec, Limits(data_bytes=data_bytes, pinned=True), LIMIT_S, found)
    return found


def peak(host: Children, spec: PointSpec) -> MemoryBytes:
    figures = measured(host, spec).memory
    assert figures is not None
    return figures


def failing(host: Children, spec: PointSpec, limit_s: float = LIMIT_S, data_bytes: int | None = None) -> Failure:
    with pytest.raises(Failure) as caught:
        measure_memory(host, spec, Limits(data_bytes=data_bytes, pinned=True), limit_s, Found())
    return caught.value


def worker(host: Children, spec: PointSpec, **limits: Any) -> Child:
    return host.start("lrbench.measure.timing:TimeWorker", spec.model_dump(mode="json"), Limits(**limits))


def twice(test: Callable[..., None]) -> Callable[..., None]:
    """For tests of time."""

    @wraps(test)
    def tried(*args: Any, **kwargs: Any) -> None:
        try:
            test(*args, **kwargs)
        except AssertionError:
            test(*args, **kwargs)

    return tried


# memory


def test_m1_m2_training_needs_three_scores_and_two_values(host: Forked) -> None:
    spec = point("bare.py:Bare", 1024, mode="train")
    figures, expected = peak(host, spec), truth(spec, 3, 2)
    assert figures.extra == pytest.approx(expected, rel=0.001)
    assert figures.resident == pytest.approx(expected, abs=MIB / 2 + 0.01 * expected)
    assert figures.agree


@pytest.mark.parametrize("length", [512, 1024])
def test_m3_inference_needs_two_scores(host: Forked, length: int) -> None:
    spec = point("bare.py:Bare", length)
    assert peak(host, spec).extra == pytest.approx(truth(spec, 2, 0), rel=0.001)


@pytest.mark.parametrize("kind", ["naive", "sdpa", "linear"])
def test_m4_fresh_processes_agree(host: Forked, kind: str) -> None:
    spec = point(f"bare.py:Bare[kind={kind}]", 512, mode="train")
    figures = [peak(host, spec) for _ in range(5)]
    assert len({figure.extra for figure in figures}) == 1
    residents = [figure.resident for figure in figures if figure.resident is not None]
    if kind == "naive":
        assert len(residents) == 5
    assert not residents or statistics.pstdev(residents) <= 0.02 * statistics.mean(residents)


HOARD_MIB = 500


def test_m5_both_figures_see_a_tensor(host: Forked) -> None:
    figures = peak(host, point(f"hoard.py:Hoard[kind=tensor,mib={HOARD_MIB}]"))
    assert figures.extra == pytest.approx(HOARD_MIB * MIB, rel=0.01)
    assert figures.resident == pytest.approx(HOARD_MIB * MIB, rel=0.01)
    assert figures.agree


@pytest.mark.parametrize("kind", ["numpy", "thread"])
def test_m6_what_the_allocator_does_not_see_is_flagged(host: Forked, kind: str) -> None:
    found = measured(host, point(f"hoard.py:Hoard[kind={kind},mib={HOARD_MIB}]"))
    assert found.memory is not None
    assert found.memory.resident == pytest.approx(HOARD_MIB * MIB, rel=0.01)
    assert found.memory.extra is not None and found.memory.extra < MIB
    assert found.flags == ["untracked"] and found.memory.agree is False


def test_m7_what_nobody_touches_is_flagged(host: Forked) -> None:
    found = measured(host, point(f"hoard.py:Hoard[kind=untouched,mib={HOARD_MIB}]"))
    assert found.memory is not None
    assert found.memory.extra == pytest.approx(HOARD_MIB * MIB, rel=0.01)
    assert found.memory.resident is not None and found.memory.resident < 10 * MIB
    assert found.flags == ["untouched"] and found.memory.agree is False


def test_m8_what_the_parent_holds_does_not_count(host: Forked) -> None:
    spec = point("bare.py:Bare", 512, mode="train")
    alone = peak(host, spec)
    held = np.ones(1 << 27)  # 1 GiB
    with Forked() as another:
        beside = peak(another, spec)
    assert held[0] == 1.0
    assert beside.extra == alone.extra
    assert beside.resident == pytest.approx(alone.resident, rel=0.02, abs=MIB / 2)


def test_m9_h6_the_order_of_lengths_does_not_matter(host: Forked) -> None:
    specs = [point("bare.py:Bare", length, mode="train") for length in (256, 512, 1024)]
    up = [peak(host, spec) for spec in specs]
    down = [peak(host, spec) for spec in reversed(specs)][::-1]
    assert [figures.extra for figures in up] == [figures.extra for figures in down]
    for one, other in zip(up, down, strict=True):
        assert one.resident == pytest.approx(other.resident, rel=0.02, abs=MIB / 2)


def test_h12_a_second_look_sees_the_same(host: Forked) -> None:
    spec = point("performer", 512, mode="train")
    assert peak(host, spec).extra == peak(host, spec).extra


def test_what_is_there_before_counts_in_the_total_only(host: Forked) -> None:
    spec = point("product.py:Product", 1024)
    figures = peak(host, spec)
    assert figures.extra == 4 * spec.length * spec.width
    assert figures.total == figures.extra + 4 * (spec.length * spec.width + spec.width**2)


def test_ballast_is_read_back(host: Forked) -> None:
    figures = peak(host, point("ballast.py:Ballast"))
    assert figures.extra == pytest.approx(64 * MIB, rel=0.02)
    assert figures.resident == pytest.approx(64 * MIB, rel=0.02)


def test_h8_native_memory_is_seen(host: Forked) -> None:
    extra = peak(host, point("ballast.py:Ballast[mib=256]")).extra
    assert extra is not None and 256 * MIB <= extra <= 300 * MIB


def test_h3_blocks_one_after_another_do_not_add_up(host: Forked) -> None:
    extra = peak(host, point("ballast.py:Ballast[mib=1,blocks=1000]")).extra
    assert extra is not None and extra <= 16 * MIB


@pytest.mark.parametrize(("kind", "expected_mib"), [("naive", 32.0), ("sdpa", 2.03)])
def test_what_is_kept_for_backward(host: Forked, kind: str, expected_mib: float) -> None:
    # naive keeps its weights; sdpa its output and one sum a row
    saved = peak(host, point(f"bare.py:Bare[kind={kind}]", 1024, mode="train")).saved
    assert saved == pytest.approx(expected_mib * MIB, rel=0.01)


def test_the_forward_pass_that_is_looked_at_leaves_nothing(host: Forked) -> None:
    probe = memory.MemoryProbe(point("bare.py:Bare", 256, mode="train").model_dump(mode="json"))
    before = memory.resident_bytes()
    for _ in range(40):
        probe.first()
    after = memory.resident_bytes()
    assert before is not None and after is not None and after - before < 40 * MIB  # they would keep 2 MiB each


def test_nothing_is_kept_for_backward_in_inference(host: Forked) -> None:
    assert peak(host, point("full", 128)).saved is None


def test_a_small_resident_figure_is_null_with_its_reason(host: Forked) -> None:
    found = measured(host, point("full", 64))
    assert found.memory is not None and found.memory.extra
    assert (found.memory.resident, found.memory.agree, found.flags) == (None, None, ["below_resolution"])


def test_without_a_reset_the_resident_figure_says_so() -> None:
    assert memory.judge(64 * MIB, 64 * MIB, reset=False) == (64 * MIB, True, ["rss_unreset"])
    assert memory.judge(64 * MIB, None, reset=False) == (None, None, [])


def test_an_earlier_higher_peak_is_forgotten() -> None:
    held = np.ones(50 * MIB)  # 400 MiB
    del held
    before = memory.high_water_mark()
    assert memory.reset_high_water_mark()
    after = memory.high_water_mark()
    assert before is not None and after is not None and before - after > 200 * MIB


def test_a_running_total_is_no_sum() -> None:
    events = [(3, -100), (1, 100), (2, 50), (4, 60), (5, -110)]
    assert memory.highest(events) == 150


# prediction


@pytest.fixture(scope="module")
def predictor(host: Forked) -> Iterator[Child]:
    child = host.start("lrbench.measure.predict:Predictor", None, Limits())
    yield child
    child.close()


def predicted(predictor: Child, spec: PointSpec) -> dict[str, Any]:
    return dict(predictor.call("predict", LIMIT_S, spec=spec.model_dump(mode="json")))


@pytest.mark.parametrize(("kind", "low", "high"), [("naive", 0.99, 1.01), ("linear", 0.99, 1.01), ("sdpa", 0.85, 1.01)])
def test_m10_predictions_are_exact_but_for_scratch(
    host: Forked, predictor: Child, kind: str, low: float, high: float
) -> None:
    for length in (512, 1024):
        spec = point(f"bare.py:Bare[kind={kind}]", length, mode="train")
        extra = peak(host, spec).extra
        assert extra is not None
        assert low <= predicted(predictor, spec)["extra"] / extra <= high


@pytest.mark.parametrize("model", ["full", "local", "linformer", "performer", "longformer", "linear"])
def test_every_backend_is_predicted(host: Forked, predictor: Child, model: str) -> None:
    spec = point(model, 256, mode="train")
    foreseen, figures = predicted(predictor, spec), peak(host, spec)
    assert figures.extra is not None and figures.total is not None
    assert 0.85 <= foreseen["extra"] / figures.extra <= 1.01
    assert 0.85 <= foreseen["total"] / figures.total <= 1.01


def test_a_prediction_costs_no_memory(predictor: Child) -> None:
    spec = point("bare.py:Bare", 65536, mode="train")
    assert predicted(predictor, spec)["extra"] == pytest.approx(truth(spec, 3, 2), rel=0.001)


def test_what_fake_tensors_cannot_do_is_fitted_to_shorter_lengths() -> None:
    def bytes_at(n: int) -> int:
        return 1000 + 20 * n + 3 * n * n

    lengths = [64, 128, 256]
    assert extrapolated(lengths, [bytes_at(n) for n in lengths], 1024) == pytest.approx(bytes_at(1024), rel=0.001)
    assert extrapolated([64, 128], [1, 2], 256) is None


# operations


def test_p1_operations_are_counted(predictor: Child) -> None:
    spec = point("bare.py:Bare", 512, mode="train")
    unit = spec.width * spec.length**2  # h · n² · d
    assert predicted(predictor, spec) | {"extra": 0, "total": 0} == {
        "executed": 12 * unit,
        "model": 12 * unit,
        "extra": 0,
        "total": 0,
    }
    fused = predicted(predictor, point("bare.py:Bare[kind=sdpa]", 512, mode="train"))
    assert (fused["executed"], fused["model"]) == (14 * unit, 12 * unit)
    unknown = predicted(predictor, point("scan.py:Scan", 512))
    assert (unknown["executed"], unknown["model"]) == (None, None)


def test_a_product_is_counted_exactly(predictor: Child) -> None:
    spec = point("product.py:Product", 512)
    assert predicted(predictor, spec)["model"] == 2 * spec.length * spec.width**2
    assert predicted(predictor, spec.model_copy(update={"mode": "train"}))["model"] == 6 * spec.length * spec.width**2


@pytest.mark.parametrize("impl", ["fused", "math"])
def test_causal_attention_counts_half(predictor: Child, impl: str) -> None:
    spec = point(f"full[impl={impl}]", 256, mode="train")
    causal = spec.model_copy(update={"causal": True})
    attention = 12 * spec.width * spec.length**2
    assert predicted(predictor, spec)["model"] - predicted(predictor, causal)["model"] == attention // 2


# processes


def test_i1_u1_running_out_of_memory_leaves_the_others_alone(host: Forked) -> None:
    small, large = point("bare.py:Bare", 256, mode="train"), point("bare.py:Bare", 4096, mode="train")
    before = peak(host, small)
    failure = failing(host, large, data_bytes=1 << 30)
    assert (failure.status, failure.kind, failure.request) == ("oom", "allocator", 536870912)
    assert "536870912 bytes" in failure.reason
    after = peak(host, small)
    assert (after.extra, after.total) == (before.extra, before.total)


def test_i2_a_limit_is_a_third_measurement_of_the_peak(host: Forked) -> None:
    spec = point("bare.py:Bare", 2048, mode="train")
    # what is live at the start is in the child's limit too: q, k, v, the input and the incoming gradient
    needs = truth(spec, 3, 2) + 5 * 4 * spec.length * spec.width
    assert failing(host, spec, data_bytes=needs - 64 * MIB).status == "oom"
    assert measured(host, spec, data_bytes=needs + 64 * MIB).memory is not None


def test_an_exploder_runs_into_its_limit(host: Forked) -> None:
    failure = failing(host, point("exploder.py:Exploder"), data_bytes=512 * MIB)
    assert (failure.status, failure.kind) == ("oom", "allocator")


def test_numpy_runs_into_the_limit_too(host: Forked) -> None:
    failure = failing(host, point("hoard.py:Hoard[kind=numpy,mib=900]"), data_bytes=256 * MIB)
    assert (failure.status, failure.kind) == ("oom", "python")


def test_i3_u3_whatever_a_plug_in_does_is_a_row(host: Forked) -> None:
    killed = failing(host, point("crasher.py:Crasher"))
    assert (killed.status, killed.kind) == ("oom", "killed")
    ended = failing(host, point("crasher.py:Crasher[code=3]"))
    assert (ended.status, ended.reason) == ("error", "the process ended with exit code 3")
    for where in ("init", "forward", "backward"):
        raised = failing(host, point(f"raiser.py:Raiser[where={where}]", mode="train"))
        assert (raised.status, raised.reason) == ("error", f"ValueError: in {where}")
    assert peak(host, point("full")).extra


def test_i3_a_hanger_is_ended(host: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrbench.measure.point.GRACE_S", 0.5)
    started = monotonic()
    assert failing(host, point("hanger.py:Hanger"), limit_s=0.5).status == "timeout"
    assert monotonic() - started < 20
    assert peak(host, point("full")).extra


def test_rubbish_on_stdout_does_no_harm(host: Forked) -> None:
    assert peak(host, point("printer.py:Printer")).extra


def test_an_unsupported_length_is_no_error(host: Forked) -> None:
    assert failing(host, point("linformer", causal=True)).status == "unsupported"


@pytest.mark.parametrize("model", ["local", "linear", "performer"])
def test_only_what_can_be_read_in_parts_streams(host: Forked, model: str) -> None:
    assert failing(host, point(model, mode="stream")).status == "unsupported"


@pytest.mark.parametrize("model", ["linear", "transformer-xl[segment=64,memory=64]"])
def test_a_stream_needs_as_much_memory_however_long_it_is(host: Forked, model: str) -> None:
    short, long = (peak(host, point(model, n, mode="stream", causal=True)).extra for n in (1024, 4096))
    assert short is not None and long is not None
    assert long < 1.1 * short


@twice
def test_i4_children_use_threads_and_start_at_once(host: Forked) -> None:
    spec = point("full", 128, mode="train", threads=2)
    with_threads = worker(host, spec, threads=2)
    with_threads.call("first", LIMIT_S)
    with_threads.call("warm_up", LIMIT_S)
    with_threads.close()
    took = []
    for _ in range(20):
        started = monotonic()
        child = worker(host, point("sleeper.py:Sleeper[ms=0]"))
        child.call("first", LIMIT_S)
        child.close()
        took.append(monotonic() - started)
    assert statistics.median(took) <= 0.25


def test_i5_a_server_that_used_two_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(PLUGINS), str(Path(__file__).parents[1])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    with pytest.raises(Missing, match="threads"):
        Forked("threaded")


def test_children_end_with_their_server() -> None:
    with Forked() as server:
        child = worker(server, point("sleeper.py:Sleeper"))
        process = psutil.Process(child._pid)  # type: ignore[attr-defined]
    child.close()
    assert process.wait(10) is None or not process.is_running()


def test_a_new_interpreter_measures_the_same(host: Forked) -> None:
    spec = point("bare.py:Bare", 256, mode="train")
    with Spawned() as spawned:
        assert peak(spawned, spec).extra == peak(host, spec).extra


def test_without_a_child_a_failure_is_a_failure_still() -> None:
    with Inline() as inline:
        child = worker(inline, point("raiser.py:Raiser[where=forward]"))
        with pytest.raises(Failure, match="in forward"):
            child.call("first", LIMIT_S)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), "oom"),
        (RuntimeError("std::bad_alloc"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("Storage size calculation overflowed with sizes=[1]"), "error"),
        (SystemExit(3), "error"),
    ],
)
def test_only_want_of_memory_is_oom(error: BaseException, status: str) -> None:
    assert classify(error).status == status


# time


@twice
def test_a_sleeper_is_read_back(host: Forked) -> None:
    times = race(host, {"sleeper": point("sleeper.py:Sleeper")}, rounds=3).run()["sleeper"]
    assert times.median_ms == pytest.approx(20.0, rel=0.05)


@twice
def test_i3_open_case_slow_first_calls_are_over_before_the_first_block(host: Forked) -> None:
    times = race(host, {"sleeper": point("sleeper.py:Sleeper[ms=10,warming=true]")}, rounds=3).run()["sleeper"]
    assert 10 <= times.median_ms <= 12
    assert times.first_ms[0] >= 40


@twice
def test_t3_the_first_recorded_call_is_warm(host: Forked) -> None:
    child = worker(host, point("full", 512, mode="train"))
    child.call("first", LIMIT_S)
    child.call("warm_up", LIMIT_S)
    calls = child.call("block", LIMIT_S)["calls"]
    child.close()
    assert calls[0] <= 2 * statistics.median(calls)


@twice
def test_t4_waiting_for_a_cpu_is_noticed(host: Forked) -> None:
    child = worker(host, point("full", 256, mode="train"))
    child.call("first", LIMIT_S)
    cpu = {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(child._pid, cpu)  # type: ignore[attr-defined]
    code = f"import os; os.sched_setaffinity(0, {cpu})\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", code])
    try:
        child.call("warm_up", LIMIT_S)
        delay = max(child.call("block", LIMIT_S)["delay"] for _ in range(3))
    finally:
        busy.kill()
        busy.wait()
        child.close()
    assert delay > REPEATED > CONTENDED


def test_t5_nothing_slows_a_timed_process(host: Forked) -> None:
    for pinned in (False, True):
        child = worker(host, point("full"), pinned=pinned)
        child.call("first", LIMIT_S)
        assert child.call("finish", LIMIT_S)["disturbed"] == (["pinned malloc"] if pinned else [])
        child.close()


def test_t6_subnormal_numbers_are_flagged(host: Forked) -> None:
    times = race(host, {"tiny": point("tiny.py:Tiny"), "full": point("full")}, rounds=1).run()
    assert "denormals" in time_flags(times["tiny"], 0.05)
    assert "denormals" not in time_flags(times["full"], 0.05)


def race(host: Children, specs: dict[str, PointSpec], **rules: Any) -> Race:
    """One generation, unless told otherwise."""
    given = {"precision": 0.05, "least": 1, "most": 1, "rounds": 5, "budget_s": 60.0, "time_limit_s": 60.0} | rules
    return Race(host, specs, next(iter(specs)), Limits(), Rules(**given), random.Random(0), lambda: None)


class Clockwork:
    """Children whose blocks take what is written for them: `take(key)` in milliseconds, then a share of waiting."""

    def __init__(self, take: Callable[[str], float], delay: Callable[[str], float] = lambda key: 0.0) -> None:
        self.take, self.delay = take, delay
        self.started: list[str] = []

    def start(self, target: str, payload: Any, limits: Limits, timeout_s: float = 0.0) -> "Clock":
        key = payload["attention"]["name"]
        self.started.append(key)
        return Clock(self, key)


class Clock:
    def __init__(self, work: Clockwork, key: str) -> None:
        self.work, self.key = work, key

    def call(self, method: str, timeout_s: float, **_: Any) -> dict[str, Any]:
        if method == "finish":
            return {"denormals": 0, "notes": [], "disturbed": []}
        ms = self.work.take(self.key)
        if method == "block":
            return {"ms": ms, "calls": [ms], "delay": self.work.delay(self.key), "spent_s": 0.0}
        return {"ms": ms, "spent_s": ms / 1e3, "call_s": ms / 1e3}

    def close(self) -> None: ...


PAIR = {"full": point("full"), "local": point("local")}


def test_a_race_ends_when_it_is_precise() -> None:
    host: Any = Clockwork(lambda key: {"full": 2.0, "local": 1.0}[key])
    times = race(host, PAIR, least=3, most=9).run()
    assert len(host.started) == 2 * 3
    assert [len(rounds) for rounds in times["local"].rounds] == [5, 5, 5]
    assert log_ratios(times["local"].rounds, times["full"].rounds) == pytest.approx([-math.log(2)] * 3)
    assert time_flags(times["local"], 0.05) == []


def test_a_race_that_stays_imprecise_says_so() -> None:
    rng = random.Random(1)
    host: Any = Clockwork(lambda key: math.exp(rng.gauss(0.0, 1.0)))
    times = race(host, PAIR, least=3, most=6, budget_s=math.inf).run()
    assert len(times["local"].rounds) == 6
    assert time_flags(times["local"], 0.05) == ["precision_missed"]


def test_who_fails_in_a_first_block_leaves_no_empty_generation() -> None:
    calls = []

    def take(key: str) -> float:
        calls.append(key)
        if key == "local" and calls.count(key) == 3:  # after the first call and the warm-up
            raise Failure("oom", "no more")
        return 1.0

    times = race(Clockwork(take), PAIR).run()  # type: ignore[arg-type]
    assert times["local"].failure is not None and times["local"].rounds == []
    assert times["full"].median_ms == 1.0


def test_a_race_without_time_is_one_generation() -> None:
    times = race(Clockwork(lambda key: 1.0), PAIR, least=3, most=9, budget_s=0.0).run()  # type: ignore[arg-type]
    assert [len(rounds) for rounds in times["local"].rounds] == [1]
    assert time_flags(times["local"], 0.05) == ["single_generation", "precision_missed"]


def test_the_others_go_on_without_one_that_fails() -> None:
    def take(key: str) -> float:
        if key == "full":
            raise Failure("timeout", "too slow")
        return 1.0

    times = race(Clockwork(take), PAIR | {"linear": point("linear")}, least=3, most=9).run()  # type: ignore[arg-type]
    assert times["full"].failure is not None and times["full"].failure.status == "timeout"
    assert len(times["local"].rounds) == len(times["linear"].rounds) == 3
    assert time_flags(times["linear"], 0.05) == []


def test_a_block_that_waited_is_tried_again_and_the_calmest_is_kept() -> None:
    waits = iter([0.5, 0.4, 0.05] + [0.0] * 100)
    taken: list[float] = []

    def take(key: str) -> float:
        taken.append(float(len(taken)))
        return 1.0 + taken[-1]

    host: Any = Clockwork(take, lambda key: next(waits))
    times = race(host, {"full": point("full")}, rounds=2).run()["full"]
    assert times.rounds == [[5.0, 6.0]]  # two calls to get going, then 3, 4 and 5, of which the third waited least
    assert times.delays == [0.05, 0.0]


def test_a_noisy_share_of_blocks_is_flagged() -> None:
    times = Times(rounds=[[1.0, 1.0]], first_ms=[1.0], minimum_ms=1.0, calls=2, delays=[0.0, 0.3], half_width=0.01)
    assert "contended" in time_flags(times, 0.05)


def test_a_slow_call_is_its_own_warm_up_and_its_own_block() -> None:
    slow = iter([1.5] * 10)
    assert timing.warm_up(lambda: next(slow), 3.0) == 1.5
    assert timing.block(lambda: next(slow), 1.5) == [1.5]
    fast = iter([0.04] * 99)
    assert timing.warm_up(lambda: next(fast), 0.2) == pytest.approx(4 * 0.04)
    assert timing.block(lambda: next(fast), 0.04) == [0.04] * 3


def test_a_failed_point_has_no_figures() -> None:
    found = Found(failure=Failure("oom", "out of memory"), foreseen=True)
    written = assemble(point("full"), found, 1e9, 0.05, control=False)
    assert (written.status, written.predicted) == ("oom", True)
    assert written.time_ms is written.memory_bytes is written.flops is written.tokens_per_s is None


# energy


def rapl(folder: Path, **zones: tuple[str, int, int]) -> Path:
    """A powercap folder: name, microjoules and range of each zone."""
    for zone, (name, energy_uj, whole) in zones.items():
        place = folder / zone.replace("_", ":").replace("rapl", "intel-rapl")
        place.mkdir(parents=True, exist_ok=True)
        for file, value in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", whole)):
            (place / file).write_text(f"{value}\n")
    return folder


def test_energy_is_that_of_all_packages_and_of_no_part_twice(tmp_path: Path) -> None:
    zones = {"rapl_0_0": ("core", 9, 99), "rapl_2": ("psys", 9, 99), "rapl_1": ("package-1", 500, 10**9)}
    rapl(tmp_path, rapl_0=("package-0", 1_000_000, 10**9), **zones)
    counter = energy.Rapl(tmp_path)
    before = counter.read()
    assert before == [1_000_000, 500]
    rapl(tmp_path, rapl_0=("package-0", 3_000_000, 10**9), rapl_1=("package-1", 1_000_500, 10**9))
    assert counter.joules(before, counter.read()) == pytest.approx(3.0)


def test_an_energy_counter_that_starts_again_is_followed(tmp_path: Path) -> None:
    counter = energy.Rapl(rapl(tmp_path, rapl_0=("package-0", 9_000_000, 9_999_999)))
    before = counter.read()
    rapl(tmp_path, rapl_0=("package-0", 2_000_000, 9_999_999))
    assert counter.joules(before, counter.read()) == pytest.approx(3.0)


def test_without_a_readable_counter_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    assert energy.about("cpu") == {"source": None, "idle_w": None, "reason": "no energy counters of the processor here"}
    rapl(tmp_path, rapl_0=("package-0", 1, 9))
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir()  # root reads whatever has no permissions
    assert energy.about("cpu")["reason"] == "is a directory"
    assert "no energy counter" in energy.about("mps")["reason"]


def test_idle_power_is_taken_off_and_short_intervals_say_nothing() -> None:
    blocks = [energy.Spent(30.0, 4, 1.0), energy.Spent(50.0, 6, 1.0)]
    assert energy.per_call(blocks, 10.0) == (6.0, "")
    assert energy.per_call([], 10.0) == (None, "")
    for given, idle_w, reason in ((blocks, None, "idle"), (blocks, 50.0, "idle"), ([(9.0, 1, 0.5)], 1.0, "too few")):
        joules, why = energy.per_call([energy.Spent(*block) for block in given], idle_w)
        assert joules is None and reason in why


def test_a_gpus_counter_is_that_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1000, 1000, 3500])
    driver = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda gpu: {"GPU-abc": next(readings)}[gpu],
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="abc"))
    counter = energy.meter("cuda:0")
    assert counter.joules(counter.read(), counter.read()) == 2.5
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy.about("cuda:0")["reason"] == "the package pynvml is not installed"


def test_a_timed_point_has_the_energy_of_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", rapl(tmp_path, rapl_0=("package-0", 0, 10**12)))
    worker = timing.TimeWorker(point("sleeper.py:Sleeper[ms=30]").model_dump(mode="json"))
    worker.first()
    file, stop = tmp_path / "intel-rapl:0" / "energy_uj", iter(range(0, 10**9, 10**7))
    monkeypatch.setattr(type(worker._meter), "read", lambda self: [next(stop)])
    found = worker.block()
    assert file.exists() and found["energy"].joules == 10.0
    assert found["energy"].calls == len(found["calls"]) + timing.DISCARDED
    times = Times(
        rounds=[[1.0]], first_ms=[1.0], minimum_ms=1.0, calls=3, energy=[energy.Spent(30.0, 2, 2.0)], half_width=0.0
    )
    made = assemble(point("full"), Found(times=times), None, 0.05, control=False, idle_w=5.0)
    assert made.energy_j == 10.0 and not made.notes
