"""What the tests of several tasks share."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lrbench import catalog
from lrbench.loaders.base import DataRequest, Hub
from lrbench.models import heads
from lrbench.registry import backends

ROOT = Path(__file__).parents[1]
GENUINE = ROOT.parent / "shared" / "data"


def genuine(name: str) -> pytest.MarkDecorator:
    """Leaves a test out where the genuine sample is not there."""
    place = GENUINE / name
    return pytest.mark.skipif(not place.is_dir(), reason=f"no genuine files in {place}")


def request_for(task: str, preset: str, **changes: object) -> DataRequest:
    """What the card asks of its loader."""
    card = catalog.task(task)
    data = card.presets[preset].data
    hub = Hub(**card.hub.model_dump()) if card.hub else None
    asked = {"length": data.length, "examples": data.examples, "source": data.source or card.sources[0], "hub": hub}
    return DataRequest(**{"name": task, **asked, **changes})


def model_of(task: str, preset: str, **changes: object) -> heads.Classifier | heads.Matcher:
    """Full attention at a card's sizes."""
    card = catalog.task(task)
    resolved = card.presets[preset]
    return heads.build(
        backends.get("full"), card.facts(), resolved.model.model_copy(update=changes), resolved.data.length
    )


def run_tiny(task: str, folder: Path) -> dict:
    """The record of a run from the command line, without network."""
    command = ["run", "-m", "full", "-t", task, "--preset", "tiny", "--offline", "--json", "--threads", "1"]
    command += ["--out", str(folder / "results"), "--cache-dir", str(folder / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "lrbench", *command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)
    return record
