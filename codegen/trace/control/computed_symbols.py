"""Symbols for integers that the program computes: destinations of messages may depend on them.

Goes in: a 0-d integer array in a formula of the index. Comes out: a Number, defined by a `let` op;
and, when the trace is complete, bounds of such symbols, for the next trace.
Always holds: bounds of a symbol hold in every iteration of every loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from codegen import dtypes
from codegen.graph.computed_formulas import Formulas
from codegen.ir.graph import Module, Op, Region, Value
from codegen.ops import Branch, Const, Full, Let, Loop, Map, Symbolic
from codegen.ops.control import POSITION
from codegen.ops.views import View
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.trace.array import Array, as_value
from codegen.trace.context import Context
from codegen.trace.number import number


@dataclass(frozen=True)
class Bounds:
    """Bounds of a computed integer: its least value, a formula of sizes that it does not exceed,
    and whether it is a power of two."""

    least: int | None = None
    most: Expr | None = None
    power: bool = False


def as_symbol(x: Any, power: bool = True) -> Any:
    """Return x, or a Number for a 0-d integer or bool array. power: assume that it is a power of
    two until a trace has shown whether it is, so that no exchange over such a distance is
    refused."""
    if not isinstance(x, Array) or x.ndim or x.type.dtype.kind not in "biu":
        return x
    context = x.context
    with no_branches(context):
        return number(expr.symbol(_let(context, as_value(context, x, dtypes.INT64), power)))


def say_position(context: Context, x: Any) -> None:
    """Make x, a 0-d integer that ranks agree on, the program's position from here on: a number that
    timelines and messages of lost ranks show in the program's own terms; 0 for nothing."""
    sym = Sym(context.unique("position"), "counter", None, None)
    context.emit(Let(counter=sym, key=POSITION), [as_value(context, x, dtypes.INT64)],
                 place=user_place())


def as_formula(x: Any) -> Any:
    """Return x, or a Number for a 0-d integer array that follows from a formula, such as an element
    of a table of integers or a power; numbers promote as x does."""
    if not isinstance(x, Array) or x.ndim or x.type.dtype.name != "int64":
        return x
    context = x.context

    def defining_op(value: Value) -> Op | None:
        ops = (op for block in reversed(context.blocks) for op in reversed(block.ops))
        return next((op for op in ops if value in op.results), None)

    e = Formulas(defining_op).of(as_value(context, x, dtypes.INT64))
    return x if e is None else number(e, strong=not x.weak)


@contextmanager
def no_branches(context: Context) -> Iterator[None]:
    """Append ops before the formula and not in an arm of its choices, while it is open."""
    inner = context.blocks[context.selecting or len(context.blocks) :]
    del context.blocks[len(context.blocks) - len(inner) :]
    try:
        yield
    finally:
        context.blocks += inner


def _let(context: Context, value: Value, power: bool) -> Sym:
    def define() -> Sym:
        place = user_place()
        key = f"{value.name} {place}"
        # what this capture assumes: program.graph captures again if it turns out wrong
        known = context.assumed_bounds[key] = context.bounds.get(key, Bounds(power=power))
        least = None if known.least is None else expr.const(known.least)
        defining_op = next((op for block in reversed(context.blocks) for op in reversed(block.ops)
                            if value in op.results), None)
        # a value that no variable names is called after its op
        unnamed = defining_op is not None and value.name == defining_op.kind.called
        name = "number" if unnamed else value.name
        divides = expr.POWERS if known.power else 0
        sizes = {a.size_name: a.size for a in context.mesh.axes}  # they may be better known by now
        most = known.most and known.most.subst({s: sizes[s.name] for s in known.most.symbols()})
        sym = Sym(context.unique(name), "counter", least, most, divides)
        context.emit(Let(counter=sym, key=key), [value], place=place)
        return sym

    return context.remember(("let", value), define)


# ---- what is known of them -----------------------------------------------------------------------


def bounds_of(module: Module) -> dict[str, Bounds]:
    """Return the bounds of the integers that `let` ops name, by the keys of the ops."""
    work = _Induction()
    work.region(module.body)
    out: dict[str, Bounds] = {}
    for op in work.lets:
        assert isinstance(op.kind, Let)
        value, key = op.operands[0], op.kind.key
        if key == POSITION:  # it stands in no formula
            continue
        new = work.of(value)
        new = Bounds(new.least, work.most.get(value), new.power)
        out[key] = _weakest(out[key], new) if key in out else new
    return out


def _weakest(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds that hold for both integers."""
    least = None if a.least is None or b.least is None else min(a.least, b.least)
    return Bounds(least, a.most if a.most == b.most else None, a.power and b.power)


_NOTHING = Bounds()


class _Induction:
    """Finds bounds by induction: a bound of a carried value that holds before a loop holds in all
    iterations, if an iteration that begins with it also ends with it."""

    def __init__(self) -> None:
        self.definitions: dict[Value, tuple[Op, int]] = {}
        self.carried: dict[Value, tuple[Value, Value]] = {}  # argument -> at entry, after a pass
        self.known: dict[Value, Bounds] = {}
        self.most: dict[Value, Expr] = {}  # of arguments of bodies: what the test says
        self.lets: list[Op] = []
        self.named: dict[Sym, Value] = {}

    def region(self, region: Region) -> None:
        for op in region.ops:
            for k, value in enumerate(op.results):
                self.definitions[value] = op, k
            if isinstance(op.kind, Let):
                self.lets.append(op)
                self.named[op.kind.counter] = op.operands[0]
            for inner in op.regions:
                if isinstance(op.kind, Loop):
                    body = op.regions[-1]
                    for row in zip(inner.args, op.operands, body.results, strict=True):
                        self.carried[row[0]] = row[1:]
                self.region(inner)
            if isinstance(op.kind, Loop) and len(op.regions) == 2:
                self._note_test_bounds(*op.regions)

    def _note_test_bounds(self, test: Region, body: Region) -> None:
        """Note upper bounds of the body's arguments from a loop's test, such as `d < n` of a size
        n."""
        todo = list(test.results)
        while todo:
            op, _ = self.definitions.get(todo.pop(), (None, 0))
            if op is None or not isinstance(op.kind, Map):
                continue
            fn, operands = op.kind.fn, op.operands
            if fn == "logical_and":
                todo += operands
            if fn in ("gt", "ge"):
                fn, operands = {"gt": "lt", "ge": "le"}[fn], operands[::-1]
            if fn not in ("lt", "le") or operands[0] not in test.args:
                continue
            bound = self._formula(operands[1])
            if bound is not None:
                argument = body.args[test.args.index(operands[0])]
                self.most[argument] = bound - (fn == "lt")

    def _formula(self, value: Value) -> Expr | None:
        """Return a value as a formula of sizes; None if it is none."""
        op, _ = self.definitions.get(value, (None, 0))
        if op is None or not isinstance(op.kind, (Symbolic, Full)):
            return None
        e = op.kind.value
        if not isinstance(e, (int, Expr)) or isinstance(e, bool):
            return None
        e = expr.as_expr(e)
        return e if all(s.kind == "size" for s in e.symbols()) else None

    def of(self, value: Value) -> Bounds:
        if value not in self.known:
            self.known[value] = _NOTHING  # while it is looked for; carried ones assume more
            self.known[value] = self._carried(value) if value in self.carried else self._op(value)
        return self.known[value]

    def _carried(self, value: Value) -> Bounds:
        entry, after = self.carried[value]
        assumed = self.of(entry)
        while assumed != _NOTHING:
            outside = dict(self.known)
            self.known[value] = assumed
            held = self.of(after)
            self.known = outside  # what was found under the assumption is not known
            least, start = held.least, assumed.least
            stays = least is not None and start is not None and least >= start
            new = Bounds(start if stays else None, None, assumed.power and held.power)
            if new == assumed:
                break
            assumed = new
        return assumed

    def _op(self, value: Value) -> Bounds:
        op, k = self.definitions.get(value, (None, 0))
        if op is None:
            return _NOTHING
        kind = op.kind
        if isinstance(kind, Loop):
            return self._carried(op.regions[-1].args[k])
        if isinstance(kind, Branch):
            return _all([self.of(arm.results[k]) for arm in op.regions])
        if isinstance(kind, Const):
            data = kind.data
            if not data.size or data.dtype.kind not in "biu":
                return _NOTHING
            return _all([_number(int(n)) for n in data.ravel()]) if data.size < 65 else _NOTHING
        if isinstance(kind, Full):
            return _number(kind.value) if isinstance(kind.value, int) else _NOTHING
        if isinstance(kind, Symbolic):
            e = kind.value
            least = next((b for b in (1, 0) if expr.nonneg(e - b)), None)
            (sym,) = e.atoms() if len(e.atoms()) == 1 else (None,)
            power = isinstance(sym, Sym) and sym.divides == expr.POWERS and e == expr.symbol(sym)
            if sym in self.named and e == expr.from_atom(sym):
                return self.of(self.named[sym])
            return _number(e.value) if e.is_const else Bounds(least, None, power)
        if isinstance(kind, View):
            return self.of(op.operands[0])
        return self._map(kind.fn, op.operands) if isinstance(kind, Map) else _NOTHING

    def _map(self, fn: str, operands: tuple[Value, ...]) -> Bounds:
        parts = [self.of(x) if x.type.dtype.kind in "biu" else _NOTHING for x in operands]
        if fn == "select":
            return _all(parts[1:])
        return Bounds(_least(fn, [p.least for p in parts]), None, _power(fn, parts))


def _number(n: int) -> Bounds:
    return Bounds(n, None, n > 0 and n & (n - 1) == 0)


def _all(values: list[Bounds]) -> Bounds:
    out = values[0]
    for value in values[1:]:
        out = _weakest(out, value)
    return out


def _least(fn: str, low: list[int | None]) -> int | None:
    if fn in ("abs", "square"):
        return 0
    if fn == "mod" and low[1] is not None and low[1] > 0:
        return 0
    if fn == "maximum":
        return max((b for b in low if b is not None), default=None)
    if any(b is None for b in low) or fn not in _RISING:
        return None
    known = [b for b in low if b is not None]
    if fn not in ("add", "minimum", "cast") and min(known) < 0:
        return None
    return int(_RISING[fn](*known))


def _power(fn: str, parts: list[Bounds]) -> bool:
    """Return whether the result of an operation on powers of two is one. A product beyond 64 bits
    is not, but it is no distance between ranks either."""
    if fn == "shl":
        return parts[0].power and parts[1].least is not None and parts[1].least >= 0
    return fn in ("mul", "cast", "minimum", "maximum") and all(p.power for p in parts)


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
