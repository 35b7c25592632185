"""The life of a cell: what is left behind in every way it can end."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from accelerate.state import AcceleratorState
from conftest import TOY, changed

from lrbench import fairness, plan, trial
from lrbench.records import Parameters, RunRecord, read
from lrbench.registry import backends
from lrbench.specs import RunSpec, Suite, parse
from lrbench.train.loop import Trainer


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


def order_for(spec: RunSpec, tmp_path: Path, **more: object) -> trial.Order:
    return trial.Order(spec=spec, run_id="an-id", folder=tmp_path / "run", cache=tmp_path / "cache", **more)


def run(spec: RunSpec, tmp_path: Path, **more: object) -> RunRecord:
    AcceleratorState._reset_state(reset_partial_state=True)
    return trial.run(order_for(spec, tmp_path, **more))


def written(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def strictly(text: str) -> object:
    """JSON as a strict reader takes it: no NaN, no key twice."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def test_a_finished_cell_leaves_record_config_and_metrics(toy_spec: RunSpec, tmp_path: Path) -> None:
    record = run(toy_spec, tmp_path)
    folder = tmp_path / "run"
    assert record.status == "ok" and record == read(folder / "record.json")
    assert written(folder) == {"record.json", "config.yaml", "metrics.jsonl"}
    strictly((folder / "record.json").read_text())
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        strictly(line)


def test_a_record_has_the_fields_that_were_promised(toy_spec: RunSpec, tmp_path: Path) -> None:
    record = run(toy_spec, tmp_path).to_json()
    assert record["schema"] == "lrbench.run/1"
    promised = {
        "model": {"name", "settings", "source"},
        "task": {"name", "card_version"},
        "metrics": {"validation", "test", "test_last"},
        "parameters": {"total", "trainable", "embedding", "non_embedding"},
        "fairness": {"track", "reasons"},
        "speed": {"train_steps_per_s", "train_tokens_per_s", "eval_tokens_per_s", "train_padded_tokens_per_s"},
        "memory": {"peak_bytes", "baseline_bytes", "method"},
        "time": {"started_at", "finished_at", "train_s", "eval_s"},
        "data": {"source", "fingerprint", "train_examples", "test_examples"},
        "baselines": {"majority"},
    }
    for name, fields in promised.items():
        assert fields <= set(record[name]), name
    plain = {"run_id", "status", "reason", "preset", "seed", "notes", "environment", "spec", "lrbench_version"}
    assert plain <= set(record)
    assert record["metrics"]["test"]["step"] and 0 <= record["metrics"]["test"]["accuracy"] <= 1
    assert record["data"]["test_examples"] == 37 == record["metrics"]["test"]["examples"]
    assert record["memory"]["peak_bytes"] > 50 * 2**20 and record["memory"]["method"]
    assert record["model"]["settings"] == {"impl": "fused"}  # every option with its value, given or not
    padded, real = record["speed"]["train_padded_tokens_per_s"], record["speed"]["train_tokens_per_s"]
    assert padded > real > 0
    assert not set(record["environment"]) & {"hostname", "user", "cwd"}


def test_the_config_that_is_left_repeats_the_run(toy_spec: RunSpec, tmp_path: Path) -> None:
    run(toy_spec, tmp_path)
    suite = parse(Suite, yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()), "config.yaml")
    (grid,) = suite.grid
    (cell,) = plan.cells(grid, tmp_path)
    assert cell.spec == toy_spec


def test_a_finished_cell_is_not_run_again_unless_told_to(
    toy_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(toy_spec, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained again"))
        assert run(toy_spec, tmp_path) == first
    again = run(toy_spec, tmp_path, fresh=True)
    assert again.metrics == first.metrics and again.time != first.time


def test_an_interrupted_cell_leaves_a_checkpoint_and_no_record(
    toy_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = run(toy_spec, tmp_path / "whole")
    with monkeypatch.context() as patch:
        fit = Trainer.fit
        patch.setattr(Trainer, "fit", lambda self, stop: fit(self, lambda: self.counts.step == 5))
        assert run(toy_spec, tmp_path).status == "interrupted"
    assert written(tmp_path / "run") == {"config.yaml", "metrics.jsonl", "checkpoint"}
    resumed = run(toy_spec, tmp_path)
    assert resumed.status == "ok" and resumed.metrics == undisturbed.metrics
    assert "checkpoint" not in written(tmp_path / "run")


def test_fresh_forgets_a_checkpoint(toy_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit, steps = Trainer.fit, []
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "fit", lambda self, stop: fit(self, lambda: self.counts.step == 5))
        run(toy_spec, tmp_path)
    with monkeypatch.context() as patch:
        step = Trainer._step
        patch.setattr(Trainer, "_step", lambda self, number: (steps.append(number), step(self, number))[1])
        run(toy_spec, tmp_path, fresh=True)
    assert steps[0] == 1


FAULTS = {
    "error": "raise ValueError('what a pity')",
    "oom": "raise MemoryError('no more')",
    "unsupported": "from lrbench.errors import Unsupported; raise Unsupported('not this', 'nor that')",
    "nan": "return v * float('nan')",
}


def faulty(tmp_path: Path, spec: RunSpec, fault: str) -> RunSpec:
    """The spec with a plug-in that fails when it attends."""
    file = tmp_path / "faulty.py"
    head = "from lrbench.backends.base import HeadMixer\n\n\nclass Faulty(HeadMixer):\n"
    file.write_text(f"{head}    def attend(self, q, k, v, mask):\n        {FAULTS[fault]}\n")
    return spec.model_copy(update={"attention": backends.spec(f"{file}:Faulty")})


@pytest.mark.parametrize(
    ("fault", "status", "told"),
    [
        ("error", "error", "ValueError: what a pity"),
        ("oom", "oom", "MemoryError: no more"),
        ("unsupported", "unsupported", "not this"),
        ("nan", "error", "the loss became nan at step 1"),
    ],
)
def test_a_failed_cell_is_a_record_with_a_reason_and_a_traceback(
    toy_spec: RunSpec, tmp_path: Path, fault: str, status: str, told: str
) -> None:
    record = run(faulty(tmp_path, toy_spec, fault), tmp_path)
    assert (record.status, record.reason) == (status, told)
    assert record.metrics is record.speed is record.memory is record.baselines is None
    text = (tmp_path / "run" / "record.json").read_text()
    strictly(text)
    assert "Traceback" in (tmp_path / "run" / "error.txt").read_text()
    assert str(tmp_path) not in json.loads(text)["model"]["source"]


def test_a_failed_cell_is_run_again_and_its_traces_go(toy_spec: RunSpec, tmp_path: Path) -> None:
    run(faulty(tmp_path, toy_spec, "error"), tmp_path)
    assert run(toy_spec, tmp_path).status == "ok"
    assert "error.txt" not in written(tmp_path / "run")


def test_the_last_checkpoint_is_kept_when_asked_for(toy_spec: RunSpec, tmp_path: Path) -> None:
    run(toy_spec, tmp_path, keep_checkpoint=True)
    kept = list((tmp_path / "run" / "checkpoint").glob("step-*.pt"))
    assert [path.name for path in kept] == ["step-000000012.pt"]


def test_missing_data_is_a_reason_and_no_crash(toy_spec: RunSpec, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    shutil.copytree(TOY.parent, folder)
    task = toy_spec.task.model_copy(update={"loader": f"{folder / 'toy.py'}:lod"})
    record = run(toy_spec.model_copy(update={"task": task}), tmp_path)
    assert record.status == "error" and "no function 'lod'" in record.reason


def parameters(total: int, positional: int = 0) -> Parameters:
    rest = total - positional
    return Parameters(total=total, trainable=total, embedding=positional, positional=positional, non_embedding=rest)


@pytest.mark.parametrize(
    ("own", "full", "track"),
    [
        (parameters(1100), parameters(1000), "apples-to-apples"),
        (parameters(1101), parameters(1000), "free-for-all"),
        # within the budget only because of a position table that full attention has
        (parameters(1100, positional=0), parameters(1100, positional=200), "free-for-all"),
    ],
)
def test_a_tenth_more_parameters_is_fair_and_no_more(own: Parameters, full: Parameters, track: str) -> None:
    assert fairness.judge([], own, full).track == track


def test_a_deviation_from_the_card_is_a_reason(toy_spec: RunSpec, tmp_path: Path) -> None:
    record = run(changed(toy_spec, train={"steps": 3}), tmp_path, deviations=["train.steps is 3, the card says 12"])
    assert record.fairness is not None
    assert record.fairness.track == "free-for-all"
    assert record.fairness.reasons == ["train.steps is 3, the card says 12"]


def test_linformer_owns_up_to_its_extra_parameters(toy_spec: RunSpec, tmp_path: Path) -> None:
    spec = toy_spec.model_copy(update={"attention": backends.spec("linformer[k=64]")})
    record = run(spec, tmp_path)
    assert record.fairness is not None and record.fairness.track == "free-for-all"
    assert "more than full attention's" in record.fairness.reasons[0]
