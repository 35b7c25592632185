"""Where every number comes from: machines, versions, fingerprints of data, and the command that repeats each run."""

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lrbench.files import told
from lrbench.records import RunRecord
from lrbench.reporting.material import Material
from lrbench.reporting.scores import label, machine
from lrbench.reporting.tables import Body, Cell, Table, row

SHORT = 12  # letters of a hash
TRAITS = (
    ("cpu_model", "processor"),
    ("physical_cores", "cores"),
    ("cpu_capability", "instructions used"),
    ("memory_total_bytes", "memory"),
    ("gpus", "GPUs"),
    ("os", "system"),
    ("kernel", "kernel"),
    ("hypervisor", "virtual machine"),
    ("python", "Python"),
    ("torch", "torch"),
    ("cuda", "CUDA"),
    ("numpy", "numpy"),
    ("lrbench", "lrbench"),
)


def machines(material: Material) -> Table:
    """Each machine and set of versions that runs and studies were made with."""
    seen: Counter[tuple[str, ...]] = Counter(
        tuple(_trait(key, environment.get(key)) for key, _ in TRAITS) for environment in _environments(material)
    )
    columns = ["what", *(f"machine {number}" for number in range(1, len(seen) + 1))]
    rows = [row(name, *(Cell(traits[place]) for traits in seen)) for place, (_, name) in enumerate(TRAITS)]
    counts = row("runs and studies", *(Cell(str(count)) for count in seen.values()))
    return Table("machines", "Machines and versions", columns, [Body("", [*rows, counts])])


def _environments(material: Material) -> Iterator[dict[str, Any]]:
    yield from (record.environment for record in material.records)
    yield from (study.environment for study in material.studies)


def _trait(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if key == "memory_total_bytes":
        return f"{int(value) / 2**30:.1f} GiB"
    if key == "gpus":
        return ", ".join(str(gpu.get("name")) for gpu in value if isinstance(gpu, dict)) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def runs(material: Material) -> Table:
    """Each run with its date, commit, data and command."""
    columns = ["task", "preset", "model", "seed", "status", "finished", "commit", "data", "repeat with"]
    rows = [_run(folder, record) for folder, record in material.runs.items()]
    notes = [f"Commit and data: the first {SHORT} letters of the hash; + is a commit with changes."]
    return Table("runs", "Runs", columns, [Body("", rows)], frozenset({"seed"}), notes)


def _run(folder: Path, record: RunRecord) -> list[Cell]:
    commit = str(record.environment.get("git_sha") or "")[:SHORT]
    dirty = "+" if record.environment.get("git_dirty") else ""
    return row(
        record.task.name,
        record.preset,
        Cell(label(record), why=machine(record)),
        Cell(str(record.seed), record.seed),
        Cell(record.status, mark="" if record.status == "ok" else "bad", why=record.reason),
        record.time.finished_at,
        commit + dirty or "–",
        record.data.fingerprint[:SHORT] if record.data else "–",
        f"lrbench run --suite {shlex.quote(told(folder / 'config.yaml'))}",
    )


def studies(material: Material) -> Table:
    """Each scaling study with its settings and command."""
    columns = ["study", "finished", "lrbench", "seconds", "repeat with"]
    rows = [
        row(
            study.record.study_id,
            study.record.finished_at,
            study.record.lrbench_version,
            f"{study.record.seconds.get('total', 0.0):,.0f}",
            f"lrbench scale {' '.join(_flags(study.record.settings, study.record.mode))}",
        )
        for study in material.studies
    ]
    return Table("studies", "Scaling studies", columns, [Body("", rows)])


def _flags(settings: dict[str, Any], mode: str) -> Iterator[str]:
    """The settings of a study as flags; what was not set is left out."""
    models = settings.get("models")
    if isinstance(models, list):
        yield f"-m {shlex.quote(','.join(map(str, models)))}"
    lengths = settings.get("lengths")
    if isinstance(lengths, list):
        yield f"--lengths {','.join(map(str, lengths))}"
    yield f"--mode {mode}"
    for key in ("batch", "tokens", "width", "heads", "level", "dtype", "device", "threads", "seed"):
        if settings.get(key) is not None:
            yield f"--{key} {settings[key]}"
    yield from (f"--{key}" for key in ("causal", "compile") if settings.get(key))


def left_out(material: Material) -> Table:
    """Files and lines that could not be read, with the reason."""
    rows = [row(place, reason) for place, reason in material.left_out]
    return Table("left-out", "Not counted", ["file", "why"], [Body("", rows)])


def date(material: Material) -> str:
    """The day of the newest result."""
    times = [record.time.finished_at for record in material.records]
    times += [study.record.finished_at for study in material.studies]
    return max(times, default="")[:10] or "unknown"
