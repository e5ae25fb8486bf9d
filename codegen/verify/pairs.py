"""Terms that are 1 for those pairs of members that disagree about an exchange.

In: an exchange and meshes. Out: terms over the places of a giver, a taker and their group; and of
a pair that does not fit, what is wrong with it, as a Mismatch.
Always holds: a term names a place along an axis as `giver x`, `taker x` or, outside the axes of
the exchange, `x`; where there are several meshes, their sizes and scalars too, turn and wrap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from codegen import progress
from codegen.symbolic.meaning import names_in
from codegen.verify.exchange_table import BOXES, Mismatch, Row
from codegen.verify.vectors import Array, Digits, Terms

Names = dict[str, int | Digits]
Axes = dict[str, int]  # axis -> the term of a place along it
Point = Mapping[int, int]  # symbol -> value
Places = dict[int, Array]  # symbol -> values
Ranges = tuple[Array, Array]  # least and most of every symbol: a row each

POINTS = 1 << 13  # evaluated together: their values stay in the cache
COUNTS = 4  # values that are tried of each loop counter: the first ones, and the last
MOST_WRAPS = 1 << 12  # how often a dim that goes around may be seen again


class Pairs:
    """The pairs of members of one exchange, on one mesh or several. turn: for each loop around it,
    the number of the iteration; wrap: the number of the periodic image; None: all of them."""

    def __init__(
        self, row: Row, meshes: Sequence[Mapping[str, Any]],
        turn: tuple[int, ...] | None = None, wrap: int | None = None,
    ) -> None:
        """Prepare the terms of one exchange. meshes: for each mesh, the values of names that are
        the same on all ranks."""
        self.row, self.terms = row, Terms()
        t, table = self.terms, row.table
        self.loose = False  # whether a mismatch is only a suspicion
        self.count = len(meshes)
        self.differing: dict[int, Array] = {}  # symbols that differ between meshes, by mesh
        self.last: dict[int, Array] = {}  # of other symbols: their last value, by mesh
        used = {*table.sizes, *row.used, *names_in(*(table.capacity[k] for k in row.buffers))}
        values = {name: [mesh[name] for mesh in meshes] for name in meshes[0] if name in used}
        if self.count > 1:
            values["number of the mesh"] = list(range(self.count))
        self.values = {name: self._common(name, v) for name, v in values.items()
                       if all(isinstance(x, int) for x in v)}
        self.size = {a: self.values[f"n_{a}"] for a in table.axes}
        most = {a: np.array(values[f"n_{a}"], dtype=np.int64) - 1 for a in table.axes}
        self.coordinate = dict(zip(table.axes, table.coordinates, strict=True))
        self.capacity = {k: t.read(table.capacity[k], self.values) for k in sorted(row.buffers)}
        self.across = {a: self._counted(a, most[a]) for a in table.axes if a not in row.axes}
        self.giver = {a: self._counted(f"giver {a}", most[a]) for a in row.axes}
        self.taker = {a: self._counted(f"taker {a}", most[a]) for a in row.axes}
        self.members = t.make("*", *(self.size[a] for a in row.axes))
        self.first = {a: t.number(0) for a in row.axes}
        self.counters: dict[str, int] = {}
        self._near: dict[tuple[int, ...], dict[str, tuple[int, int]]] = {}
        several = np.full(self.count, COUNTS - 1)
        self.counts = [self._counted(f"turn {k}", several) if turn is None else t.number(turn[k])
                   for k in range(len(row.loops))]
        self.turns = [self._count(loop, k) for loop, k in zip(row.loops, self.counts, strict=True)]
        self.wrap = t.number(0)
        self.often = t.read(row.said["wraps"], self.names(self.first))
        self.most_wraps = self._wraps() if self.often != t.number(1) else 1
        last = np.full(self.count, self.most_wraps - 1)
        self.wrap = self._counted("wrap of a dim", last) if wrap is None else t.number(wrap)
        self.turns.append(t.less(self.wrap, self.often))

    def _common(self, name: str, values: list[int]) -> int:
        """Return the term of a name that has the same value on all ranks of a mesh; `values` holds
        the value for each mesh."""
        least, most = min(values), max(values)
        term = self.terms.symbol(name, least, most)
        if least != most:
            self.differing[term] = np.array(values, dtype=object if most >= 1 << 62 else np.int64)
        return term

    def _counted(self, name: str, last: Array) -> int:
        """Return the term of a new symbol that ranges from 0 to `last`, an upper end for each
        mesh."""
        term = self.terms.symbol(name, 0, int(last.max()))
        if self.terms.value(term) is None:
            self.last[term] = last
        return term

    def _wraps(self) -> int:
        """Return the largest number of boxes that a pair of members exchanges in periodic dims.
        Raise Mismatch where it exceeds MOST_WRAPS."""
        most = 1
        for places in self.each(self.symbols()):
            turn, truth = self.evaluated(places, self.terms.all(*self.turns), self.often)
            for k in np.flatnonzero((turn != 0) & ((truth < 0) | (truth > MOST_WRAPS))):
                raise self.fault({s: int(a[k]) for s, a in places.items()},
                                 f"wraps at most {MOST_WRAPS} times", str(truth[k]))
            most = max(most, *truth[turn != 0].tolist())
        return most

    def ranges(self, symbols: Sequence[int]) -> Ranges:
        """Return the least and the greatest values of these symbols: two arrays with a row for each
        symbol, a column for each mesh."""
        none = np.zeros((1, self.count), dtype=np.int64)
        low = [self.differing[s] if s in self.differing else none[0] for s in symbols]
        high = [self.differing[s] if s in self.differing else self.last[s] for s in symbols]
        return np.array([*none, *low])[1:], np.array([*none, *high])[1:]

    def each(self, symbols: list[int], within: Ranges | None = None) -> Iterator[Places]:
        """Yield all places, in portions, mesh by mesh; the last symbol varies fastest."""
        low, high = within or self.ranges(symbols)
        sizes = high - low + 1
        number = np.prod(sizes, axis=0, dtype=np.int64)
        ends = np.cumsum(number)
        total = int(number.sum())
        for first in range(0, total, POINTS):
            last = min(first + POINTS, total)
            if total > POINTS and within is None:
                progress.announce(f"exchange {self.row.site} ({self.row.kind})", first, total)
            some = slice(*(np.searchsorted(ends, (first, last - 1), side="right") + (0, 1)))
            begins = ends[some] - number[some]
            of = np.repeat(np.arange(len(begins)),
                           np.minimum(ends[some], last) - np.maximum(begins, first))
            left, out = np.arange(first, last) - begins[of], {}
            for s, least, size in reversed(list(zip(symbols, low[:, some], sizes[:, some]))):
                out[s] = least[of]
                if (size != 1).any():
                    size = size[of]
                    quotient = (left / size).astype(np.int64)  # of small numbers: faster than //
                    out[s] += left - quotient * size
                    left = quotient
            yield out

    def evaluated(self, places: Places, *terms: int) -> list[Array]:
        dtype = self.terms.dtype(*terms)
        places = {s: a.astype(dtype, copy=False) for s, a in places.items()}
        values = self.terms.points(terms, places)
        length = len(next(iter(places.values()))) if places else 1
        return [np.broadcast_to(np.asarray(values[t]), (length,)) for t in terms]

    def number_of(self, symbols: list[int]) -> int:
        """Return the number of places that these symbols span, on all meshes."""
        low, high = self.ranges(symbols)
        return int(np.prod(high - low + 1, axis=0, dtype=np.int64).sum())

    def symbols(self, *places: Axes) -> list[int]:
        """Return the symbols of meshes, loops, wraps and the group, and then those of these
        places."""
        terms = [*self.counts, self.wrap, *(t for a in (self.across, *places) for t in a.values())]
        return [*self.differing, *(s for s in terms if self.terms.value(s) is None)]

    # ---- names -------------------------------------------------------------------------------

    def names(self, me: Axes) -> Names:
        """Return, by name, the terms that formulas of a rank at place `me` may use."""
        here = {self.coordinate[a]: term for a, term in (self.across | me).items()}
        return {**self.values, **here, **self.counters}

    def position(self, place: Axes) -> Digits | int:
        digits = tuple((place[a], self.size[a]) for a in self.row.axes)
        return digits[0][0] if len(digits) == 1 else digits

    def member(self, place: Axes) -> int:
        """Return the place of a member as one term: its position along all axes of the exchange."""
        position = self.position(place)
        return position if isinstance(position, int) else self.terms.joined(position)

    def view(self, me: Axes, member: Axes) -> Names:
        return {**self.names(me), self.row.member: self.position(member), "wrap": self.wrap}

    def read(self, name: str, me: Axes) -> int | None:
        """Return the term of field `name` of the exchange for a rank at place `me`; None if it has
        no such formula."""
        e = self.row.said[name]
        return None if e is None else self.terms.read(e, self.names(me))

    def place(self, position: int) -> Axes:
        """Return the place along every axis of the member at a position along all of them."""
        out, left = {}, position
        for k, a in reversed(list(enumerate(self.row.axes))):
            out[a] = self.terms.make("mod", left, self.size[a]) if k else left
            left = self.terms.make("floordiv", left, self.size[a])
        return out

    # ---- loops and branches ------------------------------------------------------------------

    def _count(self, loop: Any, k: int) -> int:
        """Set a loop's counter to its value in iteration k of those that are checked: the first
        ones, then the last. Return the term that is 1 if there is such an iteration."""
        t, (name, begin, end, by) = self.terms, loop
        names = self.names(self.first)
        start, step = t.read(begin, names), t.read(by, names)
        if t.value(step) == 0:
            step = t.number(1)
        number, exists = k, t.number(1)
        if end is not None:
            way = t.make("+", start, t.make("*", t.number(-1), t.read(end, names)))
            turns = t.make("*", t.number(-1), t.make("floordiv", way, step))  # rounded up
            exists = t.less(k, turns)
            is_last = t.negated(t.differ(k, t.number(COUNTS - 1)))
            more = t.make("+", turns, t.number(-1), t.make("*", t.number(-1), k))
            number = t.make("+", k, t.make("*", is_last, more))
        self.counters[name] = t.make("+", start, t.make("*", step, number))
        return exists

    def taken(self, me: Axes) -> int:
        """Return the term that is 1 if a rank executes the exchange, by the loops and branches
        around it, in this iteration."""
        t, names = self.terms, self.names(me)
        terms = list(self.turns)
        for on, arm, arms in self.row.said["guards"]:
            if on is not None:
                chosen = t.make("min", t.make("max", t.read(on, names), t.number(0)),
                                t.number(arms - 1))
                terms.append(t.negated(t.differ(chosen, t.number(arm))))
        return t.all(*terms)

    # ---- what must hold ----------------------------------------------------------------------

    def root(self) -> tuple[int, int]:
        """Return the root that a giver names; and the term that is 1 if this is no member, or not
        the root that the first member names."""
        t, said, root = self.terms, self.read("root", self.giver), self.read("root", self.first)
        assert said is not None and root is not None
        return said, t.any(t.differ(said, root), t.less(root, t.number(0)),
                           t.at_least(root, self.members))

    def boxes(self, giver: Axes, taker: Axes) -> dict[str, BoxTerms]:
        gives, takes = self.view(giver, taker), self.view(taker, giver)
        return {name: BoxTerms(self, self.row.said[name], names)
                for name, names in zip(BOXES, (takes, takes, gives, gives), strict=True)
                if self.row.said[name]}

    @cached_property
    def between(self) -> dict[str, BoxTerms]:
        """Return the boxes between a giver and a taker, as terms."""
        return self.boxes(self.giver, self.taker)

    def mismatch(self, boxes: dict[str, BoxTerms]) -> int:
        """Return the term that is 1 where the two sides' boxes differ, or one is not inside its
        buffer."""
        faults = [box.outside() for box in boxes.values()]
        if "send" in boxes and "from" in boxes:
            faults.append(boxes["send"].unlike(boxes["from"]))
        if "give" in boxes and "into" in boxes:
            faults.append(boxes["give"].unlike(boxes["into"]))
        if "into" in boxes and "from" in boxes:
            faults.append(boxes["into"].larger_or_smaller(boxes["from"]))
        return self.terms.any(*faults)

    def moves(self, boxes: dict[str, BoxTerms]) -> int:
        """Return the term that is 1 where one of the boxes has elements."""
        return self.terms.any(*(boxes[k].nonempty for k in ("into", "send") if k in boxes))

    def near(self, me: Axes, first: int) -> dict[str, tuple[int, int]]:
        """Return, for each axis, the begin and the end of a member's neighbours: those that it
        reads (first = 0), or those that read it (2). Where ranges wrap around, the begin is a
        member, and the end may lie beyond the last member."""
        key = (*me.values(), first)
        if key in self._near:
            return self._near[key]
        t, names, out = self.terms, self.names(me), self._near.setdefault(key, {})
        for a, r in zip(self.row.axes, self.row.said["near"], strict=True):
            begin, end = t.read(r[first], names), t.read(r[first + 1], names)
            if self.row.around:
                length = t.make("+", end, t.make("*", t.number(-1), begin))
                length = t.make("min", self.size[a], t.make("max", t.number(0), length))
                begin = t.make("mod", begin, self.size[a])
                end = t.make("+", begin, length)
            out[a] = begin, end
        return out

    def beyond(self, near: dict[str, tuple[int, int]]) -> int:
        """Return the term that is 1 where ranges of neighbours do not lie within the group."""
        t = self.terms
        return t.any(*(t.all(t.less(begin, end), t.any(
            t.less(begin, t.number(0)), t.less(self.size[a], end)))
            for a, (begin, end) in near.items() if not self.row.around))

    def lists(self, near: dict[str, tuple[int, int]], place: Axes) -> int:
        t, listed = self.terms, []
        for a, (begin, end) in near.items():
            on = t.make("+", place[a], self.size[a])
            inside = [t.all(t.at_least(position, begin), t.less(position, end))
                      for position in (place[a], on)]
            listed.append(t.any(*inside) if self.row.around else inside[0])
        return t.all(*listed)

    def reads(self) -> int:
        """Return the term that is 1 where a taker reads from a giver, for any flow other than
        ranges of neighbours."""
        t, flow = self.terms, self.row.said["flow"]
        giver, taker = self.member(self.giver), self.member(self.taker)
        if flow in ("from_root", "to_root"):
            root = self.root()[0]
            return t.negated(t.differ(giver if flow == "from_root" else taker, root))
        if flow == "up_to":
            return t.at_least(taker, giver)
        return t.less(giver, taker) if flow == "before" else t.number(1)

    def compared(self) -> tuple[int, int]:
        """Return two terms: whether a taker reads from a giver, and whether the two sides
        disagree."""
        t, boxes = self.terms, self.between
        if self.row.said["flow"] != "near":
            read = self.reads()
            # those of what is folded do not tell
            other = self.moves(boxes) if self.row.said.get("fn") == "" else t.number(0)
            return read, t.any(t.all(read, self.mismatch(boxes)), t.all(t.negated(read), other))
        listed = self.lists(self.near(self.taker, 0), self.giver)
        told = self.lists(self.near(self.giver, 2), self.taker)
        return listed, t.any(t.differ(listed, told), t.all(listed, self.mismatch(boxes)),
                             t.all(t.negated(listed), self.moves(boxes)))

    # ---- what is wrong, at a point: everything below is evaluated exactly --------------------

    def exact(self, point: Point, *terms: int) -> list[int]:
        return self.terms.exact(terms, point)

    def rank(self, point: Point, place: Axes | int) -> str:
        """Return how messages call a rank, by its index. place: that along the axes of the
        exchange, or a position."""
        index = 0
        place_of = place if isinstance(place, dict) else self.place(self.terms.number(place))
        for a in self.row.table.axes:
            k, size = self.exact(point, {**self.across, **place_of}[a], self.size[a])
            index = index * size + k
        return f"rank {index}"

    def fault(self, point: Point, expected: str, found: str) -> Mismatch:
        row = self.row
        sizes = (f"{a}={self.exact(point, size)[0]}" for a, size in self.size.items())
        return Mismatch(row, f"exchange {row.site} ({row.kind}, {row.place}) does not match with "
                        f"the mesh ({','.join(sizes)})", expected, found)

    def judge_all(self, point: Point) -> None:
        """Raise Mismatch unless a taker reads from a giver as the flow says and both boxes match,
        or does not read and no box has elements."""
        if self.row.said["flow"] == "near":
            return self.judge_near(point)
        if self.exact(point, self.reads())[0]:
            return self.judge(point, self.giver, self.taker)
        self.judge_idle(point)

    def judge_near(self, point: Point) -> None:
        """Raise Mismatch unless both members list each other as neighbours, or neither does."""
        read, readers = self.near(self.taker, 0), self.near(self.giver, 2)
        p, q = self.rank(point, self.giver), self.rank(point, self.taker)
        both = self.lists(read, self.giver), self.lists(readers, self.taker)
        listed, told = self.exact(point, *both)
        if listed != told:
            raise self.fault(
                point, f"{p} and {q} agree whether {p} is read",
                f"only one of them says so: {p} has the readers {self._listed(point, readers)}, "
                f"{q} reads {self._listed(point, read)}",
            )
        if listed:
            return self.judge(point, self.giver, self.taker)
        self.judge_idle(point)

    def judge_idle(self, point: Point) -> None:
        """Raise Mismatch where boxes between members that do not exchange have elements."""
        p, q = self.rank(point, self.giver), self.rank(point, self.taker)
        for name, box in self.between.items():
            if name in ("into", "send") and self.exact(point, box.nonempty)[0]:
                raise self.fault(point, f"{q} reads nothing of {p}, which it does not list"
                                 if self.row.said["flow"] == "near" else
                                 f"{q} reads nothing of {p}, which is not the root",
                                 f"box '{name}' of {box.region(point)[1]}")

    def _listed(self, point: Point, near: dict[str, tuple[int, int]]) -> str:
        ends = [(a, self.exact(point, begin, end)) for a, (begin, end) in near.items()]
        return " and ".join(f"{begin} to {end - 1} along {a}" for a, (begin, end) in ends)

    def judge(self, point: Point, giver: Axes, taker: Axes) -> None:
        """Raise Mismatch unless both sides name equal boxes, inside their buffers."""
        pair = f"{self.rank(point, giver)} to {self.rank(point, taker)}"
        boxes = self.boxes(giver, taker)
        said = {name: box.region(point) for name, box in boxes.items()}
        for name, (offset, extents, strides) in said.items():
            far = [(e - 1) * s for e, s in zip(extents, strides, strict=True)]
            low = offset + sum(min(0, f) for f in far)
            high = offset + sum(max(0, f) for f in far)
            (capacity,) = self.exact(point, boxes[name].capacity)
            if 0 not in extents and (low < 0 or high >= capacity):
                raise self.fault(point, f"{pair}: box '{name}' within {capacity} elements",
                                 f"elements {low} to {high}")
        if "send" in said and "from" in said and not _same(said["send"], said["from"]):
            raise self.fault(point, f"{pair}: both name one box", f"the sender 'send' "
                             f"{said['send']}, the receiver 'from' {said['from']}")
        if "give" in said and not _same(said["give"], said["into"]):
            raise self.fault(point, f"{pair}: both name one place for it", f"the sender 'give' "
                             f"{said['give']}, the receiver 'into' {said['into']}")
        if "into" in said and "from" in said and _elements(said["into"]) != _elements(said["from"]):
            raise self.fault(point, f"{pair}: boxes of one size", f"'from' {said['from'][1]}, "
                             f"'into' {said['into'][1]}")


Found = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, extents, strides, in elements


def _elements(box: Found) -> int:
    return math.prod(box[1])


def _same(a: Found, b: Found) -> bool:
    """Return whether boxes have the same elements in the same order; all empty boxes are the
    same."""
    if not _elements(a) or not _elements(b):
        return _elements(a) == _elements(b)
    walks = [[(e, s) for e, s in zip(*box[1:], strict=True) if e > 1] for box in (a, b)]
    return a[0] == b[0] and walks[0] == walks[1]


class BoxTerms:
    """A box of a buffer, whose offset, extents and strides are terms."""

    def __init__(self, pairs: Pairs, box: Any, names: Names) -> None:
        self.pairs, self.terms = pairs, pairs.terms
        t, names = self.terms, dict(names)
        for name, e in box["names"]:
            names[name] = t.read(e, names)
        self.capacity = pairs.capacity[box["buffer"]]
        self.offset = t.read(box["offset"], names)
        zero, unit = t.number(0), t.number(1)
        self.whole = [(t.make("max", zero, t.read(e, names)), t.read(s, names))
                      for e, s in zip(box["extent"], box["stride"], strict=True)]
        self.dims = [(e, s) for e, s in self.whole if e != unit]
        self.elements = t.make("*", unit, *(e for e, _ in self.dims))
        self.nonempty = t.all(*(t.at_least(e, unit) for e, _ in self.dims))

    def region(self, point: Point) -> Found:
        """Return offset, extents and strides of the box at a point."""
        parts = (t for dim in self.whole for t in dim)
        offset, *dims = self.pairs.exact(point, self.offset, *parts)
        return offset, tuple(dims[::2]), tuple(dims[1::2])

    def outside(self) -> int:
        t, low, high, zero = self.terms, self.offset, self.offset, self.terms.number(0)
        for e, s in self.dims:
            far = t.make("*", t.make("+", e, t.number(-1)), s)
            low = t.make("+", low, t.make("min", zero, far))
            high = t.make("+", high, t.make("max", zero, far))
        return t.all(self.nonempty, t.any(t.less(low, zero), t.at_least(high, self.capacity)))

    def unlike(self, other: BoxTerms) -> int:
        """Return the term that is 1 where boxes do not have the same elements in the same order;
        all empty boxes are the same."""
        t, two = self.terms, self.terms.number(2)
        single = (t.number(1), t.number(0))
        self.pairs.loose |= len(self.dims) != len(other.dims)
        most = max(len(self.dims), len(other.dims))  # where one has fewer, others are 1 for both
        differences = [t.differ(self.offset, other.offset)]
        both = (d + [single] * (most - len(d)) for d in (self.dims, other.dims))
        for (e, s), (f, r) in zip(*both, strict=True):
            differences += [t.differ(e, f), t.all(t.at_least(e, two), t.differ(s, r))]
        return t.any(self.larger_or_smaller(other), t.all(self.nonempty, t.any(*differences)))

    def larger_or_smaller(self, other: BoxTerms) -> int:
        return self.terms.differ(self.elements, other.elements)
