"""Progress of a scaling study on stderr: curves that fill in on a terminal, else one line a finished point."""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lrbench.points import PointSpec, ScalePoint
from lrbench.reporting.scaling import number, outcome
from lrbench.scalefits import peak_bytes

if TYPE_CHECKING:
    from lrbench.study import Pass

BARS = "▁▂▃▄▅▆▇█"
MISSING, FAILED = "·", "×"

Curve = list[tuple[ScalePoint | None, float | None]]  # points by rising length, and what is drawn of them


class Curves:
    """A listener for `run_study`."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._points: dict[str, dict[int, ScalePoint | None]] = {}
        self._total = self._ended = 0
        self._now = ""

    def __enter__(self) -> "Curves":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def plan(self, points: Sequence[PointSpec], finished: Sequence[ScalePoint]) -> None:
        """What is to come, and what was there."""
        self._points, self._total, self._ended = {}, len(points), 0
        for point in finished:
            if not point.control:
                self._curve(point.spec)[point.length] = point
        for spec in points:
            self._curve(spec).setdefault(spec.length, None)
        if finished:
            self._console.print(f"{len(finished)} points are there, {len(points)} to measure")
        self._show()

    def at(self, point: PointSpec, what: "Pass") -> None:
        """What is being measured."""
        self._now = f"{point.attention.label} at {point.length}: {what}"
        self._show()

    def tick(self, spent_s: float, budget_s: float) -> None:
        """Time goes by."""
        self._show(f"{spent_s:.0f} of at most {budget_s:.0f} s")

    def done(self, point: ScalePoint) -> None:
        """One more point of a curve."""
        if point.control:
            return
        self._ended += 1
        self._curve(point.spec)[point.length] = point
        if self._live.is_started:
            self._show()
        else:
            self._console.print(f"[{self._ended}/{self._total}] {told(point)}", markup=False)

    def _curve(self, spec: PointSpec) -> dict[int, ScalePoint | None]:
        return self._points.setdefault(spec.attention.label, {})

    def _show(self, spent: str = "") -> None:
        if self._live.is_started:
            status = f"{self._ended}/{self._total} {self._now}" + (f", {spent}" if spent else "")
            self._live.update(Group(table(self._points), Text(status, style="dim")), refresh=True)


def told(point: ScalePoint) -> str:
    """A finished point in one line."""
    name = f"{point.spec.attention.label} {point.length}"
    if point.status != "ok":
        return f"{name}: {outcome(point)}" + (f": {point.reason}" if point.reason else "")
    time, peak = point.time_ms, peak_bytes(point)
    parts = []
    if time:
        known = time.ci_low is not None and time.ci_high is not None
        half = f" ±{(time.ci_high - time.ci_low) / 2 / time.median:.0%}" if known else ""  # type: ignore[operator]
        parts.append(f"{number(time.median)} ms{half}")
    if peak is not None:
        parts.append(f"{number(peak / 2**20)} MiB")
    parts += [flag for flag in point.flags if flag in ("contended", "precision_missed", "untracked", "denormals")]
    return f"{name}: {', '.join(parts) or 'ok'}"


def table(curves: dict[str, dict[int, ScalePoint | None]]) -> Table:
    """A line of blocks for each model, in time and in memory: one block a length, heights on one log scale for all."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "time", "last, ms", "memory", "last, MiB"):
        shown.add_column(column, justify="right" if column.startswith("last") else "left")
    times = {name: [(point, _time(point)) for point in _rising(curve)] for name, curve in curves.items()}
    peaks = {name: [(point, _peak(point)) for point in _rising(curve)] for name, curve in curves.items()}
    for name in curves:
        time, peak = times[name], peaks[name]
        shown.add_row(escape(name), spark(time, times), _last(time, 1), spark(peak, peaks), _last(peak, 2**20))
    return shown


def spark(curve: Curve, curves: dict[str, Curve]) -> str:
    """One block a length; `·` is still to come, `×` could not be had."""
    logs = [math.log(value) for other in curves.values() for _, value in other if value]
    low = min(logs, default=0.0)
    span = max(max(logs, default=0.0) - low, 1e-9)
    return "".join(
        BARS[min(7, int(8 * (math.log(value) - low) / span))] if value else FAILED if point else MISSING
        for point, value in curve
    )


def _time(point: ScalePoint | None) -> float | None:
    return point.time_ms.median if point and point.time_ms else None


def _peak(point: ScalePoint | None) -> float | None:
    return peak_bytes(point) if point else None


def _rising(curve: dict[int, ScalePoint | None]) -> list[ScalePoint | None]:
    return [curve[length] for length in sorted(curve)]


def _last(curve: Curve, unit: float) -> str:
    values = [value for _, value in curve if value]
    return number(values[-1] / unit) if values else ""
