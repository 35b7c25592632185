"""Sequence lengths as they are typed: `512..16384`, `512..4096:+512`, `512..4096:x1.5`, `512,1000,4096`."""

import re

from lrbench.errors import SpecError

FORMS = "write 512..16384 (doubling), 512..4096:+512, 512..4096:x1.5 or 512,1000,4096"
MOST = 256  # lengths in one request; more is a slip of the keyboard
RANGE = re.compile(r"(?P<first>\d+)\s*\.\.\s*(?P<last>\d+)\s*(?::\s*(?P<step>\S+))?")


def parse_lengths(text: str) -> list[int]:
    """Rising lengths, each once. A range ends at its last length, or at the last step before it.

    Raises:
        SpecError: not of these forms, no length at all, or one below 1.
    """
    parts = [part.strip() for part in text.split(",")]
    lengths = [length for part in parts if part for length in _part(part)]
    if not lengths:
        raise SpecError(f"--lengths {text!r}: no length", FORMS)
    return sorted(set(lengths))


def _part(part: str) -> list[int]:
    if re.fullmatch(r"\d+", part):
        return [_at_least_one(int(part), part)]
    found = RANGE.fullmatch(part)
    if found is None:
        raise SpecError(f"--lengths {part}: {_trouble(part)}", FORMS)
    first, last = _at_least_one(int(found["first"]), part), int(found["last"])
    if first > last:
        raise SpecError(f"--lengths {part}: the range runs backwards", f"write {_at_least_one(last, part)}..{first}")
    return _steps(first, last, found["step"] or "x2", part)


def _steps(first: int, last: int, step: str, part: str) -> list[int]:
    found = re.fullmatch(r"\+(\d+)|x(\d+(?:\.\d+)?)", step)
    added, factor = (int(found[1] or 0), float(found[2] or 0)) if found else (0, 0.0)
    if added < 1 and factor <= 1:
        raise SpecError(f"--lengths {part}: {step} is no step", "write :+512 to add 512, or :x1.5 to multiply by 1.5")
    lengths, exact = [first], float(first)
    while True:
        exact = exact + added if added else exact * factor
        if round(exact) > last:
            return lengths
        # a small factor leaves small lengths where they are
        lengths += [round(exact)] if round(exact) > lengths[-1] else []
        if len(lengths) > MOST:
            raise SpecError(f"--lengths {part}: more than {MOST} lengths", "take a larger step")


def _at_least_one(length: int, part: str) -> int:
    if length < 1:
        raise SpecError(f"--lengths {part}: a length is at least 1", FORMS)
    return length


def _trouble(part: str) -> str:
    if re.fullmatch(r"\d+\s*\.\.\s*|\s*\.\.\s*\d+", part):
        return "the range has no end" if part.rstrip().endswith("..") else "the range has no start"
    if re.fullmatch(r"-\s*\d+", part):
        return "a length is at least 1"
    return "not a length"
