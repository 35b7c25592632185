"""Never comes back."""

from time import sleep

from lrbench.backends.base import Mixer


class Hanger(Mixer):
    def forward(self, x, *, mask=None):
        while float(x[0, 0, 0]) == float(x[0, 0, 0]):  # a number that fake tensors do not have
            sleep(0.1)
        return x
