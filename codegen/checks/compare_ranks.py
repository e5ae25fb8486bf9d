"""The check `equal`: ranks compare, as the program runs, what should be equal on all of them.

Goes in: a Graph. Comes out: with the check `equal`, the same in which ranks compare with the first
of them: inputs and outputs, what loops carry, conditions of loops and branches with exchanges in
them, and results of shard_maps of which nobody knows at build whether they are equal.
Always holds: what is compared is what the layouts, or those conditions, say is equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from codegen import mesh
from codegen.errors import Place
from codegen.graph.builder import Builder
from codegen.graph.variance import InBody
from codegen.ir.graph import INITIAL, ArrayType, Input, Module, Op, Output, Region, Value, walk
from codegen.ir.graph_text import axes_text
from codegen.ops import POSITION, Branch, Exchange, Expect, Loop, Move, Send, ShardMap
from codegen.symbolic import expr

Axes = tuple[str, ...]


def compare_ranks(graph: Module) -> Module:
    """Return the Graph with the comparisons of the check `equal`; the Graph itself without that
    check."""
    return _Compare(graph).run() if "equal" in graph.checks else graph


class _Compare:
    """Inserts comparisons between ranks into the entries of a Graph."""

    def __init__(self, graph: Module) -> None:
        self.graph = graph
        self.long = [a.name for a in graph.mesh.axes if a.fixed != 1]

    def run(self) -> Module:
        graph = self.graph
        if not graph.entries:
            values = [o.value for o in graph.outputs]
            return graph.with_bodies([self.entry(graph.body, graph.inputs, graph.outputs, values)])
        bodies = []
        states = [graph.inputs[s.input] for s in graph.states]
        for entry, body in zip(graph.entries, graph.bodies, strict=True):
            old = states if entry.name != INITIAL else []
            new = [*(graph.states[k].new for k in entry.rebinds), *entry.outputs]
            bodies.append(self.entry(
                body, [*old, *(graph.inputs[k] for k in entry.inputs)],
                [graph.outputs[k] for k in new], [body.results[k] for k in new]))
        return graph.with_bodies(bodies)

    def entry(
        self, body: Region, inputs: Sequence[Input], outputs: Sequence[Output],
        values: Sequence[Value],
    ) -> Region:
        """Return an entry's body with its inputs compared before it and its outputs after it."""
        first = [op for i in inputs for op in self.whole(i.value, f'input "{i.name}"', i.place)]
        seen = {i.value for i in inputs}
        defs = self.graph.def_use.defs
        last = []
        for o, value in zip(outputs, values, strict=True):
            if value not in seen:
                last += self.whole(value, f'output "{o.name}"', _place(defs.get(value)))
            seen.add(value)
        body = self.region(body)
        return body.with_ops((*first, *body.ops, *last))

    # ---- the global view -------------------------------------------------------------------------

    def region(self, region: Region) -> Region:
        out: list[Op] = []
        for op in region.ops:
            if isinstance(op.kind, ShardMap):
                out.append(self.shard_map(op, op.kind))
                continue
            out.append(op.mapped(self.region))
            if isinstance(op.kind, Loop):
                for v in op.results:
                    out += self.whole(v, f'"{v.name}", which a loop carries,', op.place)
        return region.with_ops(out)

    def whole(self, value: Value, name: str, place: Place | None) -> list[Op]:
        """Return ops that compare a global array between ranks along the axes that its layout does
        not name; none if it names all of them."""
        layout = value.type.layout or ()
        split = {a for entry in layout for a in entry}
        axes = tuple(a for a in self.long if a not in split)
        if not axes:
            return []
        shape = tuple(
            mesh.local_extent(self.graph.mesh, e, entry)
            for e, entry in zip(value.type.shape, layout, strict=True)
        )
        arg = Value(value.name, ArrayType(value.type.dtype, shape))
        inner = self.same(arg, axes, name, place)
        body = Region((arg,), tuple(inner), ())
        return [Op(ShardMap((layout,), (), ()), (value,), (), (body,), place)]

    # ---- one rank's view -------------------------------------------------------------------------

    def shard_map(self, op: Op, call: ShardMap) -> Op:
        (body,) = op.regions
        known = InBody(self.graph.mesh, body, call.in_layouts)
        inner = list(self.local(body, known))
        for result, value, layout in zip(
            op.results, body.results, call.out_layouts, strict=True
        ):
            split = {a for entry in layout for a in entry}
            unknown = known.varies(value) - split
            axes = tuple(a for a in self.long if a in unknown)
            if axes:
                place = _place(known.made.get(value)) or op.place
                inner += self.same(value, axes, f'the result of "{result.name}"', place)
        return op.mapped(lambda body: body.with_ops(inner))

    def local(self, region: Region, known: InBody) -> Iterator[Op]:
        """Yield the ops of a region. Conditions around exchanges, and rows that several ranks send
        back, are compared between these ranks first."""
        for op in region.ops:
            axes = self.met(op.regions)
            op = op.mapped(lambda r: r.with_ops(self.local(r, known)))
            if isinstance(op.kind, Send):
                for value, layout in zip(op.operands, op.kind.layouts, strict=True):
                    unknown = known.varies(value) - {a for entry in layout for a in entry}
                    if alike := tuple(a for a in self.long if a in unknown):
                        yield from self.same(value, alike, "what is sent back", op.place)
            if axes and isinstance(op.kind, Loop) and len(op.regions) == 2:
                test, body = op.regions
                same = self.same(test.results[0], axes, "the condition of this loop", op.place)
                op = replace(op, regions=(test.with_ops((*test.ops, *same)), body))
            if axes and isinstance(op.kind, Branch) and op.kind.on is None:
                yield from self.same(op.operands[0], axes, "the condition of this branch", op.place)
            yield op

    def met(self, regions: Sequence[Region]) -> Axes:
        """Return the axes along which ranks exchange in some regions."""
        axes = {a for r in regions for op in walk(r)
                 if isinstance(op.kind, Exchange) for a in op.kind.axes}
        return tuple(a for a in self.long if a in axes)

    def same(self, value: Value, axes: Axes, name: str, place: Place | None) -> list[Op]:
        """Return ops that expect this rank's value to equal that of the first rank along some axes.
        NaN equals NaN."""
        build = Builder(value.name, place)
        t = ArrayType(value.type.dtype, value.type.shape)
        send = Move(axes, types=(t,), flow="from_root", root=expr.const(0))
        first = build.emit(send, (value,))
        holds = build.map("eq", value, first)
        if t.dtype.kind in "fc":
            nan = [build.map("isnan", v) for v in (value, first)]
            holds = build.map("logical_or", holds, build.map("logical_and", *nan))
        element = (" (element ", POSITION, " of this rank's part)") if t.ndim else ()
        group = axes_text(axes)
        title = f"{name} differs between the ranks along {group}"
        text = [f"{title}{''.join(element[:1])}", *element[1:]]
        text[-1] += "\n  expected: "
        parts = (*text, "", f", as on the first rank along {group}\n  found:    ", "", "")
        build.add(Expect(parts, check="equal"), (holds, first, value))
        return build.ops


def _place(op: Op | None) -> Place | None:
    return op.place if op else None
