"""A task's data as its card and a resolved spec ask for them: load, check, describe."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from lrbench.errors import Missing, SpecError
from lrbench.loaders.base import DataRequest, Example, Hub, TaskData
from lrbench.loaders.cache import damages
from lrbench.loaders.checks import Check, common_checks
from lrbench.registry import check_options, load_loader
from lrbench.specs import DataSpec, Task


@dataclass(frozen=True)
class TaskSource:
    """Where a task's examples come from. Beside `load`, a loader may have `verify`, and `describe` or a `reader`."""

    task: Task
    spec: DataSpec
    cache: Path
    offline: bool = False

    @property
    def request(self) -> DataRequest:
        """What the loader is asked for."""
        spec = self.spec
        return DataRequest(
            name=self.task.name,
            length=spec.length,
            examples=spec.examples,
            source=spec.source,
            offline=self.offline,
            limit=spec.limit,
            seed=spec.seed,
            hub=Hub(**self.task.hub.model_dump()) if self.task.hub else None,
        )

    def load(self) -> TaskData:
        """The data, built or fetched once and then taken from the cache.

        Raises:
            SpecError: an option or a file is wrong.
            Missing: the data cannot be had here.
        """
        if self.spec.source == "path":
            raise Missing(
                f"task {self.task.name}: this preset reads files that you have, and none were named",
                "give --data PATH; 'lrbench list tasks --json' says in which layout",
            )
        data: TaskData = load_loader(self.task.loader)(self.request, self.cache, **self._options())
        found = len(data.train[0].views)
        if found != self.task.views:
            raise SpecError(
                f"task {self.task.name}: kind {self.task.kind} takes {self.task.views} views, the loader gives {found}",
                "mend the card's kind: classify and predict take one, match, fill and answer two",
            )
        return data

    def verify(self) -> list[Check]:
        """Everything that can be checked, beginning with what lies in the cache."""
        damaged = damages(self.cache, self.task.name)
        stored = [Check("cache", False, what) for what in damaged] or [Check("cache", True, "whole")]
        data = self.load()
        own = self._beside("verify")
        return [*stored, *(own(data, self.request, **self._options()) if own else common_checks(data, self.request))]

    @cached_property
    def describe(self) -> Callable[[Example], str]:
        """Writes an example for people. Where that takes more than the example, the loader has a `reader`."""
        if reader := self._beside("reader"):
            return cast(Callable[[Example], str], reader(self.request))
        return self._beside("describe") or _plain

    def picture(self, tokens: Any) -> Any:
        """An array of pixels, y, x and perhaps colour, if the task's sequences are images; else None."""
        own = self._beside("picture")
        return own(tokens) if own else None

    def _options(self) -> dict[str, Any]:
        return check_options(load_loader(self.task.loader), self.spec.options, f"task {self.task.name}: data.options")

    def _beside(self, name: str) -> Any:
        return getattr(sys.modules[load_loader(self.task.loader).__module__], name, None)


def _plain(example: Example) -> str:
    return f"{[view.tolist() for view in example.views]}\nanswer: {example.label}"
