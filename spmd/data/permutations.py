"""Which example stands at a position of a stream: permutations and draws, without a table.

A generalised Feistel network over a grid of a * b >= n cells, walked along its cycles until it is
below n (J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002); its round function
is the finaliser of SplitMix64 (G. Steele, D. Lea and C. Flood, 2014).
Always holds: an answer follows from seed and position alone, whatever else is asked for with it.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Words = NDArray[np.uint64]

ROUNDS, ROUNDS_OF_FEW, FEW = 8, 16, 4096  # on small grids fewer favour some permutations
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, as in SplitMix64
LARGEST = 2**62  # examples: what is computed with them stays below 2**63


def scrambled(words: Words) -> Words:
    """Map 64 bits to 64 bits, one to one: neighbours get words that look independent."""
    words = words + np.uint64(GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def keyed(seed: int, *words: Words | int) -> Words:
    """Return a word that follows from a seed and other words, each an integer or an array of them.

    Their order counts: what is there is scrambled once more before the next word comes in.
    """
    key = scrambled(np.asarray([seed], np.uint64))
    for word in words:
        key = scrambled(scrambled(key) ^ np.atleast_1d(np.asarray(word, np.uint64)))
    return key


@lru_cache(64)
def round_keys(seed: int, epoch: int, window: int, rounds: int) -> list[Words]:
    """Return the words of one permutation, of a single element each."""
    return [keyed(seed, epoch, window, k) for k in range(rounds)]


def permuted(
    n: int, positions: Positions, seed: int, epoch: Words | int = 0, window: Words | int = 0
) -> Positions:
    """Return where a random permutation of n, one for each seed, epoch and window, puts these
    positions below n.

    ::

        >>> permuted(5, np.arange(5), seed=1).tolist()
        [4, 2, 3, 1, 0]
    """
    if not 0 < n <= LARGEST:
        raise ValueError(f"a permutation of {n}: expected 1 to {LARGEST}")
    a = np.uint64(isqrt(n - 1) + 1)
    b = np.uint64(-(-n // int(a)))
    cells = np.asarray(positions).astype(np.uint64)
    rounds = ROUNDS if n > FEW else ROUNDS_OF_FEW
    shared = isinstance(epoch, int) and isinstance(window, int)
    words = round_keys(seed, epoch, window, rounds) if shared else (  # type: ignore[arg-type]
        [np.broadcast_to(keyed(seed, epoch, window, k), cells.shape) for k in range(rounds)])
    walking = np.arange(len(cells))
    while walking.size:
        left, right = np.divmod(cells[walking], b)
        keys = words if shared else [w[walking] for w in words]
        for k in range(0, rounds, 2):
            left = (left + scrambled(keys[k] ^ right) % a) % a
            right = (right + scrambled(keys[k + 1] ^ left) % b) % b
        cells[walking] = left * b + right
        walking = walking[cells[walking] >= n]
    return cells.astype(np.int64)


def once(n: int, positions: Positions, seed: int, shuffle: bool | int) -> Positions:
    """Return the example at each position of the stream: each of n examples once an epoch.

    shuffle: False for their own order, True for a permutation, or the length of a window: then
    each window of so many examples is permuted by itself, and near ones stay near.
    """
    epoch, place = np.divmod(np.asarray(positions, np.int64), n)
    if shuffle is False:
        return place
    if shuffle is True or shuffle >= n:
        if place.size and np.all(epoch == epoch[0]):
            return permuted(n, place, seed, int(epoch[0]))
        return permuted(n, place, seed, epoch.astype(np.uint64))
    number, inside = np.divmod(place, shuffle)
    examples = place - inside
    last = number == n // shuffle  # of the epoch, and shorter
    for here, size in ((~last, shuffle), (last, n % shuffle)):
        if here.any():
            words = epoch[here].astype(np.uint64), number[here].astype(np.uint64) + np.uint64(1)
            examples[here] += permuted(size, inside[here], seed, *words)
    return examples


def independent(n: int, positions: Positions, seed: int) -> Positions:
    """Return one of n examples at each position, drawn again at each.

    ::

        >>> independent(10, np.arange(8), seed=1).tolist()
        [3, 1, 2, 0, 8, 1, 8, 7]
    """
    words = keyed(seed, np.asarray(positions).astype(np.uint64), 1)
    return (words % np.uint64(n)).astype(np.int64)


class Generators:
    """The random numbers of the example at each position: the same wherever it is computed.

    One generator is set anew for each, which is ten times faster than a new one: it is the
    example's until the next one is asked for.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.Philox(key=seed)
        self._begin = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def generator(self, position: int) -> np.random.Generator:
        """Return the generator of a position: Philox, whose key is seed and position."""
        self._begin["state"]["key"][:] = self._seed, position
        self._bits.state = self._begin
        return self._generator
