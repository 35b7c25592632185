"""Results folders for tests of reports: records as runs leave them, with seeds, failures and learning curves."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from test_report import record

from lrbench import records
from lrbench.records import RunRecord

MODELS = {"full": (50, 52, 48, 51), "performer": (51, 50, 49, 50), "local": (30, 31, 29, 30)}


def written(root: Path, found: Iterable[RunRecord]) -> Path:
    """Records in a results folder, each with a short learning curve."""
    for number, each in enumerate(found):
        folder = root / "runs" / each.task.name / f"model-{number}" / each.run_id
        folder.mkdir(parents=True)
        records.write(each, folder)
        curve = [{"step": step, "split": "validation", "accuracy": step / 100} for step in (10, 20, 30)]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, [{"step": 1, "loss": 2.0}, *curve])))
    return root


def comparison(task: str = "listops", preset: str = "small", **more: Any) -> list[RunRecord]:
    """Three models, four seeds each, on one task."""
    return [
        record(model, seed, correct, task={"name": task, "card_version": 1}, preset=preset, **more)
        for model, scores in MODELS.items()
        for seed, correct in enumerate(scores)
    ]
