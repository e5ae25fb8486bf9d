"""Arrays of which an update replaces all but thin edges are made piece by piece.

Goes in: a Graph. Comes out: the same in which such an array is not computed whole and written again
(new = 2 * u - old; new[1:-1] += …): the edges and what is between them are computed once each, and
so is what is computed of it element by element.
Always holds: the pieces of an array have no element in common and cover it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from codegen.errors import Place
from codegen.ir import Module, Op, Region, Shape, Value, used_values
from codegen.kit import Builder
from codegen.layouts.propagation import laid_out
from codegen.ops import (
    Full,
    Kind,
    Map,
    MatMul,
    Reduce,
    Relayout,
    ShardMap,
    Slice,
    Update,
)
from codegen.symbolic import expr

THIN = 16  # elements of a dim that an update may leave alone
LONGEST = 40  # ops that are written again for every piece


@dataclass(frozen=True)
class _Box:
    start: Shape
    shape: Shape


@dataclass(frozen=True)
class _Pieces:
    """What stands in the boxes of an array."""

    of: dict[_Box, Value]
    size: int  # ops of a piece, at most


def in_pieces(graph: Module) -> Module:
    """The Graph, with arrays in pieces where they may be."""
    shown = [o.value for o in graph.outputs]
    same: dict[Value, Value] = {}
    uses = Counter({v: len(found) for v, found in graph.def_use.uses.items()})
    body = _Rewrite(uses, same).run(graph.body, shown)
    outputs = tuple(replace(o, value=same.get(o.value, o.value)) for o in graph.outputs)
    return replace(graph, body=body, outputs=outputs) if body is not graph.body else graph


class _Rewrite(Builder):
    """Of one region. same: slices that are a piece, of this region and those around it."""

    def __init__(self, uses: Counter[Value], same: dict[Value, Value]) -> None:
        super().__init__()
        self.uses, self.same = uses, same
        self.defs: dict[Value, Op] = {}
        self.readers: dict[Value, list[Op]] = {}
        self.pieces: dict[Value, _Pieces] = {}

    def run(self, region: Region, shown: Sequence[Value] = ()) -> Region:
        """The region in pieces. shown: what is needed of it beside its results."""
        for op in region.ops:
            for x in op.operands:
                self.readers.setdefault(x, []).append(op)
        for op in region.ops:
            self.op(op)
        results = tuple(self.same.get(v, v) for v in region.results)
        if self.ops == list(region.ops) and results == region.results:
            return region
        kept = [self.same.get(v, v) for v in (*results, *shown)]
        return Region(region.args, tuple(self.needed(kept)), results)

    def op(self, op: Op) -> None:
        if not isinstance(op.what, ShardMap):
            op = op.mapped(lambda r: _Rewrite(self.uses, self.same).run(r))
        operands = tuple(self.same.get(v, v) for v in op.operands)
        if operands != op.operands:
            op = replace(op, operands=operands)
        self.defs.update(dict.fromkeys(op.results, op))
        found = None
        before = self.pieces.get(op.operands[0]) if op.operands else None
        box = _box_of(op)
        if isinstance(op.what, Map):
            found = self.mapped(op)
        elif before is not None and box in before.of:
            if isinstance(op.what, Slice):
                self.same[op.result] = before.of[box]
                return
            found = replace(before, of={**before.of, box: op.operands[1]})
        for v in op.operands:
            if v in self.pieces and found is None:
                self.put_together(v, self.pieces.pop(v))
        found = found or self.begun(op)
        if found is None:
            self.ops.append(op)
        elif self.absorbed(op.result, found):
            self.pieces[op.result] = found
        else:
            self.put_together(op.result, found)

    # ---- what is in pieces -----------------------------------------------------------------------

    def begun(self, op: Op) -> _Pieces | None:
        """Of an array that is only read where an update replaces it, if at all."""
        filled = self.filled(op.result) if isinstance(op.what, Full | Relayout) else None
        if filled is None and not isinstance(op.what, Map):
            return None
        value = op.result
        by = [r for r in self.readers.get(value, ()) if isinstance(r.what, Update)]
        if len(by) != 1 or value.type.layout is None or (filled and filled.blank):
            return None
        box, size = _box_of(by[0]), self.size(value)
        if box is None or not _is_thin(value.type.shape, box):
            return None
        if size > LONGEST or self.has_sums(op):
            return None
        if not self.absorbed(value, _Pieces({box: value}, size)):
            return None
        boxes = [*_edges(value.type.shape, box), box]
        return _Pieces({b: self.part(value, b, whole=True) for b in boxes}, size)

    def mapped(self, op: Op) -> _Pieces | None:
        """Element by element of arrays in pieces."""
        given = [self.pieces[v] for v in op.operands if v in self.pieces]
        if not given or any(p.of.keys() != given[0].of.keys() for p in given):
            return None
        size = 1 + sum(p.size for p in given) + sum(map(self.size, op.operands))
        if size > LONGEST or self.has_sums(op):
            return None
        return _Pieces({box: self.again(op, box) for box in given[0].of}, size)

    def absorbed(self, value: Value, found: _Pieces) -> bool:
        """Whether all that read it want its pieces."""
        readers = self.readers.get(value, [])
        if self.uses[value] != len(readers):
            return False
        if len(readers) == 1 and isinstance(readers[0].what, Map):
            return True
        updates = [r for r in readers if isinstance(r.what, Update)]
        return len(updates) == 1 and updates[0].operands[0] is value and all(
            _box_of(r) in found.of for r in readers)

    def put_together(self, value: Value, found: _Pieces) -> None:
        """The array of its pieces."""
        t, self.place = value.type, self.place_of(value)
        whole = Value(value.name, t)
        self.add(Full(0, t.dtype, t.shape, blank=True), (), (whole,))
        for k, (box, piece) in enumerate(found.of.items()):
            made = value if k == len(found.of) - 1 else Value(value.name, t)
            update = Update(box.start, (1,) * t.ndim, apart=True)
            self.defs[made] = self.add(update, (whole, piece), (made,))
            whole = made

    # ---- parts -----------------------------------------------------------------------------------

    def place_of(self, value: Value) -> Place | None:
        return self.defs[value].place if value in self.defs else None

    def filled(self, value: Value) -> Full | None:
        """What fills an array with one number, whatever its layout."""
        op = self.defs.get(value)
        while op and isinstance(op.what, Relayout):
            op = self.defs.get(op.operands[0])
        return op.what if op and isinstance(op.what, Full) else None

    def size(self, value: Value) -> int:
        """Ops that are written again for a part of a value."""
        op = self.defs.get(value)
        if op is None or not isinstance(op.what, Map) or value in self.pieces:
            return 0
        return 1 + sum(self.size(v) for v in op.operands if self.uses[v] == 1)

    def has_sums(self, op: Op) -> bool:
        """Whether sums are added in it: they are reduced once, after that, if they stay whole."""
        alone = [v for v in op.operands if self.uses[v] == 1 and v not in self.pieces]
        made = [self.defs.get(v) for v in alone]
        return isinstance(op.what, Reduce | MatMul) or isinstance(op.what, Map) and any(
            d is not None and self.has_sums(d) for d in made)

    def part(self, value: Value, box: _Box, whole: bool = False) -> Value:
        """A part of a value. whole: nobody needs the rest of it."""
        if value in self.pieces:
            return self.pieces[value].of[box]
        op, filled = self.defs.get(value), self.filled(value)
        if filled:
            return self.piece(filled.but(shape=box.shape), (), value)
        if op is not None and isinstance(op.what, Map) and (whole or self.uses[value] == 1):
            return self.again(op, box)
        return self.piece(Slice(box.start, (1,) * len(box.start), box.shape), (value,), value)

    def again(self, op: Op, box: _Box) -> Value:
        operands = tuple(self.part(v, box) for v in op.operands)
        return self.piece(op.what, operands, op.result)

    def piece(self, what: Kind, operands: tuple[Value, ...], like: Value) -> Value:
        t = laid_out(what, [v.type for v in operands], self.typed(what, operands))
        name = f"{like.name.removesuffix('_part')}_part"
        result = Value(name, replace(t, free=like.type.free))
        self.place = self.place_of(like)
        self.defs[result] = self.add(what, operands, (result,))
        return result

    def needed(self, results: Sequence[Value]) -> list[Op]:
        """The ops, but for those that only made an array whole."""
        used = Counter(results)
        for op in self.ops:
            used.update(used_values(Region((), (op,), ())))
        out = []
        for op in reversed(self.ops):
            free = op.what.inline or isinstance(op.what, Relayout)  # nothing but its result
            if free and not used[op.result]:
                used.subtract(op.operands)
            else:
                out.append(op)
        return out[::-1]


def _box_of(op: Op) -> _Box | None:
    """What a slice or an update is of; None: not of a box."""
    what = op.what
    if not isinstance(what, Slice | Update) or any(k != 1 for k in what.step):
        return None
    shape = (op.operands[1] if isinstance(what, Update) else op.result).type.shape
    return _Box(what.start, shape)


def _is_thin(shape: Shape, box: _Box) -> bool:
    """Whether what lies around a box is thin, and there is some."""
    around = [n - e for n, e in zip(shape, box.shape, strict=True)]
    thin = all(e.is_const and 0 <= e.value <= THIN for e in around)
    return thin and any(e.value for e in around)


def _edges(shape: Shape, box: _Box) -> Iterator[_Box]:
    """What lies around a box, dim by dim."""
    zero = expr.const(0)
    start, extent = [zero] * len(shape), list(shape)
    for d, (first, size) in enumerate(zip(box.start, box.shape, strict=True)):
        for begin, end in ((zero, first), (first + size, shape[d])):
            if begin != end:
                yield _Box((*start[:d], begin, *start[d + 1 :]),
                           (*extent[:d], end - begin, *extent[d + 1 :]))
        start[d], extent[d] = first, size
