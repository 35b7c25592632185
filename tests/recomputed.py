"""Whether a report's numbers are those of the records: read from the page, and computed again from the plain files.

Knows nothing of lrbench: the page as HTML, records as JSON, statistics by scipy. `python tests/recomputed.py
results/reproduce` checks `report.html` there; exit 1 names the first number that differs.
"""

import json
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

SHOWN = {"accuracy": (100, 1), "bits_per_dim": (1, 3), "bits_per_byte": (1, 3), "perplexity": (1, 2)}


class Tables(HTMLParser):
    """Every table of a page: name of its figure to rows of cell texts, the header first."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[list[str]]] = {}
        self.name, self.inside = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "figure":
            self.name = dict(attrs).get("id") or ""
        elif tag == "tr":
            self.found.setdefault(self.name.removeprefix("table-"), []).append([])
        elif tag in ("td", "th"):
            self.found[self.name.removeprefix("table-")][-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            cells = self.found[self.name.removeprefix("table-")][-1]
            cells[-1] = (cells[-1] + data).strip().removesuffix("≈").strip()


def check(results: Path, page: Path) -> int:
    """How many numbers were compared.

    Raises:
        AssertionError: one differs.
    """
    tables = Tables(page.read_text(encoding="utf-8")).found
    records = [json.loads(path.read_text()) for path in sorted((results / "runs").rglob("record.json"))]
    compared = _scores(records, tables) + _costs(records, tables)
    for folder in sorted(path.parent for path in results.rglob("points.jsonl")):
        compared += _study(folder, tables)
    return compared


def _same(where: str, shown: str, wanted: str) -> int:
    assert shown == wanted, f"{where}: the page says {shown!r}, the records {wanted!r}"
    return 1


def _label(spec: dict[str, Any]) -> str:
    asked = ",".join(f"{key}={value}" for key, value in spec["attention"]["settings"].items())
    return spec["attention"]["name"] + (f"[{asked}]" if asked else "")


def _groups(records: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Good runs by task, preset and model."""
    groups = defaultdict(list)
    for record in records:
        if record["status"] == "ok":
            groups[record["task"]["name"], record["preset"], _label(record["spec"])].append(record)
    return groups


def _scores(records: list[dict[str, Any]], tables: dict[str, list[list[str]]]) -> int:
    compared = 0
    for (task, preset, model), group in _groups(records).items():
        metric = group[0]["spec"]["task"]["metric"]["name"]
        scale, digits = SHOWN[metric]
        values = [scale * record["metrics"]["test"][metric] for record in group]
        (row,) = [row for row in tables[f"scores-{task}-{preset}"] if row[0] == model and row[1] != "–"]
        compared += _same(f"{task}, {model}, n", row[1], str(len(group)))
        compared += _same(f"{task}, {model}, {metric}", row[2], f"{np.mean(values):.{digits}f}")
        if len(values) > 1:
            half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
            low, high = max(0.0, np.mean(values) - half), np.mean(values) + half
            if metric == "accuracy":
                high = min(100.0, high)
            compared += _same(f"{task}, {model}, interval", row[3], f"{low:.{digits}f} to {high:.{digits}f}")
        if group[0]["parameters"]:
            compared += _same(f"{task}, {model}, parameters", row[6], f"{group[0]['parameters']['total']:,}")
        for name, score in (group[0]["baselines"] or {}).items():
            (row,) = [row for row in tables[f"scores-{task}-{preset}"] if row[0] == name]
            compared += _same(f"{task}, {name}", row[2], f"{scale * score:.{digits}f}")
    return compared


def _costs(records: list[dict[str, Any]], tables: dict[str, list[list[str]]]) -> int:
    compared = 0
    groups = _groups(records)
    for (task, preset, model), group in groups.items():
        (row,) = [row for row in tables["costs"] if row[:3] == [task, preset, model]]
        seconds = np.mean([record["time"]["train_s"] for record in group])
        speed = np.mean([record["speed"]["train_tokens_per_s"] for record in group])
        peak = max(record["memory"]["peak_bytes"] for record in group) / 2**20
        compared += _same(f"{task}, {model}, seconds", row[4], f"{seconds:,.1f}")
        compared += _same(f"{task}, {model}, tokens/s", row[5], f"{speed:,.0f}")
        compared += _same(f"{task}, {model}, MiB", row[7], f"{peak:,.0f}")
        if full := groups.get((task, preset, "full")):
            ratio = speed / np.mean([record["speed"]["train_tokens_per_s"] for record in full])
            compared += _same(f"{task}, {model}, beside full", row[6], f"{ratio:.2f}")
    return compared


def _study(folder: Path, tables: dict[str, list[list[str]]]) -> int:
    record = json.loads((folder / "record.json").read_text())
    name = "scale-" + record["study_id"]
    header, *times = tables[f"{name}-times"]
    peaks = {row[0]: row for row in tables[f"{name}-peaks"][1:]}
    compared = 0
    points = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    for point in points:
        if point["status"] == "ok" and not point["control"]:
            column, model = header.index(str(point["length"])), _label(point["spec"])
            (row,) = [row for row in times if row[0] == model]
            where = f"{model} at {point['length']}"
            flagged = "!" if {"contended", "precision_missed"} & set(point["flags"]) else ""
            compared += _same(f"{where}, ms", row[column], _three(point["time_ms"]["median"]) + flagged)
            memory = point["memory_bytes"]
            seen = "untracked" in point["flags"] and memory["resident"] is not None
            peak = max(memory["extra"], memory["resident"]) if seen else memory["extra"]
            untracked = "?" if "untracked" in point["flags"] else ""
            compared += _same(f"{where}, MiB", peaks[model][column], _three(peak / 2**20) + untracked)
    exponents = {row[0]: row for row in tables[f"{name}-exponents"][1:]}
    for model, fits in record["models"].items():
        if fits["time"] and fits["time"]["exponent"] is not None:
            wanted = f"{fits['time']['exponent']:.2f}"
            compared += _same(f"{model}, exponent of time", exponents[model][2].rstrip("oc"), wanted)
        for crossing in fits["crossover"]:
            (row,) = [row for row in tables[f"{name}-crossovers"] if row[:2] == [model, crossing["against"]]]
            compared += _same(f"{model} against {crossing['against']}", row[2], crossing["text"])
        (row,) = [row for row in tables[f"{name}-longest"] if row[0] == model]
        compared += _same(f"{model}, longest", row[1], str(fits["longest_fitted"] or "–"))
    return compared


def _three(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    place = Path(sys.argv[1])
    try:
        print(f"{check(place, place / 'report.html')} numbers of the page are those of the records")
    except AssertionError as difference:
        sys.exit(f"error: {difference}")
