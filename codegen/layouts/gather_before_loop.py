"""Hoisting of exchanges: what turns fetch in bits is gathered once before the loop: s += a[i, i].

Goes in: a Split (a Graph with its Demands and Program). Comes out: a form of the Graph where ranks
first pick what the turns read out of their own rows, without exchange, and then exchange all of it
in one step before the loop.
Always holds: the array is not written in the loop; all parts are few bytes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from codegen.graph.builder import Builder, bytes_of
from codegen.ir import cuts
from codegen.ir.cuts import home, layout_of
from codegen.ir.fresh import Fresh
from codegen.ir.graph import ArrayType, Op, Region, Value, walk
from codegen.layouts.costs import meeting
from codegen.layouts.demands import Demands, Split
from codegen.layouts.search import Candidate, LayoutSearch
from codegen.ops import Full, Loop, Relayout, ShardMap, Slice, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

ARRAY_LEAST = 4  # times the bytes of all parts: of a smaller array much would be fetched


def gather_before_loop(split: Split, search: LayoutSearch) -> Iterator[Candidate]:
    """Offer the Graph with such fetches moved before their loops, if it has some."""
    demands, _ = split
    work = _Rewrite(demands)
    body = work.region(demands.graph.body, 1)
    if work.loops:
        yield Candidate(demands.graph.with_body(body), loops=frozenset(work.loops))


class _Rewrite(Builder):
    """Moves fetches of single elements before their loops. loops: the counters of these loops, and
    of those that pick the elements."""

    def __init__(self, demands: Demands) -> None:
        super().__init__()
        self.demands, graph = demands, demands.graph
        counters = [c for op in walk(graph.body) if (c := op.kind.counts()) is not None]
        self.fresh = Fresh([*(c.name for c in counters), *(s.name for s in graph.scalars)])
        self.loops: set[Sym] = set()

    def region(self, region: Region, times: int) -> Region:
        """Return a region with its loops rewritten. `times` estimates how often the region runs."""
        with self.inside() as ops:
            for op in region.ops:
                if isinstance(op.kind, ShardMap):
                    ops.append(op)
                    continue
                turns = _turns(op.kind) if isinstance(op.kind, Loop) else 1
                op = replace(op, regions=tuple(self.region(r, times * turns) for r in op.regions))
                if isinstance(op.kind, Loop) and len(op.regions) == 1 and turns > 1 and (
                        not op.kind.over):
                    op = self.loop(op, op.kind, turns, times)
                ops.append(op)
        return region.with_ops(ops)

    def loop(self, op: Op, kind: Loop, turns: int, times: int) -> Op:
        """Return a loop whose turns read the elements that were gathered before it."""
        (body,) = op.regions
        inside = {*body.args, *(v for o in body.ops for v in o.results)}
        computed = {o.kind.counts() for o in body.ops}
        all_parts: dict[tuple[Value, Slice], tuple[Value, int]] = {}
        new = []
        for o in body.ops:
            if isinstance(o.kind, Slice) and o.operands[0] not in inside:
                key = o.operands[0], o.kind
                dim = all_parts[key][1] if key in all_parts else self.along(o, o.kind, kind)
                if (dim is not None and not any(_symbols(o.kind) & {c} for c in computed if c)
                        and self.pays(o, dim, turns, times)):
                    if key not in all_parts:
                        all_parts[key] = self.parts(o, o.kind, kind, dim), dim
                    start = [expr.const(0)] * len(o.kind.start)
                    start[dim] = o.kind.start[dim]
                    o = replace(o, kind=Slice(tuple(start), (1,) * len(start), o.kind.shape),
                                operands=(all_parts[key][0],))
            new.append(o)
        if not all_parts:
            return op
        return replace(op, regions=(body.with_ops(new),))

    def along(self, op: Op, kind: Slice, loop: Loop) -> int | None:
        """Return the split dim along which each turn reads another single element and fetches it
        from other ranks; None for any other slice."""
        array, shape = op.operands[0], kind.shape
        split = [d for d, entry in enumerate(layout_of(array)) if entry]
        if len(split) != 1 or loop.counter is None or not all(e.is_const for e in shape):
            return None
        (dim,) = split
        slope, rest = expr.linear_in(kind.start[dim], loop.counter)
        apart = slope is not None and slope.is_const and slope != 0
        if not apart or shape[dim] != 1 or loop.counter in rest.symbols():
            return None
        wanted = [w for v, w in self.demands.passed if v is op.result]
        fetched = any(not cuts.inside(self.demands.rules.needs(op, w)[0], home(array))
                      for w in wanted)
        return dim if fetched else None

    def pays(self, op: Op, dim: int, turns: int, times: int) -> bool:
        array = op.operands[0]
        amount, element = bytes_of(array), bytes_of(op.result)
        extent = array.type.shape[dim]
        if amount is None or element is None:
            return False
        all_parts = element * extent.value
        return (ARRAY_LEAST * all_parts <= amount and all_parts <= TARGET.most_copied
                and times * turns * meeting(TARGET.few_ranks[0]) > TARGET.least_gain)

    def parts(self, op: Op, kind: Slice, loop: Loop, dim: int) -> Value:
        """Emit a loop that collects the elements of all turns, and a gather that gives them to
        every rank. Return the gathered array; element k along `dim` is the one that the slice takes
        at position k."""
        assert loop.counter is not None
        (array,), self.place, self.name = op.operands, op.place, op.result.name
        counter = loop.counter
        twin = Sym(self.fresh.name(counter.name), "counter", counter.lo, counter.hi)
        self.loops |= {counter, twin}
        start = tuple(e.subst({counter: expr.from_atom(twin)}) for e in kind.start)
        shape = list(kind.shape)
        shape[dim] = array.type.shape[dim]
        layout = tuple(e if d == dim else () for d, e in enumerate(layout_of(array)))
        t = ArrayType(array.type.dtype, tuple(shape), layout)
        blank, before, after, picked = (Value(self.name, t) for _ in range(4))
        with self.inside() as ops:
            element = Value(self.name, op.result.type)
            self.add(kind.but(start=start), (array,), (element,))
            position = [expr.const(0)] * len(shape)
            position[dim] = start[dim]
            self.add(Update(tuple(position), (1,) * len(position)), (before, element), (after,))
        self.add(Full(0, t.dtype, t.shape, blank=True), (), (blank,))
        self.add(loop.but(counter=twin), (blank,), (picked,),
                 [Region((before,), tuple(ops), (after,))])
        everywhere = ((),) * len(shape)
        return self.add(Relayout(everywhere), (picked,),
                        (Value(self.name, replace(t, layout=everywhere)),)).result


def _turns(loop: Loop) -> int:
    """Return how many turns a loop makes, or 1 if that is not known."""
    ends: Sequence[Expr | None] = (loop.start, loop.stop, loop.step)
    if any(e is None or not e.is_const for e in ends):
        return 1
    return len(range(*(e.value for e in ends if e is not None)))


def _symbols(kind: Slice) -> set[Sym]:
    return {s for e in kind.start for s in e.symbols()}
