"""Claims of two results folders side by side: what no longer holds, and what has come to hold.

What a claim measures (exponents, ratios, gaps, scores) is meant to be the same on every machine, within its interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lrbench.claims.measured import Measured
from lrbench.claims.records import ClaimRecord, PartRecord
from lrbench.claims.verdicts import Verdict
from lrbench.compare import SIDES, Line
from lrbench.records import dumps

Key = tuple[str, str, str]  # claim, label, and what was asked for: a claim may have one label twice
RANKS: dict[Verdict, int] = {"contradicted": 0, "inconclusive": 1, "reproduced": 2}


def compare_claims(old: Sequence[ClaimRecord], new: Sequence[ClaimRecord]) -> Iterator[Line]:
    """Every quantity of every claim that either side has measured.

    worse, better: the verdict has changed from or to `contradicted`, and the intervals do not meet. Where they meet,
    such a change is undecided.
    """
    before, after = (dict(_parts(side)) for side in (old, new))
    for key in dict.fromkeys([*before, *after]):
        yield _compared(key, before.get(key), after.get(key))


def _parts(records: Sequence[ClaimRecord]) -> Iterator[tuple[Key, PartRecord]]:
    for record in records:
        for part in record.parts:
            if part.measured is not None:
                yield (record.id, part.label, dumps([part.quantity, part.asked])), part


def _compared(key: Key, there: PartRecord | None, here: PartRecord | None) -> Line:
    line = Line("claims", f"{key[0]}, {key[1]}", "claim", "no difference")
    if there is None or here is None or there.measured is None or here.measured is None:
        return replace(line, verdict="not comparable", reason=f"only in the {SIDES[here is not None]}")
    old, new = there.measured, here.measured
    line = replace(line, old=old.value, new=new.value, low=new.low, high=new.high, n=new.n)
    if there.verdict == here.verdict or "contradicted" not in (there.verdict, here.verdict):
        return line
    told = f"{there.verdict}, now {here.verdict}"
    if _meet(old, new):
        return replace(line, verdict="undecided", reason=told)
    worse = RANKS[here.verdict] < RANKS[there.verdict]
    return replace(line, verdict="worse" if worse else "better", reason=told)


def _meet(one: Measured, other: Measured) -> bool:
    """Whether the intervals have a point in common; one that is not known meets all."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return True
    return one.low <= other.high and other.low <= one.high
