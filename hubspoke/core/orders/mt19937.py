"""The generator under most shuffles: MT19937, as torch, numpy and Python's `random` draw from it.

Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998. The three differ in how a seed
fills the state and in what they make of the 32-bit words; both are facts of their sources:

    torch   init_genrand(seed mod 2^32); a 64-bit number is (first word << 32) | second word
            (aten/src/ATen/core/MT19937RNGEngine.h, CPUGeneratorImpl.cpp: random64)
    numpy   RandomState(int): init_genrand as well, so it lends torch its stream
    Python  random.Random(int): init_by_array of the seed's 32-bit words (Modules/_randommodule.c),
            which numpy does for a seed given as an array

Only numpy is used: the core is free of modules with a state of their own, as `random` has one.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Long = npt.NDArray[np.uint64]
_WORDS_AT_ONCE = 624


class TorchGenerator:
    """A CPU `torch.Generator` after `manual_seed(seed)`: any integer, its low 32 bits count."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed % 2**32)

    @classmethod
    def of_state(cls, key: bytes, position: int) -> "TorchGenerator":
        """One in a state that `state` told. Raises ValueError for anything else."""
        made = cls(0)
        made._state.set_state(("MT19937", np.frombuffer(key, np.uint32), position, 0, 0.0))
        return made

    def state(self) -> tuple[bytes, int]:
        """624 words, and how many of them have been drawn."""
        state = self._state.get_state(legacy=False)["state"]
        return state["key"].tobytes(), int(state["pos"])

    def skip32(self, count: int) -> None:
        """Draw so many outputs of 32 bits for nothing."""
        if count:  # numpy draws a word for no bytes
            self._state.bytes(4 * count)

    def draws32(self, count: int) -> Words:
        """The next `count` outputs of 32 bits (`random()` in CPUGeneratorImpl.cpp)."""
        return self._state.randint(0, 2**32, size=count, dtype=np.uint32)

    def draws64(self, count: int) -> Long:
        """The next `count` outputs of 64 bits: two words each, the high one first (`random64`)."""
        words = self.draws32(2 * count).astype(np.uint64)
        return (words[::2] << np.uint64(32)) | words[1::2]

    def random_(self) -> int:
        """`torch.empty((), dtype=torch.int64).random_()`: 0 to 2^63 - 1."""
        return int(self.draws64(1)[0]) % 2**63


class PythonRandom:
    """`random.Random(seed)` for integers, as far as shuffles need it."""

    def __init__(self, seed: int) -> None:
        seed = abs(seed)
        key = [seed >> shift & 0xFFFFFFFF for shift in range(0, max(seed.bit_length(), 1), 32)]
        # A list: of an array with one element numpy takes the number, and seeds by init_genrand.
        self._state = np.random.RandomState(key)
        self._words = self._all_words()

    def _all_words(self) -> Iterator[int]:
        while True:
            yield from self._state.randint(0, 2**32, size=_WORDS_AT_ONCE, dtype=np.uint32).tolist()

    def below(self, n: int) -> int:
        """`randrange(n)`, and `randint(0, n - 1)`; n: 1 to 2^32 - 1.

        Source: Lib/random.py, _randbelow_with_getrandbits: the top bits of a word, drawn again
        while they make n or more.
        """
        assert 1 <= n < 2**32, n
        shift = 32 - n.bit_length()
        while (drawn := next(self._words) >> shift) >= n:
            pass
        return drawn
