"""Which integers that a program computes are formulas of sizes, positions, scalars, counters.

Goes in: a Module. Comes out: formulas of the symbols that its `let` ops name, where there are some:
for those who evaluate messages without running the program.
Always holds: a formula gives, on every rank and in every turn, what the program computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from codegen.ir.graph import Module, Op, Value, walk
from codegen.ops import Broadcast, Const, Full, Let, Map, Reshape, Slice, Symbolic
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

MOST_TERMS = 16  # a formula has a term for each element of a table of no more
MOST_ELEMENTS = 2048  # of a table that stands in a formula
MOST_BITS = 62

_MAPS: Mapping[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "neg": lambda a: -a, "floordiv": expr.floordiv, "mod": expr.mod,
    "minimum": expr.minimum, "maximum": expr.maximum, "select": expr.select,
    "eq": expr.eq, "ne": expr.ne, "lt": expr.lt, "le": expr.le, "gt": expr.gt, "ge": expr.ge,
    "logical_and": expr.and_, "logical_or": expr.or_, "logical_not": expr.not_,
}


def let_formulas(module: Module) -> dict[Sym, Expr]:
    """Return, by symbol of a `let`, the formula of what it names, where that has one."""
    ops = [op for region in module.regions for op in walk(region)]
    work = Formulas({v: op for op in ops for v in op.results}.get)
    formulas: dict[Sym, Expr] = {}
    for op in ops:
        if isinstance(op.kind, Let) and (e := work.of(op.operands[0])) is not None:
            formulas[op.kind.counter] = e.subst(formulas)
    return formulas


def looked_up(data: np.ndarray, index: list[Expr]) -> Expr | None:
    """Return the formula of data[index]: a sum over its elements where they are few, so that a
    prover meets each one; None where the index may lie beyond its ends, or the table is large."""
    if data.size > MOST_ELEMENTS or not all(
            expr.nonneg(e) and expr.nonneg(n - 1 - e)
            for e, n in zip(index, data.shape, strict=True)):
        return None
    if data.size > MOST_TERMS:
        position = expr.const(0)
        for e, n in zip(index, data.shape, strict=True):
            position = position * n + e
        return expr.table(position, *(int(value) for value in data.ravel()))
    total = expr.const(0)
    for place in np.ndindex(*data.shape):
        here = expr.const(int(data[place]))
        for e, k in zip(index, place, strict=True):
            here = here * expr.eq(e, k)
        total = total + here
    return total


def power(base: int, exponent: Expr) -> Expr | None:
    """Return the formula of base**exponent, where the exponent is no less than 0 and has a bound
    below which the power is a 64-bit integer; else None."""
    most = next((k for k in range(MOST_BITS + 1) if expr.nonneg(k - exponent)), None)
    if most is None or abs(base) ** most >= 1 << MOST_BITS:
        return None
    return looked_up(np.array([base**k for k in range(most + 1)]), [exponent])


class Formulas:
    """Finds the formulas of values. `definition` returns the op that computes a value, or None if
    no op does."""

    def __init__(self, definition: Callable[[Value], Op | None]) -> None:
        self.definition, self.known = definition, dict[Value, Expr | None]()

    def of(self, value: Value) -> Expr | None:
        """Return the formula of an integer or a truth value; None where it has none."""
        if value not in self.known:
            op = self.definition(value)
            numbers = value.type.dtype.kind in "bi" and value.type.dtype.size in (1, 8)
            single = all(e == 1 for e in value.type.shape)
            self.known[value] = self._op(op) if op is not None and numbers and single else None
        return self.known[value]

    def _op(self, op: Op) -> Expr | None:
        kind = op.kind
        if isinstance(kind, Symbolic):
            return kind.value
        if isinstance(kind, Full):
            whole = isinstance(kind.value, (bool, int, Expr)) and not kind.blank
            return expr.as_expr(kind.value) if whole else None
        if isinstance(kind, Const):
            return expr.const(int(kind.data.reshape(())))
        if isinstance(kind, Reshape | Broadcast):
            return self.of(op.operands[0])
        if isinstance(kind, Slice):
            return self._element(op.operands[0], list(kind.start))
        return self._map(kind.fn, op) if isinstance(kind, Map) else None

    def _element(self, value: Value, index: list[Expr]) -> Expr | None:
        """Return the formula of an element; None where it has none."""
        op = self.definition(value)
        kind = None if op is None else op.kind
        if isinstance(kind, Const):
            return looked_up(kind.data, index)
        if op is not None and isinstance(kind, Slice):
            inside = [a + k * e for a, k, e in zip(kind.start, kind.step, index, strict=True)]
            return self._element(op.operands[0], inside)
        if op is not None and isinstance(kind, Reshape):
            shape, rest = op.operands[0].type.shape, zip(value.type.shape, index, strict=True)
            kept = [(n, e) for n, e in rest if n != 1]
            if [n for n in shape if n != 1] == [n for n, _ in kept]:
                places = iter(kept)
                return self._element(op.operands[0], [
                    expr.const(0) if n == 1 else next(places)[1] for n in shape])
        return self.of(value)

    def _map(self, fn: str, op: Op) -> Expr | None:
        parts = [self.of(v) for v in op.operands]
        known = [e for e in parts if e is not None]
        if len(known) < len(parts):
            return None
        if fn == "cast":
            e, to_bool = known[0], op.result.type.dtype.kind == "b"
            return expr.ne(e, 0) if to_bool and op.operands[0].type.dtype.kind != "b" else e
        if fn in ("shl", "pow") and known[0].is_const:
            base = known[0].value
            return power(2, known[1]) if fn == "shl" and base == 1 else (
                power(base, known[1]) if fn == "pow" else None)
        return _MAPS[fn](*known) if fn in _MAPS else None
