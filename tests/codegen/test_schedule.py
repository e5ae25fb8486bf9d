"""The schedule of loops: which transformations are legal, and that they are done where they pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from codegen.dtypes import BY_NAME, FLOAT64, DType
from codegen.ir.plan import (
    Apply,
    Bound,
    Buffer,
    Load,
    LocalValue,
    Nest,
    Node,
    Reduce,
    Store,
    Sweep,
    Var,
)
from codegen.loops import lookahead, quotient_runs, row_tiles, strip_mine, unroll_and_jam
from codegen.loops.schedule import _simple
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET


def loop(name: str, extent: int | Expr) -> tuple[Var, Expr]:
    size = expr.const(extent) if isinstance(extent, int) else extent
    sym = Sym(name, "var", expr.const(0), size - 1)
    return Var(sym, size), expr.symbol(sym)


def buffer(name: str, dtype: DType = FLOAT64) -> Buffer:
    return Buffer(ord(name), name, dtype, expr.const(1 << 24))


A, B, C = (buffer(name) for name in "abc")
HALF = BY_NAME["float16"]
N = 2048
ROW, i = loop("i", N)
COLUMN, j = loop("j", N)


def total(read: Node, dtype: DType = FLOAT64) -> LocalValue:
    return LocalValue("total", dtype, read, "add")


def sums(read: Node, dtype: DType = FLOAT64, columns: Var = COLUMN, unroll: int = 1) -> Nest:
    """Return a nest that stores the sum of a row of elements in each iteration."""
    fold = total(read, dtype)
    store = Store((), buffer("d", dtype), i, fold.read)
    return Nest((ROW,), (Sweep((columns,), (fold,)), Sweep((), (store,))), None, unroll)


def gathered(of: Buffer, position: Expr) -> Load:
    """Return a load of an element whose position stands in a buffer."""
    sym = Sym("p", "var", expr.const(0), expr.const(N - 1))
    return Load(of, expr.symbol(sym), (Bound(sym, Load(C, position), expr.const(N - 1)),))


TRANSPOSED = Store((ROW, COLUMN), A, N * i + j, Load(B, N * j + i))


@pytest.mark.parametrize(("legal", "changes"), [
    (True, {}),
    (True, {"value": Apply("add", FLOAT64, (Load(A, N * i + j), Load(B, i)), FLOAT64)}),
    (False, {"value": Load(A, N * j + i)}),
    (False, {"combine": "add"}),
    (False, {"bounds": gathered(A, j).bounds}),
    (False, {"rows": 1, "waiting": C}),
])
def test_strips_need_points_that_assign_elements_of_their_own(
    legal: bool, changes: dict[str, Any]
) -> None:
    assert strip_mine.is_legal(replace(TRANSPOSED, **changes)) is legal


def test_strips_pay_where_an_operand_runs_across() -> None:
    (strips,) = _simple(TRANSPOSED)
    assert isinstance(strips, Store) and len(strips.loops) == 3
    assert strips.loops[-1].extent == TARGET.line // 8
    for value in (Load(B, N * i + j), Apply("exp", FLOAT64, (Load(B, N * j + i),), FLOAT64)):
        assert list(_simple(replace(TRANSPOSED, value=value))) == [replace(TRANSPOSED, value=value)]


def test_iterations_are_jammed_where_loops_inside_do_not_depend_on_them() -> None:
    long = sums(Load(A, N * i + j), unroll=4)
    assert unroll_and_jam.is_legal(long)
    triangle, k = loop("k", i + 1)
    assert not unroll_and_jam.is_legal(sums(Load(A, N * i + k), columns=triangle, unroll=4))
    assert not unroll_and_jam.is_legal(sums(gathered(A, N * i + j), unroll=4))
    assert not unroll_and_jam.is_legal(replace(long, loops=(Var(ROW.sym, expr.const(1)),)))
    jammed, left = unroll_and_jam.unroll_and_jam(
        replace(long, loops=(Var(ROW.sym, expr.const(10)),)), [True, True])
    assert (jammed.loops[0].extent, left.loops[0].extent) == (2, 2)
    assert [len(s.parts) for s in jammed.sweeps] == [4, 4]
    assert [len(s.parts) for s in left.sweeps] == [1, 1]


def test_jamming_pays_for_long_rows_only() -> None:
    (many,) = _simple(sums(Load(A, N * i + j), unroll=4))
    assert isinstance(many, Nest) and many.loops[0].extent == N // 4
    short, k = loop("k", 64)
    (single,) = _simple(sums(Load(A, N * i + k), columns=short, unroll=4))
    assert isinstance(single, Nest) and single.loops == (ROW,)


def test_rows_are_tiled_where_tiles_round_nothing() -> None:
    shared = sums(Load(A, j))
    assert row_tiles.is_legal(shared)
    assert not row_tiles.is_legal(sums(Load(buffer("h", HALF), j), HALF))
    assert not row_tiles.is_legal(replace(shared, sweeps=shared.sweeps[:1]))
    assert not row_tiles.is_legal(replace(shared, unroll=4))
    assert not row_tiles.is_legal(replace(shared, loops=()))


@pytest.mark.parametrize(("tiled", "read", "length"), [
    (True, lambda j: Load(A, j), 1 << 20), (False, lambda j: Load(A, j), 512),
    (False, lambda j: Load(A, N * i + j), 1 << 20), (False, lambda j: gathered(A, j), 1 << 20),
])
def test_tiles_pay_where_all_results_read_one_long_row(
    tiled: bool, read: Callable[[Expr], Node], length: int
) -> None:
    columns, j = loop("j", length)
    works = list(_simple(sums(read(j), columns=columns)))
    assert (len(works) == 2 and isinstance(works[0], Store)) is tiled


def test_quotients_of_positions_by_constants() -> None:
    def of(offset: Expr) -> list[int]:
        work = Store((ROW, COLUMN), A, N * i + j, Load(B, offset))
        return [q.divisor for q in quotient_runs.quotients(work)]

    assert of(j // 20) == [20] and of((j + 3) // 20 + i // 4) == [20]
    assert of(expr.mod(j + N * i, expr.const(20))) == [20]
    assert of((2 * j + 1) // 20) == [] and of(j) == []


def test_runs_pay_where_they_are_long() -> None:
    for divisor, loops in ((20, 2), (4, 1)):
        (work,) = _simple(Store((COLUMN,), A, j, Load(B, j // divisor)))
        assert isinstance(work, Store) and len(work.loops) == loops


def test_lookups_are_read_ahead_where_nothing_is_folded_and_much_is_computed() -> None:
    def sweep(*parts: Any) -> Sweep:
        return Sweep((COLUMN,), parts)

    assert lookahead.is_legal(sweep(Store((), A, j, gathered(B, j))))
    assert not lookahead.is_legal(sweep(total(gathered(B, j))))
    row = Reduce((COLUMN,), (), True, A, j, gathered(B, j), "add", FLOAT64)
    assert not lookahead.is_legal(sweep(row))
    value: Node = gathered(B, j)
    assert list(_simple(Store((COLUMN,), A, j, value))) == [Store((COLUMN,), A, j, value)]
    for _ in range(lookahead.WORTH):
        value = Apply("mul", FLOAT64, (value, Load(C, j)), FLOAT64)
    (nest,) = _simple(Store((COLUMN,), A, j, value))
    assert isinstance(nest, Nest) and len(nest.sweeps[0].ahead) == 1
    own = Apply("add", FLOAT64, (gathered(A, j), value), FLOAT64)  # its own elements are no lookups
    (nest,) = _simple(Store((COLUMN,), A, j, own))
    assert isinstance(nest, Nest) and [k.value for k in nest.sweeps[0].ahead] == [gathered(B, j)]
