"""Layout of FFT-like chains: a reshaped array stays split along one range of its row-major index.

Goes in: a Split (a Graph with its Demands and Program). Comes out: a form of the Graph where chains
of reshapes, transposes and products with small matrices (Stockham's FFT) are split along a range of
index digits that many ops leave intact, so that ranks exchange rarely.
Always holds: the values are the same; all sizes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod

from codegen.graph.builder import Builder
from codegen.graph.layout_propagation import laid_out
from codegen.ir.graph import DefUse, Module, Op, Region, Shape, Value
from codegen.layouts.demands import Split
from codegen.layouts.search import Candidate, LayoutSearch
from codegen.library_routines import LETTERS
from codegen.mesh import Layout, LayoutEntry
from codegen.ops import (
    Broadcast,
    Const,
    Full,
    Kind,
    Map,
    MatMul,
    Relayout,
    Reshape,
    Slice,
    Transpose,
    Update,
)
from codegen.ops.kind import layout_of
from codegen.symbolic import expr

ELEMENTS = 1 << 12  # of smaller arrays exchanges take little time
LEAST_RANGE = 16  # so many parts of an array can be apart, at least
PRODUCTS = 2  # with fewer there is nothing to keep apart
MOST_FACTORS = 16  # elements of a small matrix


def reshape_chains(split: Split, search: LayoutSearch) -> Iterator[Candidate]:
    """Offer the Graph with such chains rewritten, if it has some."""
    demands, _ = split
    if not demands.graph.checks:  # what is checked is checked where the user computes it
        graph = _Rewrite(demands.graph).run()
        if graph is not demands.graph:
            yield Candidate(graph)


# ---- chains of ops, and the ranges of an index that stay in them ---------------------------------


@dataclass(frozen=True)
class _Range:
    """The digit (index // stride) % extent of an element's row-major index."""

    stride: int
    extent: int

    @property
    def end(self) -> int:
        return self.stride * self.extent

    def strides(self) -> set[int]:
        return {self.stride, self.end}

    def is_apart(self, other: _Range) -> bool:
        return self.stride >= other.end or other.stride >= self.end

    def inside(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """Return the dim of an array of this shape that holds the digit, and the stride of the
        digit in that dim; None if no single dim holds it."""
        stride = 1
        for d in reversed(range(len(shape))):
            apart, rest = divmod(self.stride, stride)
            if not rest and self.stride < stride * shape[d]:
                whole = self.end <= stride * shape[d] and not stride * shape[d] % self.end
                return (d, apart) if whole else None
            stride *= shape[d]
        return None

    def after(self, op: Op, x: Value) -> _Range | None:
        """Return the digit's range in the result of an op whose operand is `x`, or None if the op
        breaks it up."""
        if isinstance(op.kind, Transpose | MatMul):
            place = self.inside(_numbers(x.type.shape))
            if place is None or (isinstance(op.kind, MatMul) and place[0] != 1):
                return None
            if isinstance(op.kind, Transpose):
                d = op.kind.perm.index(place[0])
                beside = prod(_numbers(op.result.type.shape)[d + 1:])
                return replace(self, stride=beside * place[1])
        return self


@dataclass(frozen=True)
class _Section:
    """A range that survives from op `first` of a chain up to, but not including, op `last`."""

    first: int
    last: int
    begins: _Range
    ends: _Range


class _Chain:
    """A chain of ops, each of which is the only reader of the one before it. `given` are the arrays
    that the ops work on, one for each."""

    def __init__(self, ops: Sequence[Op], arrays: Sequence[Value]) -> None:
        self.ops, self.given = ops, arrays
        self.size = prod(_numbers(arrays[0].type.shape))
        strides = {s for v in arrays for s in _strides(_numbers(v.type.shape))} | {self.size}
        self.ranges = [_Range(a, b // a) for a in sorted(strides) for b in sorted(strides)
                       if b >= LEAST_RANGE * a and b % a == 0 and b // a < self.size]

    def sections(self) -> list[_Section]:
        """Return the fewest sections that cover the chain; of equally few, those whose ranges are
        longest and so divide most evenly over ranks. Empty if the chain cannot be covered."""
        best: list[_Section] = []
        least = isqrt(self.size)
        while least >= LEAST_RANGE:
            sections = self.longest(least)
            if sections and (not best or len(sections) < len(best)):
                best = sections
            least //= 2
        return best

    def longest(self, least: int) -> list[_Section]:
        """Cover the chain greedily with sections as long as possible, each with a range of at least
        `least` elements. Empty if the chain cannot be covered."""
        sections: list[_Section] = []
        first = 0
        while first < len(self.ops):
            ranges = [r for r in self.ranges if r.extent >= least
                      and (not sections or r.is_apart(sections[-1].ends))]
            ways = [self.stays(first, r) for r in ranges]
            if not ways:
                return []
            way = max(ways, key=lambda w: (w.last, w.begins.extent))
            if way.last == first:
                return []
            sections.append(way)
            first = way.last
        return sections

    def stays(self, first: int, begins: _Range) -> _Section:
        now, k = begins, first
        while k < len(self.ops):
            after = now.after(self.ops[k], self.given[k])
            if after is None:
                break
            now, k = after, k + 1
        return _Section(first, k, begins, now)


def _found(region: Region, known: DefUse) -> list[_Chain]:
    """Return the chains of a region that begin with an array whose leading dim is split."""
    chains: list[_Chain] = []
    taken: set[Op] = set()
    for op in region.ops:
        if op in taken or not isinstance(op.kind, Reshape):
            continue
        x = op.operands[0]
        entries = layout_of(x.type)
        if not entries or not entries[0] or any(entries[1:]) or not _is_long(x.type.shape):
            continue
        ops, arrays = [op], [x]
        while (step := _next(ops[-1].result, region, known)) is not None:
            arrays.append(ops[-1].result)
            ops.append(step)
        if sum(isinstance(o.kind, MatMul) for o in ops) >= PRODUCTS:
            taken.update(ops)
            chains.append(_Chain(ops, arrays))
    return chains


def _next(value: Value, region: Region, known: DefUse) -> Op | None:
    """Return the only op that uses a value if it may be part of a chain, else None."""
    uses = known.uses.get(value, ())
    op = uses[0].op if len(uses) == 1 and uses[0].region is region else None
    if op is None:
        return None
    kind, others = op.kind, [v for v in op.operands if v is not value]
    if isinstance(kind, Reshape | Transpose):
        return op
    if isinstance(kind, Relayout):
        return None if kind.asked else op
    if isinstance(kind, Map):
        whole = all(v.type.ndim and not any(layout_of(v.type)) for v in others)
        return op if whole and len(others) == len(op.operands) - 1 else None
    if isinstance(kind, MatMul) and len(others) == 1 and op.operands[1] is value:
        factors = known.defs.get(others[0])
        rows, columns = _numbers(others[0].type.shape)[-2:]
        small = rows == columns and rows * columns <= MOST_FACTORS and value.type.ndim == 2
        known_numbers = factors is not None and isinstance(factors.kind, Const)
        return op if small and known_numbers and value.type.dtype.name in LETTERS else None
    return None


def _is_long(shape: Shape) -> bool:
    return all(e.is_const for e in shape) and prod(_numbers(shape)) >= ELEMENTS


def _numbers(shape: Shape) -> list[int]:
    return [e.value for e in shape]


def _strides(shape: Sequence[int]) -> list[int]:
    """Return the row-major stride of each dim, in elements."""
    return [prod(shape[d + 1:]) for d in range(len(shape))]


def _parts(shape: Shape, finer: Shape) -> list[list[int]]:
    """Return, for each dim of a shape, the dims of a finer shape that make it up; an empty list if
    the finer shape does not refine it."""
    fine = list(zip(_strides(_numbers(finer)), _numbers(finer), strict=True))
    parts = [[k for k, (s, _) in enumerate(fine) if a <= s < a * e]
             for a, e in zip(_strides(_numbers(shape)), _numbers(shape), strict=True)]
    whole = all(prod(fine[k][1] for k in part) == e.value
                for part, e in zip(parts, shape, strict=True))
    return parts if whole and sum(map(len, parts)) == len(fine) else []


# ---- the Graph -----------------------------------------------------------------------------------


class _Cannot(Exception):
    """Raised where the dims that a chain needs do not all fit one array shape."""


class _Rewrite(Builder):
    """Replaces the chains of a Graph that can be covered with sections."""

    def __init__(self, graph: Module) -> None:
        super().__init__()
        self.graph, self.known = graph, graph.def_use

    def run(self) -> Module:
        """Return the Graph with its chains rewritten; the same object if there are none."""
        body = self.graph.body
        last: dict[Op, tuple[_Chain, list[_Section]]] = {}
        gone: set[Op] = set()
        for chain in _found(body, self.known):
            sections = chain.sections()
            if sections:
                last[chain.ops[-1]] = chain, sections
                gone.update(chain.ops)
        for op in body.ops:
            if op in last:
                try:
                    self.ops += _Apart(self.known, *last[op]).run()
                except _Cannot:
                    return self.graph
            elif op not in gone:
                self.ops.append(op)
        return self.graph.with_body(body.with_ops(self.ops)) if last else self.graph


class _Apart(Builder):
    """Rewrites one chain of ops so that its arrays stay split along a range.

    now: the result of the chain so far, in a shape whose dims have the strides
    `strides`, one of which is the split range.
    fresh: whether `now` lies in memory, so that its dims may be merged.
    """

    def __init__(self, known: DefUse, chain: _Chain, sections: Sequence[_Section]) -> None:
        super().__init__()
        self.known, self.chain, self.sections = known, chain, sections
        self.now = chain.given[0]
        self.axes: LayoutEntry = layout_of(self.now.type)[0]
        self.range, self.strides, self.fresh = sections[0].begins, set[int](), True
        self.because = (f"the arrays that {len(chain.ops)} ops in a row reshape lie so that ranks "
                        f"exchange {len(sections) + 1} times")

    def run(self) -> list[Op]:
        """Return the ops that replace the chain. The last one defines the chain's result."""
        begins = {s.first: s.begins for s in self.sections}
        for k, (op, x) in enumerate(zip(self.chain.ops, self.chain.given, strict=True)):
            self.name, self.place = op.result.name, op.place
            if k in begins:
                self.begin(begins[k], k)
            self.op(op, _numbers(x.type.shape))
            after = self.range.after(op, x)
            assert after is not None, "the range of a section stays one"
            self.range = after
        result = self.chain.ops[-1].result
        self.lead()
        self.now = self.made(Reshape(result.type.shape), self.now)
        self.add(Relayout(layout_of(result.type)), (self.now,), (result,))
        return self.ops

    def begin(self, new: _Range, k: int) -> None:
        """Change the split to another range, before op number `k` of the chain."""
        if k == 0:
            self.range = new
            self.apart(new.strides())
            self.lead()
        else:
            self.apart(new.strides() | self.range.strides())
        self.range = new
        self.apart(new.strides())
        self.split(new)

    def lead(self) -> None:
        """Split the first dim, as an array in blocks of rows is."""
        self.apart(self.range.strides())
        self.lay([self.axes] + [()] * (self.now.type.ndim - 1))

    def split(self, new: _Range) -> None:
        dims = self.dims()
        self.lay([self.axes if stride == new.stride else () for stride in dims])

    def lay(self, entries: Iterable[LayoutEntry]) -> None:
        layout: Layout = tuple(entries)
        because, self.because = self.because, ""
        self.now = self.made(Relayout(layout, because=because), self.now)
        self.fresh = True

    def dims(self) -> list[int]:
        """Return the strides of the current dims, in decreasing order."""
        return sorted((self.strides | {1}) - {self.chain.size}, reverse=True)

    def apart(self, strides: set[int]) -> None:
        """Reshape the current array so that its dims have these strides too. An array that does not
        lie in memory keeps the dims that it has. Raises _Cannot if no shape has all these
        strides."""
        wanted = strides if self.fresh else strides | self.strides
        self.strides = wanted - {1, self.chain.size}
        sizes = [self.chain.size, *self.dims()]
        if any(a % b for a, b in zip(sizes, sizes[1:])):
            raise _Cannot
        shape = tuple(expr.const(a // b) for a, b in zip(sizes, sizes[1:]))
        if self.now.type.shape != shape:
            self.now = self.made(Reshape(shape), self.now)

    def op(self, op: Op, shape: Sequence[int]) -> None:
        """Append the op of a chain, rewritten for the current dims. `shape` is the shape of its
        operand in the Graph."""
        kind = op.kind
        if isinstance(kind, Map):
            chained = self.chain.given[self.chain.ops.index(op)]
            self.now = self.made(kind, *(self.now if v is chained else self.like(v)
                                         for v in op.operands))
            self.fresh = False
        elif isinstance(kind, Transpose):
            self.transpose(kind, shape)
        elif isinstance(kind, MatMul):
            self.multiply(op, shape)

    def like(self, value: Value) -> Value:
        """Return an unsplit operand, reshaped or broadcast to the shape of the current array."""
        while (op := self.known.defs.get(value)) is not None and isinstance(op.kind, Reshape):
            (value,) = op.operands
        shape = self.now.type.shape
        if value.type.shape == shape:
            return value
        if op is not None and isinstance(op.kind, Broadcast):
            (small,), parts = op.operands, _parts(value.type.shape, shape)
            kept = [k for d in op.kind.dims for k in parts[d]] if parts else []
            if parts and small.type.shape == tuple(value.type.shape[d] for d in op.kind.dims):
                small = self.made(Reshape(tuple(shape[k] for k in kept)), small)
                return self.made(Broadcast(tuple(kept), shape), small)
        return self.made(Reshape(shape), value)

    def transpose(self, kind: Transpose, shape: Sequence[int]) -> None:
        beside = _strides(shape)
        self.apart(self.range.strides() | set(beside))
        parts = _parts(tuple(map(expr.const, shape)), self.now.type.shape)
        if not parts:
            raise _Cannot
        perm = tuple(k for d in kind.perm for k in parts[d])
        self.now = self.made(Transpose(perm), self.now)
        self.strides = set(_strides(_numbers(self.now.type.shape))) - {1}
        self.fresh = False

    def multiply(self, op: Op, shape: Sequence[int]) -> None:
        """Multiply by a small constant matrix: append each row of the product as a sum of scaled
        rows."""
        rows, width = shape
        self.apart(self.range.strides() | {width})
        if self.dims()[0] != width:
            raise _Cannot
        factors = self.known.defs[op.operands[0]].kind
        assert isinstance(factors, Const)
        rest = self.now.type.shape[1:]
        zeros, steps, row = (expr.const(0),) * len(rest), (1,) * (1 + len(rest)), expr.const(1)
        dtype = op.result.type.dtype
        lines = [self.made(Slice((expr.const(k), *zeros), steps, (row, *rest)), self.now)
                 for k in range(rows)]
        product = self.made(Full(0, dtype, self.now.type.shape, blank=True))
        for j in range(rows):
            total: Value | None = None
            for k, line in enumerate(lines):
                number = self.made(Full(factors.data[j, k].item(), dtype, ()))
                factor = self.made(Broadcast((), (row, *rest)), number)
                term = self.made(Map("mul"), factor, line)
                total = term if total is None else self.made(Map("add"), total, term)
            assert total is not None
            product = self.made(Update((expr.const(j), *zeros), steps), product, total)
        self.now = product
        self.split(self.range)

    def made(self, kind: Kind, *operands: Value) -> Value:
        t = laid_out(kind, [v.type for v in operands], self.typed(kind, operands))
        return self.add(kind, operands, (Value(self.name, t),)).result
