"""What one GPU says of lrbench, in eight minutes at most: `python bench/gpu_check.py --device cuda`.

Five parts share a deadline: precision of all attentions, scaling, the memory that was foreseen, steps a second of
published ListOps, and the first evaluations of a published run. Each runs in child processes, is ended when its time is
up, and is then told as cut short. Writes gpu-check.json, gpu-check.md and what the commands record into
results/reference/gpu. Exits with 1 if a part failed. `--device cpu --quick` tries the script itself without a GPU.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from lrbench import __version__
from lrbench.records import dumps

ROOT = Path(__file__).parents[1]
TOTAL_S = 460.0  # what is left of eight minutes goes to ending children and writing
GRACE_S = 12.0  # for a child that was asked to end
SIX = ("full", "performer", "linformer", "longformer", "flash", "combiner")
FORESEEN = (0.8, 1.25)  # predicted over measured memory: scratch of fused kernels is not foreseen
LEAST_BYTES = 64 * 2**20  # below that, memory is that of the libraries

Status = Literal["passed", "failed", "cut short", "skipped"]


@dataclass
class Outcome:
    """What a part found: a line for people, and figures."""

    status: Status
    told: str
    figures: Any = None


@dataclass
class Child:
    """A process that has ended; `code` is None where its time was up."""

    code: int | None
    out: str
    err: str


@dataclass
class Check:
    """What parts share: the request, where results go, when the part has to end, and what earlier parts found."""

    device: str
    quick: bool
    out: Path
    ends: float = math.inf
    found: dict[str, Outcome] = field(default_factory=dict)
    began: float = field(default_factory=time.time)

    def left(self) -> float:
        """Seconds until the part's children have to end."""
        return self.ends - GRACE_S - time.monotonic()

    def lrbench(self, *words: str) -> Child:
        """A command of lrbench, ended in time."""
        return run([sys.executable, "-m", "lrbench", *words], self.left())

    def written(self, pattern: str) -> list[Path]:
        """Files of the results folder that this check wrote, not one before it."""
        return [path for path in sorted(self.out.glob(pattern)) if path.stat().st_mtime >= self.began - 1]

    def work(self, *words: str) -> Child:
        """A measurement of `gpu_work.py`, ended in time."""
        extra = ["--quick"] if self.quick else []
        return run(
            [sys.executable, str(Path(__file__).with_name("gpu_work.py")), *words, "--device", self.device, *extra],
            self.left(),
        )


def run(command: Sequence[str], limit_s: float) -> Child:
    """A command in a process group of its own: interrupted when its time is up, killed when it does not heed that."""
    if limit_s <= 0:
        return Child(None, "", "not begun")
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for wait_s, end in ((limit_s, signal.SIGINT), (GRACE_S, signal.SIGKILL), (GRACE_S, signal.SIGKILL)):
        try:
            out, err = process.communicate(timeout=wait_s)
            return Child(process.returncode if wait_s == limit_s else None, out, err)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, end)
    return Child(None, "", "could not be ended")


def findings(text: str) -> list[dict[str, Any]]:
    """The lines of JSON that a child got to write; a torn one is none."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def last(text: str) -> str:
    """The last line of what a command said."""
    return (text.strip().splitlines() or ["nothing was said"])[-1][:300]


def failed(child: Child) -> Outcome:
    """A command that left with an error."""
    return Outcome("failed", f"exit {child.code}: {last(child.err)}")


# parts


def precision(check: Check) -> Outcome:
    """Half precision of all shipped attentions against float64 on the CPU."""
    child = check.work("precision")
    found = findings(child.out)
    bad = [each for each in found if "error" in each or worst(each) > each["bound"]]
    no_fp16 = "; fp16 skipped: training in it needs an accelerator" if check.device == "cpu" else ""
    told = f"{len(found) - len(bad)} of {len(found)} comparisons within bounds{no_fp16}"
    if bad:
        return Outcome("failed", f"{told}; {', '.join(sorted({each['model'] for each in bad}))} not", found)
    if child.code is None:
        return Outcome("cut short", told, found)
    return failed(child) if child.code or not found else Outcome("passed", told, found)


def worst(found: Mapping[str, Any]) -> float:
    """The largest of its relative errors; infinite where one is no number."""
    return max(each if each == each else math.inf for each in (found["output"], found["input"], found["weights"]))


def scaling(check: Check) -> Outcome:
    """Six attentions over lengths."""
    lengths = "512..2048:x4" if check.quick else "1024..65536:x4"  # each length starts some dozen processes
    dtype = "fp32" if check.device == "cpu" else "bf16"  # which few CPUs compute in
    words = ["-m", ",".join(SIX), "--lengths", lengths, "--dtype", dtype, "--device", check.device, "--no-resume"]
    share = 0.4 if check.quick else 0.7  # past its budget a study still measures each point once
    budget = f"{max(20.0, share * check.left()):.0f}s"
    child = check.lrbench("scale", *words, "--budget", budget, "--out", str(check.out), "--json", "-q")
    if child.code is None:
        points = [point for path in check.written("scale/*/points.jsonl") for point in findings(path.read_text())]
        return Outcome("cut short", f"{len(points)} points", {"points": points})
    if child.code:
        return failed(child)
    (study,) = json.loads(child.out)["studies"]
    counts = study["record"]["points"]
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return Outcome("passed", f"points: {told}", {"points": study["points"], "models": study["record"]["models"]})


def allocator(check: Check) -> Outcome:
    """Memory at the allocator's peak beside what was foreseen, and what the allocator had reserved."""
    points = (check.found["scaling"].figures or {}).get("points", [])
    rows = [row for point in points if (row := memory_row(point)) is not None]
    if not rows:
        return Outcome("skipped", "no point of the study has a peak of 64 MiB")
    bad = [row for row in rows if row["agree"] is False or not _foreseen(row)]
    told = f"{len(rows) - len(bad)} of {len(rows)} peaks as foreseen, {FORESEEN[0]} to {FORESEEN[1]} of the measured"
    if bad:
        names = ", ".join(f"{row['model']} at {row['length']}" for row in bad)
        return Outcome("failed", f"{told}; not: {names}", rows)
    status: Status = "cut short" if check.found["scaling"].status == "cut short" else "passed"
    return Outcome(status, told, rows)


def memory_row(point: Mapping[str, Any]) -> dict[str, Any] | None:
    """The figures of one point that is large enough to say something."""
    memory = point["memory_bytes"]
    if point["status"] != "ok" or point["control"] or not memory or (memory["extra"] or 0) < LEAST_BYTES:
        return None
    kept = {name: memory[name] for name in ("extra", "total", "predicted", "reserved", "agree")}
    return {"model": point["model"], "length": point["length"], **kept}


def _foreseen(row: Mapping[str, Any]) -> bool:
    """Whether the prediction holds, and nothing was used that was not reserved."""
    reserved = row["reserved"] is None or row["reserved"] >= row["extra"]
    within = row["predicted"] is None or FORESEEN[0] <= row["predicted"] / row["extra"] <= FORESEEN[1]
    return bool(reserved and within)


def speed(check: Check) -> Outcome:
    """Training steps a second on published ListOps, plain first, then compiled."""
    compiled = SIX[:1] if check.quick else SIX
    asked = [(model, ()) for model in SIX] + [(model, ("--compile",)) for model in compiled]
    found, wrong = [], []
    for model, extra in asked:
        child = check.work("steps", model, *extra)
        if child.code is None:
            return Outcome("cut short", f"{len(found)} of {len(asked)} rates", found)
        found += findings(child.out)
        if child.code:
            wrong.append(f"{' '.join((model, *extra))}: {last(child.err)}")
    told = f"{len(found)} of {len(asked)} rates"
    return Outcome("failed", f"{told}; {'; '.join(wrong)}", found) if wrong else Outcome("passed", told, found)


def paper(check: Check) -> Outcome:
    """The first evaluations of performer on published ListOps, as published but for the number of trees.

    It is planned that time ends it long before the last step.
    """
    preset = ["--preset", "tiny"] if check.quick else ["--preset", "paper", "--set", "data.examples=[4000, 500, 500]"]
    words = ["-m", "performer", "-t", "listops", *preset, "--device", check.device, "--out", str(check.out), "-q"]
    child = check.lrbench("run", *words, "--no-resume", "--json")
    files = check.written("runs/listops/*/*/metrics.jsonl")
    lines = [line for path in files for line in findings(path.read_text())]
    scores = [line for line in lines if line.get("split") == "validation"]
    for path in files:
        shutil.rmtree(path.with_name("checkpoint"), ignore_errors=True)  # large, and nobody goes on from it
    if child.code not in (0, None):
        return failed(child)
    if not scores:
        return Outcome("cut short", "no evaluation", lines)
    told = f"validation loss {scores[0]['loss']:.3f} at step {scores[0]['step']}"
    told += f", {scores[-1]['loss']:.3f} at step {scores[-1]['step']}"
    finite = all(math.isfinite(line["loss"]) for line in lines)
    return Outcome("passed" if finite else "failed", told, lines)


PARTS: dict[str, tuple[Callable[[Check], Outcome], float]] = {  # with seconds, which what came before may add to
    "precision": (precision, 70.0),
    "scaling": (scaling, 180.0),
    "allocator": (allocator, 1.0),
    "speed": (speed, 124.0),
    "paper": (paper, 85.0),
}


def carried_out(check: Check, total_s: float = TOTAL_S) -> Iterator[tuple[str, Outcome, float]]:
    """Each part with its outcome and seconds. Time that a part leaves over goes to the next."""
    began = time.monotonic()
    due = began
    for name, (part, seconds) in PARTS.items():
        due = min(due + seconds, began + total_s)
        check.ends, started = due, time.monotonic()
        try:
            outcome = part(check) if time.monotonic() < due else Outcome("cut short", "not begun")
        except Exception as error:  # one part that breaks does not take the others with it
            outcome = Outcome("failed", f"{type(error).__name__}: {error}")
        check.found[name] = outcome
        yield name, outcome, time.monotonic() - started


# what is written


def document(check: Check, rows: Sequence[tuple[str, Outcome, float]]) -> dict[str, Any]:
    """All of it, for programs."""
    from lrbench.environment import fingerprint

    return {
        "schema": "lrbench.gpu-check/1",
        "lrbench_version": __version__,
        "device": check.device,
        "quick": check.quick,
        "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": sum(seconds for _, _, seconds in rows),
        "environment": fingerprint().model_dump(mode="json"),
        "parts": [{"name": name, "seconds": seconds, **asdict(outcome)} for name, outcome, seconds in rows],
    }


def page(found: Mapping[str, Any]) -> str:
    """All of it, for people."""
    environment = found["environment"]
    quick = ", quick: sizes are shrunk, and no figure is one of a GPU" if found["quick"] else ""
    lines = [f"# lrbench {found['lrbench_version']} on {found['device']}{quick}", ""]
    lines += [f"{found['finished_at']}, {found['seconds']:.0f} s. {machine(environment)}", ""]
    lines += ["| part | outcome | s | |", "| --- | --- | --- | --- |"]
    lines += [f"| {p['name']} | {p['status']} | {p['seconds']:.0f} | {p['told']} |" for p in found["parts"]]
    parts = {part["name"]: part["figures"] for part in found["parts"]}
    for title, figures in (("precision", worst_rows(parts["precision"])), ("speed", parts["speed"])):
        lines += table(title, figures)
    lines += table("allocator", parts["allocator"])
    lines += table("scaling", [time_row(point) for point in (parts["scaling"] or {}).get("points", [])])
    lines += table("paper", [line for line in parts["paper"] or [] if line.get("split") == "validation"])
    return "\n".join(lines) + "\n"


def machine(environment: Mapping[str, Any]) -> str:
    """Its names and versions in one line."""
    return ", ".join(f"{key} {value}" for key, value in environment.items() if isinstance(value, str) and value)


def worst_rows(found: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """For each attention and precision the comparison that is nearest to its bound, or beyond it."""
    rows: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in found or []:
        key, error = (each["model"], each["dtype"]), math.inf if "error" in each else worst(each)
        if key not in rows or error > rows[key]["error"]:
            rows[key] = {"error": error, "bound": each["bound"], "said": each.get("error", "")}
    return [{"model": model, "dtype": dtype, **row} for (model, dtype), row in rows.items()]


def time_row(point: Mapping[str, Any]) -> dict[str, Any]:
    """Time and memory of one point."""
    times, memory = point["time_ms"] or {}, point["memory_bytes"] or {}
    named = {name: point[name] for name in ("model", "length", "status")}
    return {**named, "ms": times.get("median"), "extra MiB": (memory.get("extra") or 0) / 2**20}


def table(title: str, rows: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """A table in Markdown; nothing for no rows."""
    if not rows:
        return []
    names = list(rows[0])
    head = ["", f"## {title}", "", f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    return [*head, *(f"| {' | '.join(shown(row.get(name)) for name in names)} |" for row in rows)]


def shown(value: Any) -> str:
    """A number in four digits, else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def main(given: Sequence[str] | None = None) -> int:
    """Carry out all parts, write, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reference" / "gpu")
    parser.add_argument("--quick", action="store_true", help="shrink all sizes, to try the script itself")
    asked = parser.parse_args(given)
    if asked.device == "cpu" and not asked.quick:
        parser.error("--device cpu goes with --quick: there is no GPU to be checked")
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    check, rows = Check(asked.device, asked.quick, out), []
    for name, outcome, seconds in carried_out(check):
        rows.append((name, outcome, seconds))
        print(f"{name:10} {outcome.status:9} {seconds:5.0f} s  {outcome.told}", flush=True)
    found = document(check, rows)
    (out / "gpu-check.json").write_text(dumps(found, indent=1) + "\n")
    (out / "gpu-check.md").write_text(page(found))
    return 1 if any(outcome.status == "failed" for _, outcome, _ in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
