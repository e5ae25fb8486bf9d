"""An op that the project lacks is one class: no other file of the compiler knows it.

`Recent` gives the largest of the last few elements along a dim. The class says what it computes,
what a rank needs for its part, and its loop nest; layouts, ghost cells, memory and C follow.
`Turned` is an exchange: it says what goes where, in NumPy and as boxes of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import spmd
from codegen.compile import lower
from codegen.ir import plan
from codegen.ir.cuts import interval
from codegen.ir.graph import ArrayType, Op, Shape, walk
from codegen.ir.indexing import Index, loop_vars, positions, ravel
from codegen.mesh import local_extent, local_offset
from codegen.ops import OPS, Exchange, Kind
from codegen.ops.group import Span
from codegen.ops.kind import layout_of
from codegen.oracle import interpret
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import as_array, wrap
from codegen.trace.context import require_context


@dataclass(frozen=True)
class Recent(Kind):
    """result[j] = max of operand[first + j - k] for k < width, along dim; what is before the first
    element counts as the first. shape: of the result."""

    name = "recent"
    reads = "points"
    rereads = True
    dim: int
    width: int
    first: Expr
    shape: Shape

    def infer(self, types: Sequence[ArrayType]) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, self.shape)]

    def layout(self, operands: Sequence[ArrayType], result: ArrayType) -> Any:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Any], value: Any) -> list[Any]:
        (x,), first, extent = operands, value(self.first), value(self.shape[self.dim])
        lines = []
        for j in range(first, first + extent):
            line = np.take(x, range(max(j - self.width + 1, 0), j + 1), self.dim)
            lines.append(line.max(self.dim))
        shape = tuple(map(value, self.shape))
        return [np.stack(lines, self.dim) if lines else np.empty(shape, x.dtype)]

    def goes_on(self, op: Op, dim: int, shards: Any) -> bool:
        return dim != self.dim and shards.goes_on(op.operands[0], dim)

    def needs(self, op: Op, window: Any, shards: Any) -> list[Any]:
        """So many elements more on the side of the first."""
        c, before = window[self.dim], self.width - 1
        if c.axes and c.interval is None and c.step == 1:
            c = replace(c, first=expr.maximum(c.first - before, 0), most=c.most + before)
        else:
            low, high = c.bounds(shards.mesh)
            c = interval(c.axes, expr.maximum(low - before, 0), high)
        return [(*window[: self.dim], c, *window[self.dim + 1 :])]

    def localize(self, op: Op, window: Any, operands: Any, build: Any, shards: Any) -> Any:
        (held,) = self.needs(op, window, shards)
        first = shards.lows(window)[self.dim] - shards.lows(held)[self.dim]
        return build.emit(self.but(first=first, shape=shards.shape(window)), operands)

    def steps(self, op: Op, builder: Any) -> None:
        (x,), made = op.operands, op.result.type
        loops, (k,) = loop_vars(made.shape), loop_vars((expr.const(self.width),), "k")
        index = list(positions(loops))
        before = self.first + index[self.dim] - positions((k,))[0]
        index[self.dim] = expr.maximum(before, 0)
        node = builder.node(x, tuple(index))
        offset = ravel(positions(loops), made.shape)
        builder.add(plan.Reduce(loops, (k,), False, op.result, offset, node, "max", made.dtype,
                                op.place))


@dataclass(frozen=True)
class Swapped(Kind):
    """Neighbours along the first dim change places. All that it does not say has a default: a rank
    needs the operand whole, and no axis splits the result."""

    name = "swapped"
    inline = True
    reads = "points"

    def infer(self, types: Sequence[ArrayType]) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, types[0].shape)]

    def reference(self, operands: Sequence[Any], value: Any) -> list[Any]:
        return [swapping(operands[0])]

    def element(self, op: Op, index: Index, resolver: Any) -> plan.Node:
        (x,), j = op.operands, index[0]
        other = expr.minimum(j + 1 - 2 * (j % 2), x.type.shape[0] - 1)
        node: plan.Node = resolver.node(x, (other, *index[1:]))
        return node


@dataclass(frozen=True)
class Turned(Exchange):
    """An exchange that transposes a matrix whose rows are split into blocks: each member gets some
    columns, as rows. `rows` and `columns` are the ranges of this rank."""

    name = "turned"
    reads = "boxes"
    axes: tuple[str, ...]
    rows: Span
    columns: Span
    types: tuple[ArrayType, ...]

    def infer(self, types: Sequence[ArrayType]) -> list[ArrayType]:
        return list(self.types)

    def differs(self) -> list[Expr]:
        return list(self.columns)

    def claims(self, op: Op, proofs: Any) -> None:
        given, made = op.operands[0].type.shape, op.result.type.shape
        proofs.independent(given, [1])
        proofs.spans((self.rows, None), given)
        proofs.spans((self.columns, None), made)
        proofs.tiles(self.rows, made[1])
        proofs.tiles(self.columns, given[1])

    def together(self, group: Any) -> list[list[Any]]:
        whole = np.concatenate(group.inputs).T
        return [[whole[slice(*map(m.value, self.columns))].copy()] for m in group.members]

    def boxes(self, op: Op, sides: Any) -> dict[str, Any]:
        def turned(box: plan.Box, first: Expr, count: Expr) -> plan.Box:
            (rows, _), (down, right) = box.extent, box.stride
            return replace(box, offset=box.offset + right * first, extent=(count, rows),
                           stride=(right, down))

        mine, into = sides.box(op.operands[0]), sides.box(op.result)
        first, columns = self.columns[0], self.columns[1] - self.columns[0]
        (before, after), (low, high) = sides.bounds((self.rows, self.columns), (True, True))
        there = replace(into, offset=into.offset + into.stride[1] * before,
                        extent=(columns, after - before))
        return {"pull_from": turned(sides.seen(mine), first, columns), "pull_into": there,
                "send": turned(mine, low, high - low), "differs": True}

    def traffic(self, op: Op, meter: Any) -> Any:
        return meter.whole("turn", op)


def turned(x: Any) -> Any:
    """Return this rank's columns of the matrix whose rows, split over ranks, are x."""
    array, context = as_array(x), require_context("turned")
    (n, m), mesh = (23, 5), context.mesh
    mine = [local_offset(mesh, e, mesh.names) for e in (n, m)]
    rows, columns = ((low, low + local_extent(mesh, e, mesh.names)) for e, low in zip((n, m), mine))
    shape = (columns[1] - columns[0], expr.const(n))
    what = Turned(mesh.names, rows, columns, (ArrayType(array.type.dtype, shape),))
    return wrap(context, context.emit_one(what, array.read()))


def swapped(x: Any) -> Any:
    array, context = as_array(x), require_context("swapped")
    return wrap(context, context.emit_one(Swapped(), array.read()))


def swapping(x: Any) -> Any:
    n = len(x)
    return x.take([min(j + 1 - 2 * (j % 2), n - 1) for j in range(n)], 0)


def recent(x: Any, width: int, dim: int = 0) -> Any:
    array, context = as_array(x), require_context("recent")
    what = Recent(dim, width, expr.const(0), array.type.shape)
    return wrap(context, context.emit_one(what, array.read()))


@spmd.program(mesh=("x",))
def smoothed() -> Any:
    u = spmd.input("u", (23, 5), np.float64, layout=("x", None),
                   default=lambda i, j: (i * 7 + j * 5) % 11)
    v = u - 4.0
    for _ in spmd.range(3):
        v = recent(v * 0.5, 3) - v
        v[2:] += recent(v, 2)[:-2]
    shards = spmd.shard_map(lambda w: recent(w, 4), mesh="x")(u)
    columns = spmd.shard_map(lambda w: turned(w * 2.0), mesh="x")(u)
    return {
        "v": v, "part": recent(u, 6)[5:17], "across": recent(u, 2, 1), "turned": recent(u[::-1], 4),
        "every": recent(u, 3)[1::3], "sum": np.sum(recent(u, 2) * u), "shards": shards,
        "swapped": swapped(u + 1.0) * 2.0, "both": swapped(recent(v, 2)),
        "columns": columns,
    }


def plainly(x: Any, width: int, dim: int = 0) -> Any:
    out = x.copy()
    for k in range(1, width):
        before = np.concatenate([x.take([0] * k, dim), x.take(range(x.shape[dim] - k), dim)], dim)
        out = np.maximum(out, before)
    return out


def expected(ranks: int) -> dict[str, Any]:
    i, j = np.indices((23, 5))
    u = (i * 7 + j * 5) % 11 * 1.0
    v = u - 4.0
    for _ in range(3):
        v = plainly(v * 0.5, 3) - v
        v[2:] += plainly(v, 2)[:-2]
    shards = [plainly(part, min(4, len(part))) for part in np.array_split(u, ranks)]
    return {
        "v": v, "part": plainly(u, 6)[5:17], "across": plainly(u, 2, 1),
        "turned": plainly(u[::-1], 4), "every": plainly(u, 3)[1::3],
        "sum": np.sum(plainly(u, 2) * u), "shards": np.concatenate(shards),
        "swapped": swapping(u + 1.0) * 2.0, "both": swapping(plainly(v, 2)),
        "columns": u.T * 2.0,
    }


def same(found: dict[str, Any], ranks: int) -> None:
    for name, e in expected(ranks).items():
        np.testing.assert_array_equal(found[name], e, err_msg=f"{name} on {ranks} ranks")


def test_an_op_is_one_class() -> None:
    """It builds, and both oracles that know it and the image agree."""
    assert not {Recent, Swapped, Turned} & set(OPS.values())
    levels, image = lower(smoothed.capture()), spmd.build(smoothed)
    for ranks in range(1, 10):
        same(interpret.run(levels.graph, {"x": ranks}), ranks)
        same(interpret.run(levels.program, {"x": ranks}), ranks)
        same(image.run(ranks=ranks), ranks)


def test_a_rank_needs_ghost_cells_of_it_only() -> None:
    """Ranks exchange only what the class of the op says it needs; what `Swapped` wants whole is
    gathered."""
    made = list(walk(lower(smoothed.capture()).program.body))
    sent = [(op.kind.called, op.place.source_line()) for op in made
            if isinstance(op.kind, Exchange) and op.place]
    gathered = [line for called, line in sent if called == "all_gather"]
    assert gathered and all("swapped" in line for line in gathered)
    assert {"redistribute", "halo"} & {called for called, _ in sent}
