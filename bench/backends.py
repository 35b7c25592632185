"""Every backend's time and memory, and ours beside the packages that a user would otherwise install.

`python bench/backends.py bars` measures pairs side by side in one study for each direction, and says what is asked of
each pair: no more time, no more memory, and above the projections at most half of the peer's time (a tenth where the
peer goes token by token). `python bench/backends.py all` measures every backend at every length, both directions,
forward alone and with backward, fp32 and bf16. `--out FOLDER` keeps points and tables; a second call measures only
what is missing there.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from lrbench.errors import LrbenchError
from lrbench.points import PointSpec, ScalePoint
from lrbench.registry import backends
from lrbench.scalefits import log_ratios, peak_bytes
from lrbench.specs import AttentionSpec, Dtype, Mode
from lrbench.stats import over_seeds
from lrbench.study import StudyOptions, run_study

PEERS = Path(__file__).with_name("peers.py")
PLANS = ("fixed", "logsparse", "axial-row", "axial-vertical", "axial-horizontal", "learnable", "mixture")
SETTINGS = {"full": ["", "[impl=math]"], "combiner": [f"[plan={plan}]" for plan in PLANS]}
LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
BAR_LENGTHS = [4096, 16384]
HALF, TENTH = 0.5, 0.1


class Pair(NamedTuple):
    """One of ours and the package that it replaces."""

    ours: str
    peer: str
    share: float = HALF  # of the peer's time above the projections that ours may take
    causal_share: float = HALF
    floor: str = "Projections"  # what both have to do in any case


PAIRS = [
    Pair("local", "LocalAttention"),
    Pair("longformer", "Longformer"),
    Pair("linformer[k=256]", "Linformer"),
    Pair("performer", "Performer", causal_share=TENTH),
    Pair("linear", "LinearAttention", causal_share=TENTH),
    Pair("flash", "Flash", floor="GatedProjections"),
    Pair("compressive[segment=512,memory=512,compressed=128,rate=4]", "Compressive"),
]


class Setting(NamedTuple):
    """What all points of one study share."""

    mode: Mode
    causal: bool
    dtype: Dtype

    @property
    def text(self) -> str:
        """In words."""
        way = "forward" if self.mode == "forward" else "forward and backward"
        return f"{way}, {'causal' if self.causal else 'both directions'}, {self.dtype}"

    @property
    def folder(self) -> str:
        """In a path."""
        return f"{self.mode}-{'causal' if self.causal else 'both'}-{self.dtype}"


def able(spec: AttentionSpec, causal: bool) -> bool:
    """Whether a backend takes part."""
    return not causal or bool(getattr(backends.load(spec).cls, "can_be_causal", False))


def measure(
    specs: Sequence[AttentionSpec], lengths: Sequence[int], setting: Setting, given: argparse.Namespace
) -> Path:
    """One study; the folder of its points."""
    chosen = [spec for spec in specs if able(spec, setting.causal)]
    points = [
        PointSpec(attention=spec, length=length, threads=given.threads, **setting._asdict())
        for length in lengths
        for spec in chosen
    ]
    folder = Path(given.out) / setting.folder
    options = StudyOptions(folder=folder, budget_s=given.budget, control=False)
    study = run_study(points, options)
    (folder / "environment.json").write_text(json.dumps(study.environment, indent=1, default=str), encoding="utf-8")
    (folder / "table.md").write_text("\n".join(table(setting, study.points, lengths)) + "\n", encoding="utf-8")
    print("\n".join(table(setting, study.points, lengths)), flush=True)
    print(f"\nMatmul peak {study.peak_flops}; {study.seconds}\n", flush=True)
    (folder / "bars.md").write_text("\n".join(bars(setting, study.points, lengths)) + "\n", encoding="utf-8")
    return folder


def table(setting: Setting, points: Sequence[ScalePoint], lengths: Sequence[int]) -> Iterator[str]:
    """Time in ms / peak memory in MiB / fraction of the matmul peak."""
    yield f"{setting.text}; ms / MiB / % of the matmul peak"
    yield ""
    yield f"| model | {' | '.join(map(str, lengths))} |"
    yield "| --- |" + " ---: |" * len(lengths)
    for label in dict.fromkeys(point.spec.attention.label for point in points):
        there = {point.length: point for point in points if point.spec.attention.label == label}
        yield f"| {label} | {' | '.join(cell(there[n]) if n in there else '–' for n in lengths)} |"


def cell(point: ScalePoint) -> str:
    """One point."""
    peak = peak_bytes(point)
    if point.status != "ok" or point.time_ms is None or peak is None:
        return point.status
    share = point.fraction_of_matmul_peak
    return f"{point.time_ms.median:,.0f} / {peak / 2**20:,.0f} / " + ("–" if share is None else f"{share:.0%}")


def bars(setting: Setting, points: Sequence[ScalePoint], lengths: Sequence[int]) -> Iterator[str]:
    """Each pair at each length beside what is asked."""
    found = {(point.spec.attention.label, point.length): point for point in points}
    yield f"{setting.text}: ours / peer, with the 95 % interval of the ratio of times"
    yield ""
    yield "| ours | peer | length | ms | time | memory | above the projections | asked | |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for pair, length in product(PAIRS, lengths):
        ours, peer, identity = (found.get((label, length)) for label in (pair.ours, pair.peer, pair.floor))
        if ours is None or peer is None or identity is None:  # one of them cannot do this direction
            continue
        if any(point.status != "ok" for point in (ours, peer, identity)):
            verdict = "missed" if ours.status != "ok" else f"{peer.status} of the peer"
            yield f"| {pair.ours} | {pair.peer} | {length} | {cell(ours)} | – | – | – | – | {verdict} |"
        else:
            yield bar(pair, ours, peer, identity, pair.causal_share if setting.causal else pair.share)


def bar(pair: Pair, ours: ScalePoint, peer: ScalePoint, identity: ScalePoint, share: float) -> str:
    """One line."""
    ratio = over_seeds(log_ratios(ours, peer))
    memory = (peak_bytes(ours) or math.nan) / (peak_bytes(peer) or math.nan)
    mine, theirs, floor = (point.time_ms.median if point.time_ms else math.nan for point in (ours, peer, identity))
    above = (mine - floor) / (theirs - floor)
    kept = ratio.mean <= 0 and memory <= 1 and above <= share
    interval = f" ({math.exp(ratio.low):.2f} to {math.exp(ratio.high):.2f})" if math.isfinite(ratio.low) else ""
    time = f"{math.exp(ratio.mean):.2f}{interval}"
    return (
        f"| {pair.ours} | {pair.peer} | {ours.length} | {mine:,.0f} / {theirs:,.0f} | {time} | {memory:.2f}"
        f" | {above:.2f} | {share} | {'kept' if kept else 'missed'} |"
    )


def roster() -> list[AttentionSpec]:
    """Everything that ships."""
    return [backends.spec(name + setting) for name in backends.shipped() for setting in SETTINGS.get(name, [""])]


def paired(only: str) -> list[AttentionSpec]:
    """Both sides of the pairs that were asked for, and what they stand on."""
    names: list[str] = []
    for pair in PAIRS:
        if not only or any(pair.ours.startswith(name) for name in only.split(",")):
            names += [pair.ours, f"{PEERS}:{pair.peer}", f"{PEERS}:{pair.floor}"]
    return [backends.spec(name) for name in dict.fromkeys(names)]


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bars", "all"])
    parser.add_argument("--out", default="results/bench")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=900.0, help="seconds for each study")
    parser.add_argument("--only", default="", help="bars: of these backends, comma-separated")
    parser.add_argument("--lengths", default="", help="comma-separated")
    parser.add_argument("--settings", default="", help="of these studies, such as train-both-fp32, comma-separated")
    return parser.parse_args()


def main() -> int:
    """The number of bars that were missed."""
    given = arguments()
    modes: list[Mode] = ["forward", "train"]
    dtypes: list[Dtype] = ["fp32", "bf16"]
    every = [Setting(*each) for each in product(modes, (False, True), dtypes)]
    usual = every if given.what == "all" else [each for each in every if each.mode == "train" and each.dtype == "fp32"]
    asked = given.settings.split(",") if given.settings else [each.folder for each in usual]
    settings = [each for each in every if each.folder in asked]
    lengths = [int(n) for n in given.lengths.split(",")] if given.lengths else None
    specs = roster() if given.what == "all" else paired(given.only)
    usual_lengths = LENGTHS if given.what == "all" else BAR_LENGTHS
    folders = [measure(specs, lengths or usual_lengths, each, given) for each in settings]
    texts = [(folder / "bars.md").read_text(encoding="utf-8") for folder in folders]
    if given.what == "bars":
        print("\n".join(texts))
    return sum(text.count("| missed |") for text in texts)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LrbenchError as error:
        sys.exit(f"error: {error}")
