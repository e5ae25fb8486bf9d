"""Exchanges and arrays of an image, evaluated for one mesh after the other.

In: an image's manifest and notes. Out: nothing, or an ImageError that names the exchange, both
ranks and what does not fit.
Always holds: expressions are checked before they are evaluated; nothing of the image is executed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from codegen import manifest as reader
from codegen.errors import ImageError
from spmd import sizes
from spmd.npy import SIZES

Values = dict[str, int]
Box = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, extents, strides, in elements

ALL_PAIRS = 12  # members up to which every one is compared with every other
COUNTS = 4  # values that are tried of each loop counter
_PULLS = (
    "all_gather", "all_to_all", "redistribute", "halo", "broadcast_from", "gather_to",
    "scatter_from", "reduce_scatter", "all_reduce", "reduce_to", "scan",
)  # fmt: skip

_BOXES = ("from", "into", "send", "give")
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
    made: Callable[[Values], int] = eval(f"lambda v: {text}", {"O": reader.operations()})
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


class Ledger:
    """The table of an image's exchanges. unknown: sites that depend on what a program computes."""

    def __init__(self, image: reader.Image, path: str) -> None:
        self.manifest, self.path = image.manifest, path
        notes = image.notes()
        if "exchanges" not in notes:
            raise ImageError(f"{path}: the image has no table of its exchanges",
                             remedy="build it again with this version of spmd")  # fmt: skip
        self.rows: list[Any] = notes.get("exchanges") or []
        self.coordinates: list[str] = notes.get("coordinates") or []
        self.at_load: list[Any] = notes.get("load") or []
        self.axes = [axis["name"] for axis in self.manifest["mesh"]]
        self.unknown: set[int] = set()
        try:
            self._check_notes()
            self.exchanges = [Row(row, self) for row in self.rows]
        except (KeyError, TypeError, ValueError, IndexError, RecursionError):
            raise self.wrong("damaged notes", "a table of exchanges", "something else") from None

    def _check_notes(self) -> None:
        tables = (self.rows, self.coordinates, self.at_load)
        if not all(isinstance(t, list) for t in tables) or len(self.coordinates) != len(self.axes):
            raise ValueError
        self.known = {f"n_{name}" for name in self.axes} | set(self.coordinates)
        self.known |= {scalar["name"] for scalar in self.manifest["scalars"]}
        known = set(self.known)
        for name, e in self.at_load:  # an entry may name those before it
            reader.check_expression(e, known)
            known.add(name)

    def wrong(self, what: str, expected: str, found: str) -> ImageError:
        return ImageError(f"{self.path}: {what}", expected=expected, found=found)

    def ranks(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> Iterator[Values]:
        """What every rank's expressions may name, in the order of the index."""
        common = {**scalars, **sizes.mesh_symbols(self.manifest, mesh)}
        for at in itertools.product(*(range(n) for n in mesh)):
            yield {**common, **dict(zip(self.coordinates, at))}

    # ---- arrays ------------------------------------------------------------------------------

    def shard(
        self, array: dict[str, Any], mesh: tuple[int, ...], at: Values
    ) -> tuple[list[int], list[int]]:
        """Offset and extent of a rank's part: balanced blocks along the axes of each dim."""
        size = dict(zip(self.axes, mesh))
        place = {name: at[symbol] for name, symbol in zip(self.axes, self.coordinates)}
        offsets, extents = [], []
        for entry, extent in zip(array["layout"], array["shape"]):
            parts, k = 1, 0
            for name in entry:
                parts, k = parts * size[name], k * size[name] + place[name]
            whole = reader.evaluate(extent, at)
            small, longer = divmod(whole, parts)
            offsets.append(k * small + min(k, longer))
            extents.append(small + (k < longer))
        return offsets, extents

    def check_arrays(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> None:
        """The first rank's parts, which are the largest, fit the buffers they lie in."""
        first = next(self.ranks(mesh, scalars))
        for array in (*self.manifest["inputs"], *self.manifest["outputs"]):
            need = SIZES[array["dtype"]]
            for extent in self.shard(array, mesh, first)[1]:
                need *= extent
            buffer = self.manifest["buffers"][array["buffer"]]
            have = reader.evaluate(buffer["bytes"], first)
            if have < need:
                raise self.wrong(f"array {array['name']} does not fit its buffer on {mesh}",
                                 f"{need} bytes", f"{have} bytes")  # fmt: skip

    # ---- exchanges ---------------------------------------------------------------------------

    def check_exchanges(self, mesh: tuple[int, ...], scalars: dict[str, Any]) -> int:
        """Every exchange matches on this mesh; how many transfers were compared."""
        everyone = list(self.ranks(mesh, scalars))
        capacity = [
            reader.evaluate(b["bytes"], everyone[0]) // SIZES[b["dtype"]]
            for b in self.manifest["buffers"]
        ]
        return sum(row.check(self.groups(row, everyone), capacity) for row in self.exchanges
                   if row.site not in self.unknown)  # fmt: skip

    def groups(self, row: Row, everyone: list[Values]) -> list[list[Values]]:
        """The members of every group of an exchange, by their position along its axes."""
        along = [self.coordinates[self.axes.index(name)] for name in row.axes]
        across = [name for name in self.coordinates if name not in along]
        groups: dict[tuple[int, ...], list[Values]] = {}
        for rank in everyone:
            groups.setdefault(tuple(rank[name] for name in across), []).append(rank)
        for members in groups.values():
            members.sort(key=lambda rank: [rank[name] for name in along])
        return list(groups.values())


class Row:
    """One exchange: its expressions as functions."""

    def __init__(self, row: dict[str, Any], ledger: Ledger) -> None:
        self.ledger, self.member = ledger, str(row["member"])
        self.site, self.kind, self.place = int(row["site"]), row["kind"], str(row["place"])
        self.axes = [name for name in row["axes"] if name in ledger.axes]
        if self.kind not in ("permute", "barrier", *_PULLS) or len(self.axes) != len(row["axes"]):
            raise ValueError
        self.known = set(ledger.known)
        self.loops = [(str(name), self.function(start), self.function(stop), self.function(step))
                      for name, start, stop, step in self._counters(row["loops"])]  # fmt: skip
        self.guards = [(self.function(on), int(arm), int(arms)) for on, arm, arms in row["guards"]
                       if on is not None]  # fmt: skip
        self.known.add(self.member)
        names = ("sends", "dest", "receives", "source", "root")
        self.peers = {name: None if row[name] is None else self.function(row[name])
                      for name in names}  # fmt: skip
        self.images = self.function(row["images"])
        self.known.add("image")
        self.boxes = {name: self.box(row[name]) for name in _BOXES}
        self.near = [[self.function(e) for e in ranges] for ranges in row["near"]]
        if any(len(r) != 4 for r in self.near) or len(self.near) != (
            len(self.axes) if row["flow"] == "near" else 0
        ):
            raise ValueError
        self.reads = _READS[row["flow"]]
        used = _symbols(["", *(row[name] for name in names), *(g[0] for g in row["guards"])])
        for box in (row[name] for name in _BOXES):
            used |= _symbols(["", box["offset"], *box["extent"], *box["stride"],
                              *(e for _, e in box["names"])] if box else [])  # fmt: skip
        for name, start, stop, step in reversed(row["loops"]):  # an outer one may bound an inner
            used |= _symbols(["", start, stop, step]) if name in used else set()
        self.loops = [loop for loop in self.loops if loop[0] in used]

    def _counters(self, loops: list[Any]) -> Iterator[list[Any]]:
        for loop in loops:
            yield [loop[0], loop[1], loop[2] if loop[2] is not None else loop[1], loop[3]]
            self.known.add(str(loop[0]))

    def function(self, e: Any) -> Callable[[Values], int]:
        """Of values; the exchange is unknown where they do not say everything."""
        free = _symbols(e)
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

    # ---- amounts -----------------------------------------------------------------------------

    def received(self, members: list[Values], taker: int) -> int:
        """Elements that a member gets from the others, in the first turn of the loops around it."""
        box = self.boxes["from"]
        counters = next(self._counts(members[0], 0, {}), {})
        group = [{**rank, **counters} for rank in members]
        if box is None:
            return 0
        if self.kind == "permute":
            givers = [p for p, q in self._permutation(group) if q == taker]
        else:
            root = self._root(group)
            givers = [p for p in range(len(group)) if self.reads(taker, p, root)]
        return sum(
            _elements(box[1]({**group[taker], self.member: p, "image": image}))
            for p in givers if p != taker for image in range(self.images(group[taker]))
        )  # fmt: skip

    # ---- checks ------------------------------------------------------------------------------

    def check(self, groups: list[list[Values]], capacity: list[int]) -> int:
        """Transfers compared, over groups and some values of the loop counters around it."""
        count = 0
        for members in groups:
            for counters in self._counts(members[0], 0, {}):
                group = [{**rank, **counters} for rank in members]
                if all(self._taken(rank) for rank in group):
                    count += self._check_group(group, capacity)
        return count

    def _counts(self, rank: Values, depth: int, sofar: Values) -> Iterator[Values]:
        """The first values of every counter, and the last one."""
        if depth == len(self.loops):
            yield sofar
            return
        name, start, stop, step = self.loops[depth]
        values = {**rank, **sofar}
        each = range(start(values), stop(values), step(values) or 1)
        tried = [*each[: COUNTS - 1], *each[-1:]] if len(each) > COUNTS else list(each)
        for value in tried:
            yield from self._counts(rank, depth + 1, {**sofar, name: value})

    def _taken(self, rank: Values) -> bool:
        return all(min(max(on(rank), 0), arms - 1) == arm for on, arm, arms in self.guards)

    def _check_group(self, group: list[Values], capacity: list[int]) -> int:
        if self.kind == "barrier":
            return 0
        if self.kind == "permute":
            pairs = self._permutation(group)
        else:
            root = self._root(group)
            pairs = [(p, q) for p, q in self._pairs(len(group)) if self.reads(q, p, root)]
            pairs = self._near(group, pairs) if self.near else pairs
        for giver, taker in pairs:
            for image in range(self.images(group[taker])):
                self._transfer(group, giver, taker, image, capacity)
        return len(pairs)

    def _permutation(self, group: list[Values]) -> list[tuple[int, int]]:
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
                other = f" as {giver_of[q]} does" if q in giver_of else ""
                raise self._wrong(group, "a receiver of its own for every sender",
                                  f"member {p} of {len(group)} sends to {q}{other}")  # fmt: skip
            giver_of[q] = p
        for q, rank in enumerate(group):
            if source and receives:
                known = source(rank) if receives(rank) else None
                if known != giver_of.get(q):
                    raise self._wrong(group, f"member {q} receives from {giver_of.get(q)}",
                                      f"it expects {known}")  # fmt: skip
        return [(p, q) for q, p in giver_of.items()]

    def _root(self, group: list[Values]) -> int:
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

    def _near(self, group: list[Values], pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of the pairs that read, and each member's first and last reader."""
        reads, readers = ([self._ranges(group, rank, k) for rank in group] for k in (0, 2))
        known = {(p, q) for q, found in enumerate(reads) for p in found}
        told = {(p, q) for p, found in enumerate(readers) for q in found}
        for p, q in known ^ told:
            raise self._wrong(group, f"members {p} and {q} agree whether {p} is read",
                              f"only one of them says so: {p} to {readers[p]}, "
                              f"{q} from {reads[q]}")  # fmt: skip
        for p, q in set(pairs) - known:
            self._nothing_moves(group, p, q)
        ends = {(p, q[k]) for p, q in enumerate(readers) for k in (0, -1) if q}
        return sorted(ends | (set(pairs) & known))

    def _ranges(self, group: list[Values], rank: Values, first: int) -> list[int]:
        """Positions in a product of one range per axis of the group, ascending."""
        positions = [0]
        for name, ranges in zip(self.axes, self.near):
            n, begin, end = rank[f"n_{name}"], ranges[first](rank), ranges[first + 1](rank)
            along = sorted(k % n for k in range(begin, min(end, begin + n)))
            positions = [p * n + k for p in positions for k in along]
        return positions

    def _nothing_moves(self, group: list[Values], giver: int, taker: int) -> None:
        for name, me, other in (("into", taker, giver), ("send", giver, taker)):
            if (box := self.boxes[name]) is None:
                continue
            values = {**group[me], self.member: other}
            for image in range(self.images(values)):
                found = box[1]({**values, "image": image})
                if _elements(found):
                    raise self._wrong(group, f"member {taker} reads nothing of {giver}",
                                      f"box '{name}' of {found[1]}")  # fmt: skip

    def _transfer(
        self, group: list[Values], giver: int, taker: int, image: int, capacity: list[int]
    ) -> None:
        gives = {**group[giver], self.member: taker, "image": image}
        takes = {**group[taker], self.member: giver, "image": image}
        said: dict[str, Box] = {}
        for name, values in zip(_BOXES, (takes, takes, gives, gives)):
            box = self.boxes[name]
            if box is None:
                continue
            said[name] = box[1](values)
            self._inside(group, name, said[name], capacity[box[0]])
        pair = f"member {giver} to {taker}"
        if "send" in said and "from" in said and not _same(said["send"], said["from"]):
            raise self._wrong(group, f"{pair}: both name one box", f"the sender {said['send']}, "
                              f"the receiver {said['from']}")  # fmt: skip
        if "give" in said and not _same(said["give"], said["into"]):
            raise self._wrong(group, f"{pair}: both name one place for it", f"the sender "
                              f"{said['give']}, the receiver {said['into']}")  # fmt: skip
        if "into" in said and "from" in said and _elements(said["into"]) != _elements(said["from"]):
            raise self._wrong(group, f"{pair}: boxes of one size", f"{said['from'][1]} into "
                              f"{said['into'][1]}")  # fmt: skip

    def _inside(self, group: list[Values], name: str, box: Box, capacity: int) -> None:
        offset, extents, strides = box
        if 0 in extents:
            return
        low = offset + sum(min(0, (e - 1) * s) for e, s in zip(extents, strides))
        high = offset + sum(max(0, (e - 1) * s) for e, s in zip(extents, strides))
        if low < 0 or high >= capacity:
            raise self._wrong(group, f"box '{name}' within {capacity} elements",
                              f"elements {low} to {high}")  # fmt: skip

    def _wrong(self, group: list[Values], expected: str, found: str) -> ImageError:
        mesh = ",".join(f"{name}={group[0][f'n_{name}']}" for name in self.ledger.axes)
        return self.ledger.wrong(
            f"exchange {self.site} ({self.kind}, {self.place}) does not match with the mesh "
            f"({mesh})", expected, found,
        )  # fmt: skip


def _symbols(e: Any) -> set[str]:
    """Names in an expression in prefix form."""
    if isinstance(e, str):
        return {e}
    return set().union(*map(_symbols, e[1:])) if isinstance(e, list) else set()


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
