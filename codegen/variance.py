"""Where ranks may differ: which values of a Program, or of a shard_map, vary over which axes.

Goes in: a mesh, and what is split over which axes. Comes out: axes per value, of regions walked.
Always holds: a value that is not said to vary over an axis is equal on all ranks along it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from codegen import expr, ops
from codegen.expr import Expr
from codegen.ir import ArrayType, Op, Region, Value
from codegen.mesh import Mesh

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
            if ops.OPS[op.kind].group == "exchange":
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
