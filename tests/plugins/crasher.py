"""Is killed, as the kernel does for want of memory, or ends its process."""

import os
import signal

from lrbench.backends.base import Mixer


class Crasher(Mixer):
    def __init__(self, cfg, *, code: int | None = None):
        super().__init__(cfg)
        self.code = code

    def forward(self, x, *, mask=None):
        if float(x[0, 0, 0]) == float(x[0, 0, 0]):  # a number that fake tensors do not have
            if self.code is not None:
                os._exit(self.code)
            os.kill(os.getpid(), signal.SIGKILL)
        return x
