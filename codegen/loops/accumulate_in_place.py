"""Accumulation in place: `C += A @ B` becomes one BLAS call that adds the product to C in memory.

Goes in: Loops. Comes out: Loops in which a product gets no temporary array of its own if all that
is done with it is to add it to other elements, or to subtract it from them.
Always holds: the call reads no element that it, or a store before it in the same op, writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from codegen.ir.accesses import MemoryAccess
from codegen.ir.graph import Op, Region, Shape, Value
from codegen.ir.indexing import loads, long_loops, strides
from codegen.ir.loops import Act, Do, Loops
from codegen.ir.plan import Apply, LibraryCall, Load, Node, Store
from codegen.ir.steps import memory_read
from codegen.ops.matmul import added_to, sources
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


def accumulate_in_place(loops: Loops) -> Loops:
    """Return the Loops in which library calls add their products to the arrays that want them."""
    return loops.with_module(loops.module.mapped(_Adding(loops).region))


class _Adding:
    """Finds library calls whose products are only added to other elements."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.uses = loops.module.def_use.uses

    def region(self, region: Region) -> Region:
        """Return a region in which such products accumulate where they are wanted."""
        ops: list[Op] = []
        products: dict[Value, Op] = {}
        for op in region.ops:
            op = self.in_place(op.mapped(self.region), ops)
            for load in _sums(op) if products else ():
                if (product := products.get(load.buffer)) is None:
                    continue
                k = ops.index(product)
                if fused := self.added(op, product, load, ops[k + 1 :]):
                    del ops[k]
                    op = fused
                    break
            if isinstance(op.kind, Do) and any(isinstance(x, LibraryCall) for x in op.kind.acts):
                products.update(dict.fromkeys(op.results, op))
            ops.append(op)
        return region.with_ops(ops)

    def in_place(self, op: Op, ops: list[Op]) -> Op:
        """Return an op that calls a library routine directly on elements of an array, in place of
        one that copies them out, calls the routine on the copy and stores the result back. The ops
        that this replaces are removed from `ops`. Any other op is returned as it is."""
        do = op.kind
        if not isinstance(do, Do) or len(do.acts) != 1 or len(do.begins) != 1:
            return op
        (store,), ((base, into),) = do.acts, do.begins
        if not _is_plain_store(store) or not isinstance(store.value, Load):
            return op
        routine = self.only(store.value.buffer, ops)
        if routine is None or len(routine[1].begins) != 1:
            return op
        (call,), ((copy, computed),) = routine[1].acts, routine[1].begins
        copied = self.only(copy, ops)
        target = MemoryAccess(into, store.offset, long_loops(store.loops)).linear
        row = _row_of(call, computed)
        if copied is None or row is None or target is None or len(target[1]) != 2 or (
            target[1][1] != 1
        ):
            return op
        assert isinstance(call, LibraryCall)
        (first,), by = copied[1].acts, (copied[0], routine[0])
        if not _is_plain_store(first) or (first.value, first.offset) != (
            Load(base, store.offset), store.value.offset
        ) or by[1].results != (computed,) or any(p.buffer is base for p in call.parts):
            return op
        numbers = (*call.numbers[:row], target[1][0], *call.numbers[row + 1 :])
        parts = tuple(replace(p, buffer=into, offset=target[0]) if p.buffer is computed else p
                      for p in call.parts)
        ops[:] = [o for o in ops if o not in by]
        operands = (base, *(v for v in by[1].operands if v is not copy))
        act = replace(call, numbers=numbers, parts=parts)
        return replace(op, kind=replace(routine[1], acts=(act,), begins=do.begins),
                       operands=operands)

    def only(self, value: Value, ops: Sequence[Op]) -> tuple[Op, Do] | None:
        """Return the op that makes a value by a single act, with its Do, or None unless exactly one
        op reads the value."""
        by = next((o for o in ops if value in o.results), None)
        if by is None or not isinstance(by.kind, Do) or len(by.kind.acts) != 1:
            return None
        return (by, by.kind) if len(self.uses[value]) == 1 else None

    def added(self, op: Op, product: Op, load: Load[Value], between: Sequence[Op]) -> Op | None:
        """Return an op that lets a library call accumulate into what `op` stores to, so that the
        product needs no temporary; None if that is not legal. `between` are the ops between the
        two."""
        do, by = op.kind, product.kind
        if not (isinstance(do, Do) and isinstance(by, Do)) or len(self.uses[load.buffer]) != 1:
            return None
        (store,), (call, *more) = do.acts, by.acts
        assert isinstance(store, Store)
        if more or by.begins or not isinstance(call, LibraryCall) or call.loops:
            return None
        shape = tuple(e for e in load.buffer.type.shape if e != 1)
        matrix = _matrix(load, store, shape) if len(shape) == 2 else None
        if matrix is None:
            return None
        offset, row = matrix
        sign, rest = _split(store.value, load)
        if rest is None or any(x.buffer is load.buffer for x in loads(rest)):
            return None
        into, begins = store.buffer, do.begins
        if not begins and isinstance(rest, Load) and rest == Load(rest.buffer, store.offset) and (
            rest.buffer.type.shape == into.type.shape
        ) and rest.buffer not in self.loops.constants:
            begins = ((rest.buffer, into),)
        base = begins[0][0] if begins else None
        alone = base is not None and rest == Load(base, store.offset)
        if not do.begins and any(_fusible(u.op) for u in self.uses.get(into, ())):
            return None
        read = {x.buffer for x in (*call.parts[:2],)}
        if any(not isinstance(o.kind, Do) or read & {x for x, _ in o.kind.begins}
               for o in between):
            return None
        if base is not None and any(
            x.buffer is base and x.offset != store.offset for x in loads(rest)
        ):
            return None
        adding = added_to(call, sign, into, offset, row)
        if adding is None or not expr.nonneg(row - shape[1]):
            return None
        if base in read:
            if not _reads_elsewhere(call, base, offset, row, shape):
                return None
            adding = replace(adding, parts=tuple(
                replace(p, buffer=into) if p.buffer is base else p for p in adding.parts))
        acts = (adding,) if alone else (replace(store, value=rest), adding)
        memory = dict.fromkeys(x for x, _ in begins)
        memory |= dict.fromkeys(v for act in acts for v in memory_read(act))
        operands = tuple(v for v in memory if v not in self.loops.constants and v is not into)
        scratch = (*by.scratch, *do.scratch)
        return replace(op, kind=Do(acts, begins, scratch, by.of),
                       operands=operands)


def _matrix(load: Load[Value], store: Store[Value], shape: Shape) -> tuple[Expr, Expr] | None:
    """Return the offset at which a store of all elements of a matrix begins, and the distance of
    its rows there, in elements; None unless the elements of each row follow each other. The matrix
    may be stored in any shape."""
    loops = long_loops(store.loops)
    extents = tuple(v.extent for v in loops)
    read, written = (MemoryAccess(x.buffer, x.offset, loops) for x in (load, store))
    if read.contiguous_from != 0 or written.linear is None or (
        expr.product(extents) != expr.product(shape)
    ):
        return None
    offset, steps = written.linear
    if steps == strides(extents):
        return offset, shape[1]
    for k in range(1, len(extents)):
        if expr.product(extents[k:]) == shape[1] and steps[k:] == strides(extents[k:]):
            row = steps[k - 1]
            if steps[:k] == tuple(row * n for n in strides(extents[:k])):
                return offset, row
    return None


def _is_plain_store(act: Act) -> TypeGuard[Store[Value]]:
    return isinstance(act, Store) and act.is_plain


def _row_of(call: Act, result: Value) -> int | None:
    """Return which of a call's numbers is the row stride of its result, or None if the result does
    not begin at the first element of `result`."""
    if not isinstance(call, LibraryCall) or call.loops:
        return None
    rows = [p.row for p in call.parts if p.buffer is result and p.offset == 0]
    return rows[0] if len(rows) == 1 else None


def _fusible(op: Op | None) -> bool:
    """Return whether an op that reads a sum may be fused with it."""
    of = op.kind.of if op is not None and isinstance(op.kind, Do) else None
    return of is not None and of.kind.fuses


def _sums(op: Op) -> list[Load[Value]]:
    """Return the loads that an elementwise op adds or subtracts to make what it stores; none for
    any other op."""
    if not isinstance(op.kind, Do) or len(op.kind.acts) != 1:
        return []
    (store,) = op.kind.acts
    if not _is_plain_store(store) or not isinstance(store.value, Apply):
        return []
    of = op.kind.of
    if of is None or getattr(of.kind, "apart", False):
        return []
    return list(_terms(store.value))


def _terms(node: Node[Value]) -> list[Load[Value]]:
    if isinstance(node, Load):
        return [] if node.bounds else [node]
    if isinstance(node, Apply) and node.fn in ("add", "sub"):
        return [x for a in node.args for x in _terms(a)]
    return []


def _split(node: Node[Value], term: Load[Value]) -> tuple[int, Node[Value] | None]:
    """Return the sign of a term in a sum, and the sum without that term. The sign is 0 if the term
    does not occur; the rest is None if nothing else is left."""
    if node is term:
        return 1, None
    if not isinstance(node, Apply) or node.fn not in ("add", "sub"):
        return 0, node
    a, b = node.args
    sign, rest = _split(a, term)
    if sign:
        if rest is None and node.fn == "add":
            return sign, b
        return sign, Apply("neg", node.dtype, (b,), node.dtype) if rest is None else replace(
            node, args=(rest, b))
    sign, rest = _split(b, term)
    if not sign:
        return 0, node
    if node.fn == "sub":
        sign = -sign
    return sign, a if rest is None else replace(node, args=(a, rest))


def _reads_elsewhere(call: LibraryCall[Value], base: Value, offset: Expr, row: Expr,
           shape: tuple[Expr, ...]) -> bool:
    """Return whether a product reads none of the elements that it is added to. Both lie side by
    side in rows of the same length, or one lies entirely before or behind the other."""
    rows, columns = shape
    for first, width, lead, height in sources(call, base):
        if lead == expr.most(row, 1) and expr.nonneg(row - width):
            lead = row  # where it is 0, nothing is read
        right, left = offset - first, first - offset
        beside = lead == row and (
            (expr.nonneg(right - width) and expr.nonneg(row - right - columns))
            or (expr.nonneg(left - columns) and expr.nonneg(row - left - width)))
        behind = expr.nonneg(right - (height - 1) * lead - width)
        before = expr.nonneg(left - (rows - 1) * row - columns)
        if not (beside or behind or before):
            return False
    return True
