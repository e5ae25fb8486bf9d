"""Layouts that nobody gave: an input takes those of the arrays it meets.

Goes in: a Graph traced with the layouts chosen so far. Comes out: the layouts to trace it with
next, by input; when they stay the same, they are settled.
Always holds: each mesh axis splits at most one dim of an array.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.graph import layout_propagation
from codegen.ir.graph import Input, Module, walk
from codegen.layouts.demands import Demands
from codegen.mesh import Layout, LayoutEntry
from codegen.ops import ShardMap
from codegen.symbolic.estimate import largest


def choose(graph: Module, auto: Sequence[str]) -> dict[str, Layout]:
    """Return, by name of the inputs in `auto`, the layout in which most of each is used where it
    lies.

    What a shard_map takes stays as it was, whole: its function sees the difference.
    """
    taken = {v for op in walk(graph.body) if isinstance(op.kind, ShardMap) for v in op.operands}
    free = [i for i in graph.inputs if i.name in auto and i.value not in taken]
    if not free:
        return {}
    if not _anything_split(graph):
        return _spread(graph, free)
    demands = Demands(graph, rooms=False)
    return {i.name: _wanted(demands, i) for i in free}


def _anything_split(graph: Module) -> bool:
    values = [i.value for i in graph.inputs]
    values += [v for body in graph.bodies for op in body.ops for v in op.results]
    return any(any(v.type.layout or ()) for v in values)


def _spread(graph: Module, free: Sequence[Input]) -> dict[str, Layout]:
    """Return a layout that splits the dims of the largest input over the axes, in order, for a
    program that names no layout."""
    known = [i for i in free if i.shape and all(largest(e).is_const for e in i.shape)]
    if not known:
        return {}
    most = max(known, key=lambda i: i.value.type.dtype.size * _elements(i))
    axes: list[LayoutEntry] = [(a,) for a in graph.mesh.names]
    entries = (axes + [()] * len(most.shape))[: len(most.shape)]
    return {most.name: tuple(entries)}


def _elements(i: Input) -> int:
    total = 1
    for e in i.shape:
        total *= largest(e).value
    return total


def _wanted(demands: Demands, i: Input) -> Layout:
    """Return an input's layout with the axes over which its uses want its dims split; a dim that
    two uses split follows the first."""
    entries = list(i.layout)
    if any(entries):
        return i.layout
    wanted = demands.wanted.get(i.value, {})
    for window in wanted:
        for d, cut in enumerate(window):
            if cut.axes and not entries[d] and cut.interval is None:
                entries[d] = cut.axes
            elif cut.entry is not None and len(wanted) == 1:
                entries[d] = cut.entry
    return layout_propagation.without_repeats(entries)
