"""Figures from papers: `published/*.csv` of what ships with lrbench and of results folders.

Columns: source, model, backend (its name here, if it is here), task (a card's name), metric, value (accuracy in per
cent), comparable (yes: with preset `paper` of that card; no: `remark` says why), remark.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from lrbench.catalog import shipped
from lrbench.files import told
from lrbench.records import LeftOut, RunRecord, why
from lrbench.specs import Frozen

COMPARABLE_PRESET = "paper"


class Published(Frozen):
    """One figure."""

    source: str
    model: str
    backend: str
    task: str
    metric: str  # a score's, or that of a speed or memory, which no task is scored by
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    comparable: Annotated[bool, BeforeValidator({"yes": True, "no": False}.get)]
    remark: str

    @property
    def score(self) -> float:
        """The value as records have it: accuracy as a share."""
        return self.value / 100 if self.metric == "accuracy" else self.value

    def is_of(self, record: RunRecord) -> bool:
        """Whether this is the attention of the record, with every setting that its name tells."""
        name, _, inner = self.backend.rstrip("]").partition("[")
        wanted = dict(re.findall(r"([^=,]+)=([^,]+)", inner))
        return name == record.model.name and all(
            str(record.model.settings.get(key)) == value for key, value in wanted.items()
        )


def published(places: Sequence[Path], left_out: LeftOut) -> list[Published]:
    """All figures of shipped files and of `published/` in the given folders, each once; comparable ones first."""
    folders = [shipped("results/published"), *(place / "published" for place in places)]
    once = {folder.resolve(): folder for folder in folders}.values()
    paths = [path for folder in once for path in sorted(folder.glob("*.csv"))]
    found = dict.fromkeys(figure for path in paths for figure in _read(path, left_out))
    return sorted(found, key=lambda figure: not figure.comparable)


def _read(path: Path, left_out: LeftOut) -> Iterator[Published]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        left_out(told(path), str(error))
        return
    for number, row in enumerate(rows, start=2):
        try:
            yield Published.model_validate(row)
        except ValidationError as error:
            left_out(f"{told(path)}:{number}", why(error, schema=""))
