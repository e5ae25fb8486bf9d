"""Accesses of loop nests: what they say of elements is what a loop over all iterations touches."""

from __future__ import annotations

from itertools import product

import pytest

from codegen.dtypes import FLOAT64
from codegen.ir.accesses import ElementRange, MemoryAccess, accesses
from codegen.ir.plan import (
    Apply,
    Bound,
    Buffer,
    Lane,
    LibraryCall,
    Load,
    LocalValue,
    Nest,
    Part,
    Reduce,
    Store,
    Sweep,
    Var,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


def loop(name: str, extent: int) -> tuple[Var, Expr]:
    sym = Sym(name, "var", expr.const(0), expr.const(extent - 1))
    return Var(sym, expr.const(extent)), expr.symbol(sym)


def buffer(name: str) -> Buffer:
    return Buffer(0, name, FLOAT64, expr.const(1000))


ROW, i = loop("i", 5)
COLUMN, j = loop("j", 7)
ONE, _ = loop("k", 1)
A, B = buffer("a"), buffer("b")

OFFSETS = {
    "rows": 7 * i + j, "columns": 5 * j + i, "every second": 20 * i + 2 * j + 3,
    "backwards": 40 - 7 * i - j, "one row": j + 2, "one element": expr.const(9),
    "diagonal": i + j,
}
CURVED = {"product": i * j, "wrapped": expr.mod(i + j, expr.const(5)), "halves": (i + j) // 2}


def touched(offset: Expr) -> list[int]:
    """Return the elements at an offset in all iterations of ROW and COLUMN, in their order."""
    return [offset.subst({ROW.sym: a, COLUMN.sym: b}).value
            for a, b in product(range(5), range(7))]


@pytest.mark.parametrize("name", [*OFFSETS, *CURVED])
def test_an_access_says_what_iterations_touch(name: str) -> None:
    offset = {**OFFSETS, **CURVED}[name]
    access, elements = MemoryAccess(A, offset, (ROW, COLUMN)), touched(offset)
    if name in CURVED:
        assert access.linear is None and access.range is None and access.contiguous_from is None
        assert access.may_overlap(ElementRange(expr.const(900), expr.const(901)))
        return
    assert access.range is not None
    assert (access.range.low, access.range.high) == (min(elements), max(elements))
    assert access.stride(ROW) == elements[7] - elements[0] == access.row
    assert access.stride(COLUMN) == elements[1] - elements[0]
    row = access.first_row
    assert (row.low, row.high, row.reach) == (
        min(elements[:7]), max(elements[:7]), max(elements[:7]) - min(elements[:7]))
    follow = all(b - a == 1 for a, b in zip(elements, elements[1:]))
    assert access.contiguous_from == (elements[0] if follow else None)
    assert access.varies([ROW]) == (access.stride(ROW) != 0)
    for low in range(-3, 110, 4):
        free = ElementRange(expr.const(low), expr.const(low + 2))
        meets = max(elements) >= low and min(elements) <= low + 2
        assert access.may_overlap(free) is meets


def test_a_stride_is_known_of_one_loop_where_another_is_curved() -> None:
    access = MemoryAccess(A, 10 * i + j * j, (ROW, COLUMN))
    assert access.stride(ROW) == 10 and access.stride(COLUMN) is None and access.linear is None
    assert MemoryAccess(A, i * j, (ROW, COLUMN)).stride(ROW) is None
    assert access.stride(ONE) == 0


def test_extents_and_strides_may_be_formulas() -> None:
    n = expr.symbol(Sym("n", "size", expr.const(1)))
    rows = Var(Sym("r", "var", expr.const(0), n - 1), n)
    access = MemoryAccess(A, n * expr.symbol(rows.sym) + j, (rows, COLUMN))
    assert access.row == n and access.range == ElementRange(expr.const(0), n * (n - 1) + 6)
    assert access.contiguous_from is None
    sign = expr.symbol(Sym("s", "size"))
    assert MemoryAccess(A, sign * j, (COLUMN,)).range is None


def test_data_and_routines_decide_about_elements() -> None:
    position = Sym("p", "var", expr.const(0), expr.const(9))
    bound = Bound(position, Load(B, j), expr.const(9))
    gather = Load(A, expr.symbol(position), (bound,))
    read, positions, write = accesses(Store((ONE, COLUMN), B, j + 20, gather))
    assert not read.is_direct and read.range is None and read.linear is None
    assert read.stride(COLUMN) is None and read.varies([COLUMN])
    assert positions.is_direct and positions.buffer is B and positions.range is not None
    assert write.writes and write.is_same_element(MemoryAccess(B, j + 20, (COLUMN,)))
    assert not read.is_same_element(read)
    scatter = Store((COLUMN,), A, expr.symbol(position), Load(B, j), bounds=(bound,))
    assert [a.is_direct for a in accesses(scatter)] == [True, True, False]
    call = LibraryCall(None, (ROW,), (), (Part(A, 7 * i), Part(B, i, writes=True)), ())
    assert [(a.buffer, a.writes, a.range) for a in accesses(call)] == [
        (A, False, None), (B, True, None)]


def test_parts_of_a_nest_run_over_its_loops_and_those_of_their_sweep() -> None:
    fold = LocalValue("total", FLOAT64, Load(A, 7 * i + j), "add")
    both = Apply("add", FLOAT64, (fold.read, Load(B, i)), FLOAT64)
    nest = Nest((ROW,), (Sweep((COLUMN,), (fold,)), Sweep((), (Store((ROW,), B, i, both),))))
    read, own, write = accesses(nest)
    assert (read.part, own.part, write.part) == (0, 1, 1)
    assert read.loops == (ROW, COLUMN) and own.loops == write.loops == (ROW,)
    assert own.is_same_element(write) and write.writes and not own.writes


def test_inner_loops_of_reductions_and_lanes() -> None:
    operand = Load(A, 7 * i + j)
    total = Reduce((ROW,), (COLUMN,), False, B, i, operand, "add", FLOAT64)
    read, write = accesses(total)
    assert read.loops == (ROW, COLUMN) and write.loops == (ROW,)
    scan = Lane("cumulative", (ROW,), COLUMN, B, 7 * i, expr.const(1), FLOAT64, "add", operand)
    assert [a.range for a in accesses(scan)] == [ElementRange(expr.const(0), expr.const(34))] * 2
    least = Lane("argreduce", (ROW,), COLUMN, B, i, expr.const(0), FLOAT64, "min", operand)
    assert [a.loops for a in accesses(least)] == [(ROW, COLUMN), (ROW,)]
