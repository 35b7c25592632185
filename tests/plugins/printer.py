"""Prints rubbish to everything that is open."""

import os
import sys

from lrbench.backends.base import Mixer


class Printer(Mixer):
    def forward(self, x, *, mask=None):
        print('{"result": null}', flush=True)
        print("rubbish", file=sys.stderr)
        os.write(1, b"\x00\xff" * 500)
        return x * 1.0
