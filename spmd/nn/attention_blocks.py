"""Attention block by block: memory that grows as the length does, not as its square, both ways.

Running maxima and sums as in FlashAttention (T. Dao et al., 2022); of a row of scores only the
logarithm of its sum is kept, and the way back makes blocks of scores again. Arrays are (…, key
heads, heads of each, length, size). Always holds: a block has about SCORES scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import spmd
from spmd.extend import as_array, maximum, minimum

SCORES = 1 << 18  # of a block, in all heads and examples: a megabyte
LEAST, MOST, UNKNOWN = 64, 512, 128  # positions of a block


@dataclass(frozen=True)
class Scores:
    """How scores are made of queries and keys."""

    causal: bool
    scale: float
    size: int  # positions of a block

    def of(self, q: Any, k: Any, bias: Any, seen: Any) -> Any:
        scores = q @ np.swapaxes(k, -1, -2)
        if bias is not None:
            scores = scores + bias
        return scores if seen is None else np.where(seen, scores, scores.dtype.type(-np.inf))


@dataclass(frozen=True)
class KeyPart:
    """A part of the keys and values, at some positions, and what of a mask and a bias is for them.

    first_query, first_key: where the first of each stands. most: how many keys there may be, where
    their number differs from turn to turn.
    """

    key: Any
    value: Any
    mask: Any = None
    bias: Any = None
    first_query: Any = 0
    first_key: Any = 0
    most: Any = None


def size_of_blocks(batch: Any) -> int:
    """Return how many positions a block has, where scores of this many heads and examples are
    made."""
    if not isinstance(batch, int):
        return UNKNOWN
    return max(LEAST, min(MOST, math.isqrt(SCORES // max(batch, 1)) // 16 * 16))


def dtype_of_sums(x: Any) -> Any:
    return np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype


def wide(x: Any) -> Any:
    return x.astype(dtype_of_sums(x))


class _Cut:
    """A dim of `extent` positions in `count` blocks of `size`, of which the last may be shorter."""

    def __init__(self, extent: Any, size: int) -> None:
        self.extent, self.count = extent, _up(extent, size)
        self.size = _up(extent, max(self.count, 1)) if isinstance(extent, int) else size

    def of(self, k: Any, x: Any, dim: int) -> Any:
        """Return block k of an array, a view; the array itself where it has one element for all."""
        if is_one(x.shape[dim]):
            return x
        first = k * self.size
        last = first + minimum(self.size, self.extent - first)
        return as_array(x)[(..., slice(first, last), *(slice(None),) * (-1 - dim))]


class ScoreBlocks:
    """Scores in blocks of queries and of keys: it finds what of arrays belongs to a pair of
    blocks."""

    def __init__(self, how: Scores, q: Any, part: KeyPart) -> None:
        self.how, self.part = how, part
        self.rows, self.columns = (_Cut(x.shape[-2], how.size) for x in (q, part.key))

    def reached(self, i: Any) -> Any:
        """Return how many blocks of keys the queries of block i see some of."""
        if not self.how.causal:
            return self.columns.count
        seen = (i + 1) * self.rows.size + self.part.first_query - self.part.first_key
        return minimum(self.columns.count, maximum(_up(seen, self.columns.size), 0))

    def row(self, x: Any, i: Any) -> Any:
        return self.rows.of(i, x, -2)

    def column(self, x: Any, j: Any) -> Any:
        return self.columns.of(j, x, -2)

    def both(self, x: Any, i: Any, j: Any) -> Any:
        """Return the part for blocks i and j of an array with a dim of queries and one of keys, or
        with one of them; None for None."""
        return None if x is None else self.columns.of(j, self.rows.of(i, x, -2), -1)

    def scores(self, q: Any, i: Any, j: Any) -> Any:
        """Return the scores of block i of the queries, which are q, and block j of the keys."""
        seen = self.both(self.part.mask, i, j)
        if self.how.causal:
            query = self.row(_places(self.rows.extent, self.part.first_query), i)
            keys = self.columns.extent
            most = keys if self.part.most is None else self.part.most
            key = self.column(_places(most, self.part.first_key)[:keys], j)
            before = query >= np.swapaxes(key, 0, 1)
            seen = before if seen is None else seen & before
        k, bias = wide(self.column(self.part.key, j)), self.both(self.part.bias, i, j)
        return self.how.of(q, k, bias, seen)


def begun(q: Any, v: Any) -> tuple[Any, Any, Any]:
    """Return the state before any keys: the largest score of each query, the sum of powers, that of
    values."""
    column = np.zeros_like(q[..., :1], dtype=dtype_of_sums(q))
    return column - np.inf, column, column + np.zeros(v.shape[-1], column.dtype)


def visit(how: Scores, q: Any, part: KeyPart, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return the state after the queries have seen a part of the keys too."""
    blocks = ScoreBlocks(how, q, part)

    def rows(i: Any, state: Any) -> Any:
        mine = wide(blocks.row(q, i)) * how.scale

        def columns(j: Any, carried: Any) -> Any:
            most, powers, values = carried
            scores = blocks.scores(mine, i, j)
            now = np.maximum(most, np.max(scores, -1, keepdims=True))
            finite = np.where(now == -np.inf, 0, now)
            weights, less = np.exp(scores - finite), np.exp(most - finite)
            powers = powers * less + np.sum(weights, -1, keepdims=True)
            values = values * less + weights @ wide(blocks.column(part.value, j))
            return now, powers, values

        new = spmd.fori_loop(0, blocks.reached(i), columns, tuple(blocks.row(x, i) for x in state))
        for x, block in zip(state, new):
            blocks.row(x, i)[...] = block
        return state

    return spmd.fori_loop(0, blocks.rows.count, rows, state)


def ended(state: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """Return the means of values, 0 where no key was seen, and the logarithm of each row's sum of
    powers."""
    most, powers, values = state
    some = np.where(powers == 0, 1, powers)
    return values / some, np.where(powers == 0, 0, most) + np.log(some)


def back(
    how: Scores, q: Any, part: KeyPart, statistics: tuple[Any, Any, Any], slopes: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return cotangents of queries / scale, keys, values (and of the bias), with what this part
    adds.

    statistics: the logarithms of the sums, the cotangents of the means, and the sums of their
    products with the means.
    """
    blocks = ScoreBlocks(how, q, part)
    sums, cotangents, dots = statistics

    def rows(i: Any, slopes: Any) -> Any:
        mine, cotangent = wide(blocks.row(q, i)) * how.scale, wide(blocks.row(cotangents, i))
        total, dot = blocks.row(sums, i), blocks.row(dots, i)

        def columns(j: Any, slopes: Any) -> Any:
            weights = np.exp(blocks.scores(mine, i, j) - total)
            dq, dk, dv, *dbias = slopes
            value = wide(blocks.column(part.value, j))
            step = weights * (cotangent @ np.swapaxes(value, -1, -2) - dot)
            blocks.column(dv, j)[...] += _like(np.swapaxes(weights, -1, -2) @ cotangent, dv)
            blocks.column(dk, j)[...] += _like(np.swapaxes(step, -1, -2) @ mine, dk)
            dq = dq + step @ wide(blocks.column(part.key, j))
            for x in dbias:
                blocks.both(x, i, j)[...] += _like(step, x)
            return dq, dk, dv, *dbias

        dq, *others = slopes
        new, *others = spmd.fori_loop(0, blocks.reached(i), columns, (blocks.row(dq, i), *others))
        blocks.row(dq, i)[...] = new
        return dq, *others

    return spmd.fori_loop(0, blocks.rows.count, rows, slopes)


def _like(x: Any, slope: Any) -> Any:
    """Return x, summed over dims of which `slope` has one element for all."""
    pairs = enumerate(zip(slope.shape, x.shape))
    over = tuple(d for d, (own, other) in pairs if is_one(own) and not is_one(other))
    return np.sum(x, over, keepdims=True) if over else x


def is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def _places(extent: Any, first: Any) -> Any:
    """Return the positions of rows, as a column."""
    places = np.arange(extent) if isinstance(extent, int) else spmd.arange(extent)
    return places[:, None] + first


def _up(a: Any, b: Any) -> Any:
    return (a + (b - 1)) // b
