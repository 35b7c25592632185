"""Generated film reviews: a stand-in that runs anywhere, and no benchmark.

A review is some sentences about parts of a film. Three in four of those that judge agree with the label, and one in
five judges by denial ("was not dull"), so counting letters helps a little and reading helps more.
"""

from collections.abc import Iterator

from lrbench.loaders.streams import Stream

GENERATOR = "lrbench reviews 1"  # raised whenever a seed gives other reviews
SENTENCES = (3, 40)
PARTS = (
    "the plot", "the acting", "the score", "the camera work", "the dialogue", "the ending", "the lead",
    "the café scene", "the director", "the cast", "the pacing", "the first half", "the dénouement", "the humour",
    "the romance", "the cut",
)  # fmt: skip
GOOD = ("great", "moving", "superb", "funny", "gripping", "charming", "clever", "honest", "lovely", "brilliant")
BAD = ("dull", "awful", "boring", "clumsy", "tedious", "lifeless", "clichéd", "wooden", "shallow", "dreadful")
DEGREES = ("", "rather ", "really ", "quite ", "truly ", "very ", "simply ", "surprisingly ")
FILLERS = (
    "I saw it on a Sunday with my sister.", "It runs for two hours.", "The tickets were 9 € each.",
    "There is a train in it.", "He plays a teacher who moves to the coast.", "It was shot in black and white.",
    "She finds a letter in the attic.", "The book came out years ago.", "They meet again at the station.",
    "Nobody in the hall said a word.", "The story begins in the winter of 1952.", "I had read nothing about it.",
)  # fmt: skip
BREAK = "<br /><br />"


def reviews(seed: int, number: int, count: int) -> Iterator[tuple[bytes, int]]:
    """So many reviews with their labels, half of them positive; `number` tells splits apart."""
    random = Stream(seed, number)
    labels = random.permutation(count) % 2
    sizes = SENTENCES[0] + random.below(SENTENCES[1] - SENTENCES[0] + 1, count)
    for label, size in zip(labels.tolist(), sizes.tolist(), strict=True):
        draws = random.below(2**16, size, 6).tolist()
        yield " ".join(_sentence(label, draw) for draw in draws).encode(), label


def _sentence(label: int, draw: list[int]) -> str:
    kind, agrees, denies, part, word, degree = draw
    before = BREAK if kind % 16 == 0 else ""
    if kind % 3 == 0:
        return before + FILLERS[word % len(FILLERS)]
    good = (label == 1) == (agrees % 4 > 0)
    denied = denies % 5 == 0
    words = GOOD if good != denied else BAD
    verb = "was not" if denied else "was"
    return f"{before}{PARTS[part % len(PARTS)].capitalize()} {verb} {DEGREES[degree % 8]}{words[word % len(words)]}."
