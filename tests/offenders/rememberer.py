"""Fixes its window by the first input that it sees."""

from lrbench.backends import ops
from lrbench.backends.base import HeadMixer


class Rememberer(HeadMixer):
    seen = None

    def attend(self, q, k, v, mask):
        if not self.training:
            self.seen = self.seen or q.shape[2]
        return ops.banded(q, k, v, window=self.seen or 64, causal=False, visible=mask)
