"""What two members of an exchange must agree on, as terms that are 1 where they do not.

In: an exchange and a mesh. Out: terms over the places of a giver, a taker and their group.
Always holds: a term names a place along an axis as `giver x`, `taker x` or, outside the axes of
the exchange, `x`; all else is a number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from spmd.ledger_row import COUNTS, Row
from spmd.verify.terms import Digits, Terms

Names = dict[str, int | Digits]
Axes = dict[str, int]  # axis -> the term of a place along it


class Pairs:
    """One exchange on one mesh, in one turn of the loops around it."""

    def __init__(self, row: Row, mesh: dict[str, int], values: dict[str, int],
                 capacity: list[int], turn: tuple[int, ...] = (), wrap: int = 0
                 ) -> None:  # fmt: skip
        self.wrap = wrap
        self.row, self.mesh, self.capacity, self.turn = row, mesh, capacity, turn
        self.terms = t = Terms()
        self.loose = False  # whether a mismatch is only a suspicion
        self.values = {k: t.number(v) for k, v in values.items() if isinstance(v, int)}
        self.coordinate = dict(zip(row.ledger.axes, row.ledger.coordinates))
        self.across = {a: t.symbol(a, 0, mesh[a] - 1) for a in mesh if a not in row.axes}
        self.giver = {a: t.symbol(f"giver {a}", 0, mesh[a] - 1) for a in row.axes}
        self.taker = {a: t.symbol(f"taker {a}", 0, mesh[a] - 1) for a in row.axes}
        first = {a: t.number(0) for a in row.axes}
        self.counters: dict[str, int] = {}
        self.turns = [self._count(loop, k, first) for loop, k in zip(self.loops(), turn)]

    @property
    def members(self) -> int:
        total = 1
        for a in self.row.axes:
            total *= self.mesh[a]
        return total

    # ---- names -------------------------------------------------------------------------------

    def names(self, me: Axes) -> Names:
        """What formulas of a rank may name."""
        here = {self.coordinate[a]: term for a, term in (self.across | me).items()}
        return {**self.values, **here, **self.counters}

    def position(self, place: Axes) -> Digits | int:
        digits = tuple((place[a], self.mesh[a]) for a in self.row.axes)
        return digits[0][0] if len(digits) == 1 else digits

    def view(self, me: Axes, member: Axes) -> Names:
        wrap = self.terms.number(self.wrap)
        return {**self.names(me), self.row.member: self.position(member), "wrap": wrap}

    def read(self, name: str, me: Axes) -> int | None:
        """A peer's position, or whether there is one."""
        e = self.row.said[name]
        return None if e is None else self.terms.read(e, self.names(me))

    def place(self, position: int) -> Axes:
        """The place along every axis of the member at a position."""
        out, left = {}, position
        for k, a in reversed(list(enumerate(self.row.axes))):
            size = self.terms.number(self.mesh[a])
            out[a] = self.terms.make("mod", left, size) if k else left
            left = self.terms.make("floordiv", left, size)
        return out

    # ---- loops and branches ------------------------------------------------------------------

    def loops(self) -> list[Any]:
        used = {name for name, *_ in self.row.loops}
        return [loop for loop in self.row.said["loops"] if loop[0] in used]

    def _count(self, loop: Any, k: int, first: Axes) -> int:
        """Sets a counter to its value in the k-th turn that is looked at, the last after others.

        Comes out: whether there is such a turn.
        """
        t, (name, begin, end, by) = self.terms, loop
        names = self.names(first)
        start, step = t.read(begin, names), t.read(by, names)
        if t.value(step) == 0:
            step = t.number(1)
        at = t.number(k)
        exists = t.number(1)
        if end is not None:
            way = t.make("+", start, t.make("*", t.number(-1), t.read(end, names)))
            turns = t.make("*", t.number(-1), t.make("floordiv", way, step))  # rounded up
            exists = t.less(at, turns)
            at = t.make("+", turns, t.number(-1)) if k == COUNTS - 1 else at
        self.counters[name] = t.make("+", start, t.make("*", step, at))
        return exists

    def taken(self, me: Axes) -> int:
        """Whether a rank comes to the exchange in this turn."""
        t, names = self.terms, self.names(me)
        found = list(self.turns)
        for on, arm, arms in self.row.said["guards"]:
            if on is not None:
                chosen = t.make("min", t.make("max", t.read(on, names), t.number(0)),
                                t.number(arms - 1))  # fmt: skip
                found.append(t.negated(t.differ(chosen, t.number(arm))))
        return t.all(*found)

    # ---- what must hold ----------------------------------------------------------------------

    def boxes(self, giver: Axes, taker: Axes) -> dict[str, Box]:
        gives, takes = self.view(giver, taker), self.view(taker, giver)
        return {name: Box(self, self.row.said[name], names)
                for name, names in (("from", takes), ("into", takes), ("send", gives),
                                    ("give", gives)) if self.row.said[name]}  # fmt: skip

    def mismatch(self, boxes: dict[str, Box]) -> int:
        """That two boxes differ, or one is not inside its buffer."""
        found = [box.outside() for box in boxes.values()]
        if "send" in boxes and "from" in boxes:
            found.append(boxes["send"].unlike(boxes["from"]))
        if "give" in boxes and "into" in boxes:
            found.append(boxes["give"].unlike(boxes["into"]))
        if "into" in boxes and "from" in boxes:
            found.append(boxes["into"].larger_or_smaller(boxes["from"]))
        return self.terms.any(*found)

    def moves(self, boxes: dict[str, Box]) -> int:
        """That something is taken or sent."""
        return self.terms.any(*(boxes[k].nonempty for k in ("into", "send") if k in boxes))

    def near(self, me: Axes, first: int) -> dict[str, tuple[int, int]]:
        """Begin and end of the members along each axis: read (0), or reading (2). Where ranges go
        around, the begin is a member, and the end may lie beyond the last."""
        t, names, out = self.terms, self.names(me), {}
        for a, r in zip(self.row.axes, self.row.said["near"]):
            begin, end = t.read(r[first], names), t.read(r[first + 1], names)
            if self.row.around:
                size, minus = t.number(self.mesh[a]), t.number(-1)
                length = t.make("+", end, t.make("*", minus, begin))
                length = t.make("min", size, t.make("max", t.number(0), length))
                begin = t.make("mod", begin, size)
                end = t.make("+", begin, length)
            out[a] = begin, end
        return out

    def lists(self, near: dict[str, tuple[int, int]], place: Axes) -> int:
        t, found = self.terms, []
        for a, (begin, end) in near.items():
            on = t.make("+", place[a], t.number(self.mesh[a]))
            inside = [t.all(t.at_least(at, begin), t.less(at, end)) for at in (place[a], on)]
            found.append(t.any(*inside) if self.row.around else inside[0])
        return t.all(*found)

    def reads(self) -> int:
        """Whether a taker reads what a giver has, where ranges do not say it."""
        giver, taker = (self.terms.read("m", {"m": self.position(p)})
                        for p in (self.giver, self.taker))  # fmt: skip
        flow = self.row.said["flow"]
        if flow == "up_to":
            return self.terms.at_least(taker, giver)
        return self.terms.less(giver, taker) if flow == "before" else self.terms.number(1)


class Box:
    """A box of a buffer as terms."""

    def __init__(self, pairs: Pairs, box: Any, names: Names) -> None:
        self.pairs, self.terms = pairs, pairs.terms
        t, names = self.terms, dict(names)
        for name, e in box["names"]:
            names[name] = t.read(e, names)
        self.capacity = t.number(pairs.capacity[box["buffer"]])
        self.offset = t.read(box["offset"], names)
        zero, one = t.number(0), t.number(1)
        dims = [(t.make("max", zero, t.read(e, names)), t.read(s, names))
                for e, s in zip(box["extent"], box["stride"])]  # fmt: skip
        self.dims = [(e, s) for e, s in dims if e != one]
        self.elements = t.make("*", one, *(e for e, _ in dims))
        self.nonempty = t.all(*(t.at_least(e, one) for e, _ in dims))

    def outside(self) -> int:
        t, low, high, zero = self.terms, self.offset, self.offset, self.terms.number(0)
        for e, s in self.dims:
            far = t.make("*", t.make("+", e, t.number(-1)), s)
            low = t.make("+", low, t.make("min", zero, far))
            high = t.make("+", high, t.make("max", zero, far))
        return t.all(self.nonempty, t.any(t.less(low, zero), t.at_least(high, self.capacity)))

    def unlike(self, other: Box) -> int:
        """Not the same elements in the same order; of an empty box nothing else counts."""
        t, two = self.terms, self.terms.number(2)
        one = (t.number(1), t.number(0))
        self.pairs.loose |= len(self.dims) != len(other.dims)
        most = max(len(self.dims), len(other.dims))  # where one has fewer, others are 1 for both
        found = [t.differ(self.offset, other.offset)]
        for (e, s), (f, r) in zip(*(d + [one] * (most - len(d)) for d in (self.dims, other.dims))):
            found += [t.differ(e, f), t.all(t.at_least(e, two), t.differ(s, r))]
        return t.any(self.larger_or_smaller(other), t.all(self.nonempty, t.any(*found)))

    def larger_or_smaller(self, other: Box) -> int:
        return self.terms.differ(self.elements, other.elements)


def turns(row: Row) -> Iterator[tuple[int, ...]]:
    """Which turns of the loops around an exchange are looked at."""
    return itertools.product(range(COUNTS), repeat=len(row.loops))
