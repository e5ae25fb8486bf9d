"""Reverse-mode derivatives of functions that are one op: by the user's rule, or by recomputation.

Recomputation runs the function's ops again, but for those whose results are kept. Always holds: an
op whose result is kept is not run again; an Again op marks each value that is read again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from codegen.errors import UsageError
from codegen.graph.clone import Copier
from codegen.ir.graph import Keeps, Op, Value, free_values
from codegen.ops import Again, Defined, Expect, Print
from codegen.symbolic.expr import Expr, Sym
from codegen.trace.array import Array, as_value, wrap
from codegen.trace.derive.reverse import Reverse, moving


def copier(
    reverse: Reverse, instead: Mapping[Value, Value], symbols: Mapping[Sym, Expr] | None = None,
    every: bool = False,
) -> Copier:
    """Return a Copier that copies ops without what a user would see twice (prints, checks); `every`
    copies that too."""
    return Copier(reverse.context.unique, instead, symbols or {}, () if every else (Print, Expect))


def run_again(
    copies: Copier, ops: Iterable[Op], kept: Mapping[Value, Value]
) -> tuple[list[Op], list[Op]]:
    """Return copies of some ops, and those of the copies that have to run: the others' results are
    kept."""
    every, run = list[Op](), list[Op]()
    for op in copies.chosen(ops):
        copied = copies.op(op)
        if op.results and op.results[0] in kept:  # such an op has one result
            (there,) = (kept[v] for v in op.results)
            copied = replace(copied, results=(there,))
            copies.instead[op.result] = there
        else:
            run.append(copied)
        every.append(copied)
    return every, run


def closure(reverse: Reverse, op: Op) -> list[Value]:
    """Return the active values that an op's regions read from around it."""
    read = (v for region in op.regions for v in free_values(region))
    return [v for v in dict.fromkeys(read) if v in reverse.active]


def saved_by(op: Op) -> int:
    """Return how many of an op's results are values that recomputation takes instead of running
    ops."""
    return op.kind.kept if isinstance(op.kind, Defined) and op.kind.back is None else 0


def _defined(reverse: Reverse, op: Op, result_cotangents: Sequence[Value | None]) -> None:
    context, kind = reverse.context, op.kind
    assert isinstance(kind, Defined)
    if kind.back is None:
        _recompute(reverse, op, result_cotangents)
        return
    if around := [v for v in closure(reverse, op) if v not in op.operands]:
        raise UsageError(
            "a function with its own derivative reads what is differentiated by from around it",
            place=op.place, expected="all of that as arguments",
            found=", ".join(v.name for v in around))
    own = len(result_cotangents) - kind.kept
    if any(result_cotangents[own:]):  # cotangents of what the rule reads, in a second derivative
        _recompute(reverse, op, [*[None] * own, *result_cotangents[own:]])
        result_cotangents = [*result_cotangents[:own], *[None] * kind.kept]
    if not any(result_cotangents):
        return
    operands, results = ([wrap(context, v) for v in values] for values in (op.operands, op.results))
    cotangents = [None if g is None else wrap(context, g) for g in result_cotangents]
    families, before = reverse.shares.families, len(context.blocks[-1].ops)
    families.of.update((g, reverse.shares.reach(v))
                       for v, g in zip(op.results, result_cotangents) if g)
    values = [_cotangent(reverse, op, v, g) for v, g in
              zip(op.operands, kind.back(operands, results, cotangents), strict=True)]
    for emitted in context.blocks[-1].ops[before:] if context.rank_view else ():
        families.op(emitted)
    for v, value in zip(op.operands, values):
        if value is None:
            continue
        have = families.varies(value) - families.varies(v)
        if more := have - reverse.shares.of(v):
            raise UsageError(
                f"a cotangent varies over {', '.join(sorted(more))}, and nothing that its function "
                "is given or gives does", place=op.place, found=f"the cotangent of {v.name}",
                expected="a way back that reads its function's arguments and results only")
        reverse.add(v, value, have)


def _cotangent(reverse: Reverse, op: Op, v: Value, g: Array | None) -> Value | None:
    """Return the cotangent of an operand that a user's rule gives; None if it is not needed. Raise
    UsageError if its shape differs from the operand's."""
    if g is None or v not in reverse.active:
        return None
    value = as_value(reverse.context, g, v.type.dtype)
    if value.type.shape != v.type.shape:
        raise UsageError("a cotangent has another shape than what it is one of",
                         place=op.place, expected=str(v.type), found=str(value.type))
    return value


_numbers = itertools.count()


def _recompute(reverse: Reverse, op: Op, cotangents: Sequence[Value | None]) -> None:
    """Differentiate an op that keeps its operands, and perhaps some values: run its region again,
    then go back through the copy."""
    (region,), context = op.regions, reverse.context
    own = len(op.results) - saved_by(op)
    there = {v: reverse.emit(Again(v.type.shape, next(_numbers)), v)
             for v in (*op.operands, *op.results[own:])}
    fresh = {v: there[v] for v in op.operands}
    kept = {v: there[r] for v, r in zip(region.results[own:], op.results[own:], strict=True)}
    copies = copier(reverse, fresh)
    ops, run = run_again(copies, region.ops, kept)
    reverse.shares.same(copies.instead)
    for v, x in fresh.items():
        reverse.shares.passing(x, v, reverse.shares.of(v))
    context.blocks[-1].ops.extend(run)
    if not reverse.in_turn:
        context.keeps.append(Keeps(tuple(there.values()), None, op.place))
    read = {v: v for v in closure(reverse, op)}
    read |= {v: x for v, x in fresh.items() if v in reverse.active}
    inner = Reverse(context, read.values(), reverse.shares, reverse.in_turn)
    inner.mark(ops)
    for v, r, g in zip(region.results, op.results, cotangents):
        if g is not None and (again := copies.of(v)) in inner.active:
            inner.add(again, g, reverse.shares.reach(r) - reverse.shares.varies(again))
    inner.pull(ops)
    for v, x in read.items():
        if (cotangent := inner.taken(x)) is not None:
            reverse.add(v, cotangent, reverse.shares.of(v))


def _defined_active(reverse: Reverse, op: Op) -> Iterable[Value]:
    reverse.mark(op.regions[0].ops)
    return moving(op)


WAYS_BACK = {Defined: _defined}
ACTIVE_RESULTS = {Defined: _defined_active}
