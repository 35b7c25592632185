"""The Python of lrbench: the same calls that the commands make. Importing this is cheap."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrbench.records import RunRecord, load
from lrbench.runner import Options, cache_folder, check_writable, out_folder, run_grid
from lrbench.specs import Grid, PresetName, ScaleGrid, parse

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from lrbench.reporting.document import Document


def run(
    *,
    model: str,
    task: str,
    preset: PresetName = "small",
    seed: int = 0,
    out: Path | str | None = None,
    cache: Path | str | None = None,
    **grid: Any,
) -> RunRecord:
    """Train one model on one task from one seed, or read the record if that has been done.

    Args:
        model, task, preset, seed: as `--model`, `--task`, `--preset`, `--seed` of `lrbench run`.
        out, cache: folders; by default those of the command.
        grid: further words of a suite's grid: `set={"train.steps": 200}`, `device`, `dtype`, `limit`, …

    Raises:
        SpecError, Unsupported: the request is wrong.
        Missing: data, a device or a package is not there.
    """
    wanted = Grid(models=[model], tasks=[task], seeds=[seed], preset=preset, **grid)
    return run_grid(wanted, Options(out=out_folder(out), cache=cache_folder(cache)))[0].record


def attention(
    name: str,
    *,
    dim: int,
    heads: int,
    head_dim: int | None = None,
    max_len: int = 4096,
    causal: bool = False,
    dropout: float = 0.0,
    positions: str = "none",
    **options: Any,
) -> "nn.Module":
    """An attention backend alone: `y = attention("performer", dim=512, heads=8)(x, mask=mask)`.

    Args:
        name: as `--model`; `options` are the backend's own, as in `performer[features=256]`.
        max_len: the longest input; only backends with a table of that length care.
        positions: a kind that acts inside attention: `rotary`, `pia`, `alibi`, `t5` or `xl`.

    Raises:
        UnknownName, SpecError: no such backend or option, or sizes that do not go together.
        Unsupported: the backend cannot do that.
    """
    from lrbench.backends.base import LayerConfig, check_divisible
    from lrbench.registry import backends

    spec = backends.spec(name)
    backend = backends.load(spec.model_copy(update={"settings": {**spec.settings, **options}}))
    config = LayerConfig(
        dim=dim,
        heads=heads,
        head_dim=head_dim or check_divisible(dim, heads),
        max_len=max_len,
        causal=causal,
        dropout=dropout,
        positions=positions,
    )
    return backend.cls(config, **backend.options)


def load_results(*places: Path | str) -> "pd.DataFrame":
    """All run records below the given folders, one row a record, nested fields as `metrics.test.accuracy`."""
    import pandas as pd

    return pd.json_normalize([record.to_json() for record in load(places or [out_folder(None)])])


def report(*places: Path | str, where: str = "") -> "Document":
    """What `lrbench report` says of some results folders; in a notebook it shows itself as the page.

    Args:
        places: results folders; by default that of the command.
        where: runs to count, as `--where`.

    Returns:
        The document, with its `comparisons`, `findings` and `tables`.

    Raises:
        SpecError: no condition is written like that.
    """
    from lrbench.reporting.document import document
    from lrbench.reporting.where import conditions

    return document([Path(place).expanduser() for place in places or [out_folder(None)]], conditions(where))


def scale(
    *,
    models: Sequence[str],
    lengths: Sequence[int] | str,
    mode: str = "train",
    out: Path | str | None = None,
    **grid: Any,
) -> "pd.DataFrame":
    """Measure peak memory and wall-clock of attentions over lengths, or read the study if that has been done.

    Args:
        models, lengths, mode: as `--models`, `--lengths`, `--mode` of `lrbench scale`.
        out: the results folder; by default that of the command.
        grid: further words of a suite's `scale` section: `tokens`, `width`, `dtype`, `memory_limit`, `precision`, …

    Returns:
        One row a point, nested fields as `time_ms.median`; its `attrs["record"]` holds the fits.

    Raises:
        SpecError, Unsupported: the request is wrong.
        Missing: a device or a package is not there.
    """
    import pandas as pd

    from lrbench.scalestudy import Request, run_studies

    wanted = parse(ScaleGrid, {"models": list(models), "lengths": lengths, "modes": [mode], **grid}, "scale")
    folder = out_folder(out)
    check_writable(folder)
    (measured,) = run_studies(wanted, Request(folder, cache_folder(None)))
    frame = pd.json_normalize(
        [point.model_dump(mode="json", by_alias=True, exclude={"spec", "settings"}) for point in measured.points]
    )
    frame.attrs["record"] = measured.record.to_json()
    return frame
