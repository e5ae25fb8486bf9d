"""The exchanges of a large mesh, checked for all its ranks at once.

In: a table of exchanges, a mesh. Out: how many transfers match, and of which exchanges only a
sample was looked at; or a Mismatch for the first pair of ranks that does not fit.
Always holds: a pair is left out only where bounds of the terms prove that it fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from codegen import progress
from codegen.verify.exchange_table import ExchangeTable, Row
from codegen.verify.pairs import COUNTS, Axes, BoxTerms, Pairs, Places, Ranges
from codegen.verify.search import Exhausted, Search
from codegen.verify.small import Agreed, Everyone, each_once
from codegen.verify.vectors import Array

BUDGET = 1 << 22  # ranges and points of pairs, of an exchange of everybody with everybody
LISTED = 1 << 26  # the same, of pairs that list each other as neighbours
SEEN = 1 << 8  # the same, for a rank at an edge, of pairs that see one wrap of a dim that goes on


def check(table: ExchangeTable, values: Mapping[str, Any]) -> Agreed:
    """Check that every exchange matches on this mesh. values: the values of names that are the same
    on all ranks. Raise Mismatch."""

    def check_row(row: Row) -> Agreed:
        agreed = Agreed()
        for turn in itertools.product(range(COUNTS), repeat=len(row.loops)):
            wraps = Pairs(row, [values], turn, 0).most_wraps
            for wrap in range(wraps):
                beyond = f", wrap {wrap + 1} of {wraps}" if wraps > 1 else ""
                progress.announce(f"exchange {row.site} ({row.kind}) of {len(table.rows)}{beyond}")
                everybody = Everybody(Pairs(row, [values], turn, wrap))
                more = everybody.agreed(everybody.check())
                agreed.transfers += 0 if wrap else more.transfers
                agreed.sampled |= more.sampled
        return agreed

    return each_once(table, check_row)


class Everybody(Everyone):
    """A check of one exchange for all ranks of a large mesh, in one iteration of the loops around
    it and for one wrap."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(pairs)
        sizes = ((a, pairs.terms.value(size)) for a, size in pairs.size.items())
        self.mesh = {a: n for a, n in sizes if n is not None}

    def where(self, truth: int, symbols: list[int]) -> Iterator[Places]:
        return self._search(truth, symbols)

    def _search(self, truth: int, symbols: list[int], starts: Any = None,
                budget: int | None = None) -> Iterator[Places]:
        whole = iter([self.pairs.ranges(symbols)])
        return Search(self.pairs, truth, symbols, budget).places(starts or whole)

    def compared(self, most: int | None) -> int:
        flow = self.row.said["flow"]
        if flow == "near":
            return self._near()
        return self._rooted(flow) if flow in ("from_root", "to_root") else self._all(flow)

    def _groups(self) -> int:
        """Return the number of groups that execute the exchange."""
        coming, symbols = self.pairs.taken(self.pairs.first), self.pairs.symbols()
        return sum(int(self.pairs.evaluated(places, coming)[0].sum())
                   for places in self.pairs.each(symbols))

    def _rooted(self, flow: str) -> int:
        """Check that the root's boxes match those of every member; return the number of
        transfers."""
        t, pairs = self.terms, self.pairs
        root = pairs.read("root", pairs.first)
        assert root is not None
        place = pairs.place(root)
        giver, taker = (place, pairs.taker) if flow == "from_root" else (pairs.giver, place)
        bad = t.all(self.there if giver is place else self.here,
                    pairs.mismatch(pairs.boxes(giver, taker)))
        symbols = pairs.symbols(taker if giver is place else giver)
        self.judge(self._search(bad, symbols), (giver, taker))
        return self._groups() * self._members

    @property
    def _members(self) -> int:
        return math.prod(self.mesh[a] for a in self.row.axes)

    def _all(self, flow: str) -> int:
        """Check every pair of members, or only those whose giver is not after the taker; return the
        number of transfers. A sample is checked where the search takes too long."""
        pairs, n = self.pairs, self._members
        _, wrong = pairs.compared()
        of = {"up_to": n * (n + 1) // 2, "before": n * (n - 1) // 2}.get(flow, n * n)
        count = self._groups() * of
        symbols = pairs.symbols(pairs.giver, pairs.taker)
        try:
            self.judge(self._search(self.terms.all(self.here, wrong), symbols, budget=BUDGET))
        except Exhausted:
            return self.compare_some(str(count))
        return count

    # ---- neighbours --------------------------------------------------------------------------

    def _near(self) -> int:
        """Check that both sides' lists of neighbours contain the same pairs, that these match, and
        that no other pair transfers anything; return the number of transfers."""
        t, pairs = self.terms, self.pairs
        read, readers = pairs.near(pairs.taker, 0), pairs.near(pairs.giver, 2)
        boxes = pairs.boxes(pairs.giver, pairs.taker)
        symbols = pairs.symbols(pairs.giver, pairs.taker)
        if t.value(pairs.wrap) and self._hardly_moves(read, boxes, symbols):
            return 0  # the lists were compared with the first wrap
        ways = ((read, pairs.taker, pairs.giver), (readers, pairs.giver, pairs.taker))
        agree = [t.negated(pairs.lists(near, place))
                 for near, place in ((readers, pairs.taker), (read, pairs.giver))]
        moves = pairs.moves(boxes)
        counts = [self._number(near, mine) for near, mine, _ in ways]
        try:
            for (near, mine, others), other in zip(ways, agree, strict=True):
                bad = t.any(other, pairs.mismatch(boxes)) if near is read else other
                starts = self._listed(near, mine, others, symbols)
                self.judge(self._search(t.all(self.here, bad), symbols, starts, LISTED))
                if counts[0] == counts[1]:  # and one list is within the other: they are equal
                    break
            for a in self.row.axes:
                starts = self._outside(read[a], pairs.giver[a], symbols)
                self.judge(self._search(t.all(self.here, moves), symbols, starts, BUDGET))
        except Exhausted:
            return self.compare_some(str(counts[0]))
        return counts[0]

    def _hardly_moves(self, read: dict[str, tuple[int, int]], boxes: dict[str, BoxTerms],
                      symbols: list[int]) -> bool:
        """Return whether the search ended within its budget, having shown that all pairs which
        transfer something match: only few ranks see the wrap of a periodic dim. Raise Mismatch for
        a pair that does not."""
        t, pairs = self.terms, self.pairs
        listed = pairs.lists(read, pairs.giver)
        wrong = t.any(pairs.mismatch(boxes), t.negated(listed))
        truth = t.all(self.here, pairs.moves(boxes), wrong)
        try:
            edge = math.prod(self.mesh.values()) // max(self.mesh.values())
            self.judge(self._search(truth, symbols, budget=SEEN * (edge + 64)))
        except Exhausted:
            return False
        return True

    def _ends(self, near: dict[str, tuple[int, int]], mine: Axes) -> Iterator[Any]:
        """Yield the ranks that execute the exchange and list a neighbour, with the begin and the
        end of the list along each axis."""
        here = self.there if mine is self.pairs.taker else self.here
        ends = [t for begin, end in near.values() for t in (begin, end)]
        for places in self.pairs.each(self.pairs.symbols(mine)):
            some, *values = self.pairs.evaluated(places, here, *ends)
            some = some != 0
            for begin, end in zip(values[::2], values[1::2], strict=True):
                some = some & (begin < end)
            chosen = {s: x[some] for s, x in places.items()}
            parts = [_parts(begin[some], end[some], self.mesh[a]) for a, begin, end
                     in zip(near, values[::2], values[1::2], strict=True)]
            for part in itertools.product(*parts):
                some = np.all([begin < end for begin, end in part], axis=0)
                if some.any():
                    yield ({s: x[some] for s, x in chosen.items()},
                           [e[some] for pair in part for e in pair])

    def _number(self, near: dict[str, tuple[int, int]], mine: Axes) -> int:
        """Return how many pairs all ranks' lists contain."""
        return sum(int(math.prod(e - b for b, e in zip(ends[::2], ends[1::2], strict=True)).sum())
                   for _, ends in self._ends(near, mine))

    def _listed(self, near: dict[str, tuple[int, int]], mine: Axes, others: Axes,
                symbols: list[int]) -> Iterator[Ranges]:
        """Yield, for every rank, the range of ranks that it lists."""
        for places, ends in self._ends(near, mine):
            low, high = dict(places), dict(places)
            for a, begin, end in zip(near, ends[::2], ends[1::2], strict=True):
                low[others[a]], high[others[a]] = begin, end - 1
            yield _rows(symbols, low, len(ends[0])), _rows(symbols, high, len(ends[0]))

    def _outside(self, near: tuple[int, int], other: int, symbols: list[int]) -> Iterator[Ranges]:
        """Yield ranges that cover all pairs whose giver is outside the listed range along one axis.

        Of the taker's symbols, only those on which the range depends are enumerated."""
        size = self.terms.within[other][1] + 1 if self.terms.value(other) is None else 1
        on = sorted(self.terms.symbols(*near))
        for places in self.pairs.each(on):
            begin, end = self.pairs.evaluated(places, *near)
            empty, beyond = begin >= end, np.maximum(end - size, 0)
            for first, last in ((beyond, np.where(empty, size, begin) - 1),
                                (np.where(empty, size, end), size - 1)):
                first, last = np.broadcast_arrays(first, last)
                some = first <= last
                low = {s: np.full(some.sum(), self.terms.within[s][0]) for s in symbols}
                high = {s: np.full(some.sum(), self.terms.within[s][1]) for s in symbols}
                for s in on:
                    low[s] = high[s] = places[s][some]
                if other in low:
                    low[other], high[other] = first[some], last[some]
                yield _rows(symbols, low, some.sum()), _rows(symbols, high, some.sum())


def _parts(begin: Array, end: Array, size: int) -> Iterator[tuple[Array, Array]]:
    """Split ranges that may wrap around `size` members: yield the parts before the wrap, then the
    rest."""
    yield begin, np.minimum(end, size)
    if (end > size).any():
        yield 0 * begin, np.maximum(end - size, 0)


def _rows(symbols: list[int], places: Places, count: int) -> Array:
    """Return the values of the symbols at these places, a row for each symbol."""
    rows = [places[s] for s in symbols]
    return np.array(rows, dtype=np.int64).reshape(len(symbols), count)
