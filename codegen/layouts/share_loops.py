"""Automatic layouts of carried arrays: ranks share a loop over arrays without a stated layout.

Goes in: a Split (a Graph with its Demands and Program) and a function that partitions a Graph.
Comes out: the same, or the Split of a Graph where the arrays that such loops carry, and all that
follows from them, are split over the mesh.
Always holds: sizes and turns are known; nothing in the loop is split already; estimates favour it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from codegen.graph.builder import bytes_of
from codegen.ir.graph import Module, Op, Region, Value, layout_text, walk
from codegen.layouts.costs import Costs, a_few_and_many
from codegen.layouts.demands import Split
from codegen.layouts.relayout import Inside, Laid, relaid
from codegen.mesh import Layout, Mesh
from codegen.ops import Feeding, Kernel, Loop, Save, ShardMap
from codegen.pipeline import estimated
from codegen.symbolic.expr import Sym

FACTOR = 1.2  # so much faster must a program be for it
GAIN = 0.5e-3  # seconds: for less no array is split


def share_loops(split: Split, again: Callable[[Module], Split]) -> Split:
    """Return the Split with such loops shared by the ranks if that pays, else the given one.
    `again` partitions a Graph anew."""
    demands, program = split
    graph = demands.graph
    found = {c: v for body in graph.bodies for op in body.ops
             if (c := op.what.counts()) and (v := _carried(op))}
    if not found or any(isinstance(op.what, ShardMap | Kernel) for op in walk(graph.body)):
        return split
    meshes = a_few_and_many(graph.mesh)
    before = [Costs(program, sizes, found) for sizes in meshes]
    if any(c not in before[0].loops for c in found) or before[0].total < 2 * GAIN:
        return split
    choices = {c: _spread(graph.mesh, values) for c, values in found.items()}
    new = again(relaid(graph, choices, Inside.FOLLOWS))
    after = [Costs(new[1], sizes, found) for sizes in meshes]
    estimated(before[0].total, after[0].total)
    pays = all(b.total > FACTOR * a.total for b, a in zip(before, after, strict=True))
    if not pays or before[0].total - after[0].total < GAIN:
        return split
    return again(relaid(graph, {
        c: Laid(choice.before, choice.inside, _words(choice, c, before[0], after[0], meshes[0]))
        for c, choice in choices.items()
    }, Inside.FOLLOWS))


def _carried(op: Op) -> list[Value]:
    """Return the largest arrays of one shape that a loop carries, if no array in it has a stated
    layout; else an empty list."""
    if not isinstance(op.what, Loop) or op.what.stop is None:
        return []
    region = Region((), (op,), ())
    if any(isinstance(o.what, Feeding | Save) for o in walk(region)) or any(
        any(v.type.layout or ()) for o in walk(region) for v in (*o.operands, *o.results)
    ):
        return []
    free = {v: size for v in op.operands if v.type.free and v.type.ndim and (size := bytes_of(v))}
    largest = max(free, key=lambda v: free[v], default=None)
    return [v for v in free if largest and v.type.shape == largest.type.shape]


def _spread(mesh: Mesh, values: list[Value]) -> Laid:
    """Return a layout that splits the first dims of some arrays over the axes of the mesh, in
    order."""
    ndim = values[0].type.ndim
    layout: Layout = (*((a,) for a in mesh.names[:ndim]), *(((),) * (ndim - len(mesh.names))))
    return Laid(tuple((v, layout) for v in values), Inside.FOLLOWS)


def _words(choice: Laid, counter: Sym, before: Costs, after: Costs, sizes: dict[str, int]) -> str:
    (_, layout), *_ = choice.before
    old, new = before.loops[counter].seconds * 1e3, after.loops[counter].seconds * 1e3
    return (f"ranks share this loop: what it carries is made in the program and lies nowhere in "
            f"particular, so it is laid out {layout_text(layout)}: about {new:.1f} ms instead of "
            f"{old:.1f} ms on {prod(sizes.values())} ranks")
