"""A backend's state in another process, where nothing but its `state_dict` can have come along.

`python -m lrbench.probes.elsewhere` is that process. It takes one request a line, the path of a file, and answers with
one; it is kept for the next request, for importing torch is what takes long, and ends when its stdin does.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_jsonable_python
from torch import Tensor

from lrbench.backends.base import LayerConfig, Mixer
from lrbench.probes.base import Factory, Probe, judged, skipped
from lrbench.registry import check_options, load_file

NAME = "state elsewhere"
SEQ = 65


@torch.no_grad()
def state_elsewhere(make: Factory) -> Probe:
    """Another process that builds the class and loads the state computes the same to the bit."""
    place = address(make.cls)
    if place is None:
        return skipped(NAME, f"{make.cls.__qualname__} stands in no file or module where another process would find it")
    mixer, x = make(), make.inputs(SEQ)
    config = asdict(make.config())
    request = {**place, "config": config, "settings": to_jsonable_python(dict(make.settings))}
    request["threads"] = torch.get_num_threads()
    y = mixer(x)
    other = OTHER.ask(request, {"state": mixer.state_dict(), "x": x})
    same = y.shape == other.shape and y.dtype == other.dtype
    return judged(NAME, float((y - other).abs().max()) if same else torch.inf, 0)


def address(cls: type[Mixer]) -> dict[str, str] | None:
    """Where another process finds the class, or None."""
    module = sys.modules.get(cls.__module__)
    if module is None or "<" in cls.__qualname__ or cls.__module__ == "__main__":
        return None
    file = getattr(module, "__file__", None)
    if cls.__module__.startswith("lrbench_file_") and file:
        return {"file": str(Path(file).absolute()), "class": cls.__qualname__}
    return {"module": cls.__module__, "class": cls.__qualname__}


class Elsewhere:
    """The other process, started when it is first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any], tensors: dict[str, Any]) -> Tensor:
        """The output of the class for `x`, with `state` loaded.

        Raises:
            RuntimeError: with what went wrong there.
        """
        with tempfile.TemporaryDirectory() as folder:
            sent, received = Path(folder) / "sent", Path(folder) / "received"
            torch.save(tensors, sent)
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps({**request, "sent": str(sent), "received": str(received)}) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                self.close()
                raise RuntimeError(f"the other process ended with exit code {process.returncode}")
            if error := json.loads(answer)["error"]:
                raise RuntimeError(f"in the other process: {error}")
            found = torch.load(received, weights_only=True)
        assert isinstance(found, Tensor)
        return found

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()
            self._process = None

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lrbench.probes.elsewhere"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                text=True,
            )
        return self._process


OTHER = Elsewhere()
atexit.register(OTHER.close)


@torch.no_grad()
def answer(request: dict[str, Any]) -> None:
    """Build, load, compute, and leave the output in a file."""
    module = load_file(Path(request["file"])) if "file" in request else import_module(request["module"])
    cls: Any = module
    for part in request["class"].split("."):
        cls = getattr(cls, part)
    torch.set_num_threads(request["threads"])
    torch.manual_seed(11)  # other weights than those that are to come
    tensors = torch.load(request["sent"], weights_only=True)
    settings = check_options(cls, request["settings"], cls.__name__)
    mixer = cls(LayerConfig(**request["config"]), **settings).eval()
    mixer.load_state_dict(tensors["state"])
    torch.save(mixer(tensors["x"]), request["received"])


def main() -> None:
    """Serve until stdin ends."""
    # whatever a plug-in prints must not end up among the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        error = ""
        try:
            answer(json.loads(line))
        except Exception as raised:  # a plug-in may raise anything
            error = f"{type(raised).__name__}: {raised}"
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
