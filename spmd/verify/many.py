"""The exchanges of an image, checked for all ranks of a large mesh at once.

In: a ledger, a mesh. Out: how many transfers match, and of which exchanges only a sample was
looked at; or the ledger's ImageError for the first pair of ranks that does not fit.
Always holds: what seems wrong is judged by the ledger, rank by rank.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codegen import progress
from spmd.ledger import Group, Ledger
from spmd.ledger_row import BOXES, Row
from spmd.verify.pairs import Axes, Box, Pairs, turns
from spmd.verify.search import POINTS, Exhausted, Places, Ranges, Search
from spmd.verify.terms import Array

BUDGET = 1 << 22  # ranges and points of pairs, of an exchange of everybody with everybody
LISTED = 1 << 26  # the same, of pairs that list each other as neighbours
SEEN = 1 << 8  # the same, for a rank at an edge, of pairs that see one wrap of a dim that goes on
NOBODY = -(1 << 62)


@dataclass
class Found:
    transfers: int = 0
    sampled: dict[int, str] = field(default_factory=dict)  # by exchange: of what


def check(ledger: Ledger, mesh: tuple[int, ...], scalars: dict[str, Any]) -> Found:
    """Every exchange matches on this mesh. Raises ImageError."""
    found = Found()
    sizes = dict(zip(ledger.axes, mesh))
    values, capacity = ledger.common(mesh, scalars), ledger.capacity(mesh, scalars)
    alike: dict[str, Found] = {}  # exchanges that differ in their buffers only, of one capacity
    for row in ledger.exchanges:
        if row.site in ledger.unknown:
            continue
        key = _formulas(row, capacity)
        if key not in alike:
            alike[key] = _check_row(row, ledger, sizes, values, capacity)
        one = alike[key]
        found.transfers += one.transfers
        for text in one.sampled.values():
            found.sampled[row.site] = text
    return found


def _formulas(row: Row, capacity: list[int]) -> str:
    """What is checked of an exchange, as a text."""
    said = {k: v for k, v in row.said.items() if k not in ("site", "place")}
    for name in BOXES:
        if said[name]:
            said[name] = {**said[name], "buffer": capacity[said[name]["buffer"]]}
    return json.dumps(said, sort_keys=True)


def _check_row(
    row: Row, ledger: Ledger, sizes: dict[str, int], values: dict[str, int], capacity: list[int]
) -> Found:  # fmt: skip
    found = Found()
    for turn in turns(row):
        wraps = row.wraps(values)
        for wrap in range(wraps):
            beyond = f", wrap {wrap + 1} of {wraps}" if wraps > 1 else ""
            progress.at(f"exchange {row.site} ({row.kind}) of {len(ledger.rows)}{beyond}")
            one = Everybody(Pairs(row, sizes, values, capacity, turn, wrap), ledger, values)
            count = one.check()
            found.transfers += 0 if wrap else count
            if one.sampled:
                found.sampled[row.site] = one.sampled
    return found


class Everybody:
    """One exchange in one turn of the loops around it."""

    def __init__(self, pairs: Pairs, ledger: Ledger, values: dict[str, int]) -> None:
        self.pairs, self.terms, self.row = pairs, pairs.terms, pairs.row
        self.ledger, self.values = ledger, values
        self.sampled, self.looked = "", 0
        self.here = pairs.taken(pairs.giver)  # at a rank that stands as giver
        self.there = pairs.taken(pairs.taker)

    def check(self) -> int:
        """How many transfers match."""
        self._together()
        if self.terms.value(self.here) == 0 or self.row.kind == "barrier":
            return 0
        if self.row.kind == "permute":
            return self._permute()
        flow = self.row.said["flow"]
        if flow == "near":
            return self._near()
        if self.row.said["root"] is not None:
            return self._rooted(flow)
        return self._all(flow)

    # ---- places ------------------------------------------------------------------------------

    def _symbols(self, *axes: Axes) -> list[int]:
        """Of the group, then of these places."""
        terms = [t for places in (self.pairs.across, *axes) for t in places.values()]
        return [t for t in terms if self.terms.value(t) is None]

    def _search(self, truth: int, symbols: list[int], starts: Any = None,
                budget: int | None = None) -> Iterator[Places]:  # fmt: skip
        whole = iter([self._whole(symbols)])
        return Search(self.pairs, truth, symbols, budget).places(starts or whole)

    def _whole(self, symbols: list[int]) -> Ranges:
        within = [self.terms.within[s] for s in symbols]
        low, high = np.array(within, dtype=np.int64).reshape(-1, 2).T
        return low[:, None], high[:, None]

    def _each(self, symbols: list[int]) -> Iterator[Places]:
        """All places, some at a time, the last symbol fastest."""
        sizes = [self.terms.within[s][1] + 1 for s in symbols]
        for first in range(0, math.prod(sizes), POINTS):
            progress.at(f"exchange {self.row.site}: ranks", first, math.prod(sizes))
            left = np.arange(first, min(first + POINTS, math.prod(sizes)))
            out = {}
            for s, size in reversed(list(zip(symbols, sizes))):
                out[s], left = left % size, left // size
            yield out

    def _evaluated(self, places: Places, *terms: int) -> list[Array]:
        dtype = self.terms.dtype(*terms)
        values = self.terms.points(terms, {s: a.astype(dtype) for s, a in places.items()})
        length = len(next(iter(places.values()))) if places else 1
        return [np.broadcast_to(np.asarray(values[t]), (length,)) for t in terms]

    def _group(self, places: Places, k: int) -> Group:
        """The members of the k-th place's group."""
        at = {s: a[k : k + 1] for s, a in places.items()}
        names = list(self.pairs.counters)
        counters = self._evaluated(at, *self.pairs.counters.values()) if names else []
        across = {a: self._at(t, places, k) for a, t in self.pairs.across.items()}
        values = {**self.values, **{n: int(v[0]) for n, v in zip(names, counters)}}
        return Group(self.row, self.pairs.mesh, values, across)

    def _at(self, term: int, places: Places, k: int) -> int:
        fixed = self.terms.value(term)
        return int(places[term][k]) if fixed is None else fixed

    def _position(self, place: Axes, places: Places, k: int) -> int:
        out = 0
        for a, term in place.items():
            out = out * self.pairs.mesh[a] + self._at(term, places, k)
        return out

    def _judge(self, found: Iterator[Places], giver: int, taker: int) -> None:
        """Lets the ledger compare these transfers: it says what is wrong with the first."""
        for places in found:
            p, q = self._evaluated(places, giver, taker)
            for k in range(len(p)):
                self.row.transfer(self._group(places, k), int(p[k]), int(q[k]),
                                  self.pairs.capacity)  # fmt: skip

    def _member(self, place: Axes) -> int:
        return self.terms.read("m", {"m": self.pairs.position(place)})

    # ---- who comes ---------------------------------------------------------------------------

    def _first(self) -> Axes:
        return {a: self.terms.number(0) for a in self.row.axes}

    def _together(self) -> None:
        """All members of a group come, or none."""
        alone = self.terms.differ(self.here, self.pairs.taken(self._first()))
        for places in self._search(alone, self._symbols(self.pairs.giver)):
            self.row.together(self._group(places, 0))

    def _groups(self) -> int:
        """How many groups come."""
        symbols = self._symbols()
        coming = self.pairs.taken(self._first())
        return sum(int(self._evaluated(places, coming)[0].sum()) for places in self._each(symbols))

    def _rooted(self, flow: str) -> int:
        """All name one root, which exchanges with each."""
        t, pairs = self.terms, self.pairs
        said, root = pairs.read("root", pairs.giver), pairs.read("root", self._first())
        assert said is not None and root is not None
        wrong = t.any(t.differ(said, root), t.less(root, t.number(0)),
                      t.at_least(root, t.number(pairs.members)))  # fmt: skip
        for places in self._search(t.all(self.here, wrong), self._symbols(pairs.giver)):
            self.row.root(self._group(places, 0))
        if flow not in ("from_root", "to_root"):
            return self._all(flow)
        at = pairs.place(root)
        giver, taker = (at, pairs.taker) if flow == "from_root" else (pairs.giver, at)
        bad = t.all(self.there if giver is at else self.here,
                    pairs.mismatch(pairs.boxes(giver, taker)))  # fmt: skip
        found = self._search(bad, self._symbols(taker if giver is at else giver))
        self._judge(found, self._member(giver), self._member(taker))
        return self._groups() * pairs.members

    def _all(self, flow: str) -> int:
        """Everybody with everybody, or with those up to itself."""
        t, pairs = self.terms, self.pairs
        reads = t.all(self.here, pairs.reads())
        bad = t.all(reads, pairs.mismatch(pairs.boxes(pairs.giver, pairs.taker)))
        symbols = self._symbols(pairs.giver, pairs.taker)
        members = self._member(pairs.giver), self._member(pairs.taker)
        n = pairs.members
        pairs_of = {"up_to": n * (n + 1) // 2, "before": n * (n - 1) // 2}.get(flow, n * n)
        count = self._groups() * pairs_of
        try:
            self._judge(self._search(bad, symbols, budget=BUDGET), *members)
        except Exhausted:
            starts = self._sample(reads, symbols)
            self._judge(self._search(bad, symbols, starts), *members)
            return self._sampled_of(count)
        return count

    def _sample(self, counted: int, symbols: list[int]) -> Iterator[Ranges]:
        """Every taker with itself, those beside it, the first and the last member.

        Counts pairs where `counted` holds.
        """
        pairs, n = self.pairs, self.pairs.members
        for places in self._each(self._symbols(pairs.taker)):
            (q,) = self._evaluated(places, self._member(pairs.taker))
            givers = np.array([q, (q + 1) % n, (q - 1) % n, 0 * q, 0 * q + n - 1])
            for k, p in enumerate(givers):
                left, at = p, dict(places)
                for a, term in reversed(pairs.giver.items()):
                    at[term], left = left % pairs.mesh[a], left // pairs.mesh[a]
                new = (givers[:k] != p).all(axis=0)
                at = {s: at[s][new] for s in symbols}
                here = _rows(symbols, at, new.sum())
                self.looked += int((self._evaluated(at, counted)[0] != 0).sum())
                yield here, here

    def _sampled_of(self, count: int) -> int:
        self.sampled = (
            f"{self.looked} of {count} transfers on {math.prod(self.pairs.mesh.values())} ranks: "
            "every rank's with itself, with those beside it, with the first and the last"
        )
        return self.looked

    # ---- permutes ----------------------------------------------------------------------------

    def _permute(self) -> int:
        """Who sends to whom: one receiver each, and each knows who sends to it."""
        pairs = self.pairs
        sends, dest = pairs.read("sends", pairs.giver), pairs.read("dest", pairs.giver)
        assert sends is not None and dest is not None
        sends = self.terms.all(self.here, self.terms.negated(self.terms.negated(sends)))
        symbols, n = self._symbols(pairs.giver), pairs.members
        giver_of = np.full(math.prod(pairs.mesh.values()), NOBODY, dtype=np.int64)
        first, count = 0, 0
        for places in self._each(symbols):
            sending, to = self._evaluated(places, sends, dest)
            rank = np.arange(first, first + len(to))  # in the order of the groups
            first += len(to)
            k = np.flatnonzero(sending)
            p, q = rank[k] % n, np.clip(to[k], -1, n).astype(np.int64)
            outside = (q < 0) | (q >= n)
            target = (rank[k] - p + q)[~outside]
            taken = giver_of[target] != NOBODY
            giver_of[target] = p[~outside]
            if outside.any() or taken.any() or (giver_of[target] != p[~outside]).any():
                wrong = k[outside] if outside.any() else k[taken | (giver_of[target] != p)]
                self.row.permutation(self._group(places, int(wrong[0])))
            count += len(k)
        self._known(giver_of)
        bad = self.terms.all(sends, pairs.mismatch(pairs.boxes(pairs.giver, pairs.place(dest))))
        self._judge(self._search(bad, symbols), self._member(pairs.giver), dest)
        return count

    def _known(self, giver_of: Array) -> None:
        """Every receiver names its sender, where the program knows it."""
        pairs = self.pairs
        receives, source = (pairs.read(k, pairs.giver) for k in ("receives", "source"))
        if receives is None or source is None:
            return
        first = 0
        for places in self._each(self._symbols(pairs.giver)):
            gets, by, comes = self._evaluated(places, receives, source, self.here)
            named = np.where(gets, by, NOBODY)
            wrong = (named != giver_of[first : first + len(by)]) & (comes != 0)
            first += len(by)
            if wrong.any():
                self.row.permutation(self._group(places, int(np.flatnonzero(wrong)[0])))

    # ---- neighbours --------------------------------------------------------------------------

    def _near(self) -> int:
        """Both lists name the same pairs; these match, and between others nothing moves."""
        t, pairs = self.terms, self.pairs
        read, readers = pairs.near(pairs.taker, 0), pairs.near(pairs.giver, 2)
        boxes = pairs.boxes(pairs.giver, pairs.taker)
        symbols = self._symbols(pairs.giver, pairs.taker)
        if not self.row.around:
            for near, place, first in ((read, pairs.taker, 0), (readers, pairs.giver, 2)):
                self._inside(near, place, first)
        members = self._member(pairs.giver), self._member(pairs.taker)
        if pairs.wrap and self._hardly_moves(read, boxes, symbols, members):
            return 0  # the lists were compared with the first wrap
        ways = ((read, pairs.taker, pairs.giver), (readers, pairs.giver, pairs.taker))
        agree = [t.negated(pairs.lists(near, place))
                 for near, place in ((readers, pairs.taker), (read, pairs.giver))]  # fmt: skip
        listed, moves = pairs.lists(read, pairs.giver), pairs.moves(boxes)
        counts = [self._number(near, mine) for near, mine, _ in ways]
        try:
            for (near, mine, others), other in zip(ways, agree):
                bad = t.any(other, pairs.mismatch(boxes)) if near is read else other
                starts = self._listed(near, mine, others, symbols)
                self._judge_near(
                    self._search(t.all(self.here, bad), symbols, starts, LISTED), members)
                if counts[0] == counts[1]:  # and one list is within the other: they are equal
                    break
            for a in self.row.axes:
                starts = self._beside(read[a], pairs.giver[a], symbols)
                self._judge_near(
                    self._search(t.all(self.here, moves), symbols, starts, BUDGET), members)
        except Exhausted:
            wrong = t.any(t.differ(listed, t.negated(agree[0])),
                          t.all(listed, pairs.mismatch(boxes)), t.all(t.negated(listed), moves))
            starts = self._sample(t.all(self.here, listed), symbols)
            self._judge_near(self._search(t.all(self.here, wrong), symbols, starts), members)
            return self._sampled_of(counts[0])
        return counts[0]

    def _hardly_moves(self, read: dict[str, tuple[int, int]], boxes: dict[str, Box],
                      symbols: list[int], members: tuple[int, int]) -> bool:  # fmt: skip
        """Between few pairs only, and these match: few ranks see the wrap of a dim beyond its end.
        False: between more than were looked at."""
        t, pairs = self.terms, self.pairs
        listed = pairs.lists(read, pairs.giver)
        wrong = t.any(pairs.mismatch(boxes), t.negated(listed))
        truth = t.all(self.here, pairs.moves(boxes), wrong)
        try:
            edge = math.prod(self.pairs.mesh.values()) // max(self.pairs.mesh.values())
            self._judge_near(self._search(truth, symbols, budget=SEEN * (edge + 64)), members)
        except Exhausted:
            return False
        return True

    def _inside(self, near: dict[str, tuple[int, int]], me: Axes, first: int) -> None:
        """Ranges lie within the members of a group."""
        t = self.terms
        wrong = [t.all(t.less(begin, end), t.any(t.less(begin, t.number(0)), t.less(
                 t.number(self.pairs.mesh[a]), end))) for a, (begin, end) in near.items()]
        here = self.there if me is self.pairs.taker else self.here
        for places in self._search(t.all(here, t.any(*wrong)), self._symbols(me)):
            group = self._group(places, 0)
            self.row.ranges(group, group[self._position(me, places, 0)], first)

    def _judge_near(self, found: Iterator[Places], members: tuple[int, int]) -> None:
        for places in found:
            p, q = self._evaluated(places, *members)
            for k in range(len(p)):
                self.row.neighbours(self._group(places, k), int(p[k]), int(q[k]),
                                    self.pairs.capacity)  # fmt: skip

    def _ends(self, near: dict[str, tuple[int, int]], mine: Axes) -> Iterator[Any]:
        """Of ranks that come and list somebody: which, and begin and end along each axis."""
        here = self.there if mine is self.pairs.taker else self.here
        ends = [t for begin, end in near.values() for t in (begin, end)]
        for places in self._each(self._symbols(mine)):
            some, *found = self._evaluated(places, here, *ends)
            some = some != 0
            for begin, end in zip(found[::2], found[1::2]):
                some = some & (begin < end)
            at = {s: x[some] for s, x in places.items()}
            parts = [_parts(begin[some], end[some], self.pairs.mesh[a])
                     for a, begin, end in zip(near, found[::2], found[1::2])]  # fmt: skip
            for one in itertools.product(*parts):
                some = np.all([begin < end for begin, end in one], axis=0)
                if some.any():
                    yield ({s: x[some] for s, x in at.items()},
                           [e[some] for pair in one for e in pair])

    def _number(self, near: dict[str, tuple[int, int]], mine: Axes) -> int:
        """How many pairs all ranks list."""
        return sum(int(math.prod(e - b for b, e in zip(ends[::2], ends[1::2])).sum())
                   for _, ends in self._ends(near, mine))  # fmt: skip

    def _listed(self, near: dict[str, tuple[int, int]], mine: Axes, others: Axes,
                symbols: list[int]) -> Iterator[Ranges]:  # fmt: skip
        """Of every rank, those it lists."""
        for places, ends in self._ends(near, mine):
            low, high = dict(places), dict(places)
            for a, begin, end in zip(near, ends[::2], ends[1::2]):
                low[others[a]], high[others[a]] = begin, end - 1
            yield _rows(symbols, low, len(ends[0])), _rows(symbols, high, len(ends[0]))

    def _beside(self, near: tuple[int, int], other: int, symbols: list[int]) -> Iterator[Ranges]:
        """All pairs whose giver is outside the range along one axis.

        Of the taker only what the range depends on is taken one by one.
        """
        size = self.terms.within[other][1] + 1 if self.terms.value(other) is None else 1
        on = sorted(self.terms.symbols(*near))
        for places in self._each(on):
            begin, end = self._evaluated(places, *near)
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
    """Of ranges that may go on beyond the last of so many members: those up to it, and the rest."""
    yield begin, np.minimum(end, size)
    if (end > size).any():
        yield 0 * begin, np.maximum(end - size, 0)


def _rows(symbols: list[int], places: Places, count: int) -> Array:
    """Values of the symbols, a row each."""
    rows = [places[s] for s in symbols]
    return np.array(rows, dtype=np.int64).reshape(len(symbols), count)
