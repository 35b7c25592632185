"""The alphabet of ListOps: a fixed table, both written forms, and what an expression is worth.

`evaluate` reads tokens one by one with a stack and shares nothing with the generator, so each can be held
against the other.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

PAD, DIGIT_0, MIN, MAX, MED, SM, CLOSE, UNKNOWN = 0, 1, 11, 12, 13, 14, 15, 16
WORDS = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]", "<unknown>")
IDS = {word: number for number, word in enumerate(WORDS) if number not in (PAD, UNKNOWN)}
RULES: dict[int, Callable[[Sequence[int]], int]] = {
    MIN: min,
    MAX: max,
    MED: lambda numbers: _floored_median(sorted(numbers)),
    SM: lambda numbers: sum(numbers) % 10,
}

# single bytes that no text of ASCII holds stand for the openers while a whole line is looked up at once
_STAND_INS = [(word.encode(), bytes([0x80 + number])) for word, number in IDS.items() if len(word) > 1]
_TABLE = np.full(256, UNKNOWN, np.uint8)
_TABLE[[ord("("), ord(")")]] = PAD
for _word, _number in IDS.items():
    _TABLE[ord(_word) if len(_word) == 1 else 0x80 + _number] = _number


def encode(text: str) -> NDArray[np.uint8]:
    """The token ids of an expression, written with parentheses or bare; parentheses are dropped.

    Any other word than the fifteen of the language becomes `UNKNOWN`.
    """
    if text.isascii():
        raw = text.encode()
        for word, stand_in in _STAND_INS:
            raw = raw.replace(word, stand_in)
        symbols = np.frombuffer(raw, np.uint8)
        # the usual case, one symbol and one blank in turn: forty times faster than word by word
        if len(symbols) % 2 and (symbols[1::2] == ord(" ")).all():
            ids = _TABLE[symbols[::2]]
            if not (ids == UNKNOWN).any():
                bare: NDArray[np.uint8] = ids[ids != PAD]
                return bare
    return np.array([IDS.get(word, UNKNOWN) for word in text.split() if word not in ("(", ")")], np.uint8)


def decode(ids: Iterable[int]) -> str:
    """The bare written form of token ids."""
    return " ".join(WORDS[number] for number in ids)


def evaluate(ids: Iterable[int]) -> int:
    """What an expression is worth. Raises `ValueError` saying what is wrong where it is not one expression."""
    frames: list[list[int]] = [[]]
    operators: list[int] = []
    for number in ids:
        if DIGIT_0 <= number < MIN:
            frames[-1].append(int(number) - DIGIT_0)
        elif number in RULES:
            operators.append(int(number))
            frames.append([])
        elif number == CLOSE and operators and frames[-1]:
            arguments = frames.pop()
            frames[-1].append(RULES[operators.pop()](arguments))
        else:
            raise ValueError(f"{WORDS[number]!r} where it cannot stand")
    if operators or len(frames[0]) != 1:
        raise ValueError("an operator is not closed" if operators else f"{len(frames[0])} expressions in place of one")
    return frames[0][0]


def _floored_median(numbers: Sequence[int]) -> int:
    """The middle one of sorted numbers, or the mean of the middle two rounded down."""
    return (numbers[(len(numbers) - 1) // 2] + numbers[len(numbers) // 2]) // 2
