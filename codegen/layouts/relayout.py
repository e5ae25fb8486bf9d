"""The Graph in which arrays lie otherwise in some loops, as its compiler has chosen.

Goes in: a Graph, and for some loops how arrays lie that they are given. Comes out: the Graph with
these changes of layout, and with the layouts that follow from them.
Always holds: the values are the same; what the user has laid out lies as it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from codegen.graph.builder import Builder
from codegen.graph.layout_propagation import laid_out, met
from codegen.ir.graph import ArrayType, Module, Op, Region, Value
from codegen.mesh import Layout
from codegen.ops import Branch, Loop, Relayout, ShardMap
from codegen.ops.kind import layout_of
from codegen.symbolic.expr import Sym


class Inside(Enum):
    """A choice of how arrays lie in a region: as they did, whole, or as follows from what it is
    given."""

    SAME = 0
    WHOLE = 1
    FOLLOWS = 2


@dataclass(frozen=True)
class Laid:
    """A choice for a loop: the layouts that arrays get before it; how what it makes lies; why, in
    words."""

    before: tuple[tuple[Value, Layout], ...]
    inside: Inside = Inside.SAME
    because: str = ""


Choices = Mapping[Sym, Laid]  # by the counters of loops


def relaid(graph: Module, choices: Choices, inside: Inside = Inside.SAME) -> Module:
    """Return the Graph with these choices made. inside: how arrays lie around these loops, and
    behind them."""
    work = _Relaid(choices, graph)
    body = work.region(graph.body, inside, [v.type for v in graph.body.args])
    outputs = tuple(
        o if (v := work.now.get(o.value, o.value)) is o.value
        else replace(o, value=v, layout=layout_of(v.type)) for o in graph.outputs
    )
    return replace(graph, body=body, outputs=outputs)


class _Relaid(Builder):
    """Rewrite the regions of a Graph. now: what stands for a value."""

    def __init__(self, choices: Choices, graph: Module) -> None:
        super().__init__()
        self.choices, self.uses = choices, graph.def_use.uses
        self.chosen: frozenset[Value] = frozenset()  # of what the next loop is given
        self.within = 0  # chosen loops
        self.now: dict[Value, Value] = {}
        self.known: dict[tuple[Value, Layout], Value] = {}  # changes of layout in this region

    def region(
        self, region: Region, inside: Inside, args: Sequence[ArrayType],
        ends: Sequence[ArrayType] = (),
    ) -> Region:
        """Return a region with its ops rewritten. args: the types of its arguments now. ends: it
        yields arrays with their layouts."""
        arguments = tuple(self.argument(v, t) for v, t in zip(region.args, args, strict=True))
        outer, self.known = self.known, {}
        with self.inside() as ops:
            for op in region.ops:
                self.op(op, inside)
            results = tuple(self.now.get(v, v) for v in region.results)
            if ends:
                results = tuple(self.laid(v, layout_of(t)) for v, t in zip(results, ends))
        self.known = outer
        if arguments == region.args and results == region.results:
            return region.with_ops(ops)
        return Region(arguments, tuple(ops), results)

    def argument(self, value: Value, t: ArrayType) -> Value:
        if value.type == t:
            self.now.pop(value, None)
            return value
        self.now[value] = Value(value.name, t)
        return self.now[value]

    def op(self, op: Op, inside: Inside) -> None:
        counter = op.kind.counts()
        choice = self.choices.get(counter) if counter and isinstance(op.kind, Loop) else None
        if choice is None:
            self.again(op, inside)
            return
        self.place, before, because = op.place, dict(self.now), choice.because
        for v, layout in choice.before:
            now = self.now.get(v, v)
            self.now[v] = self.laid(now, layout, because)
            because = because if self.now[v] is now else ""
        self.chosen = frozenset(v for v, _ in choice.before)
        self.within += 1
        self.again(op, choice.inside)
        self.within -= 1
        self.place = op.place
        ends = [self.now.get(v, v) for v in op.results]
        self.now = before
        for old, new in zip(op.results, ends):
            if old is new or old not in self.uses:
                continue
            if inside is Inside.FOLLOWS:
                self.now[old] = new
            else:
                self.add(Relayout(layout_of(old.type)), (new,), (old,))

    def again(self, op: Op, inside: Inside) -> None:
        """Emit an op again, on the values that now stand for its operands."""
        kind, self.place = op.kind, op.place
        operands = [self.now.get(v, v) for v in op.operands]
        if isinstance(kind, Relayout) and (
            inside is Inside.WHOLE or (self.within and inside is Inside.FOLLOWS and not kind.asked)
        ):
            self.now[op.result] = operands[0]
            return
        if isinstance(kind, ShardMap):
            same = operands == list(op.operands)
            self.ops.append(op if same else replace(op, operands=tuple(operands)))
            return
        regions = op.regions
        if isinstance(kind, Loop):
            types, regions = self.loop(op, operands, inside)
            self.place = op.place
            operands = [self.laid(v, layout_of(t)) for v, t in zip(operands, types)]
        elif isinstance(kind, Branch):
            types, regions = self.branch(op, kind, inside)
            kind = kind.but(types=tuple(types))
        if operands == list(op.operands) and regions == op.regions and kind == op.kind:
            self.ops.append(op)
            return
        self.place, types_now = op.place, [v.type for v in operands]
        types_after = [laid_out(kind, types_now, t) for t in kind.infer(types_now)]
        results = tuple(v if v.type == t else Value(v.name, t)
                        for v, t in zip(op.results, types_after, strict=True))
        self.now.update((a, b) for a, b in zip(op.results, results) if a is not b)
        self.add(kind, operands, results, regions)

    def loop(
        self, op: Op, operands: Sequence[Value], inside: Inside
    ) -> tuple[list[ArrayType], tuple[Region, ...]]:
        """Return the types of what a loop carries, and its rewritten regions."""
        was = [v.type for v in op.regions[-1].args]
        types = was if inside is Inside.SAME else [_whole(t) for t in was]
        if inside is Inside.FOLLOWS:
            types = [v.type if old in self.chosen else met(a, v.type) if a.free else a
                     for a, old, v in zip(was, op.operands, operands)]
        self.chosen = frozenset()
        while True:
            before = dict(self.now)
            regions = tuple(
                self.region(r, inside, types, types if r is op.regions[-1] else ())
                for r in op.regions
            )
            ends = [self.now.get(v, v).type for v in op.regions[-1].results]
            follow = [met(t, e) if t.free else t for t, e in zip(types, ends)]
            if inside is not Inside.FOLLOWS or follow == types:
                return types, regions
            types, self.now = follow, before

    def branch(
        self, op: Op, kind: Branch, inside: Inside
    ) -> tuple[list[ArrayType], tuple[Region, ...]]:
        types = list(kind.types)
        if inside is Inside.WHOLE:
            types = [_whole(t) for t in types]
        while True:
            before = dict(self.now)
            regions = tuple(self.region(r, inside, (), types) for r in op.regions)
            follow = types
            for r in op.regions:
                ends = [self.now.get(v, v).type for v in r.results]
                follow = [met(t, e) if t.free else t for t, e in zip(follow, ends)]
            if inside is not Inside.FOLLOWS or follow == types:
                return types, regions
            types, self.now = follow, before

    def laid(self, value: Value, layout: Layout, because: str = "") -> Value:
        if layout_of(value.type) == layout:
            return value
        if (value, layout) not in self.known:
            t = replace(value.type, layout=layout, free=False)
            kind = Relayout(layout, because=because, wanted=True)
            self.known[value, layout] = self.add(kind, (value,), (Value(value.name, t),)).result
        return self.known[value, layout]


def _whole(t: ArrayType) -> ArrayType:
    return replace(t, layout=((),) * t.ndim) if t.layout else t
