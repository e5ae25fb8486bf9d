"""Loops in strips, where what is read runs across what is written: b[i, j] = a[j, i].

Goes in: a Store of a Plan. Comes out: the same Store over other loops.
Always holds: the same points; whole lines of the cache are read while they are in it, not one
element of each line of a column that is gone before the next column needs it.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.ir.indexing import affine, leaves
from codegen.ir.plan import Apply, Load, Node, Store, Var
from codegen.loops.collapse import moved
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

NEAR = TARGET.line // 8  # elements of 8 bytes: what lies so far apart is in the same lines
# A library's or a vector's function takes longer than memory does.
_QUICK = frozenset(
    "add sub mul square neg cast conj real imag select minimum maximum abs eq ne lt le gt ge "
    "logical_and logical_or logical_not bit_and bit_or invert".split()
)


def in_strips(work: Store) -> Store:
    """Let the dim along which an operand is contiguous run innermost, a line of the cache at a
    time, within the one along which the result is."""
    long = [v for v in work.loops if v.extent != 1]
    found = _across(work, long)
    if found is None:
        return work
    across, width = found
    block = Var(Sym(f"{across.sym.name}_strip", "var", expr.const(0), across.extent - 1),
                -(-across.extent // width))
    begin = expr.symbol(block.sym) * width if block.extent != 1 else expr.const(0)
    extent = expr.minimum(across.extent - begin, width)
    if across.extent.is_const and across.extent.value % width == 0:
        extent = expr.const(width)
    inner = Var(Sym(across.sym.name, "var", expr.const(0), expr.const(width - 1)), extent)
    loops = tuple(block if v is across else v for v in long) + (inner,)
    change = {across.sym: begin + expr.symbol(inner.sym)}
    return replace(work, loops=loops, offset=work.offset.subst(change),
                   value=moved(work.value, change))


def _across(work: Store, long: list[Var]) -> tuple[Var, int] | None:
    """Return the loop that runs along an operand which the last loop runs across, and elements of a
    line; None where there is none, or points must be stored in order."""
    if len(long) < 2 or work.combine != "set" or work.bounds or work.waiting or work.rows:
        return None
    found = None
    for load in leaves(work.value):
        if not isinstance(load, Load):
            continue
        if load.buffer is work.buffer and load.offset != work.offset:
            return None
        if found is None and not _is_near(load.offset, long[-1]):
            at = affine(load.offset, long)
            strides = at[1] if at is not None else ()
            beside = [v for v, stride in zip(long, strides) if stride in (1, -1)]
            if beside:
                found = beside[-1], TARGET.line // load.buffer.dtype.size
    target = affine(work.offset, long) if found and is_quick(work.value) else None
    return found if target is not None and target[1][-1] == 1 else None


def _is_near(offset: Expr, v: Var) -> bool:
    """Return whether two turns of a loop touch the same cache lines."""
    if v.sym not in offset.symbols():
        return True
    stride = offset.subst({v.sym: 1}) - offset.subst({v.sym: 0})
    return stride.is_const and abs(stride.value) <= NEAR


def is_quick(node: Node) -> bool:
    """Return whether memory takes longer than computing it, at positions known from loops."""
    if isinstance(node, Apply):
        return node.fn in _QUICK and all(map(is_quick, node.args))
    return not getattr(node, "bounds", ())
