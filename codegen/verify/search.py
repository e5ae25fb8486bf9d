"""The pairs of ranks for which a truth holds, found without looking at each of them.

In: a term, ranges of its symbols. Out: the places where it is 1.
Always holds: a range is left out only where bounds of the term prove that it is 0 in all of it;
others are halved, until few enough points are left to be evaluated one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from codegen.verify.pairs import Pairs, Places, Ranges
from codegen.verify.vectors import Array

RANGES = 1 << 13  # looked at together
POINTS = 1 << 13
FEW = 32  # so many points are evaluated one by one


class Exhausted(Exception):
    """More is to be looked at than was allowed."""


class Search:
    """Where a truth holds, among ranges of its symbols."""

    def __init__(self, pairs: Pairs, truth: int, symbols: list[int], budget: int | None) -> None:
        self.terms, self.truth, self.symbols = pairs.terms, truth, symbols
        named = pairs.terms.symbols(truth)
        self.named = np.array([s in named or pairs.loose for s in symbols], dtype=bool)
        self.dtype, self.budget = pairs.terms.dtype(truth), budget

    def places(self, starts: Iterator[Ranges]) -> Iterator[Places]:
        """Those where it holds, some at a time."""
        if self.terms.value(self.truth) == 0:
            return
        for low, high in starts:
            one_of_others = np.where(self.named[:, None], high, low)  # which stands for all
            left: list[Ranges] = [(low, one_of_others)]
            while left:
                low, high = left.pop()
                if low.shape[1] > RANGES:
                    left.append((low[:, RANGES:], high[:, RANGES:]))
                    low, high = low[:, :RANGES], high[:, :RANGES]
                self._spend(low.shape[1])
                many = np.prod(high - low + 1.0, axis=0) > FEW
                yield from self._one_by_one(low[:, ~many], high[:, ~many])
                if many.any():
                    left.append(self._halves(low[:, many], high[:, many]))

    def _spend(self, much: int) -> None:
        if self.budget is not None:
            self.budget -= much
            if self.budget < 0:
                raise Exhausted

    def _halves(self, low: Array, high: Array) -> Ranges:
        """Of the ranges where it may hold."""
        given = {}
        for s, least, most in zip(self.symbols, low, high):
            least, most = least.astype(self.dtype), most.astype(self.dtype)
            given[s] = (least, least if (least == most).all() else most)
        bound = self.terms.ranges((self.truth,), given)[self.truth][1]
        maybe = np.broadcast_to(np.asarray(bound) > 0, low.shape[1:])
        low, high = low[:, maybe], high[:, maybe]
        widest, each = np.argmax(high - low, axis=0), np.arange(low.shape[1])
        middle = (low[widest, each] + high[widest, each]) // 2
        below, above = high.copy(), low.copy()
        below[widest, each], above[widest, each] = middle, middle + 1
        return np.concatenate([low, above], axis=1), np.concatenate([below, high], axis=1)

    def _one_by_one(self, low: Array, high: Array) -> Iterator[Places]:
        sizes = high - low + 1
        until = np.cumsum(np.prod(sizes, axis=0))
        first = 0
        while first < low.shape[1]:
            done = until[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(until, done + POINTS, side="right")))
            places = self._points(low[:, first:last], sizes[:, first:last])
            self._spend(places.shape[1])
            values = dict(zip(self.symbols, places.astype(self.dtype)))
            holds = self.terms.points((self.truth,), values)[self.truth]
            where = np.flatnonzero(np.broadcast_to(holds, places.shape[1:]))
            if where.size:
                yield dict(zip(self.symbols, places[:, where]))
            first = last

    def _points(self, low: Array, sizes: Array) -> Array:
        """All points of the ranges, a column each."""
        number = np.prod(sizes, axis=0)
        of = np.repeat(np.arange(low.shape[1]), number)
        left = np.arange(of.size) - np.repeat(np.cumsum(number) - number, number)
        out = np.empty((low.shape[0], of.size), dtype=np.int64)
        for k in reversed(range(low.shape[0])):
            out[k] = low[k, of]
            if (sizes[k] != 1).any():
                size = sizes[k, of]
                quotient = (left / size).astype(np.int64)  # of small numbers, and faster than //
                out[k] += left - quotient * size
                left = quotient
        return out
