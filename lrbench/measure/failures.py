"""How a point fails: one status, one reason, and for want of memory the kind and the request."""

import re
from typing import Any, Literal

from lrbench.errors import LrbenchError, Unsupported
from lrbench.records import Status

OomKind = Literal["allocator", "python", "accelerator", "killed"]
# what allocators say, torch's on each system first; the last two are C++'s and oneDNN's
ALLOCATORS = re.compile(
    r"can't allocate memory|not enough memory|out of memory|bad_alloc|could not create a memory", re.IGNORECASE
)
REQUEST = re.compile(r"allocate (\d+) bytes")


class Failure(Exception):
    """A point that did not come to a figure."""

    def __init__(self, status: Status, reason: str, kind: OomKind | None = None, request: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.kind, self.request = status, reason, kind, request

    def to_json(self) -> dict[str, Any]:
        """As sent by a child."""
        return {"status": self.status, "reason": self.reason, "kind": self.kind, "request": self.request}


def classify(error: BaseException) -> Failure:
    """What an exception inside a child comes to. Only an allocator's own words count as `oom`."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, Failure):
        return error
    if isinstance(error, Unsupported):
        return Failure("unsupported", error.message)
    if isinstance(error, LrbenchError):
        return Failure("error", error.message)
    if isinstance(error, MemoryError):
        return Failure("oom", f"out of memory: {text}", "python")
    if type(error).__name__ == "OutOfMemoryError":
        return Failure("oom", f"out of memory: {text}", "accelerator")
    if isinstance(error, RuntimeError) and ALLOCATORS.search(text):
        found = REQUEST.search(text)
        request = int(found[1]) if found else None
        asked = f"{request} bytes were asked for at once" if request else text
        return Failure("oom", f"out of memory: {asked}", "allocator", request)
    return Failure("error", f"{type(error).__name__}: {text}")
