"""Random numbers that are the same on every platform and with every numpy: from the raw words of Philox."""

import numpy as np
from numpy.typing import NDArray


class Stream:
    """An endless row of numbers; `seed` and `number` name it. Salmon et al. 2011."""

    def __init__(self, seed: int, number: int = 0) -> None:
        self._words = np.random.Philox(key=[seed % 2**64, number])

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """From 0 up to 1, of 53 bits each."""
        words = self._words.random_raw(int(np.prod(shape)))
        numbers: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return numbers.reshape(shape)

    def below(self, choices: int, *shape: int) -> NDArray[np.int64]:
        """Whole numbers from 0 to `choices` - 1; uneven by less than one part in 10^9."""
        words = self._words.random_raw(int(np.prod(shape)))
        words >>= np.uint64(32)
        words *= np.uint64(choices)
        words >>= np.uint64(32)
        return words.view(np.int64).reshape(shape)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The numbers below `count` in random order."""
        return np.argsort(self._words.random_raw(count), kind="stable")
