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
        kind = with_symbols(op.kind, self.symbols, own if counter is not None else None)
        regions = tuple(map(self.region, op.regions))
        results = tuple(map(self.value, op.results))
        return Op(kind, operands, results, regions, op.place)

    def region(self, region: Region) -> Region:
        args = tuple(map(self.value, region.args))
        ops = tuple(self.ops(region.ops))
        return Region(args, ops, tuple(map(self.of, region.results)))

    def value(self, value: Value) -> Value:
        copy = Value(value.name, with_symbols(value.type, self.symbols))
        self.instead[value] = copy
        return copy


def with_symbols(node: T, symbols: Mapping[Sym, IntLike], counter: Sym | None = None) -> T:
    """Return a kind, or a type, with other symbols in its formulas. counter: the new counter of a
    kind that counts."""
    if not symbols:
        return node
    return _substituted(node, symbols, counter)  # type: ignore[no-any-return]


def _substituted(node: Any, symbols: Mapping[Sym, IntLike], counter: Sym | None) -> Any:
    if isinstance(node, Expr):
        return node.subst(symbols)
    if isinstance(node, ArrayType):
        return replace(node, shape=tuple(e.subst(symbols) for e in node.shape))
    if isinstance(node, (tuple, list)):
        parts = [_substituted(part, symbols, None) for part in node]
        return type(node)(*parts) if hasattr(node, "_fields") else type(node)(parts)
    if isinstance(node, Sym):
        return node if counter is None else counter
    if isinstance(node, Kind):
        now = {f.name: getattr(node, f.name) for f in fields(node)}  # type: ignore[arg-type]
        new = {k: _substituted(v, symbols, counter if k == "counter" else None)
               for k, v in now.items()}
        return node.but(**new) if any(new[k] is not now[k] for k in now) else node
    return node
