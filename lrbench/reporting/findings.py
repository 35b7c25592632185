"""What a page says first: which attention scores best, which costs least for that, from which length one pays off."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lrbench import metrics
from lrbench.reporting.averages import Average, averages
from lrbench.reporting.material import Study
from lrbench.reporting.scaling import title
from lrbench.reporting.scores import Comparison, Row, by_preset, standings

NAMED = 4  # models of a list


class Finding(NamedTuple):
    """A question and what the numbers answer."""

    question: str
    answer: str


def findings(comparisons: Sequence[Comparison], studies: Sequence[Study]) -> list[Finding]:
    """Three questions, each with an answer or with what is missing for one."""
    best = [sentence for preset, tables in by_preset(comparisons).items() for sentence in _best(preset, tables)]
    cheap = [sentence for comparison in comparisons if (sentence := _cheapest(comparison))]
    pays = [_crossover(study) for study in studies]
    return [
        Finding("Which is best?", " ".join(best) or "No run ended well: see the tables for what went wrong."),
        Finding("Which is best for its cost?", " ".join(cheap[:NAMED]) + _more(cheap) or _no_cost(comparisons)),
        Finding(
            "From which length on does it pay off?",
            " ".join(pays[:NAMED]) + _more(pays)
            or "Not measured here: lrbench scale measures time and memory against length.",
        ),
    ]


def _more(sentences: Sequence[str]) -> str:
    return f" And {len(sentences) - NAMED} more in the tables below." if len(sentences) > NAMED else ""


def _best(preset: str, tables: Sequence[Comparison]) -> Iterator[str]:
    means = averages(tables)
    if means:
        yield _best_average(preset, means)
        return
    found = [sentence for table in tables if (sentence := _best_of(table))]
    yield from found[:NAMED]
    if len(found) > NAMED:
        yield _more(found).strip()


def _best_average(preset: str, means: Sequence[Average]) -> str:
    first = means[0]
    beside = standings({each.model: each.seeds for each in means}, first.model)
    ties = [model for model, standing in beside.items() if standing == "tied"]
    told = f" ({_interval(first)})" if len(first.seeds) > 1 else ""
    if len(first.seeds) < 2:
        rest = "With one seed, nobody knows whether the others are worse."
    else:
        rest = f"Not distinguishable from it: {_listed(ties)}." if ties else "All others are worse beyond chance."
    return (
        f"Over {first.tasks} tasks (preset {preset}), {first.model} has the highest mean accuracy,"
        f" {metrics.shown('accuracy', first.mean)} %{told}. {rest}"
    )


def _interval(found: Average) -> str:
    return f"95 %: {metrics.shown('accuracy', found.low)} to {metrics.shown('accuracy', found.high)}"


def _best_of(table: Comparison) -> str:
    """The best of a table that kept to the card, or else of all."""
    best = _leader(table)
    if best is None or best.mean is None:
        return ""
    rows = [row for row in table.tracks[best.track] if row is not best]
    value = metrics.with_unit(table.metric, best.mean)
    if best.beats is False:
        return (
            f"On {table.task} (preset {table.preset}) nothing is clearly better than '{table.to_beat}', which needs no"
            f" model: {best.model} has {value}."
        )
    track = "" if best.is_fair else " (not as on the card)"
    where = f"On {table.task} (preset {table.preset}) {best.model} scores best{track}, {value}"
    if not rows:
        return f"On {table.task} (preset {table.preset}) {best.model} scores {value}; nothing stands beside it."
    ties, untold = (_listed([row.model for row in rows if row.standing == each]) for each in ("tied", "untold"))
    if untold:
        return f"{where}; too few seeds to tell it from {untold}."
    return f"{where}; not distinguishable from it: {ties}." if ties else f"{where}; all others are worse beyond chance."


def _leader(table: Comparison) -> Row | None:
    leaders = [row for row in table.rows if row.standing == "best"]
    return next((row for row in leaders if row.is_fair), leaders[0] if leaders else None)


def _listed(names: Sequence[str]) -> str:
    if len(names) > NAMED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _cheapest(table: Comparison) -> str:
    """Of those that cannot be told from the best, the fastest; nothing where seeds or machines do not allow it."""
    best = _leader(table)
    if best is None or not best.tokens_per_s or len(table.machines) > 1:
        return ""
    rows = table.tracks[best.track]
    if len(rows) < 2 or any(row.standing == "untold" for row in rows):
        return ""
    equal = [row for row in rows if row.standing in ("best", "tied")]
    fast = max(equal, key=lambda row: row.tokens_per_s or 0.0)
    if fast is best:
        return f"On {table.task}, {best.model}: the best is also the fastest of those that cannot be told from it."
    gain = (fast.tokens_per_s or 0.0) / best.tokens_per_s
    scores = [metrics.with_unit(table.metric, row.mean or 0.0) for row in (fast, best)]
    return (
        f"On {table.task}, {fast.model} ({scores[0]}) trains {gain:.1f} times as fast as {best.model} ({scores[1]}),"
        f" and {min(len(fast.seeds), len(best.seeds))} seeds cannot tell their scores apart."
    )


def _no_cost(comparisons: Sequence[Comparison]) -> str:
    if any(len(table.machines) > 1 for table in comparisons):
        return "Not told: runs of one table come from unlike machines."
    return "Not told: that takes two or more seeds of each model. See the picture of score against speed."


def _crossover(study: Study) -> str:
    """Against fused full attention, or what stands for it."""
    record = study.record
    against = record.reference
    found = [
        (crossing.length, f"{model} {crossing.text}")
        for model, fits in record.models.items()
        for crossing in fits.crossover
        if crossing.against == against and crossing.cheaper_after == "model"
    ]
    if not found:
        return f"Nothing became faster than {against} up to {max(record.lengths):,} tokens ({title(record)})."
    texts = [text for _, text in sorted(found, key=lambda each: each[0] or 0.0)]
    rest = "; and more below" if len(texts) > NAMED else ""
    return f"Beside {against} ({title(record)}), time: {'; '.join(texts[:NAMED])}{rest}."
