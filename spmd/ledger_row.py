"""One exchange of an image: its formulas as functions, and what is wrong with two ranks.

In: a row of the table of exchanges. Out: nothing, or an ImageError that names the exchange, the
ranks and what does not fit.
Always holds: formulas are checked before they are evaluated, rank by rank and exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from codegen.errors import ImageError
from codegen.image import manifest as reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.ledger import Ledger

Values = dict[str, int]
Box = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, extents, strides, in elements

MOST_WRAPS = 1 << 12  # how often a dim that goes around may be seen again
ALL_PAIRS = 12  # members up to which every one is compared with every other
COUNTS = 4  # values that are tried of each loop counter
_PULLS = (
    "all_gather", "all_to_all", "redistribute", "halo", "broadcast_from", "gather_to",
    "scatter_from", "reduce_scatter", "all_reduce", "reduce_to", "scan",
)  # fmt: skip

BOXES = ("from", "into", "send", "give")
# Whether member q reads what member p holds ready, by the exchange's flow.
_READS: dict[str, Callable[[int, int, int], bool]] = {
    "all": lambda q, p, root: True,
    "from_root": lambda q, p, root: p == root,
    "to_root": lambda q, p, root: q == root,
    "up_to": lambda q, p, root: p <= q,
    "before": lambda q, p, root: p < q,
    "near": lambda q, p, root: True,  # and nothing moves where it does not: see Row._near
}


def compiled(e: Any, known: set[str]) -> Callable[[Values], int] | None:
    """An expression in prefix form as a function of values; None where not all are known."""
    used: set[str] = set()
    text = _spelled(e, used)
    if not used <= known:
        return None
    known_names = {"O": reader.operations(), "bounded": reader.bounded}
    made: Callable[[Values], int] = eval(f"lambda v: bounded({text})", known_names)
    return made


def _spelled(e: Any, used: set[str]) -> str:
    """Python for a checked expression; names stand as string literals only."""
    if isinstance(e, int):
        return str(int(e))
    if isinstance(e, str):
        used.add(e)
        return f"v[{e!r}]"
    op, *rest = e
    args = [_spelled(a, used) for a in rest]
    if op in ("+", "*"):
        return f"({op.join(args)})"
    return f"O[{op!r}]({', '.join(args)})"


class Row:
    """One exchange: its expressions as functions."""

    def __init__(self, row: dict[str, Any], ledger: Ledger) -> None:
        self.ledger, self.member, self.said = ledger, str(row["member"]), row
        self.site, self.kind, self.place = int(row["site"]), row["kind"], str(row["place"])
        self.axes = [name for name in row["axes"] if name in ledger.axes]
        if self.kind not in ("permute", "barrier", *_PULLS) or len(self.axes) != len(row["axes"]):
            raise ValueError
        self.known = set(ledger.known)
        self.loops = [
            (str(name), self.function(start), None if stop is None else self.function(stop),
             self.function(step))
            for name, start, stop, step in self._counters(row["loops"])
        ]  # fmt: skip
        self.guards = [(self.function(on), int(arm), int(arms)) for on, arm, arms in row["guards"]
                       if on is not None]  # fmt: skip
        names = ("sends", "dest", "receives", "source", "root")
        self.peers = {name: None if row[name] is None else self.function(row[name])
                      for name in names}  # fmt: skip
        self.near = [[self.function(e) for e in ranges] for ranges in row["near"]]
        self._wraps = self.function(row["wraps"])
        self.around = row["wraps"] != 1  # dims go on beyond their ends, and ranges of members do
        self.known |= {self.member, "wrap"}
        self.boxes = {name: self.box(row[name]) for name in BOXES}
        if any(len(r) != 4 for r in self.near) or len(self.near) != (
            len(self.axes) if row["flow"] == "near" else 0
        ):
            raise ValueError
        self.reads = _READS[row["flow"]]
        used = reader.symbols(["", *(row[name] for name in names), *(g[0] for g in row["guards"])])
        for box in (row[name] for name in BOXES if row[name]):
            formulas = (*box["extent"], *box["stride"], *(e for _, e in box["names"]))
            used |= reader.symbols(["", box["offset"], *formulas])
        used |= reader.symbols(["", *(e for ranges in row["near"] for e in ranges)])
        for name, start, stop, step in reversed(row["loops"]):  # an outer one may bound an inner
            used |= reader.symbols(["", start, stop, step]) if name in used else set()
        self.loops = [loop for loop in self.loops if loop[0] in used]
        self.used = used

    def _counters(self, loops: list[Any]) -> Iterator[list[Any]]:
        for loop in loops:
            yield loop
            self.known.add(str(loop[0]))

    def function(self, e: Any) -> Callable[[Values], int]:
        """Of values; the exchange is unknown where they do not say everything."""
        free = reader.symbols(e)
        reader.check_expression(e, self.known | free)
        made = compiled(e, self.known)
        if made is None:
            self.ledger.unknown.add(self.site)
            return lambda values: 0
        return made

    def box(self, box: Any) -> tuple[int, Callable[[Values], Box]] | None:
        if box is None:
            return None
        number = int(box["buffer"])
        if not 0 <= number < len(self.ledger.manifest["buffers"]):
            raise ValueError
        known, self.known = self.known, set(self.known)
        names = []
        for name, e in box["names"]:  # one may name those before it
            names.append((str(name), self.function(e)))
            self.known.add(str(name))
        offset = self.function(box["offset"])
        extent = [self.function(e) for e in box["extent"]]
        stride = [self.function(e) for e in box["stride"]]
        self.known = known
        if len(extent) != len(stride):
            raise ValueError

        def value(values: Values) -> Box:
            values = dict(values)
            for name, e in names:
                values[name] = e(values)
            return (offset(values), tuple(max(0, e(values)) for e in extent),
                    tuple(s(values) for s in stride))  # fmt: skip

        return number, value

    def wraps(self, values: Values) -> int:
        """How often members see each other where dims go on beyond their ends."""
        found = self._wraps(values)
        if not 0 <= found <= MOST_WRAPS:
            raise self.ledger.wrong(f"exchange {self.site} goes round too often",
                                    f"at most {MOST_WRAPS} times", str(found))  # fmt: skip
        return found

    # ---- amounts -----------------------------------------------------------------------------

    def received(self, members: Sequence[Values], taker: int) -> int:
        """Elements that a member gets from the others, in the first turn of the loops around it."""
        box = self.boxes["from"]
        counters = next(self._counts(members[0], 0, {}), {})
        group = [{**rank, **counters} for rank in members]
        if box is None:
            return 0
        if self.kind == "permute":
            givers = [p for p, q in self.permutation(group) if q == taker]
        else:
            root = self.root(group)
            givers = [p for p in range(len(group)) if self.reads(taker, p, root)]
        return sum(
            _elements(box[1]({**group[taker], self.member: p, "wrap": wrap}))
            for p in givers if p != taker for wrap in range(self.wraps(group[taker]))
        )  # fmt: skip

    # ---- checks ------------------------------------------------------------------------------

    def check(self, groups: Sequence[Sequence[Values]], capacity: list[int]) -> int:
        """Transfers compared, over groups and some values of the loop counters around it."""
        count = 0
        for members in groups:
            for counters in self._counts(members[0], 0, {}):
                group = [{**rank, **counters} for rank in members]
                if self.together(group):
                    count += self._check_group(group, capacity)
        return count

    def _counts(self, rank: Values, depth: int, sofar: Values) -> Iterator[Values]:
        """The first values of every counter, and the last one."""
        if depth == len(self.loops):
            yield sofar
            return
        name, start, stop, step = self.loops[depth]
        values = {**rank, **sofar}
        by = step(values) or 1
        each = range(start(values), stop(values) if stop else start(values) + COUNTS * by, by)
        tried = [*each[: COUNTS - 1], *(each[-1:] if each[COUNTS - 1 :] else ())]
        for value in tried:
            yield from self._counts(rank, depth + 1, {**sofar, name: value})

    def together(self, group: Sequence[Values]) -> bool:
        """Whether its members come to the exchange: all of them, or none."""
        first = self._taken(group[0])
        for rank in group:
            if self._taken(rank) != first:
                other = "stays away" if first else "comes"
                raise self._wrong(group, "all members come to it, or none",
                                  f"{self._name(rank)} {other}, {self._name(group[0])} does not")
        return first

    def _taken(self, rank: Values) -> bool:
        return all(min(max(on(rank), 0), arms - 1) == arm for on, arm, arms in self.guards)

    def _check_group(self, group: Sequence[Values], capacity: list[int]) -> int:
        if self.kind == "barrier":
            return 0
        if self.kind == "permute":
            pairs = self.permutation(group)
        else:
            root = self.root(group)
            pairs = [(p, q) for p, q in self._pairs(len(group)) if self.reads(q, p, root)]
            pairs = self._near(group, pairs) if self.near else pairs
        for giver, taker in pairs:
            self.transfer(group, giver, taker, capacity)
        return len(pairs)

    def permutation(self, group: Sequence[Values]) -> list[tuple[int, int]]:
        """Who sends to whom: one receiver each, and each knows who sends to it."""
        sends, dest = self.peers["sends"], self.peers["dest"]
        receives, source = self.peers["receives"], self.peers["source"]
        assert sends and dest
        giver_of: dict[int, int] = {}
        for p, rank in enumerate(group):
            if not sends(rank):
                continue
            q = dest(rank)
            if not 0 <= q < len(group) or q in giver_of:
                other = f" as {self._name(group[giver_of[q]])} does" if q in giver_of else ""
                raise self._wrong(group, "a receiver of its own for every sender",
                                  f"{self._name(rank)} sends to member {q} of "
                                  f"{len(group)}{other}")  # fmt: skip
            giver_of[q] = p
        for q, rank in enumerate(group):
            if source and receives:
                known = source(rank) if receives(rank) else None
                if known != giver_of.get(q):
                    raise self._wrong(
                        group, f"{self._name(rank)} receives from member {giver_of.get(q)} of "
                        f"{len(group)}", f"it expects {known}")  # fmt: skip
        return [(p, q) for q, p in giver_of.items()]

    def root(self, group: Sequence[Values]) -> int:
        """One that all members name; 0 where there is none."""
        named = self.peers["root"]
        roots = {named(rank) for rank in group} if named else {0}
        if len(roots) > 1 or not 0 <= min(roots) < len(group):
            raise self._wrong(group, f"one root below {len(group)}", f"roots {sorted(roots)}")
        return roots.pop()

    def _pairs(self, members: int) -> Iterator[tuple[int, int]]:
        """Giver and taker: all of them, or of many each with its neighbours and the ends."""
        for p in range(members):
            near = {p, (p + 1) % members, (p - 1) % members, 0, members - 1}
            for q in range(members) if members <= ALL_PAIRS else sorted(near):
                yield p, q

    def _near(self, group: Sequence[Values], pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of the pairs that read, and each member's first and last reader."""
        reads, readers = ([self.ranges(group, rank, k) for rank in group] for k in (0, 2))
        known = {(p, q) for q, found in enumerate(reads) for p in found}
        told = {(p, q) for p, found in enumerate(readers) for q in found}
        for p, q in known ^ told:
            raise self._disagree(group, p, q)
        for p, q in set(pairs) - known:
            self._nothing_moves(group, p, q)
        ends = {(p, q[k]) for p, q in enumerate(readers) for k in (0, -1) if q}
        return sorted(ends | (set(pairs) & known))

    def ranges(self, group: Sequence[Values], rank: Values, first: int) -> list[int]:
        """Positions in a product of one range per axis of the group, ascending."""
        positions = [0]
        for name, ranges in zip(self.axes, self.near):
            n, begin, end = rank[f"n_{name}"], ranges[first](rank), ranges[first + 1](rank)
            if begin < end and not 0 <= begin < end <= n and not self.around:
                raise self._wrong(group, f"members 0 to {n - 1} along {name}",
                                  f"{begin} to {end - 1} for {self._name(rank)}")  # fmt: skip
            along = sorted(k % n for k in range(begin, min(end, begin + n)))
            positions = [p * n + k for p in positions for k in along]
        return positions

    def neighbours(
        self, group: Sequence[Values], giver: int, taker: int, capacity: list[int]
    ) -> None:
        """Both list each other and match, or neither does and nothing moves."""
        listed = self._lists(group[taker], giver, 0), self._lists(group[giver], taker, 2)
        if listed[0] != listed[1]:
            raise self._disagree(group, giver, taker)
        if listed[0]:
            self.transfer(group, giver, taker, capacity)
        else:
            self._nothing_moves(group, giver, taker)

    def _lists(self, rank: Values, member: int, first: int) -> bool:
        for name, ranges in reversed(list(zip(self.axes, self.near))):
            member, k = divmod(member, n := rank[f"n_{name}"])
            begin, end = ranges[first](rank), ranges[first + 1](rank)
            if (k - begin) % n >= end - begin:
                return False
        return True

    def _listed(self, rank: Values, first: int) -> str:
        return " and ".join(f"{r[first](rank)} to {r[first + 1](rank) - 1} along {name}"
                            for name, r in zip(self.axes, self.near))  # fmt: skip

    def _disagree(self, group: Sequence[Values], giver: int, taker: int) -> ImageError:
        p, q = self._name(group[giver]), self._name(group[taker])
        return self._wrong(
            group, f"{p} and {q} agree whether {p} is read",
            f"only one of them says so: {p} has the readers {self._listed(group[giver], 2)}, "
            f"{q} reads {self._listed(group[taker], 0)}",
        )  # fmt: skip

    def _nothing_moves(self, group: Sequence[Values], giver: int, taker: int) -> None:
        for name, me, other in (("into", taker, giver), ("send", giver, taker)):
            if (box := self.boxes[name]) is None:
                continue
            values = {**group[me], self.member: other}
            for wrap in range(self.wraps(values)):
                found = box[1]({**values, "wrap": wrap})
                if _elements(found):
                    raise self._wrong(group, f"{self._name(group[taker])} reads nothing of "
                                      f"{self._name(group[giver])}, which it does not list",
                                      f"box '{name}' of {found[1]}")  # fmt: skip

    def transfer(
        self, group: Sequence[Values], giver: int, taker: int, capacity: list[int]
    ) -> None:
        """Both sides name equal boxes, inside their buffers."""
        for wrap in range(self.wraps(group[taker])):
            self._transfer(group, giver, taker, wrap, capacity)

    def _transfer(
        self, group: Sequence[Values], giver: int, taker: int, wrap: int, capacity: list[int]
    ) -> None:
        gives = {**group[giver], self.member: taker, "wrap": wrap}
        takes = {**group[taker], self.member: giver, "wrap": wrap}
        pair = f"{self._name(gives)} to {self._name(takes)}"
        said: dict[str, Box] = {}
        for name, values in zip(BOXES, (takes, takes, gives, gives)):
            box = self.boxes[name]
            if box is None:
                continue
            said[name] = box[1](values)
            self._inside(group, pair, name, said[name], capacity[box[0]])
        if "send" in said and "from" in said and not _same(said["send"], said["from"]):
            raise self._wrong(group, f"{pair}: both name one box", f"the sender 'send' "
                              f"{said['send']}, the receiver 'from' {said['from']}")  # fmt: skip
        if "give" in said and not _same(said["give"], said["into"]):
            raise self._wrong(group, f"{pair}: both name one place for it", f"the sender 'give' "
                              f"{said['give']}, the receiver 'into' {said['into']}")  # fmt: skip
        if "into" in said and "from" in said and _elements(said["into"]) != _elements(said["from"]):
            raise self._wrong(group, f"{pair}: boxes of one size", f"'from' {said['from'][1]}, "
                              f"'into' {said['into'][1]}")  # fmt: skip

    def _inside(
        self, group: Sequence[Values], pair: str, name: str, box: Box, capacity: int
    ) -> None:
        offset, extents, strides = box
        if 0 in extents:
            return
        low = offset + sum(min(0, (e - 1) * s) for e, s in zip(extents, strides))
        high = offset + sum(max(0, (e - 1) * s) for e, s in zip(extents, strides))
        if low < 0 or high >= capacity:
            raise self._wrong(group, f"{pair}: box '{name}' within {capacity} elements",
                              f"elements {low} to {high}")  # fmt: skip

    def _name(self, rank: Values) -> str:
        """By its index."""
        index = 0
        for name, symbol in zip(self.ledger.axes, self.ledger.coordinates):
            index = index * rank[f"n_{name}"] + rank[symbol]
        return f"rank {index}"

    def _wrong(self, group: Sequence[Values], expected: str, found: str) -> ImageError:
        mesh = ",".join(f"{name}={group[0][f'n_{name}']}" for name in self.ledger.axes)
        return self.ledger.wrong(
            f"exchange {self.site} ({self.kind}, {self.place}) does not match with the mesh "
            f"({mesh})", expected, found,
        )  # fmt: skip


def _elements(box: Box) -> int:
    total = 1
    for extent in box[1]:
        total *= extent
    return total


def _same(a: Box, b: Box) -> bool:
    """The same elements in the same order; of an empty box nothing else counts."""
    if _elements(a) == 0 or _elements(b) == 0:
        return _elements(a) == _elements(b)
    return a[0] == b[0] and _walk(a) == _walk(b)


def _walk(box: Box) -> list[tuple[int, int]]:
    return [(e, s) for e, s in zip(box[1], box[2]) if e > 1]
