"""Tables of a scaling study: its points, exponents, crossovers and what fits in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from lrbench.points import ScalePoint
from lrbench.reporting import scaling
from lrbench.reporting.material import Study
from lrbench.reporting.tables import Body, Cell, Table, row, slug
from lrbench.scalefits import by_model, peak_bytes
from lrbench.scalerecords import Crossing, Fit, ModelFits

NONE = Cell("–")


def tables(study: Study) -> Iterator[Table]:
    """All that a study says, in tables."""
    record, curves = study.record, by_model(study.points)
    name = slug(f"scale-{record.study_id}")
    notes = list(scaling.about_points(study.points))
    yield _grid(f"{name}-times", "Time, ms (median; its interval when pointed at)", study, curves, _time, notes)
    yield _grid(f"{name}-peaks", "Peak memory above the start, MiB", study, curves, _memory, [])
    if any(point.energy_j is not None for point in study.points):
        yield _grid(f"{name}-energy", "Energy of a call above idle power, J", study, curves, _energy, [])
    yield _exponents(name, record.models, list(scaling.about_exponents(record)))
    if any(model.crossover or model.memory_crossover for model in record.models.values()):
        yield _crossovers(name, record.models)
    yield _longest(name, record.models, list(scaling.about_study(record)))


def _grid(
    name: str,
    caption: str,
    study: Study,
    curves: Mapping[str, Sequence[ScalePoint]],
    cell: Callable[[ScalePoint], Cell],
    notes: list[str],
) -> Table:
    lengths = sorted({point.length for curve in curves.values() for point in curve})
    rows = []
    for model, curve in curves.items():
        there = {point.length: point for point in curve}
        rows.append(row(model, *(cell(there[length]) if length in there else NONE for length in lengths)))
    columns = ["model", *map(str, lengths)]
    return Table(
        name,
        f"{caption}: {scaling.title(study.record)}",
        columns,
        [Body("", rows)],
        frozenset(columns[1:]),
        notes,
    )


def _time(point: ScalePoint) -> Cell:
    if point.status != "ok" or point.time_ms is None:
        return _ended(point)
    found = point.time_ms
    interval = scaling.interval_text(found.ci_low, found.ci_high)
    flags = [scaling.FLAGS.get(flag, flag) for flag in point.flags]
    text = scaling.marked_time(point, scaling.number(found.median))
    return Cell(text, found.median, why="; ".join([f"95 %: {interval} ms", *flags]))


def _memory(point: ScalePoint) -> Cell:
    peak = peak_bytes(point)
    if point.status != "ok" or peak is None:
        return _ended(point)
    text = scaling.marked_peak(point, scaling.number(peak / 2**20))
    return Cell(text, peak, why=point.memory_bytes.method if point.memory_bytes else "")


def _energy(point: ScalePoint) -> Cell:
    if point.status != "ok" or point.energy_j is None:
        return _ended(point)
    return Cell(f"{point.energy_j:.3g}", point.energy_j)


def _ended(point: ScalePoint) -> Cell:
    return NONE if point.status == "ok" else Cell(scaling.outcome(point), mark="bad", why=point.reason)


def _exponents(name: str, models: Mapping[str, ModelFits], notes: list[str]) -> Table:
    columns = [
        "model",
        "promised",
        "time",
        "time, 95 %",
        "like",
        "memory",
        "memory, 95 %",
        "far end, time",
        "far end, memory",
    ]
    rows = []
    for model, fits in models.items():
        time, memory = fits.time, fits.memory
        shown = scaling.exponent_cells(time), scaling.exponent_cells(memory)
        rows.append(
            row(
                model,
                fits.order or "–",
                Cell(shown[0][0], _exponent(time)),
                *shown[0][1:],
                Cell(shown[1][0], _exponent(memory)),
                shown[1][1],
                *(_tail(fit) for fit in (time, memory)),
            )
        )
    far = "Far end: log-log over the longest lengths of the study, the same for all models."
    return Table(f"{name}-exponents", "Exponents of length", columns, [Body("", rows)], notes=[*notes, far])


def _exponent(fit: Fit | None) -> float | None:
    return fit.exponent if fit else None


def _tail(fit: Fit | None) -> Cell:
    tail = fit.tail if fit else None
    if tail is None:
        return NONE
    exponent, interval = scaling.segment_cells(tail)
    return Cell(f"{exponent} ({interval})", tail.exponent)


def _crossovers(name: str, models: Mapping[str, ModelFits]) -> Table:
    rivals = dict.fromkeys(
        crossing.against for fits in models.values() for crossing in fits.crossover + fits.memory_crossover
    )
    rows = [
        row(model, rival, *(_crossing(found, rival) for found in (fits.crossover, fits.memory_crossover)))
        for rival in rivals
        for model, fits in models.items()
        if any(crossing.against == rival for crossing in fits.crossover + fits.memory_crossover)
    ]
    columns = ["model", "against", "cheaper in time", "cheaper in memory"]
    return Table(f"{name}-crossovers", "From which length on a model pays off", columns, [Body("", rows)])


def _crossing(crossings: Sequence[Crossing], rival: str) -> Cell:
    found = next((crossing for crossing in crossings if crossing.against == rival), None)
    return NONE if found is None else Cell(found.text, found.length)


def _longest(name: str, models: Mapping[str, ModelFits], notes: list[str]) -> Table:
    budgets = [within.budget_bytes for within in next(iter(models.values())).longest_within] if models else []
    columns = ["model", "measured", *(f"in {scaling.size_text(budget)}" for budget in budgets)]
    rows = [
        row(
            model,
            NONE if fits.longest_fitted is None else Cell(str(fits.longest_fitted), fits.longest_fitted),
            *(Cell(scaling.within_cell(each), each.estimate or each.length) for each in fits.longest_within),
        )
        for model, fits in models.items()
    ]
    caption = "The longest input that fits a memory budget, tokens"
    return Table(f"{name}-longest", caption, columns, [Body("", rows)], frozenset(columns[1:]), notes)
