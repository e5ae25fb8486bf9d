"""Tiling of a row that many reductions read: all of them for a tile of it, then for the next tile.

Goes in: a Nest of a Plan. Comes out: what its results begin as, and the Nest over one more loop.
Always holds: each result is combined of the same elements; sums are added up in another order.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.dtypes import totalled_in
from codegen.functions import neutral
from codegen.ir.exprs import mapped
from codegen.ir.indexing import long_loops
from codegen.ir.plan import Literal, LocalRead, Nest, Store, Var
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym


def is_legal(nest: Nest) -> bool:
    """Return whether a nest is one loop of reductions over one row, each of which is then stored;
    and whether a result can hold what a tile adds up to without rounding."""
    if len(nest.sweeps) != 2 or nest.unroll != 1 or not long_loops(nest.loops):
        return False
    folding, storing = nest.sweeps
    if len(folding.long) != 1 or storing.loops or folding.parts != folding.folds:
        return False
    stored = {p.value.name for p in storing.parts
              if isinstance(p, Store) and isinstance(p.value, LocalRead) and not p.bounds}
    return len(stored) == len(storing.parts) and stored == {f.name for f in folding.folds} and all(
        (f.total or totalled_in(f.fn, f.dtype)) == f.dtype for f in folding.folds)


def tile_rows(nest: Nest, width: int) -> tuple[list[Store], Nest]:
    """Return stores of what results begin as, and a nest that combines into them, tile by tile of
    so many elements of the row."""
    folding, storing = nest.sweeps
    row, fns = folding.long[0], {f.name: f.fn for f in folding.folds}
    begins, combined = list[Store](), list[Store]()
    for p in storing.parts:
        assert isinstance(p, Store) and isinstance(p.value, LocalRead)
        fn = fns[p.value.name]
        first = Literal(neutral(fn, p.buffer.dtype), p.buffer.dtype)
        begins.append(replace(p, loops=nest.loops, value=first))
        combined.append(replace(p, combine=fn))
    tiles = (row.extent + (width - 1)) // width
    tile = Var(Sym(f"{row.sym.name}_tile", "var", expr.const(0), tiles - 1), tiles)
    begin = width * expr.symbol(tile.sym)
    inner = Var(Sym(row.sym.name, "var", expr.const(0), expr.const(width - 1)),
                expr.least(row.extent - begin, width))
    change = {row.sym: begin + expr.symbol(inner.sym)}
    cut = mapped(replace(folding, loops=()), lambda e: expr.replace(e, change))
    sweeps = replace(cut, loops=(inner,)), replace(storing, parts=tuple(combined))
    return begins, replace(nest, loops=(tile, *nest.loops), sweeps=sweeps)
