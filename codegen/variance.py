"""Where ranks may differ: which values of a Program, or of a shard_map, vary over which axes.

Goes in: a mesh, and what is split over which axes. Comes out: axes per value, of regions walked.
Always holds: a value that is not said to vary over an axis is equal on all ranks along it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from codegen import expr
from codegen.errors import Place
from codegen.expr import Expr
from codegen.ir import ArrayType, Op, Region, Value, walk
from codegen.mesh import Layout, Mesh
from codegen.ops import Exchange

Axes = frozenset[str]
NONE: Axes = frozenset()
EQUAL = ("all_reduce", "all_gather", "broadcast_from")  # what all members get the same of


class Variance:
    """of: per value. counters: per loop counter, by name. trips: how often a loop runs.

    given: the axes over which values from outside are split; others are equal on all ranks.
    """

    def __init__(self, mesh: Mesh, given: Mapping[Value, Iterable[str]]) -> None:
        self.alone = frozenset(a.name for a in mesh.axes if a.fixed == 1)
        self.coords = {a.coord_sym.name: frozenset({a.name}) - self.alone for a in mesh.axes}
        self.counters: dict[str, Axes] = {}
        self.trips: dict[Op, Axes] = {}
        self.of: dict[Value, Axes] = {v: frozenset(axes) - self.alone for v, axes in given.items()}

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        if op.kind == "loop":
            self.loop(op)
        elif op.kind == "branch":
            self.branch(op)
        elif op.kind == "let":
            self.counters[op.attrs["counter"].name] = self.values(op.operands)
        else:
            attrs = {k: v for k, v in op.attrs.items() if k != "have" or op.kind == "halo"}
            axes = self.values(op.operands) | self.attr(list(attrs.values()))
            if isinstance(op.what, Exchange):
                axes = self.exchanged(op, axes)
            for value in op.results:
                self.of[value] = axes | self.type(value.type)

    def values(self, values: Iterable[Value]) -> Axes:
        return NONE.union(*(self.of.get(v, NONE) for v in values))

    def attr(self, attr: Any) -> Axes:
        """The axes that Exprs anywhere in an attribute vary over."""
        if isinstance(attr, Expr):
            return self.expr(attr)
        if isinstance(attr, ArrayType):
            return self.type(attr)
        if isinstance(attr, (tuple, list)):
            return NONE.union(*(self.attr(a) for a in attr))
        return NONE

    def expr(self, e: Expr) -> Axes:
        tables = {"coord": self.coords, "counter": self.counters}
        return NONE.union(*(tables[s.kind].get(s.name, NONE) for s in e.symbols()
                             if s.kind in tables))  # fmt: skip

    def type(self, t: ArrayType) -> Axes:
        return NONE.union(*(self.expr(e) for e in t.shape))

    def exchanged(self, op: Op, axes: Axes) -> Axes:
        members = frozenset(op.attrs["axes"])
        if op.kind in EQUAL:
            return axes - members
        if op.kind == "redistribute":
            return (axes - members) | (self.attr(op.attrs["want"]) - self.alone)
        return axes | (members - self.alone)

    def branch(self, op: Op) -> None:
        on = self.on(op)
        for arm in op.regions:
            self.region(arm)
        for k, value in enumerate(op.results):
            given = [arm.results[k] for arm in op.regions]
            one = all(v is given[0] for v in given)
            self.of[value] = self.values(given) | (NONE if one else on)

    def on(self, op: Op) -> Axes:
        """What decides which arm of a branch is taken."""
        if op.attrs["on"] is None:
            return self.values(op.operands)
        return self.expr(expr.as_expr(op.attrs["on"]))

    def loop(self, op: Op) -> None:
        bounds = self.attr([op.attrs[k] for k in ("start", "stop", "step")])
        if op.attrs["counter"] is not None:
            self.counters[op.attrs["counter"].name] = bounds
        carried = [self.values([v]) for v in op.operands]
        while True:
            for region in op.regions:
                for value, axes in zip(region.args, carried, strict=True):
                    self.of[value] = axes
                self.region(region)
            ends = op.regions[-1].results
            again = [a | self.values([v]) for a, v in zip(carried, ends, strict=True)]
            if again == carried:
                break
            carried = again
        test = self.values(op.regions[0].results) if len(op.regions) == 2 else NONE
        self.trips[op] = bounds | test
        for value, axes in zip(op.results, carried, strict=True):
            self.of[value] = axes | self.trips[op]


class Received(Variance):
    """Of which values something may depend on what other ranks along an axis have: that came from
    there, and is not the same for all. Such values may be equal though they were made differently.
    """

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh, {})
        self.coords = {}

    def exchanged(self, op: Op, axes: Axes) -> Axes:
        members = frozenset(op.attrs["axes"])
        if op.kind in EQUAL:
            return axes - members
        # pieces and prefixes differ between members by what they are
        return axes | members if op.kind in ("permute", "redistribute", "all_to_all") else axes


class InBody:
    """One shard_map: over which axes its values may vary, over which surely, and because of what.

    layouts: of its arguments.
    """

    def __init__(self, mesh: Mesh, body: Region, layouts: Sequence[Layout]) -> None:
        self.body = body
        split = {v: [a for entry in layout for a in entry]
                 for v, layout in zip(body.args, layouts, strict=True)}  # fmt: skip
        self._varies, self._received = Variance(mesh, split), Received(mesh)
        self._varies.region(body)
        self._received.region(body)
        self.made = {v: op for op in walk(body) for v in op.results}
        self._ends = {
            arg: (loop.operands[k], region.results[k] if region is loop.regions[-1] else arg)
            for loop in walk(body) if loop.kind == "loop"
            for region in loop.regions for k, arg in enumerate(region.args)
        }  # fmt: skip

    def varies(self, value: Value) -> Axes:
        """Along other axes it is equal on all ranks."""
        return self._varies.values([value])

    def surely(self, value: Value) -> Axes:
        """Those of `varies` along which nothing that other ranks sent can make it equal again."""
        return self.varies(value) - self._received.values([value])

    def cause(self, value: Value, axis: str) -> tuple[str, Place | None]:
        """Why a value varies over an axis: what the index, or an argument, goes into."""
        seen: set[Value] = set()
        left = [value]
        found: Place | None = None
        while left:
            value = left.pop()
            if value in seen or axis not in self.varies(value):
                continue
            seen.add(value)
            op = self.made.get(value)
            if op is None and value in self.body.args:
                return f'argument "{value.name}", which is split over "{axis}", goes in', found
            before = self._ends.get(value, ()) if op is None else tuple(self._before(op, value))
            found = op.place if op else found
            if op is not None and not any(axis in self.varies(v) for v in before):
                break
            left += before
        return f'the index along "{axis}" goes in', found

    def _before(self, op: Op, value: Value) -> Iterator[Value]:
        """What a result follows from."""
        k = op.results.index(value)
        if op.kind in ("loop", "branch"):
            inner = op.regions[-1:] if op.kind == "loop" else op.regions
            yield from (region.results[k] for region in inner)
            yield from op.regions[0].results if op.kind == "loop" and len(op.regions) > 1 else ()
        yield from op.operands
