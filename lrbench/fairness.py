"""Whether a run kept to its card: computed from the resolved spec and the parameter counts, never declared.

The rules are the Long-Range Arena's: sizes, layers and the task as on the card, and at most 10 % more parameters
than full attention has there, counted with and without position tables.
"""

from typing import Any

from lrbench.catalog import leaves
from lrbench.records import Fairness, Parameters, RunRecord
from lrbench.specs import Preset, RunSpec

MORE_PARAMETERS = 1.10
SAME_RESULT = {"train.micro_tokens", "train.checkpointing"}  # how an update is cut, and what is kept for backward
NOT_A_DEVIATION = {"data.source", *SAME_RESULT}  # and whether data are genuine or generated
LATER = {"train.stages", "train.growth", "train.patience"}  # not in older records, which did as if they were empty
PROTOCOL = ("data", "model", "train", "dtype", "device", "compile", "threads")  # sections of a resolved run


def deviations(card: Preset, resolved: Preset) -> list[str]:
    """Each field of the resolved run that is not as on the card."""
    wanted, found = leaves(card.model_dump()), leaves(resolved.model_dump())
    return [
        f"{key} is {found.get(key)}, the card says {wanted.get(key)}"
        for key in dict.fromkeys([*wanted, *found])
        if key not in NOT_A_DEVIATION and wanted.get(key) != found.get(key)
    ]


def judge(deviating: list[str], parameters: Parameters, base: Parameters) -> Fairness:
    """The track of a run and the reasons for it."""
    reasons = list(deviating)
    for what, own, full in (
        ("parameters", parameters.total, base.total),
        ("parameters without position tables", parameters.total - parameters.positional, base.total - base.positional),
    ):
        if own > full * MORE_PARAMETERS:
            reasons.append(f"{own:,} {what}, {own / full - 1:.0%} more than full attention's {full:,}")
    return Fairness(track="free-for-all" if reasons else "apples-to-apples", reasons=reasons)


def preset(spec: RunSpec) -> Preset:
    """The part of a run that a card's preset fixes."""
    return Preset(data=spec.data, model=spec.model, train=spec.train)


def protocol(record: RunRecord) -> dict[str, Any]:
    """How a run was done, apart from its model and seed: runs that differ in any of it share no table."""
    sections = leaves({name: record.spec.get(name) for name in PROTOCOL})
    for key in SAME_RESULT | {key for key in LATER if not sections.get(key)}:
        sections.pop(key, None)
    return {"card version": record.task.card_version, **sections}
