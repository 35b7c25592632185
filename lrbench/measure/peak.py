"""How fast this machine multiplies matrices: what a fraction of peak is a fraction of."""

from statistics import median
from time import perf_counter
from typing import Any

import torch

from lrbench.environment import fingerprint
from lrbench.measure import energy
from lrbench.measure.region import DTYPES

SIZES = (1024, 2048)
PACE_SIZE = 1024
PRODUCTS = 10


class Machine:
    """Hosted by a child with as many threads as the points have."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self._dtype, self._device = DTYPES[payload["dtype"]], torch.device(payload["device"])

    def fingerprint(self) -> dict[str, Any]:
        """The environment of this moment."""
        return fingerprint().model_dump(mode="json")

    def energy(self) -> dict[str, Any]:
        """Whether energy can be had here, and what an idle machine takes."""
        return energy.about(self._device.type if self._device.index is None else str(self._device))

    def best(self) -> dict[str, float]:
        """The best rate of ten square products of each size, in FLOP/s. Some seconds."""
        started = perf_counter()
        rates = [rate for size in SIZES for rate in self._rates(size)]
        return {"flops": max(rates), "spent_s": perf_counter() - started}

    def pace(self) -> dict[str, float]:
        """The middle rate of ten products: how fast the machine is now, disturbances included. A tenth of a second."""
        started = perf_counter()
        return {"flops": median(self._rates(PACE_SIZE)), "spent_s": perf_counter() - started}

    def _rates(self, size: int) -> list[float]:
        a = torch.randn(size, size, device=self._device, dtype=self._dtype)
        out = a @ a
        rates = []
        for _ in range(PRODUCTS):
            self._wait()
            started = perf_counter()
            torch.mm(a, a, out=out)
            self._wait()
            rates.append(2 * size**3 / (perf_counter() - started))
        return rates

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
