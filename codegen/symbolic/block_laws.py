"""The beginnings of balanced blocks: begin(k, e, n) is one call, and these are its laws.

Block k of n of a dim of e elements begins at k * (e // n) + min(k, e % n), as numpy.array_split
cuts; its extent is begin(k + 1, e, n) - begin(k, e, n): e // n, or one more where k < e % n.
Always holds: for e, n >= 0 begin rises with k by e // n to -(-e // n) a step; extents fall with k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from functools import cache

from codegen.symbolic.terms import (
    CONSTRUCT,
    Call,
    Expr,
    Sym,
    calls,
    const,
    from_atom,
    linear_in,
    replace,
)

BY_PARTS = "begins"  # of k, e // n, e % n: what C computes it from


def begins(e: Expr) -> list[Call]:
    """Return every beginning of a block in e, inner ones too."""
    return [c for c in calls(e) if c.op == "begin"] if e.has_blocks else []


def alike(a: Call, b: Call) -> bool:
    """Return whether both begin blocks of the same dim."""
    return a is not b and a.op == b.op == "begin" and a.args[1:] == b.args[1:]


def after(call: Call) -> Call | None:
    """Return the end of the block that begins here, as a call; None where that is another
    formula."""
    k, extent, blocks = call.args
    end = CONSTRUCT["begin"](k + 1, extent, blocks)
    atom = next(iter(end.atoms()), None)
    return atom if isinstance(atom, Call) and end is from_atom(atom) else None


def extents(e: Expr) -> Iterator[tuple[Call, Expr, Expr]]:
    """Yield (call, slope, rest) of e = slope * (extent of the block that begins at call) + rest."""
    beginnings = sorted((a for a in e.atoms() if isinstance(a, Call) and a.op == "begin"),
                        key=lambda a: a.order)
    for call in beginnings:
        end = after(call)
        if end not in beginnings:
            continue
        slope, rest = linear_in(e, end)
        less, rest = linear_in(rest, call)
        if slope is not None and less is not None and slope + less == 0:
            yield call, slope, rest


@cache
def opened(e: Expr, nesting: int = 0) -> Expr:
    """Return e without calls of `begin`, with quotients, remainders and comparisons instead.
    nesting: how many proofs are being searched for, which bounds the work on normal forms."""
    beginnings = begins(e)
    forms: dict[Call, Expr] = {}

    def form(call: Call) -> Expr:
        if call not in forms:
            k, extent, blocks = (opened(a, nesting) for a in call.args)
            each, left = extent // blocks, extent % blocks
            before = next((c for c in beginnings if alike(c, call)
                           and call.args[0] - c.args[0] == 1),
                          None)
            if before is None:
                forms[call] = k * each + CONSTRUCT["min"](k, left)
            else:
                forms[call] = form(before) + each + CONSTRUCT["ge0"](left - k)
        return forms[call]

    return replace(e, {call: form(call) for call in beginnings}) if beginnings else e


def evened(e: Expr, sign: int) -> Expr:
    """Return an estimate of e in which every block has the extent of the longest of its dim (sign
    1), or of the shortest (-1)."""
    beginnings, ends = begins(e), {}
    for call in beginnings:
        _, extent, blocks = call.args
        if (end := after(call)) in beginnings:
            longest = CONSTRUCT["begin"](const(1), extent, blocks)
            ends[end] = from_atom(call) + (longest if sign > 0 else extent // blocks)
    return replace(e, ends)


def written(e: Expr, moving: Set[Sym] | None = None) -> Expr:
    """Return e in the form in which it is computed: the extent of a block becomes e // n + (k < e %
    n), without `begin`. moving: change only blocks whose number depends on one of these symbols;
    None: all."""
    if e.has_blocks:
        for call, slope, rest in extents(e):
            k, extent, blocks = call.args
            if moving is None or k.symbols() & moving:
                longer = CONSTRUCT["ge0"](extent % blocks - 1 - k)
                return written(slope * (extent // blocks + longer) + rest, moving)
    return e


def by_parts(call: Call) -> Call:
    """Return a `begin` as a call whose arguments are the quotient and remainder of extent //
    blocks, which code outside a loop over blocks computes in advance."""
    if call.op != "begin":
        return call
    k, extent, blocks = call.args
    return Call(BY_PARTS, (k, extent // blocks, extent % blocks))


def bounds(call: Call, e: Expr, sign: int, nonneg: Callable[[Expr], bool]) -> list[Expr]:
    """Return lower (sign 1) or upper bounds (-1) of a beginning in e."""
    k, extent, blocks = call.args
    if not (nonneg(extent) and nonneg(blocks)):
        return []
    out = []
    for other in sorted((a for a in e.atoms() if isinstance(a, Call)), key=lambda a: a.order):
        if not alike(call, other):
            continue
        steps = k - other.args[0]
        if steps.is_const:
            up = (steps.value > 0) == (sign < 0)
            each = CONSTRUCT["begin"](const(1), extent, blocks) if up else extent // blocks
            out.append(from_atom(other) + steps * each)
        elif nonneg(steps * sign):
            out.append(from_atom(other))
    if nonneg(k if sign > 0 else blocks - k):
        out.append(const(0) if sign > 0 else extent)
    return out
