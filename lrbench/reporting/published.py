"""Figures from papers: `published/*.csv` of what ships with lrbench and of results folders.

Columns: source, model, backend (its name here, if it is here), task (a card's name), metric, value (accuracy in per
cent), comparable (yes: with preset `paper` of that card; no: `remark` says why), remark.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import get_args

from lrbench.files import told
from lrbench.metrics import MetricName
from lrbench.records import LeftOut, RunRecord

COLUMNS = ("source", "model", "backend", "task", "metric", "value", "comparable", "remark")
COMPARABLE_PRESET = "paper"


@dataclass(frozen=True)
class Published:
    """One figure; `value` in the unit that records use, accuracy as a share."""

    source: str
    model: str
    backend: str
    task: str
    metric: MetricName
    value: float
    comparable: bool
    remark: str

    def is_of(self, record: RunRecord) -> bool:
        """Whether this is the attention of the record, with every setting that its name tells."""
        name, _, inner = self.backend.rstrip("]").partition("[")
        wanted = dict(re.findall(r"([^=,]+)=([^,]+)", inner))
        return name == record.model.name and all(
            str(record.model.settings.get(key)) == value for key, value in wanted.items()
        )


def shipped() -> Path:
    """The folder of figures that come with lrbench, in a wheel or in a checkout."""
    packed = Path(str(files("lrbench"))) / "_shipped" / "published"
    return packed if packed.is_dir() else Path(__file__).parents[2] / "results" / "published"


def published(places: Sequence[Path], left_out: LeftOut) -> list[Published]:
    """All figures of shipped files and of `published/` in the given folders, each once."""
    folders = {folder.resolve(): folder for folder in (shipped(), *(place / "published" for place in places))}
    paths = [path for folder in folders.values() for path in sorted(folder.glob("*.csv"))]
    return list(dict.fromkeys(figure for path in paths for figure in _read(path, left_out)))


def _read(path: Path, left_out: LeftOut) -> Iterator[Published]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        left_out(told(path), str(error))
        return
    for number, row in enumerate(rows, start=2):
        missing = [name for name in COLUMNS if row.get(name) is None]
        if missing:
            left_out(f"{told(path)}:{number}", f"no column {missing[0]}")
        elif row["metric"] in get_args(MetricName):  # speeds are no scores
            try:
                yield _figure(row)
            except ValueError:
                left_out(f"{told(path)}:{number}", f"value {row['value']!r} is no number")


def _figure(row: dict[str, str]) -> Published:
    scale = 0.01 if row["metric"] == "accuracy" else 1.0
    return Published(
        source=row["source"],
        model=row["model"],
        backend=row["backend"],
        task=row["task"],
        metric=row["metric"],  # type: ignore[arg-type]
        value=scale * float(row["value"]),
        comparable=row["comparable"] == "yes",
        remark=row["remark"],
    )
