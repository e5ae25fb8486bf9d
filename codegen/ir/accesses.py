"""Memory accesses: which elements of a buffer a loop nest reads or writes, and in which iteration.

Goes in: a work of a Plan or an act of Loops. Comes out: a MemoryAccess for each load and store.
Always holds: everything here is arithmetic of Exprs. What cannot be proved is None or False; so
`may_overlap` is True where nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeGuard

from codegen.ir.graph import Shape
from codegen.ir.indexing import affine, loads, long_loops, strides
from codegen.ir.plan import Lane, LibraryCall, LocalValue, M, Nest, Reduce, Store, Var
from codegen.ir.steps import Act, memory_written, nodes
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

LoopNest = Store[M] | Reduce[M] | Nest[M] | Lane[M] | LibraryCall[M]


@dataclass(frozen=True)
class ElementRange:
    """The elements of a buffer from `low` to `high`, both included."""

    low: Expr
    high: Expr

    @property
    def reach(self) -> Expr:
        """Return the distance from the first element to the last one."""
        return self.high - self.low

    def is_disjoint(self, other: ElementRange) -> bool:
        """Return whether the two ranges provably have no element in common."""
        return expr.nonneg(other.low - self.high - 1) or expr.nonneg(self.low - other.high - 1)


@dataclass(frozen=True)
class MemoryAccess(Generic[M]):
    """An access to buffer[offset] in every iteration of `loops`.

    loops: the loops around it that have more than one iteration, outermost first. is_direct: the
    offset says which element it is; otherwise data decides (a gather, a scatter), or a library
    routine, which goes on from the offset as it likes. part: the number of the part of a nest that
    makes the access; 0 in works of other kinds.
    """

    buffer: M
    offset: Expr
    loops: tuple[Var, ...] = ()
    writes: bool = False
    is_direct: bool = True
    part: int = 0

    # ---- how it moves from iteration to iteration ------------------------------------------------

    @cached_property
    def linear(self) -> tuple[Expr, Shape] | None:
        """Return the offset in the first iteration of all loops, and a stride for each loop, in
        elements; None if the access is indirect, or its offset is not affine in the loop
        variables."""
        return affine(self.offset, self.loops) if self.is_direct else None

    def stride(self, loop: Var) -> Expr | None:
        """Return by how many elements the access moves from one iteration of a loop to the next; 0
        for a loop that is not around it; None if that is not the same in all iterations."""
        if loop not in self.loops:
            return expr.const(0)
        stride = self.offset.subst({loop.sym: 1}) - self.begin(loop)
        moves = not stride.symbols().isdisjoint(v.sym for v in self.loops)
        if not self.is_direct or moves or (
            self.begin(loop) + stride * expr.symbol(loop.sym) != self.offset
        ):
            return None
        return stride

    def begin(self, loop: Var) -> Expr:
        """Return the offset in the first iteration of a loop, a formula of the other loops."""
        return self.offset.subst({loop.sym: 0})

    @cached_property
    def row(self) -> Expr:
        """Return the distance of rows in memory, the stride of the outermost loop; only where
        `range` is known."""
        assert self.linear is not None
        return self.linear[1][0]

    @cached_property
    def first_row(self) -> ElementRange:
        """Return the elements that the first iteration of the outermost loop touches; only where
        `range` is known."""
        outer, *inner = self.loops
        row = replace(self, offset=self.begin(outer), loops=tuple(inner)).range
        assert row is not None
        return row

    def varies(self, loops: Sequence[Var]) -> bool:
        """Return whether the access may touch different elements in different iterations of these
        loops."""
        return not self.is_direct or not self.offset.symbols().isdisjoint(v.sym for v in loops)

    @property
    def contiguous_from(self) -> Expr | None:
        """Return the offset of the first element, if the loops, in their order, touch consecutive
        elements of memory; else None."""
        extents = tuple(v.extent for v in self.loops)
        if self.linear is None or self.linear[1] != strides(extents):
            return None
        return self.linear[0]

    # ---- which elements it touches ---------------------------------------------------------------

    @cached_property
    def range(self) -> ElementRange | None:
        """Return the range within which the access stays in all iterations; None if it is not
        affine or the sign of a stride is not known."""
        if self.linear is None:
            return None
        low = high = self.linear[0]
        for v, stride in zip(self.loops, self.linear[1], strict=True):
            if expr.nonneg(stride):
                high = high + stride * (v.extent - 1)
            elif expr.nonneg(-stride):
                low = low + stride * (v.extent - 1)
            else:
                return None
        return ElementRange(low, high)

    def is_at(self, offset: Expr) -> bool:
        """Return whether the access touches the element at this offset in every iteration."""
        return self.is_direct and self.offset == offset

    def is_same_element(self, other: MemoryAccess[M]) -> bool:
        """Return whether both touch one element in each iteration that they share."""
        return self.buffer is other.buffer and other.is_direct and self.is_at(other.offset)

    def may_overlap(self, elements: ElementRange | None) -> bool:
        """Return whether the access may touch elements of a range of its buffer in any iteration;
        None is a range of which nothing is known."""
        return self.range is None or elements is None or not self.range.is_disjoint(elements)


def is_loop_nest(act: Act[M]) -> TypeGuard[LoopNest[M]]:
    """Return whether the accesses of an act are known: it computes, in loops around no other
    act."""
    return isinstance(act, Store | Reduce | Nest | Lane | LibraryCall)


def accesses(work: LoopNest[M]) -> Iterator[MemoryAccess[M]]:
    """Yield the accesses of a work, part by part: what a part reads, then what it writes. A part of
    a nest runs over the loops of the nest and of its sweep; `loops` of its own are not looked at.
    """
    if isinstance(work, LibraryCall):
        loops = long_loops(work.loops)
        for p in work.parts:
            yield MemoryAccess(p.buffer, p.offset, loops, p.writes, is_direct=False)
    elif isinstance(work, Nest):
        parts = ((sweep.loops, part) for sweep in work.sweeps for part in sweep.parts)
        for number, (inner, part) in enumerate(parts):
            loops = long_loops((*work.loops, *inner))
            yield from _part_accesses(part, loops, loops, number)
    else:
        inner = work.inner if isinstance(work, Reduce) else ()
        inner = (work.along,) if isinstance(work, Lane) else inner
        yield from _part_accesses(
            work, long_loops((*work.loops, *inner)), long_loops(work.loops), 0)


def _part_accesses(
    part: Store[M] | Reduce[M] | LocalValue[M] | Lane[M], loops: tuple[Var, ...],
    writing: tuple[Var, ...], number: int,
) -> Iterator[MemoryAccess[M]]:
    """Yield the accesses of one part; `writing` are the loops around its store."""
    for load in (load for node in nodes(part) for load in loads(node)):
        yield MemoryAccess(load.buffer, load.offset, loops, False, not load.bounds, number)
    if isinstance(part, LocalValue):
        return
    for memory in memory_written(part):
        if memory is not part.buffer:  # scratch memory, or rows that wait
            yield MemoryAccess(memory, expr.const(0), loops, True, False, number)
        elif isinstance(part, Lane) and part.kind != "argreduce":
            offset = part.offset + part.stride * expr.symbol(part.along.sym)
            yield MemoryAccess(memory, offset, loops, True, True, number)
        else:
            is_direct = not isinstance(part, Store) or not part.bounds
            yield MemoryAccess(memory, part.offset, writing, True, is_direct, number)
