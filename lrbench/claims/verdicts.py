"""From an interval and what is expected of it to a word."""

from collections.abc import Sequence
from typing import Literal

from lrbench.claims.measured import Measured
from lrbench.claims.spec import Expected

Verdict = Literal["reproduced", "contradicted", "inconclusive", "not run here"]


def judge(measured: Measured, expected: Expected) -> Verdict:
    """Reproduced: the whole interval is within the bounds; contradicted: all of it is beyond one of them."""
    if measured.low is None or measured.high is None:
        return "inconclusive"
    least, most = expected.least, expected.most
    within = (least is None or measured.low >= least - expected.tolerance) and (
        most is None or measured.high <= most + expected.tolerance
    )
    beyond = (least is not None and measured.high < least - expected.tolerance) or (
        most is not None and measured.low > most + expected.tolerance
    )
    return "reproduced" if within else "contradicted" if beyond else "inconclusive"


def together(parts: Sequence[Verdict]) -> Verdict:
    """Of a claim: one part contradicted is enough, and reproduced is only what is so in every part."""
    if not parts or set(parts) == {"not run here"}:
        return "not run here"
    if "contradicted" in parts:
        return "contradicted"
    return "reproduced" if set(parts) == {"reproduced"} else "inconclusive"
