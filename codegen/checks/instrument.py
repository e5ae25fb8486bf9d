"""Puts checks behind ops: NaN or infinity where there was none, integers that overflow.

Goes in: a Program, and which checks it asks for. Comes out: the same with an `expect` behind every
op that may go wrong. What is only ever one choice of a np.where is checked where it is chosen.
Always holds: what the Program computes does not change; a check reads what is local to a rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen import dtypes
from codegen.graph.builder import Builder
from codegen.ir.graph import Module, Op, Region, Use, Value
from codegen.ops import POSITION, Expect, Map, Reduce

# Functions of which the result is no finite number where this operand is none.
_SPREAD = frozenset(
    [(fn, k) for fn in ("add", "sub", "mul") for k in (0, 1)]
    + [(fn, 0) for fn in "div neg abs square sqrt cast conj sin cos".split()]
)
_BOTH = ("logical_and", "bit_and")


def instrument(program: Module) -> Module:
    """Return the Program with the checks `nan` and `overflow` that it asks for."""
    if not {"nan", "overflow"} & set(program.checks):
        return program
    return program.mapped(Instrument(program).region)


class Instrument(Builder):
    """Builds the checks of a Program. The rules of op kinds call its methods to state what must
    hold."""

    def __init__(self, program: Module) -> None:
        super().__init__("check")
        self.program = program
        self.defs, self.uses = program.def_use.defs, program.def_use.uses
        self.optional: dict[Value, bool] = {}

    def region(self, region: Region) -> Region:
        with self.inside() as ops:
            for op in region.ops:
                ops.append(op.mapped(self.region))
                self.place = op.place
                for value in () if op.regions else op.results:
                    if "nan" in self.program.checks and value.type.dtype.kind in "fc":
                        self.finite(op, value)
                    if "overflow" in self.program.checks:
                        self.exact(op, value)
        return region.with_ops(ops)

    # ---- building --------------------------------------------------------------------------------

    def every(self, fn: str, values: Sequence[Value], join: str = "logical_and") -> Value:
        """Return fn of all values, combined elementwise by `join`."""
        total = self.map(fn, values[0])
        for v in values[1:]:
            total = self.map(join, total, self.map(fn, v))
        return total

    def unless(self, value: Value, was: Value) -> Value:
        """Return, per element, whether a value is finite or `was` (an operand was already not
        finite) holds."""
        return self.map("logical_or", self.map("isfinite", value), was)

    def not_finite(self, value: Value) -> Value:
        return self.map("logical_not", self.map("isfinite", value))

    def any_of(self, value: Value, dims: Sequence[int]) -> Value:
        return self.emit(Reduce("or", tuple(dims)), (value,)) if dims else value

    def floats(self, op: Op) -> list[Value]:
        """Return the operands of an op, cast to float64."""
        return [self.cast(v, dtypes.FLOAT64) for v in op.operands]

    def expect(self, check: str, value: Value, holds: Value, message: str, remedy: str) -> None:
        """Add an `expect` that `holds` is true for every element of a value."""
        place: tuple[str, ...] = ()
        start = self.program.starts.get(value) if value.type.ndim else None
        if value.type.ndim:
            whose = "of the array" if start is not None else "of this rank's part"
            place = (" (element ", POSITION, f" {whose})")
        text = (f"{message}{place[0]}", *place[1:]) if place else (message,)
        kind = Expect((*text[:-1], f"{text[-1]}\n  try:      {remedy}"), start, check)
        self.add(kind, (holds,))

    # ---- NaN and infinities ----------------------------------------------------------------------

    def finite(self, op: Op, value: Value) -> None:
        """Add the check that a result is finite wherever its operands are."""
        holds = None if self.is_later(value) else op.kind.finite(op, value, self)
        if holds is not None:
            chosen = isinstance(op.kind, Map) and op.kind.fn != "select"
            part = chosen and any(map(self.is_later, op.operands))
            self.expect(
                "nan", value, holds,
                f"{'this expression' if part else op.kind.title()} makes a NaN or an infinity "
                "where there was none",
                "np.where(condition, value, other) where it is not wanted; "
                "run --check=bounds,equal looks for no NaN",
            )

    def is_optional(self, value: Value) -> bool:
        """Return whether a value is only used as one choice of a np.where, or in computing such a
        choice; or in a truth value that is combined by `and` with another one."""
        if value not in self.optional:
            op, uses = self.defs.get(value), self.uses.get(value, ())
            self.optional[value] = False  # of what follows from itself
            self.optional[value] = (
                bool(uses) and op is not None and isinstance(op.kind, Map)
                and all(map(self.is_choice, uses))
            )
        return self.optional[value]

    def is_choice(self, use: Use) -> bool:
        if use.op is None or not isinstance(use.op.kind, Map):
            return False
        fn, result = use.op.kind.fn, use.op.result
        return ((fn == "select" and use.operand > 0) or self.is_optional(result)
                or (fn in _BOTH and result.type.dtype.kind == "b"))

    def is_later(self, value: Value) -> bool:
        """Return whether a value is checked as part of the value that it goes into: it is optional,
        or a part of an expression on one line whose result is not finite where this part is not."""
        if self.is_optional(value):
            return True
        op, uses = self.defs.get(value), self.uses.get(value, ())
        if value.type.dtype.kind not in "fc" or op is None or len(uses) != 1:
            return False
        use, k = uses[0].op, uses[0].operand
        if use is None or not isinstance(op.kind, Map) or not isinstance(use.kind, Map):
            return False
        if op.kind.fn == "of_order_key":  # what was sorted, a NaN perhaps
            return False
        same_line = op.place and use.place and use.place.line == op.place.line
        return bool(same_line) and (use.kind.fn, k) in _SPREAD

    def sources(self, op: Op) -> list[Value]:
        """Return the floating-point values that the result of a map follows from and that have
        checks of their own."""
        values: dict[Value, None] = {}
        assert isinstance(op.kind, Map)
        for v in op.operands[op.kind.fn == "select" :]:
            if self.is_later(v):
                values.update(dict.fromkeys(self.sources(self.defs[v])))
            elif v.type.dtype.kind in "fc":
                values[v] = None
        return list(values)

    # ---- integers --------------------------------------------------------------------------------

    def exact(self, op: Op, value: Value) -> None:
        """Add checks that an integer result did not wrap around, by comparing it with the same
        computation in float64, and that no integer is divided by zero."""
        op_kind, kind = op.kind, value.type.dtype.kind
        if kind not in "iu":
            return
        if isinstance(op_kind, Map) and op_kind.fn in ("floordiv", "mod", "fmod"):
            divisor = op.operands[1]
            zero = self.full(0, divisor.type.dtype, value.type.shape)
            self.expect("overflow", value, self.map("ne", divisor, zero),
                        "an integer is divided by zero", "np.where(b != 0, a // b, 0), with "
                        "np.where(b != 0, b, 1) for b")
        cast = isinstance(op_kind, Map) and op_kind.fn == "cast"
        same = op_kind.exact(op, self) if kind == "i" or cast else None  # unsigned wrap on purpose
        if same is None:
            return
        apart = self.map("abs", self.map("sub", same, self.cast(value, dtypes.FLOAT64)))
        # float64 is exact up to 2**53; what wraps is off by 2**bits
        least = 1 if cast else 2.0 ** (4 * value.type.dtype.size)
        limit = self.full(least, dtypes.FLOAT64, value.type.shape)
        text = "a number does not fit" if cast else f"{op_kind.title()} of integers overflows"
        self.expect("overflow", value, self.map("lt", apart, limit),
                    f"{text} {value.type.dtype}", "a wider type: x.astype(np.int64)")
