"""Integers that the program computes, as symbols: where messages go may depend on them.

Goes in: a 0-d integer array that stands in a formula of the index. Comes out: a Number, defined by
a `let` op; and, when the trace is complete, how small such symbols may be, for the next trace.
Always holds: what is said of a symbol holds in every pass of every loop.
"""

from __future__ import annotations

from typing import Any

from codegen import dtypes, expr
from codegen.expr import Sym
from codegen.ir import Module, Op, Region, Value
from codegen.ops import OPS
from codegen.trace.array import Array, as_value
from codegen.trace.context import Context, user_place
from codegen.trace.number import number


def as_symbol(x: Any) -> Any:
    """x, or a Number for a 0-d integer or bool array."""
    if not isinstance(x, Array) or x.ndim or x.type.dtype.kind not in "biu":
        return x
    context = x.context
    inner = context.blocks[context.selecting or len(context.blocks) :]
    del context.blocks[len(context.blocks) - len(inner) :]  # a choice in a formula is no branch
    try:
        return number(expr.symbol(_let(context, as_value(context, x, dtypes.INT64))))
    finally:
        context.blocks += inner


def _let(context: Context, value: Value) -> Sym:
    def define() -> Sym:
        place = user_place()
        key = f"{value.name} {place}"
        least = context.least.get(key)
        lo = None if least is None else expr.const(least)
        name = "number" if value.name in OPS else value.name  # named by no variable
        sym = Sym(context.unique(name), "counter", lo)
        context.emit("let", [value], {"counter": sym, "key": key}, place=place)
        return sym

    return context.remember(("let", value), define)


# ---- how small they may be -----------------------------------------------------------------------


def least(module: Module) -> dict[str, int]:
    """Lower bounds of what `let` ops name, by their keys; nothing where none is known."""
    work = _Least()
    work.region(module.body)
    out: dict[str, int | None] = {}
    for op in work.lets:
        bound, key = work.of(op.operands[0]), op.attrs["key"]
        before = out.get(key, bound)
        out[key] = None if bound is None or before is None else min(bound, before)
    return {key: bound for key, bound in out.items() if bound is not None}


class _Least:
    """Lower bounds by induction: a carried value is at least what it was before the loop, if a pass
    that assumes this leaves it so."""

    def __init__(self) -> None:
        self.made: dict[Value, tuple[Op, int]] = {}
        self.carried: dict[Value, tuple[Value, Value]] = {}  # argument -> at entry, after a pass
        self.known: dict[Value, int | None] = {}
        self.lets: list[Op] = []

    def region(self, region: Region) -> None:
        for op in region.ops:
            for k, value in enumerate(op.results):
                self.made[value] = op, k
            if op.kind == "let":
                self.lets.append(op)
            for inner in op.regions:
                if op.kind == "loop":
                    body = op.regions[-1]
                    for row in zip(inner.args, op.operands, body.results, strict=True):
                        self.carried[row[0]] = row[1:]
                self.region(inner)

    def of(self, value: Value) -> int | None:
        if value not in self.known:
            self.known[value] = None  # while it is looked for; carried ones assume more
            self.known[value] = self._carried(value) if value in self.carried else self._op(value)
        return self.known[value]

    def _carried(self, value: Value) -> int | None:
        entry, after = self.carried[value]
        start = self.of(entry)
        if start is None:
            return None
        outside = dict(self.known)
        self.known[value] = start
        held = self.of(after)
        self.known = outside  # what was found under the assumption is not known
        return start if held is not None and held >= start else None

    def _op(self, value: Value) -> int | None:
        op, k = self.made.get(value, (None, 0))
        if op is None:
            return None
        if op.kind == "loop":
            return self._carried(op.regions[-1].args[k])
        if op.kind == "branch":
            return _smallest([self.of(arm.results[k]) for arm in op.regions])
        a = op.attrs
        if op.kind == "const":
            data = a["data"]
            return int(data.min()) if data.size and data.dtype.kind in "biu" else None
        if op.kind == "full":
            return int(a["value"]) if isinstance(a["value"], int) else None
        if op.kind == "expr":
            return next((b for b in (1, 0) if expr.nonneg(a["value"] - b)), None)
        if op.kind in ("reshape", "broadcast", "slice", "transpose", "roll"):
            return self.of(op.operands[0])
        return self._map(a["fn"], op.operands) if op.kind == "map" else None

    def _map(self, fn: str, operands: tuple[Value, ...]) -> int | None:
        low = [self.of(x) if x.type.dtype.kind in "biu" else None for x in operands]
        if fn in ("abs", "square"):
            return 0
        if fn == "mod" and low[1] is not None and low[1] > 0:
            return 0
        if fn == "maximum":
            return max((b for b in low if b is not None), default=None)
        if fn == "select":
            return _smallest(low[1:])
        if any(b is None for b in low) or fn not in _RISING:
            return None
        known = [b for b in low if b is not None]
        if fn not in ("add", "minimum", "cast") and min(known) < 0:
            return None
        return int(_RISING[fn](*known))


# Functions that rise with each operand; but for the first three only where none is negative.
_RISING: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "minimum": min,
    "cast": lambda a: a,
    "mul": lambda a, b: a * b,
    "shl": lambda a, b: a << min(b, 62),
    "shr": lambda a, b: 0,
    "pow": lambda a, b: min(a, 1),
    "floordiv": lambda a, b: 0,
    "bit_and": lambda a, b: 0,
    "bit_or": max,
}


def _smallest(values: list[int | None]) -> int | None:
    known = [b for b in values if b is not None]
    return min(known) if known and len(known) == len(values) else None
