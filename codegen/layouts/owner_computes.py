"""Owner-computes loops: turns that touch only row i of arrays split by rows run on the row's owner.

Goes in: a Split (a Graph with its Demands and Program), and the layout search. Comes out: a form of
the Graph where each rank makes the turns of its own block.
Always holds: no turn depends on another one, prints or sends; the turns of such a loop exchange
nothing along the axes that split the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from codegen.graph.clone import Copier
from codegen.ir import cuts
from codegen.ir.cuts import layout_of
from codegen.ir.graph import Module, Op, Region, Value, free_values, walk
from codegen.layouts.demands import Split
from codegen.layouts.search import Candidate, LayoutSearch
from codegen.mesh import LayoutEntry, Mesh
from codegen.ops import (
    Barrier,
    Branch,
    Exchange,
    Expect,
    Feeding,
    Loop,
    Point,
    Print,
    Save,
    ShardMap,
    Slice,
    Update,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

# What others see of a turn, and what ranks do together in it.
_SEEN = Barrier | Expect | Feeding | Point | Print | Save | ShardMap


def owner_computes(split: Split, search: LayoutSearch) -> Iterator[Candidate]:
    """Offer the Graph with its independent loops spread over ranks, but for those in which ranks
    would then exchange something."""
    graph = split[0].graph
    rows = {op: own for op in _loops(graph.body) if (own := _rows(op, graph)) is not None}
    while rows:
        spreading = _Spreading(graph.mesh, rows)
        spread = graph.with_body(spreading.region(graph.body))
        exchange = _exchanged(
            search.split(spread)[1], {c: rows[op].axes for c, op in spreading.spread.items()})
        if not exchange:
            yield Candidate(spread, certain=True)
            return
        for counter in exchange:
            del rows[spreading.spread[counter]]


def rows_on_owners(split: Split) -> bool:
    """Return whether ranks can run a Split: spread loops go along rows that lie as they did when
    the loops were spread, and no turn exchanges anything along the axes that split these rows."""
    graph, program = split[0].graph, split[1]
    spread = [op for op in _loops(graph.body) if isinstance(op.kind, Loop) and op.kind.over]
    for op in spread:
        rows = _rows(op, graph)
        if rows is None or rows.axes != op.kind.over:  # type: ignore[attr-defined]
            return False
    axes = {op.kind.counter: op.kind.over for op in spread}  # type: ignore[attr-defined]
    return not _exchanged(program, axes)


class _Rows:
    """The split dim that a loop goes along: its extent, and the axes over which it is split."""

    def __init__(self, extent: Expr, axes: LayoutEntry) -> None:
        self.extent, self.axes = extent, axes

    def dims(self, value: Value) -> list[int]:
        """Return the dims of a value that are split over some of the axes."""
        return [d for d, entry in enumerate(layout_of(value)) if set(entry) & set(self.axes)]

    def is_row_of(self, value: Value, start: tuple[Expr, ...], shape: tuple[Expr, ...],
                  counter: Expr) -> bool:
        """Return whether a box of an array at `start` lies in the turn's own row."""
        return all(
            layout_of(value)[d] == self.axes and value.type.shape[d] == self.extent
            and start[d] == counter and shape[d] == 1 for d in self.dims(value))


def _loops(region: Region) -> Iterator[Op]:
    """Yield the loops over global arrays: those outside of a shard_map."""
    for op in region.ops:
        if isinstance(op.kind, ShardMap):
            continue
        if isinstance(op.kind, Loop):
            yield op
        for inner in op.regions:
            yield from _loops(inner)


def _rows(op: Op, graph: Module) -> _Rows | None:
    """Return the rows that a loop goes along if each turn touches its own one only, else None."""
    kind = op.kind
    assert isinstance(kind, Loop)
    if kind.counter is None or kind.stop is None or len(op.regions) != 1 or not op.operands:
        return None
    (body,) = op.regions
    if kind.step not in (1, -1) or any(isinstance(o.kind, _SEEN) for o in walk(body)):
        return None
    counter = expr.symbol(kind.counter)
    updated = next((o for o in walk(body) if isinstance(o.kind, Update)
                    and o.kind.start and counter in o.kind.start), None)
    if updated is None:
        return None
    d = updated.kind.start.index(counter)  # type: ignore[attr-defined]
    rows = _Rows(updated.operands[0].type.shape[d], layout_of(updated.operands[0])[d])
    low, high = (kind.start, kind.stop - 1) if kind.step == 1 else (kind.stop + 1, kind.start)
    inside = expr.nonneg(low) and expr.nonneg(rows.extent - 1 - high)
    uses = graph.def_use.uses  # what is carried only so that Python's variable is there later on
    carried = [k for k, v in enumerate(op.results) if uses.get(v) or uses.get(body.args[k])]
    turn = _Turn(rows, counter, body, carried)
    return rows if rows.axes and inside and turn.is_alone() else None


class _Turn:
    """Tests whether turns of a loop are independent. `carried` numbers the carried values that are
    read anywhere; `whole` collects these, other arrays split the same way, and their updated
    versions."""

    def __init__(self, rows: _Rows, counter: Expr, body: Region, carried: list[int]) -> None:
        self.rows, self.counter, self.body, self.carried = rows, counter, body, carried
        self.whole = {body.args[k] for k in carried}

    def is_alone(self) -> bool:
        """Return whether each turn touches only its own row of the arrays that are split as the
        rows are."""
        if not all(map(self.rows.dims, self.whole)):
            return False
        self.whole |= {v for v in free_values(self.body) if self.rows.dims(v)}
        return self._region(self.body) and all(
            self.body.results[k] in self.whole for k in self.carried)

    def _region(self, region: Region) -> bool:
        return all(map(self._op, region.ops))

    def _op(self, op: Op) -> bool:
        """Return whether an op of a turn touches only the turn's own row; record what it
        updates."""
        kind, whole = op.kind, self.whole
        if isinstance(kind, Update) and op.operands[0] in whole:
            into, part = op.operands
            if part in whole or not self.rows.is_row_of(
                    into, kind.start, part.type.shape, self.counter):
                return False
            whole.add(op.result)
            return True
        if isinstance(kind, Slice) and op.operands[0] in whole:
            return self.rows.is_row_of(op.operands[0], kind.start, kind.shape, self.counter) and (
                not self.rows.dims(op.result))
        if isinstance(kind, Loop | Branch):
            return self._control(op)
        return whole.isdisjoint(op.operands) and not any(map(self.rows.dims, op.results))

    def _control(self, op: Op) -> bool:
        """Return whether a loop or branch in a turn passes whole arrays on only as whole arrays,
        and touches only the turn's own row of them."""
        carried = isinstance(op.kind, Loop)
        for region in op.regions if carried else ():
            self.whole.update(arg for arg, v in zip(region.args, op.operands, strict=True)
                              if v in self.whole)
        if not all(map(self._region, op.regions)):
            return False
        ends = op.regions[-1:] if carried else op.regions
        for k, v in enumerate(op.results):
            handed = {region.results[k] in self.whole for region in ends}
            if carried and (op.operands[k] in self.whole) not in handed or len(handed) > 1:
                return False
            if handed == {True}:
                self.whole.add(v)
            elif self.rows.dims(v):
                return False
        return True


# ---- the loop where the rows lie -----------------------------------------------------------------


class _Spreading:
    """Rewrites loops so that a rank makes the turns of its block. `spread` maps each new counter to
    the loop of the given Graph that it counts."""

    def __init__(self, mesh: Mesh, rows: Mapping[Op, _Rows]) -> None:
        self.mesh, self.rows = mesh, rows
        self.spread: dict[Sym, Op] = {}

    def region(self, region: Region) -> Region:
        return region.with_ops(map(self.op, region.ops))

    def op(self, op: Op) -> Op:
        if isinstance(op.kind, ShardMap):
            return op
        new = op.mapped(self.region)
        return self.loop(op, new, op.kind) if isinstance(op.kind, Loop) and op in self.rows else new

    def loop(self, old: Op, op: Op, kind: Loop) -> Op:
        """Return a loop over the rows of the rank's block, in increasing order, as no turn depends
        on another."""
        rows, counter = self.rows[old], kind.counter
        assert counter is not None and kind.stop is not None
        low, end = (kind.start, kind.stop) if kind.step == 1 else (kind.stop + 1, kind.start + 1)
        begin, behind = cuts.block(rows.axes, rows.extent).bounds(self.mesh)
        first, last = expr.maximum(low, begin), expr.minimum(end, behind) - 1
        own = Sym(counter.name, counter.kind, first, last)
        self.spread[own] = old
        copier = Copier(lambda name: name, {}, {counter: expr.symbol(own)})
        body = copier.region(op.regions[0])
        kind = kind.but(counter=own, start=low, stop=end, step=expr.const(1), over=rows.axes)
        return replace(op, kind=kind, regions=(body,))


def _exchanged(program: Module, axes: Mapping[Sym, LayoutEntry]) -> list[Sym]:
    """Return the counters of spread loops in whose turns something is exchanged along their
    axes: other ranks make other turns, and do not take part."""
    counters: list[Sym] = []
    for op in (o for region in program.regions for o in walk(region)):
        counter = op.kind.counts()
        own = set(axes.get(counter, ())) if isinstance(op.kind, Loop) and counter else set()
        if counter and own and any(isinstance(o.kind, Exchange) and own.intersection(o.kind.axes)
                                   for o in walk(op.regions[0])):
            counters.append(counter)
    return counters
