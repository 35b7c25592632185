"""`lrbench sample`: what a trained model makes up."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lrbench.cli import options as opt


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run trained with --keep-checkpoint.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 16,
    out: Annotated[Path | None, typer.Option("--out", help="Images: the PNG file. [default: RUN/samples.png]")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Draw from a density or language model: images as one picture, texts as lines.

    Every token costs a forward pass over those before it.

    Example: lrbench sample results/runs/cifar10-density/full/tiny-s0-0123456789 -n 9
    """
    from lrbench import plan, runner, sampling
    from lrbench.loaders.base import Example
    from lrbench.loaders.pictures import save_sheet
    from lrbench.taskdata import TaskSource

    spec, model = sampling.trained(run.expanduser())
    found = sampling.draw(model, spec.data.length, count, seed, plan.checked_device(device)).numpy()
    source = TaskSource(spec.task, spec.data, runner.cache_folder(None))
    images = [source.picture(tokens) for tokens in found]
    if images[0] is None:
        texts = [source.describe(Example((tokens,), 0)) for tokens in found]
        print(
            json.dumps({"samples": texts, "seed": seed}, indent=1, ensure_ascii=False) if as_json else "\n".join(texts)
        )
        return 0
    file = (out or run / "samples.png").expanduser()
    save_sheet(images, file)
    print(json.dumps({"file": str(file), "count": count, "seed": seed}) if as_json else f"{count} samples: {file}")
    return 0
