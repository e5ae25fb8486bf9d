"""Reductions that all read the same row, in tiles of it: all of them for a part that a cache holds.

Goes in: a Nest of a Plan. Comes out: what its results begin as, and the Nest over one more loop; or
nothing, where rows are short or differ.
Always holds: each result is combined of the same elements; sums are added up in another order.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.dtypes import totalled_in
from codegen.functions import neutral
from codegen.ir.exprs import mapped
from codegen.ir.indexing import leaves
from codegen.ir.plan import Kept, Literal, Load, Nest, Store, Sweep, Var
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym
from codegen.target import TARGET


def in_row_tiles(nest: Nest) -> tuple[list[Store], Nest] | None:
    """Return stores and a nest with the same results that go tile by tile along the row; None if
    this does not fit."""
    if len(nest.sweeps) != 2 or nest.together != 1 or all(v.extent == 1 for v in nest.loops):
        return None
    folding, storing = nest.sweeps
    if len(folding.long) != 1 or storing.loops or folding.parts != folding.folds:
        return None
    folds = {f.name: f for f in folding.folds}
    stored = {p.value.name: p for p in storing.parts
              if isinstance(p, Store) and isinstance(p.value, Kept) and not p.bounds}
    if len(stored) != len(storing.parts) or stored.keys() != folds.keys():
        return None
    if any((f.total or totalled_in(f.fn, f.dtype)) != f.dtype for f in folds.values()):
        return None  # a tile's total would be rounded
    row = folding.long[0]
    width = _width(folding, {v.sym for v in nest.loops}, row)
    if width is None:
        return None
    begins = [replace(p, loops=nest.loops, value=Literal(neutral(folds[k].fn, p.buffer.dtype),
                                                         p.buffer.dtype))
              for k, p in stored.items()]
    combined = [replace(p, combine=folds[k].fn) for k, p in stored.items()]
    tiles = (row.extent + (width - 1)) // width
    tile = Var(Sym(f"{row.sym.name}_tile", "var", expr.const(0), tiles - 1), tiles)
    begin = width * expr.symbol(tile.sym)
    inner = Var(Sym(row.sym.name, "var", expr.const(0), expr.const(width - 1)),
                expr.least(row.extent - begin, width))
    at = {row.sym: begin + expr.symbol(inner.sym)}
    cut = mapped(replace(folding, loops=()), lambda e: expr.replace(e, at))
    sweeps = replace(cut, loops=(inner,)), replace(storing, parts=tuple(combined))
    return begins, replace(nest, loops=(tile, *nest.loops), sweeps=sweeps)


def _width(sweep: Sweep, outer: set[Sym], row: Var) -> int | None:
    """Return points of a tile; None where results read rows of their own, or the row is short."""
    each = 0
    loads = [x for part in sweep.parts for x in leaves(part.value) if isinstance(x, Load)]
    if any(load.bounds for load in loads):
        return None
    # a constant holds an array, which is no key
    for load in {(id(load.buffer), load.offset): load for load in loads}.values():
        symbols = load.offset.symbols()
        if row.sym in symbols and outer & symbols:
            return None
        if row.sym in symbols:
            each += load.buffer.dtype.size
    if not each:
        return None
    width = 2 ** ((TARGET.reused // each).bit_length() - 1)
    return None if expr.nonneg(width - row.extent) else width
