"""Strip-mining: a store that reads across what it writes, b[i, j] = a[j, i], reads in short strips.

Goes in: a Store of a Plan. Comes out: the same Store over other loops.
Always holds: the same points in another order. Whole cache lines are read while they are in the
cache; without strips, a line of a column is evicted before the next column needs it.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.ir.accesses import accesses
from codegen.ir.indexing import long_loops
from codegen.ir.plan import Store, Var
from codegen.loops.collapse import substituted
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym
from codegen.target import TARGET

NEAR = TARGET.line // 8  # elements of 8 bytes: what lies so far apart is in the same lines


def is_legal(work: Store) -> bool:
    """Return whether a store may visit its points in any order: each assigns an element of its own,
    and reads no element that another one assigns."""
    own = (a for a in accesses(work) if a.buffer is work.buffer)
    return work.is_plain and all(a.offset == work.offset for a in own)


def strip_mine(work: Store, loop: Var, width: int) -> Store:
    """Return a store that goes through `width` iterations of a loop at a time, innermost, in every
    iteration of the loops that were inside it."""
    block = Var(Sym(f"{loop.sym.name}_strip", "var", expr.const(0), loop.extent - 1),
                -(-loop.extent // width))
    begin = expr.symbol(block.sym) * width if block.extent != 1 else expr.const(0)
    extent = expr.minimum(loop.extent - begin, width)
    if loop.extent.is_const and loop.extent.value % width == 0:
        extent = expr.const(width)
    inner = Var(Sym(loop.sym.name, "var", expr.const(0), expr.const(width - 1)), extent)
    loops = tuple(block if v is loop else v for v in long_loops(work.loops)) + (inner,)
    change = {loop.sym: begin + expr.symbol(inner.sym)}
    return replace(work, loops=loops, offset=work.offset.subst(change),
                   value=substituted(work.value, change))
