"""Philox4x32-10, a counter-based generator: four random words follow from a counter and a key.

J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
What eager runs and oracles compute; in an image csrc/spmd_philox.h does.
Always holds: operands are uint64 arrays that broadcast; Python integers below 2**64 may stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# fill(kind, count, seed, stream, start, span): an array of `count` numbers of consecutive elements.
# kind: "bits", "below" (of span), "uniform" or "normal", the last two with _f32 or _f64 behind.
Fill = Callable[[str, int, int, int, int, int], Any]
_faster: list[Fill] = []
_orders: list[Callable[[Any], Any]] = []

_LOW = 2**32 - 1  # the lower word of 64 bits


def words(counter: Sequence[Any], key: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return four random words of four of the counter and two of the key, 32 bits each."""
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (q >> 32) ^ b ^ left, q & _LOW, (p >> 32) ^ d ^ right, p & _LOW
        left, right = (left + 0x9E3779B9) & _LOW, (right + 0xBB67AE85) & _LOW
    return a, b, c, d


def _of(position: Any, stream: Any, seed: Any) -> tuple[Any, Any, Any, Any]:
    position, stream, seed = ((x & _LOW, x >> 32) for x in (position, stream, seed))
    return words((*position, *stream), seed)


def first(position: Any, stream: Any, seed: Any) -> Any:
    """Return 64 of an element's 128 random bits."""
    a, b, _, _ = _of(position, stream, seed)
    return a | (b << 32)


def second(position: Any, stream: Any, seed: Any) -> Any:
    """Return the other 64 bits."""
    _, _, c, d = _of(position, stream, seed)
    return c | (d << 32)


def use(fill: Fill, order: Callable[[Any], Any]) -> None:
    """Register faster routines for the numbers that eager runs draw and for the ascending order of
    random words; their results are those of this module and of np.argsort."""
    _faster[:] = [fill]
    _orders[:] = [order]


def drawn(kind: str, count: int, seed: int, stream: int, start: int, span: int = 0) -> Any:
    """Return numbers of consecutive elements by the routine in use; None without one."""
    return _faster[0](kind, count, seed, stream, start, span) if _faster else None


def order(words: Any) -> Any:
    """Return the places of a row of random words in ascending order; None without a routine."""
    return _orders[0](words) if _orders else None
