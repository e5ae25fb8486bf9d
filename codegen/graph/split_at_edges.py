"""Index-set splitting: an array whose interior an update replaces is computed in disjoint pieces.

Goes in: a Graph. Comes out: the same in which such an array is not computed whole and written again
(new = 2 * u - old; new[1:-1] += …): the edges and the interior are computed once each, and so are
elementwise ops on it.
Always holds: the pieces of an array have no element in common and cover it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from codegen.errors import Place
from codegen.graph.rewriter import Rewriter
from codegen.ir.graph import Module, Op, Region, Shape, Value
from codegen.ops import Full, Kind, Map, MatMul, Reduce, Relayout, Slice, Update
from codegen.symbolic import expr
from codegen.target import TARGET

THIN = 16  # elements of a dim that an update may leave alone


@dataclass(frozen=True)
class _Box:
    start: Shape
    shape: Shape


@dataclass(frozen=True)
class _Pieces:
    """An array as the values of disjoint boxes that cover it. `size` bounds the ops of one
    piece."""

    of: dict[_Box, Value]
    size: int  # ops of a piece, at most


def split_at_edges(graph: Module) -> Module:
    """Return the Graph with such arrays split into pieces; the same object if there are none."""
    return _SplitAtEdges(graph).run()


class _SplitAtEdges(Rewriter):
    """Computes arrays in pieces. `pieces` holds the arrays that are in pieces for all their
    readers."""

    def __init__(self, graph: Module) -> None:
        super().__init__(graph, shard_maps=False)
        self.pieces: dict[Value, _Pieces] = {}

    def rewritten(self, region: Region, shown: Sequence[Value]) -> tuple[Region, tuple[Value, ...]]:
        outside, self.defs = self.defs, {}  # of outer regions: computed once, not in each turn
        rewritten = super().rewritten(region, shown)
        self.defs = outside
        return rewritten

    def readers(self, value: Value) -> list[Op]:
        """Return the ops that read a value in the region where it is defined."""
        home = self.module.def_use.regions.get(value)
        return [use.op for use in self.uses.get(value, ()) if use.op and use.region is home]

    def op(self, op: Op) -> None:
        self.defs.update(dict.fromkeys(op.results, op))
        pieces = None
        before = self.pieces.get(op.operands[0]) if op.operands else None
        box = _box_of(op)
        if isinstance(op.kind, Map):
            pieces = self.mapped(op)
        elif before is not None and box in before.of:
            if isinstance(op.kind, Slice):
                self.instead[op.result] = before.of[box]
                return
            pieces = replace(before, of={**before.of, box: op.operands[1]})
        for v in op.operands:
            if v in self.pieces and pieces is None:
                self.put_together(v, self.pieces.pop(v))
        pieces = pieces or self.begun(op)
        if pieces is None:
            self.keep(op)
        elif self.absorbed(op.result, pieces):
            self.pieces[op.result] = pieces
        else:
            self.put_together(op.result, pieces)

    # ---- what is in pieces -----------------------------------------------------------------------

    def begun(self, op: Op) -> _Pieces | None:
        """Return the pieces of an op's result if one update replaces all but thin edges of it, and
        all other reads are slices of exactly the box that it replaces; else None."""
        filled = self.filled(op.result) if isinstance(op.kind, Full | Relayout) else None
        if filled is None and not isinstance(op.kind, Map):
            return None
        value = op.result
        by = [r for r in self.readers(value) if isinstance(r.kind, Update)]
        if len(by) != 1 or value.type.layout is None or (filled and filled.blank):
            return None
        box, size = _box_of(by[0]), self.size(value)
        if box is None or not _is_thin(value.type.shape, box):
            return None
        if size > TARGET.deepest_expression or self.has_sums(op):
            return None
        if not self.absorbed(value, _Pieces({box: value}, size)):
            return None
        boxes = [*_edges(value.type.shape, box), box]
        return _Pieces({b: self.part(value, b, whole=True) for b in boxes}, size)

    def mapped(self, op: Op) -> _Pieces | None:
        """Return the pieces of an elementwise op on arrays in pieces, or None if their boxes differ
        or too many ops would be repeated."""
        operands = [self.pieces[v] for v in op.operands if v in self.pieces]
        if not operands or any(p.of.keys() != operands[0].of.keys() for p in operands):
            return None
        size = 1 + sum(p.size for p in operands) + sum(map(self.size, op.operands))
        if size > TARGET.deepest_expression or self.has_sums(op):
            return None
        return _Pieces({box: self.again(op, box) for box in operands[0].of}, size)

    def absorbed(self, value: Value, pieces: _Pieces) -> bool:
        """Return whether all readers of a value can work on its pieces."""
        readers = self.readers(value)
        if len(self.uses.get(value, ())) != len(readers):
            return False
        if len(readers) == 1 and isinstance(readers[0].kind, Map):
            return True
        updates = [r for r in readers if isinstance(r.kind, Update)]
        return len(updates) == 1 and updates[0].operands[0] is value and all(
            _box_of(r) in pieces.of for r in readers)

    def put_together(self, value: Value, pieces: _Pieces) -> None:
        """Emit updates that assemble an array from its pieces."""
        t, self.place = value.type, self.place_of(value)
        whole = Value(value.name, t)
        self.add(Full(0, t.dtype, t.shape, blank=True), (), (whole,))
        for k, (box, piece) in enumerate(pieces.of.items()):
            joined = value if k == len(pieces.of) - 1 else Value(value.name, t)
            update = Update(box.start, (1,) * t.ndim, apart=True)
            self.add(update, (whole, piece), (joined,))
            whole = joined

    # ---- parts -----------------------------------------------------------------------------------

    def place_of(self, value: Value) -> Place | None:
        return self.defs[value].place if value in self.defs else None

    def filled(self, value: Value) -> Full | None:
        """Return the Full that an array is, perhaps in another layout, or None."""
        op = self.defs.get(value)
        while op and isinstance(op.kind, Relayout):
            op = self.defs.get(op.operands[0])
        return op.kind if op and isinstance(op.kind, Full) else None

    def size(self, value: Value) -> int:
        """Return how many elementwise ops must be repeated to compute a part of a value."""
        op = self.defs.get(value)
        if op is None or not isinstance(op.kind, Map) or value in self.pieces:
            return 0
        return 1 + sum(self.size(v) for v in op.operands if self.is_read_once(v))

    def has_sums(self, op: Op) -> bool:
        """Return whether a reduction or product is part of an expression: as a whole it is reduced
        once, but in pieces it would be reduced for each."""
        alone = [v for v in op.operands if self.is_read_once(v) and v not in self.pieces]
        ops = [self.defs.get(v) for v in alone]
        return isinstance(op.kind, Reduce | MatMul) or isinstance(op.kind, Map) and any(
            d is not None and self.has_sums(d) for d in ops)

    def part(self, value: Value, box: _Box, whole: bool = False) -> Value:
        """Return a part of a value: its piece, computed anew for the box, or a slice. `whole` says
        that nobody needs the rest of the value."""
        if value in self.pieces:
            return self.pieces[value].of[box]
        op, filled = self.defs.get(value), self.filled(value)
        if filled:
            return self.piece(filled.but(shape=box.shape), (), value)
        if op is not None and isinstance(op.kind, Map) and (whole or self.is_read_once(value)):
            return self.again(op, box)
        return self.piece(Slice(box.start, (1,) * len(box.start), box.shape), (value,), value)

    def again(self, op: Op, box: _Box) -> Value:
        operands = tuple(self.part(v, box) for v in op.operands)
        return self.piece(op.kind, operands, op.result)

    def piece(self, kind: Kind, operands: tuple[Value, ...], like: Value) -> Value:
        self.place = self.place_of(like)
        return self.emit(kind, operands, f"{like.name.removesuffix('_part')}_part")

    def is_read_once(self, value: Value) -> bool:
        return len(self.uses.get(value, ())) == 1


def _box_of(op: Op) -> _Box | None:
    """Return the contiguous box that a slice reads or an update writes, or None for any other
    op."""
    kind = op.kind
    if not isinstance(kind, Slice | Update) or any(k != 1 for k in kind.step):
        return None
    shape = (op.operands[1] if isinstance(kind, Update) else op.result).type.shape
    return _Box(kind.start, shape)


def _is_thin(shape: Shape, box: _Box) -> bool:
    """Return whether at most THIN elements per dim, but at least one in all, lie outside a box."""
    around = [n - e for n, e in zip(shape, box.shape, strict=True)]
    thin = all(e.is_const and 0 <= e.value <= THIN for e in around)
    return thin and any(e.value for e in around)


def _edges(shape: Shape, box: _Box) -> Iterator[_Box]:
    """Yield the boxes that cover an array outside of a box, dim by dim."""
    zero = expr.const(0)
    start, extent = [zero] * len(shape), list(shape)
    for d, (first, size) in enumerate(zip(box.start, box.shape, strict=True)):
        for begin, end in ((zero, first), (first + size, shape[d])):
            if begin != end:
                yield _Box((*start[:d], begin, *start[d + 1 :]),
                           (*extent[:d], end - begin, *extent[d + 1 :]))
        start[d], extent[d] = first, size
