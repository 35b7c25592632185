"""Whether a user's file takes the options that it is given, found out where it may crash without harm."""

from pathlib import Path
from typing import Any

from lrbench.errors import LrbenchError
from lrbench.registry import backends, load_file
from lrbench.specs import AttentionSpec


class Options:
    """Hosted by a child."""

    def __init__(self, payload: Any = None) -> None:
        pass

    def complaint(self, attention: dict[str, Any]) -> tuple[str, str] | None:
        """What is wrong with the class or the settings of a JSON `AttentionSpec`, and the way out.

        A file that breaks when it is imported is no matter of options: its points say so.
        """
        spec = AttentionSpec.model_validate(attention)
        try:
            load_file(Path(spec.source))
        except LrbenchError:
            return None
        try:
            backends.load(spec)
        except LrbenchError as error:
            return error.message, error.hint
        return None
