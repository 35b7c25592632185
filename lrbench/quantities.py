"""Amounts as they are typed: `8GB`, `60s`, `5%`."""

import re

from lrbench.errors import SpecError

BYTES = {"": 1, "b": 1} | {
    unit + tail: size**power
    for power, unit in enumerate("kmgt", start=1)
    for tail, size in (("", 1000), ("b", 1000), ("ib", 1024))
}
SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_bytes(text: str, where: str) -> int:
    """`8GB`, `512MiB`, `2e9`: bytes, with units of 1000 or (`i`) of 1024."""
    return int(_amount(text, BYTES, where, "for example 8GB or 512MiB"))


def parse_seconds(text: str, where: str) -> float:
    """`60s`, `500ms`, `2min`: seconds."""
    return _amount(text, SECONDS, where, "for example 60s or 2min")


def parse_share(text: str, where: str) -> float:
    """`5%` or `0.05`: a share between 0 and 1."""
    share = _amount(text, {"": 1.0, "%": 0.01}, where, "for example 5% or 0.05")
    if share >= 1:
        raise SpecError(f"{where} {text}: not below 100 %", "for example 5% or 0.05")
    return share


def _amount(text: str, units: dict[str, float] | dict[str, int], where: str, way_out: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)(e\d+)?\s*([a-z%]*)\s*", str(text).lower())
    if found is None or found[3] not in units:
        raise SpecError(f"{where} {text}: not an amount", way_out)
    amount = float(found[1] + (found[2] or "")) * units[found[3]]
    if amount <= 0:
        raise SpecError(f"{where} {text}: must be above 0", way_out)
    return amount
