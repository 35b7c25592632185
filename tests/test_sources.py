"""Where data come from: a loader has the sources that its card names, and no other."""

from pathlib import Path

import pytest
from task_helpers import request_for

from lrbench import catalog
from lrbench.errors import SpecError
from lrbench.loaders import copying
from lrbench.loaders.common import source_of
from lrbench.registry import load_loader

TASKS = [path.stem for path in (Path(__file__).parents[1] / "tasks").glob("*.yaml")]
OTHERS = [
    (task, source)
    for task in sorted(TASKS)
    for source in ("generated", "hub", "stand-in")
    if source not in catalog.task(task).sources
]


@pytest.mark.parametrize(("task", "source"), OTHERS)
def test_what_a_card_does_not_name_its_loader_refuses(task: str, source: str, tmp_path: Path) -> None:
    card = catalog.task(task)
    load = load_loader(card.loader)
    with pytest.raises(SpecError, match=f"{task} does not come from '{source}'|{task} names no data set"):
        load(request_for(task, "tiny", source=source), tmp_path, **card.presets["tiny"].data.options)
    assert not list(tmp_path.iterdir())


def test_all_else_is_a_path(tmp_path: Path) -> None:
    request = request_for("enwik8", "tiny", source=str(tmp_path))
    assert source_of(request, "hub", "local") == "local"
    with pytest.raises(SpecError, match="enwik8 does not come from") as caught:
        source_of(request, "generated", "stand-in")
    assert caught.value.hint == "possible: generated, stand-in"
    with pytest.raises(SpecError) as caught:
        copying.load(request, tmp_path)
    assert caught.value.hint == "possible: generated"
