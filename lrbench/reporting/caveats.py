"""What a reader has to know before believing a page: each caveat found in the records, none that does not apply."""

from collections import Counter
from collections.abc import Iterator, Sequence

from lrbench.reporting.material import Material
from lrbench.reporting.scaling import title
from lrbench.reporting.scores import Comparison, machine

ARENA = {"listops", "text", "retrieval", "image", "pathfinder32", "pathx"}


def caveats(material: Material, comparisons: Sequence[Comparison]) -> list[str]:
    """All that applies, the gravest first."""
    return [
        *_left_out(material),
        *_failures(material),
        *_protocol(comparisons),
        *_seeds(comparisons),
        *_machines(material, comparisons),
        *_studies(material),
        *_field(comparisons),
        *material.remarks,
    ]


def _left_out(material: Material) -> Iterator[str]:
    if material.left_out:
        yield f"Files or lines that could not be read and are not counted: {len(material.left_out)}, listed below."


def _failures(material: Material) -> Iterator[str]:
    counts = Counter(record.status for record in material.records if record.status != "ok")
    if counts:
        told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        yield f"Of {len(material.runs)} runs did not end well: {told}. They are rows of their tables, with the reason."


def _protocol(comparisons: Sequence[Comparison]) -> Iterator[str]:
    presets = sorted({comparison.preset for comparison in comparisons})
    if presets and presets != ["paper"]:
        yield (
            f"Preset{'s' * (len(presets) > 1)} {' and '.join(presets)}: scores of a preset other than 'paper' are of"
            " smaller models, shorter training or easier data than the papers', and no match for their figures."
        )
    if len(presets) > 1:
        yield "Results of several presets are here. They share no table and no average."
    twice = [task for task, count in Counter((each.task, each.preset) for each in comparisons).items() if count > 1]
    for task, preset in twice:
        yield f"Runs on {task} (preset {preset}) differ in data, sizes or recipe: they stand in tables of their own."
    stand_ins = sorted({comparison.task for comparison in comparisons if "stand-in" in comparison.sources})
    if stand_ins:
        yield f"{', '.join(stand_ins)}: run on stand-ins for the data, which are no benchmark."
    changed = sorted({comparison.task for comparison in comparisons if comparison.changed})
    if changed:
        yield f"{', '.join(changed)}: not as on the card, in all rows; what differs is said below each table."


def _seeds(comparisons: Sequence[Comparison]) -> Iterator[str]:
    good = [(comparison, row) for comparison in comparisons for row in comparison.rows if row.mean is not None]
    alone = [row for _, row in good if len(row.seeds) == 1]
    if alone:
        yield (
            f"{len(alone)} of {len(good)} scores are of a single seed: no test can tell them from others, and their"
            " intervals are over test examples only."
        )
    few = [row for _, row in good if 1 < len(row.seeds) < 5]
    if few:
        yield f"{len(few)} of {len(good)} scores are of fewer than five seeds: only large differences can be found."


def _machines(material: Material, comparisons: Sequence[Comparison]) -> Iterator[str]:
    mixed = [comparison for comparison in comparisons if len(comparison.machines) > 1]
    for comparison in mixed:
        yield (
            f"{comparison.title}: runs come from {len(comparison.machines)} unlike machines"
            f" ({'; '.join(comparison.machines)}). Scores stand side by side, times and memory of different rows do not"
            " compare and are averaged over no two machines."
        )
    busy = [record for record in material.records if _busy(record.environment)]
    if busy:
        yield f"{len(busy)} runs began on a busy machine (more was running than it has CPUs): their times are too long."
    if any(record.environment.get("hypervisor") for record in material.records):
        machines = {machine(record) for record in material.records if record.environment.get("hypervisor")}
        yield f"Virtual machine ({'; '.join(sorted(machines))}): others may share it, and its times vary."
    dirty = [record for record in material.records if record.environment.get("git_dirty")]
    if dirty:
        yield f"{len(dirty)} runs were made with changes to lrbench that are in no commit."


def _busy(environment: dict[str, object]) -> bool:
    load, cores = environment.get("load_average"), environment.get("logical_cores")
    return isinstance(load, list) and bool(load) and isinstance(cores, int) and load[0] > 1.25 * cores


def _studies(material: Material) -> Iterator[str]:
    for study in material.studies:
        record = study.record
        if record.noise and record.noise.floor is not None and record.noise.floor > record.precision.asked:
            yield (
                f"Scaling ({title(record)}): noisy machine. Two copies of one model differed by"
                f" {record.noise.floor:.0%}, so smaller differences are none."
            )
        if record.precision.missed:
            yield (
                f"Scaling ({title(record)}): {record.precision.missed} points are less precise than the"
                f" ±{record.precision.asked:.0%} that were asked for."
            )
        yield from (f"Scaling ({title(record)}): {warning}" for warning in record.warnings)


def _field(comparisons: Sequence[Comparison]) -> Iterator[str]:
    if {comparison.task for comparison in comparisons} & ARENA:
        yield (
            "The Long-Range Arena shows less than its name says: pretraining closes most gaps between models"
            " (arXiv 2310.02980), much of it can be had locally (arXiv 2501.14850), and what a rule without any model"
            " scores is high. It says nothing about language models."
        )
