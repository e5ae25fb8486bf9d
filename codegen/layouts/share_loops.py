"""Automatic layouts of carried arrays: ranks share a loop over arrays without a stated layout.

Goes in: a Split (a Graph with its Demands and Program), and the layout search. Comes out: a form of
the Graph where the arrays that such loops carry, and all that follows from them, are split over the
mesh. Always holds: sizes and turns are known; nothing in the loop is split already.
"""

from __future__ import annotations

from collections.abc import Iterator

from codegen.graph.builder import bytes_of
from codegen.ir.graph import Op, Region, Value, layout_text, walk
from codegen.layouts.demands import Split
from codegen.layouts.relayout import Inside, Laid, relaid
from codegen.layouts.search import Candidate, LayoutSearch
from codegen.mesh import Layout, Mesh
from codegen.ops import Feeding, Kernel, Loop, Save, ShardMap
from codegen.target import TARGET


def share_loops(split: Split, search: LayoutSearch) -> Iterator[Candidate]:
    """Offer the Graph with such loops shared by the ranks, if it has some that take long enough."""
    demands, program = split
    graph = demands.graph
    carried = {c: v for body in graph.bodies for op in body.ops
               if (c := op.kind.counts()) and (v := _carried(op))}
    if not carried or any(isinstance(op.kind, ShardMap | Kernel) for op in walk(graph.body)):
        return
    few, _ = search.costs(program, carried)
    # two ranks save half of the time, at most
    if few.loops.keys() >= carried.keys() and few.total > 2 * TARGET.least_gain:
        choices = {c: _spread(graph.mesh, values) for c, values in carried.items()}
        yield Candidate(relaid(graph, choices, Inside.FOLLOWS), loops=frozenset(carried))


def _carried(op: Op) -> list[Value]:
    """Return the largest arrays of one shape that a loop carries, if no array in it has a stated
    layout; else an empty list."""
    if not isinstance(op.kind, Loop) or op.kind.stop is None:
        return []
    region = Region((), (op,), ())
    if any(isinstance(o.kind, Feeding | Save) for o in walk(region)) or any(
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
    because = ("ranks share this loop: what it carries is made in the program and lies nowhere in "
               f"particular, so it is laid out {layout_text(layout)}:")
    return Laid(tuple((v, layout) for v in values), Inside.FOLLOWS, because)
