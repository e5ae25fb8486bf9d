"""Graph to Program: from global arrays to one rank's view of them.

Every global value becomes its shard, whose extents are expressions in the index; every shard_map
becomes the ops of its region. Where an argument is laid out otherwise than the shard_map takes it,
its split dims are gathered and the wanted part is cut out.
Always holds: the Program computes the Graph's values; no number of ranks is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from codegen import expr, mesh, ops
from codegen.expr import Sym
from codegen.ir import ArrayType, Module, Op, Output, Region, Shape, Value
from codegen.mesh import Layout, Mesh


def partition(graph: Module) -> Module:
    """The Program of a Graph."""
    work = _Partition(graph.mesh)
    inputs = []
    for i in graph.inputs:
        local = Value(i.name, ArrayType(i.value.type.dtype, work.shard(i.shape, i.layout)))
        work.local[i.value] = local
        inputs.append(replace(i, value=local))
    body = work.region(graph.body)
    outputs = tuple(Output(o.name, work.local[o.value], o.layout, o.shape) for o in graph.outputs)
    return replace(graph, level="program", inputs=tuple(inputs), body=body, outputs=outputs)


class _Partition:
    def __init__(self, mesh_: Mesh) -> None:
        self.mesh = mesh_
        self.local: dict[Value, Value] = {}
        self.ops: list[Op] = []

    def shard(self, shape: Shape, layout: Layout) -> Shape:
        return tuple(
            mesh.local_extent(self.mesh, e, entry) for e, entry in zip(shape, layout, strict=True)
        )

    def type(self, t: ArrayType) -> ArrayType:
        return t if t.layout is None else ArrayType(t.dtype, self.shard(t.shape, t.layout))

    def define(self, value: Value) -> Value:
        self.local[value] = Value(value.name, self.type(value.type))
        return self.local[value]

    def region(self, region: Region) -> Region:
        outer, self.ops = self.ops, []
        args = tuple(self.define(v) for v in region.args)
        for op in region.ops:
            self.op(op)
        results = tuple(self.local[v] for v in region.results)
        done, self.ops = Region(args, tuple(self.ops), results), outer
        return done

    def op(self, op: Op) -> None:
        if op.kind == "shard_map":
            self.shard_map(op)
            return
        operands = tuple(self.local[v] for v in op.operands)
        regions = tuple(self.region(r) for r in op.regions)
        attrs = dict(op.attrs)
        if "types" in attrs:
            attrs["types"] = tuple(self.type(t) for t in attrs["types"])
        results = tuple(self.define(v) for v in op.results)
        self.ops.append(Op(op.kind, operands, results, attrs, regions, op.place))

    def shard_map(self, op: Op) -> None:
        (body,) = op.regions
        for arg, operand, layout in zip(
            body.args, op.operands, op.attrs["in_layouts"], strict=True
        ):
            self.local[arg] = self.relayout(operand, layout, op)
        for inner in body.ops:
            self.op(inner)
        for result, local in zip(op.results, body.results, strict=True):
            self.local[result] = self.local[local]

    def relayout(self, value: Value, wanted: Layout, op: Op) -> Value:
        """The shard of `value` under another layout: gather what is split otherwise, then cut."""
        have = value.type.layout
        assert have is not None, "an argument of shard_map is a global array"
        x = self.local[value]
        changed = [d for d, (a, b) in enumerate(zip(have, wanted, strict=True)) if a != b]
        for d in changed:
            if have[d]:
                x = self.gather(x, d, have[d], value.type.shape, op)
        if any(wanted[d] for d in changed):
            x = self.cut(x, value.type.shape, [wanted[d] if d in changed else () for d in
                                               range(len(wanted))], op)  # fmt: skip
        return x

    def gather(self, x: Value, dim: int, axes: tuple[str, ...], shape: Shape, op: Op) -> Value:
        size = self.mesh.size(axes)
        var = Sym("member", "var", expr.const(0), size - 1)
        whole = (*x.type.shape[:dim], shape[dim], *x.type.shape[dim + 1 :])
        attrs = {
            "axes": axes, "dim": dim, "var": var,
            "offset": mesh.block_offset(shape[dim], size, expr.symbol(var)),
            "types": (ArrayType(x.type.dtype, whole),),
        }  # fmt: skip
        return self.emit("all_gather", (x,), attrs, op)

    def cut(self, x: Value, shape: Shape, entries: list[tuple[str, ...]], op: Op) -> Value:
        start, extents = [], []
        for d, entry in enumerate(entries):
            if entry:
                start.append(mesh.local_offset(self.mesh, shape[d], entry))
                extents.append(mesh.local_extent(self.mesh, shape[d], entry))
            else:
                start.append(expr.const(0))
                extents.append(x.type.shape[d])
        step = (1,) * len(start)
        return self.emit(
            "slice", (x,), {"start": tuple(start), "step": step, "shape": tuple(extents)}, op
        )

    def emit(
        self, kind: str, operands: tuple[Value, ...], attrs: Mapping[str, Any], op: Op
    ) -> Value:
        (t,) = ops.infer(kind, [v.type for v in operands], attrs)
        result = Value(operands[0].name, t)
        self.ops.append(Op(kind, operands, (result,), attrs, (), op.place))
        return result
