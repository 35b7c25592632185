"""ListOps the slow way, straight from its description: recursive Python and `random`, to compare with."""

import random
from statistics import median

Tree = int | tuple[str, list["Tree"]]

OPERATORS = ("MIN", "MAX", "MED", "SM")


def draw(source: random.Random, depth: int = 1) -> Tree:
    if depth == 10 or source.random() > 0.25:
        return source.randint(0, 9)
    return source.choice(OPERATORS), [draw(source, depth + 1) for _ in range(source.randint(2, 10))]


def tokens(tree: Tree) -> list[str]:
    if isinstance(tree, int):
        return [str(tree)]
    operator, arguments = tree
    return [f"[{operator}", *(token for argument in arguments for token in tokens(argument)), "]"]


def value(tree: Tree) -> int:
    if isinstance(tree, int):
        return tree
    operator, arguments = tree
    numbers = [value(argument) for argument in arguments]
    return {"MIN": min, "MAX": max, "MED": lambda n: int(median(n)), "SM": lambda n: sum(n) % 10}[operator](numbers)


def depth(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(map(depth, tree[1]))


def written(tree: Tree) -> str:
    """As in the files: a pair of parentheses for each application to one more argument."""
    if isinstance(tree, int):
        return str(tree)
    operator, arguments = tree
    text = f"[{operator}"
    for argument in [*map(written, arguments), "]"]:
        text = f"( {text} {argument} )"
    return text


def parse(words: list[str]) -> Tree:
    """The tree of a bare expression, consumed from the front of the list."""
    word = words.pop(0)
    if not word.startswith("["):
        return int(word)
    arguments = []
    while words[0] != "]":
        arguments.append(parse(words))
    words.pop(0)
    return word[1:], arguments
