"""What `--track` writes."""

from pathlib import Path

import pytest

from lrbench import trial
from lrbench.specs import RunSpec


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's own
def test_tensorboard_gets_the_validation_accuracy_below_the_run_folder(toy_spec: RunSpec, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    order = trial.Order(spec=toy_spec, run_id="run", folder=folder, cache=tmp_path / "cache", track="tensorboard")
    record = trial.run(order)
    assert record.status == "ok" and record.metrics is not None
    places = {path.parent for path in folder.rglob("events.out.tfevents.*")}
    seen = {}
    for place in places:
        events = EventAccumulator(str(place)).Reload()
        seen.update({tag: events.Scalars(tag) for tag in events.Tags()["scalars"]})
    logged = {event.step: event.value for event in seen["validation/accuracy"]}
    best = record.metrics.validation
    assert logged[best.step] == pytest.approx(best.accuracy, abs=1e-6)
    assert "train/loss" in seen and "test/accuracy" in seen
