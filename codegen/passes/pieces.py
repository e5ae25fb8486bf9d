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

from codegen import expr
from codegen.errors import Place
from codegen.ir import Module, Op, Region, Shape, Value, used_values
from codegen.layouts.propagation import laid_out
from codegen.ops import Full, Kind, Slice, Update

# ops without effect, dropped when nobody reads them
_FREE = ("map", "full", "slice", "broadcast", "relayout")
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
    body = _Rewrite(Counter([*used_values(graph.body), *shown]), same).run(graph.body, shown)
    outputs = tuple(replace(o, value=same.get(o.value, o.value)) for o in graph.outputs)
    return replace(graph, body=body, outputs=outputs)


class _Rewrite:
    """Of one region. same: slices that are a piece, of this region and those around it."""

    def __init__(self, uses: Counter[Value], same: dict[Value, Value]) -> None:
        self.uses, self.same = uses, same
        self.ops: list[Op] = []
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
        inner = op.regions
        if op.kind in ("loop", "branch"):
            inner = tuple(_Rewrite(self.uses, self.same).run(r) for r in inner)
        operands = tuple(self.same.get(v, v) for v in op.operands)
        if operands != op.operands or inner != op.regions:
            op = replace(op, operands=operands, regions=inner)
        self.defs.update(dict.fromkeys(op.results, op))
        found = None
        if op.kind == "slice" and op.operands[0] in self.pieces:
            pieces, box = self.pieces[op.operands[0]].of, _box_of(op)
            if box in pieces:
                self.same[op.result] = pieces[box]
                return
        elif op.kind == "map":
            found = self.mapped(op)
        elif op.kind == "update" and op.operands[0] in self.pieces:
            before, box = self.pieces[op.operands[0]], _box_of(op)
            if box in before.of:
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
        if op.kind != "map" and not (op.kind in ("full", "relayout") and self.filled(op.result)):
            return None
        value = op.result
        by = [r for r in self.readers.get(value, ()) if r.kind == "update"]
        filled = self.filled(value)
        if len(by) != 1 or value.type.layout is None or (filled and filled.attrs.get("blank")):
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
        if [r.kind for r in readers] == ["map"]:
            return True
        return all(
            (r.kind == "slice" or (r.kind == "update" and r.operands[0] is value))
            and _box_of(r) in found.of
            for r in readers
        ) and sum(r.kind == "update" for r in readers) == 1  # fmt: skip

    def put_together(self, value: Value, found: _Pieces) -> None:
        """The array of its pieces."""
        t, place = value.type, self.place(value)
        whole = Value(value.name, t)
        self.ops.append(Op(Full(0, t.dtype, t.shape, blank=True), (), (whole,), (), place))
        for k, (box, piece) in enumerate(found.of.items()):
            made = value if k == len(found.of) - 1 else Value(value.name, t)
            update = Update(box.start, (1,) * t.ndim, apart=True)
            self.ops.append(Op(update, (whole, piece), (made,), (), place))
            self.defs[made] = self.ops[-1]
            whole = made

    # ---- parts -----------------------------------------------------------------------------------

    def place(self, value: Value) -> Place | None:
        return self.defs[value].place if value in self.defs else None

    def filled(self, value: Value) -> Op | None:
        """The op that fills an array with one number, whatever its layout."""
        op = self.defs.get(value)
        while op and op.kind == "relayout":
            op = self.defs.get(op.operands[0])
        return op if op and op.kind == "full" else None

    def size(self, value: Value) -> int:
        """Ops that are written again for a part of a value."""
        op = self.defs.get(value)
        if op is None or op.kind != "map" or value in self.pieces:
            return 0
        return 1 + sum(self.size(v) for v in op.operands if self.uses[v] == 1)

    def has_sums(self, op: Op) -> bool:
        """Whether sums are added in it: they are reduced once, after that, if they stay whole."""
        alone = [v for v in op.operands if self.uses[v] == 1 and v not in self.pieces]
        made = [self.defs.get(v) for v in alone]
        return op.kind in ("reduce", "matmul") or op.kind == "map" and any(
            d is not None and self.has_sums(d) for d in made)  # fmt: skip

    def part(self, value: Value, box: _Box, whole: bool = False) -> Value:
        """A part of a value. whole: nobody needs the rest of it."""
        if value in self.pieces:
            return self.pieces[value].of[box]
        op, filled = self.defs.get(value), self.filled(value)
        if filled:
            return self.emit(filled.what.but(shape=box.shape), (), value)
        if op is not None and op.kind == "map" and (whole or self.uses[value] == 1):
            return self.again(op, box)
        return self.emit(Slice(box.start, (1,) * len(box.start), box.shape), (value,), value)

    def again(self, op: Op, box: _Box) -> Value:
        operands = tuple(self.part(v, box) for v in op.operands)
        return self.emit(op.what, operands, op.result)

    def emit(self, what: Kind, operands: tuple[Value, ...], like: Value) -> Value:
        types = [v.type for v in operands]
        (t,) = what.infer(types)
        free = replace(laid_out(what, types, t), free=like.type.free)
        result = Value(f"{like.name.removesuffix('_part')}_part", free)
        self.ops.append(Op(what, operands, (result,), (), self.place(like)))
        self.defs[result] = self.ops[-1]
        return result

    def needed(self, results: Sequence[Value]) -> list[Op]:
        """The ops, but for those that only made an array whole."""
        used = Counter(results)
        for op in self.ops:
            used.update(used_values(Region((), (op,), ())))
        out = []
        for op in reversed(self.ops):
            if op.kind in _FREE and not used[op.result]:
                used.subtract(op.operands)
            else:
                out.append(op)
        return out[::-1]


def _box_of(op: Op) -> _Box | None:
    """What a slice or an update is of; None: not of a box."""
    if any(k != 1 for k in op.attrs["step"]):
        return None
    shape = (op.operands[1] if op.kind == "update" else op.result).type.shape
    return _Box(op.attrs["start"], shape)


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
                           (*extent[:d], end - begin, *extent[d + 1 :]))  # fmt: skip
        start[d], extent[d] = first, size
