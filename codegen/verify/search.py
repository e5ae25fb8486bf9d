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
FEW = 32  # so many points are evaluated one by one


class Exhausted(Exception):
    """The search has used up its budget of ranges."""


class Search:
    """A search for the places where a truth holds, among ranges of its symbols."""

    def __init__(self, pairs: Pairs, truth: int, symbols: list[int], budget: int | None) -> None:
        self.pairs, self.terms, self.truth, self.symbols = pairs, pairs.terms, truth, symbols
        named = pairs.terms.symbols(truth)
        self.named = np.array([s in named or pairs.loose for s in symbols], dtype=bool)
        self.dtype, self.budget = pairs.terms.dtype(truth), budget

    def places(self, starts: Iterator[Ranges]) -> Iterator[Places]:
        """Yield the places where the truth holds, some at a time."""
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
        """Halve the ranges where the truth may hold, along their widest symbol; return the
        halves."""
        known = {}
        for s, least, most in zip(self.symbols, low, high):
            least, most = least.astype(self.dtype), most.astype(self.dtype)
            known[s] = (least, least if (least == most).all() else most)
        bound = self.terms.ranges((self.truth,), known)[self.truth][1]
        maybe = np.broadcast_to(np.asarray(bound) > 0, low.shape[1:])
        low, high = low[:, maybe], high[:, maybe]
        widest, each = np.argmax(high - low, axis=0), np.arange(low.shape[1])
        middle = (low[widest, each] + high[widest, each]) // 2
        below, above = high.copy(), low.copy()
        below[widest, each], above[widest, each] = middle, middle + 1
        return np.concatenate([low, above], axis=1), np.concatenate([below, high], axis=1)

    def _one_by_one(self, low: Array, high: Array) -> Iterator[Places]:
        for places in self.pairs.each(self.symbols, (low, high)):
            (holds,) = self.pairs.evaluated(places, self.truth)
            self._spend(len(holds))
            where = np.flatnonzero(holds)
            if where.size:
                yield {s: a[where] for s, a in places.items()}
