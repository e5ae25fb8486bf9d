"""Ops once more, with other values and other symbols in the place of those that they name.

Always holds: loops and computed integers in a copy count with symbols of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from codegen.ir.graph import ArrayType, Op, Region, Value
from codegen.ops import Kind
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, IntLike, Sym

T = TypeVar("T")


class Copier:
    """Copy ops with other values and symbols. instead: of values that are named outside of what is
    copied, and then of those that it makes. symbols: of counters. fresh: a name that no symbol has,
    from a hint. without: kinds that are left out."""

    def __init__(
        self, fresh: Callable[[str], str], instead: Mapping[Value, Value],
        symbols: Mapping[Sym, IntLike], without: tuple[type[Kind], ...] = (),
    ) -> None:
        self.without = without
        self.fresh, self.instead, self.symbols = fresh, dict(instead), dict(symbols)

    def of(self, value: Value) -> Value:
        return self.instead.get(value, value)

    def ops(self, ops: Iterable[Op]) -> list[Op]:
        return [self.op(op) for op in self.chosen(ops)]

    def chosen(self, ops: Iterable[Op]) -> Iterator[Op]:
        """Yield the ops that are not left out."""
        return (op for op in ops if not isinstance(op.kind, self.without))

    def op(self, op: Op) -> Op:
        operands = tuple(map(self.of, op.operands))
        counter = op.kind.counts()
        if counter is not None:
            low, high = (None if e is None else e.subst(self.symbols)
                         for e in (counter.lo, counter.hi))
            own = Sym(self.fresh(counter.name), counter.kind, low, high, counter.divides)
            self.symbols[counter] = expr.symbol(own)
        kind = said_with(op.kind, self.symbols, own if counter is not None else None)
        regions = tuple(map(self.region, op.regions))
        results = tuple(map(self.value, op.results))
        return Op(kind, operands, results, regions, op.place)

    def region(self, region: Region) -> Region:
        args = tuple(map(self.value, region.args))
        ops = tuple(self.ops(region.ops))
        return Region(args, ops, tuple(map(self.of, region.results)))

    def value(self, value: Value) -> Value:
        copy = Value(value.name, said_with(value.type, self.symbols))
        self.instead[value] = copy
        return copy


def said_with(what: T, symbols: Mapping[Sym, IntLike], counter: Sym | None = None) -> T:
    """Return a kind with other symbols in its formulas. counter: that it counts with, of an op's
    kind that does."""
    if not symbols:
        return what
    return _said(what, symbols, counter)  # type: ignore[no-any-return]


def _said(what: Any, symbols: Mapping[Sym, IntLike], counter: Sym | None) -> Any:
    if isinstance(what, Expr):
        return what.subst(symbols)
    if isinstance(what, ArrayType):
        return replace(what, shape=tuple(e.subst(symbols) for e in what.shape))
    if isinstance(what, (tuple, list)):
        parts = [_said(part, symbols, None) for part in what]
        return type(what)(*parts) if hasattr(what, "_fields") else type(what)(parts)
    if isinstance(what, Sym):
        return what if counter is None else counter
    if isinstance(what, Kind):
        now = {f.name: getattr(what, f.name) for f in fields(what)}  # type: ignore[arg-type]
        new = {k: _said(v, symbols, counter if k == "counter" else None) for k, v in now.items()}
        return what.but(**new) if any(new[k] is not now[k] for k in now) else what
    return what
