"""The exchanges of small meshes: every member, and every pair of members, is looked at.

In: an exchange on one or several meshes. Out: how many transfers match; or a Mismatch that names
the first pair that does not.
Always holds: values are exact; where there are more pairs than were allowed, it is said so.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codegen.verify.exchange_table import BOXES, ExchangeTable, Mismatch, Row
from codegen.verify.landing import Landing
from codegen.verify.pairs import Axes, Pairs, Places
from codegen.verify.vectors import Array

Meshes = Sequence[Mapping[str, Any]]  # what all ranks of one may name

NOBODY = -(1 << 62)


def formulas(row: Row) -> str:
    """Return a text of all that is checked of an exchange. Exchanges have the same text if they
    differ only in their places in the source, and in buffers of one capacity."""
    said = {k: v for k, v in row.said.items() if k not in ("site", "place", "kind")}
    for name in BOXES:
        if said[name]:
            said[name] = {**said[name], "buffer": row.table.capacity[said[name]["buffer"]]}
    return json.dumps(said, sort_keys=True)


@dataclass
class Agreed:
    transfers: int = 0
    sampled: dict[int, str] = field(default_factory=dict)  # by exchange: of what


def check(
    table: ExchangeTable, meshes: Meshes, most: int | None = None, at_build: bool = False
) -> Agreed:
    """Check that every exchange without unknown values matches on these meshes. most: the number of
    pairs beyond which a sample is checked. at_build: check also the exchanges with values that the
    program computes, which the samples include, and that the boxes a member receives are disjoint
    and leave no holes.

    Raise Mismatch, for the first mesh on which an exchange does not match."""

    def check_row(row: Row) -> Agreed:
        everyone = Everyone(Pairs(row, meshes), at_build)
        return everyone.agreed(everyone.check(most))

    try:
        return each_once(table, check_row, at_build)
    except Mismatch:
        for mesh in meshes if len(meshes) > 1 else ():
            check(table, [mesh], most, at_build)
        raise


def each_once(
    table: ExchangeTable, check: Callable[[Row], Agreed], every: bool = False
) -> Agreed:
    """Check all exchanges without unknown values, or with `every` all of them, and return the sum
    of the results. Of exchanges with equal formulas one is checked."""
    agreed = Agreed()
    alike: dict[str, Agreed] = {}
    for row in table.rows:
        if row.unknown and not every:
            continue
        key = formulas(row)
        if key not in alike:
            alike[key] = check(row)
        agreed.transfers += alike[key].transfers
        for text in alike[key].sampled.values():
            agreed.sampled[row.site] = text
    return agreed


class Everyone:
    """A check of one exchange that looks at every member and every pair of members."""

    def __init__(self, pairs: Pairs, lands: bool = False) -> None:
        """Prepare the check of one exchange. lands: check also where the boxes that members receive
        lie."""
        self.pairs, self.terms, self.row = pairs, pairs.terms, pairs.row
        self.here = pairs.taken(pairs.giver)  # at a rank that stands as giver
        self.there = pairs.taken(pairs.taker)
        self.sampled, self.lands = "", lands

    def agreed(self, transfers: int) -> Agreed:
        return Agreed(transfers, {self.row.site: self.sampled} if self.sampled else {})

    def check(self, most: int | None = None) -> int:
        """Check the exchange and return how many transfers match. most: the number of pairs beyond
        which a sample is checked. Raise Mismatch."""
        self._together()
        if self.terms.value(self.here) == 0 or not self.row.buffers:
            return 0
        if self.row.said["dest"] is not None:
            return self._permute()
        if self.row.said["root"] is not None:
            self._one_root()
        if self.row.said["flow"] == "near":
            self._inside()
        return self.compared(most)

    # ---- places ------------------------------------------------------------------------------

    def where(self, truth: int, symbols: list[int]) -> Iterator[Places]:
        """Yield the places where the term `truth` is 1."""
        if self.terms.value(truth) == 0:
            return
        for places in self.pairs.each(symbols):
            (truths,) = self.pairs.evaluated(places, truth)
            if (some := truths != 0).any():
                yield {s: a[some] for s, a in places.items()}

    def judge(self, candidates: Iterator[Places], pair: tuple[Axes, Axes] | None = None) -> None:
        """Raise Mismatch for the first candidate that is wrong; `pair` fixes giver and taker, None
        leaves both to the candidate."""
        for places in candidates:
            for point in points(places):
                if pair is None:
                    self.pairs.judge_all(point)
                else:
                    self.pairs.judge(point, *pair)

    # ---- what members say alone --------------------------------------------------------------

    def _together(self) -> None:
        """Check that all members of a group execute the exchange or none does, and that they name
        the same number of wraps."""
        pairs, taken = self.pairs, self.pairs.taken(self.pairs.first)
        often = pairs.read("wraps", pairs.giver)
        assert often is not None
        for places in self.where(self.terms.differ(often, pairs.often), pairs.symbols(pairs.giver)):
            point = next(points(places))
            here, there = pairs.exact(point, often, pairs.often)
            me, other = pairs.rank(point, pairs.giver), pairs.rank(point, pairs.first)
            raise pairs.fault(point, f"{there} wraps, as {other} has", f"{me} has {here}")
        alone = self.terms.differ(self.here, taken)
        for places in self.where(alone, pairs.symbols(pairs.giver)):
            point = next(points(places))
            me, other = pairs.rank(point, pairs.giver), pairs.rank(point, pairs.first)
            does = "stays away" if pairs.exact(point, taken)[0] else "comes"
            raise pairs.fault(point, "all members come to it, or none",
                              f"{me} {does}, {other} does not")

    def _one_root(self) -> None:
        """Check that all members name the same root."""
        pairs = self.pairs
        root, wrong = pairs.root()
        both = self.terms.all(self.here, wrong)
        for places in self.where(both, pairs.symbols(pairs.giver)):
            point = next(points(places))
            first = self.pairs.read("root", pairs.first)
            assert first is not None
            members, *named = pairs.exact(point, pairs.members, root, first)
            raise pairs.fault(point, f"one root below {members}", f"roots {sorted(set(named))}")

    def _inside(self) -> None:
        """Check that ranges of neighbours lie within the group."""
        pairs = self.pairs
        for me, here, first in ((pairs.taker, self.there, 0), (pairs.giver, self.here, 2)):
            near = pairs.near(me, first)
            wrong = self.terms.all(here, pairs.beyond(near))
            for places in self.where(wrong, pairs.symbols(me)):
                point = next(points(places))
                for a, (begin, end) in near.items():
                    low, high, n = pairs.exact(point, begin, end, pairs.size[a])
                    if low < high and not 0 <= low < high <= n:
                        raise pairs.fault(
                            point, f"members 0 to {n - 1} along {a}",
                            f"{low} to {high - 1} for {pairs.rank(point, me)}")

    # ---- pairs -------------------------------------------------------------------------------

    def compared(self, most: int | None) -> int:
        """Compare all pairs, or a sample of them; return how many transfers there are."""
        pairs = self.pairs
        symbols = pairs.symbols(pairs.giver, pairs.taker)
        if most is None or pairs.number_of(symbols) <= most:
            return self.compare(pairs.each(symbols))
        self.lands = False
        return self.compare_some("the pairs")

    def compare_some(self, of: str) -> int:
        """Compare every taker with itself, its neighbours, the first and the last member; return
        how many transfers there are."""
        looked = self.compare(self.beside())
        ranks = self.pairs.number_of(self.pairs.symbols(self.pairs.giver))
        self.sampled = (f"{looked} of {of} transfers on {ranks} ranks: every rank's with itself, "
                        "with those beside it, with the first and the last")
        return looked

    def compare(self, portions: Iterator[Places]) -> int:
        """Compare these pairs and return how many of them exchange. Raise Mismatch."""
        t, pairs, count = self.terms, self.pairs, 0
        read, wrong = pairs.compared()
        read, wrong = t.all(self.here, read), t.all(self.here, wrong)
        landing = Landing(pairs, read) if self.lands else None
        more = landing.terms if landing else []
        for places in portions:
            truths, bad, *values = pairs.evaluated(
                places, t.all(read, t.negated(pairs.wrap)), wrong, *more)
            count += int((truths != 0).sum())
            if (some := bad != 0).any():
                self.judge(iter([{s: a[some] for s, a in places.items()}]))
            if landing:
                landing.add(places, values)
        if landing:
            landing.check()
        return count

    def beside(self) -> Iterator[Places]:
        pairs = self.pairs
        symbols = pairs.symbols(pairs.giver, pairs.taker)
        sizes = [pairs.size[a] for a in self.row.axes]
        for places in self.pairs.each(pairs.symbols(pairs.taker)):
            q, n, *size = pairs.evaluated(places, pairs.member(pairs.taker), pairs.members, *sizes)
            givers = np.array([q, (q + 1) % n, (q - 1) % n, 0 * q, n - 1])
            for k, p in enumerate(givers):
                left, neighbour = p, dict(places)
                for term, along in reversed(list(zip(pairs.giver.values(), size, strict=True))):
                    neighbour[term], left = left % along, left // along
                new = (givers[:k] != p).all(axis=0)
                yield {s: neighbour[s][new] for s in symbols}

    def _permute(self) -> int:
        """Check a permute: each sender has a receiver of its own, and each receiver names its
        sender."""
        t, pairs = self.terms, self.pairs
        sends, dest = pairs.read("sends", pairs.giver), pairs.read("dest", pairs.giver)
        assert sends is not None and dest is not None
        sends = t.all(self.here, t.negated(t.negated(sends)))
        symbols = pairs.symbols(pairs.giver)
        terms = sends, dest, pairs.member(pairs.giver), pairs.members
        giver_of = np.full(self.pairs.number_of(symbols), NOBODY, dtype=np.int64)
        first, count = 0, 0
        for places in self.pairs.each(symbols):
            sending, to, p, n = self.pairs.evaluated(places, *terms)
            k = np.flatnonzero(sending)
            p, q, n = p[k], np.clip(to[k], -1, n[k]).astype(np.int64), n[k]
            outside, target = (q < 0) | (q >= n), first + k - p + q
            self._receiver(places, k[outside], giver_of)
            for twice in (giver_of[target] != NOBODY, None):  # taken before, or meanwhile
                if twice is None:
                    giver_of[target] = p
                    twice = giver_of[target] != p
                self._receiver(places, k[twice], giver_of, target[twice])
            first += len(to)
            count += len(k)
        self._known(giver_of)
        bad = t.all(sends, pairs.mismatch(pairs.boxes(pairs.giver, pairs.place(dest))))
        self.judge(self.where(bad, symbols), (pairs.giver, pairs.place(dest)))
        return count

    def _receiver(self, places: Places, wrong: Array, giver_of: Array, target: Any = None) -> None:
        """Raise Mismatch if any place in `wrong` is a sender whose receiver does not exist or has
        another sender."""
        if not wrong.size:
            return
        pairs, point = self.pairs, next(points({s: a[wrong] for s, a in places.items()}))
        dest = pairs.read("dest", pairs.giver)
        assert dest is not None
        to, n = pairs.exact(point, dest, pairs.members)
        me, other = pairs.rank(point, pairs.giver), ""
        if target is not None:
            other = f" as {pairs.rank(point, int(giver_of[target[0]]))} does"
        raise pairs.fault(point, "a receiver of its own for every sender",
                          f"{me} sends to member {to} of {n}{other}")

    def _known(self, giver_of: Array) -> None:
        """Check that every receiver names its sender, where the program solves for it."""
        pairs = self.pairs
        receives, source = (pairs.read(k, pairs.giver) for k in ("receives", "source"))
        if receives is None or source is None:
            return
        first = 0
        for places in self.pairs.each(pairs.symbols(pairs.giver)):
            gets, by, comes = self.pairs.evaluated(places, receives, source, self.here)
            real = giver_of[first : first + len(by)]
            named = np.where(gets != 0, by, NOBODY)
            first += len(by)
            for k in np.flatnonzero((named != real) & (comes != 0)):
                point = {s: int(a[k]) for s, a in places.items()}
                me, (n,) = pairs.rank(point, pairs.giver), pairs.exact(point, pairs.members)
                says, sender = (None if x == NOBODY else int(x) for x in (named[k], real[k]))
                raise pairs.fault(point, f"{me} receives from member {sender} of {n}",
                                  f"it expects {says}")


def points(places: Places) -> Iterator[dict[int, int]]:
    """Yield the points of these places, one after the other."""
    for k in range(len(next(iter(places.values()), [0]))):
        yield {s: int(a[k]) for s, a in places.items()}


# ---- amounts -------------------------------------------------------------------------------------


def received(row: Row, values: Mapping[str, Any]) -> int:
    """Return the most elements that a rank receives from others in the first iteration of the loops
    around. For exchanges between many members it is taken over a sample: ranks at the ends and in
    the middle."""
    pairs = Pairs(row, [values], turn=(0,) * len(row.loops))
    t, dest = pairs.terms, pairs.read("dest", pairs.giver)
    taker = pairs.taker if dest is None else pairs.place(dest)
    moves = pairs.reads() if dest is None else pairs.read("sends", pairs.giver)
    other = t.differ(pairs.member(pairs.giver), pairs.member(taker))
    assert moves is not None
    amount = t.make("*", moves, other, pairs.boxes(pairs.giver, taker)["from"].elements)
    symbols = pairs.symbols(pairs.giver, *([taker] if dest is None else []))
    low, high = pairs.ranges(symbols)
    counts = [0]
    if dest is not None:
        return max(int(pairs.evaluated(p, amount)[0].max()) for p in pairs.each(symbols))
    free = {pairs.wrap, *pairs.giver.values()}
    fixed = {k: int(high[k, 0]) for k, s in enumerate(symbols) if s not in free}
    for position in itertools.product(*({0, 1, (n + 1) // 2, n} for n in fixed.values())):
        region = low.copy(), high.copy()
        for side in region:
            side[list(fixed), 0] = position
        counts.append(sum(int(pairs.evaluated(p, amount)[0].sum())
                         for p in pairs.each(symbols, region)))
    return max(counts)
