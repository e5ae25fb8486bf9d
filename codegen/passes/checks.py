"""Checks of what is computed: a NaN or an infinity where there was none, integers that overflow.

Goes in: a Program, and which checks it asks for. Comes out: the same with an `expect` behind every
op that may go wrong. What is only ever one choice of a np.where is checked where it is chosen.
Always holds: what the Program computes does not change; a check reads what is local to a rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen import dtypes
from codegen.dtypes import DType
from codegen.functions import FUNCTIONS
from codegen.ir import Module, Op, Region, Shape, Value, walk
from codegen.ops import POSITION, Broadcast, Cumulative, Expect, Full, Kind, Map, Reduce

# Functions that give a number for numbers, and a finite one for finite ones.
_SAFE = frozenset(
    "select guard neg abs sign maximum minimum copysign conj real imag with_real with_imag floor "
    "ceil trunc rint tanh atan atan2 sin cos asinh cbrt".split()
)
# Functions of which the result is no finite number where this operand is none.
_SPREAD = frozenset(
    [(fn, k) for fn in ("add", "sub", "mul") for k in (0, 1)]
    + [(fn, 0) for fn in "div neg abs square sqrt cast conj sin cos".split()]
)
_BOTH = ("logical_and", "bit_and")
_BYTE = dtypes.BY_NAME["uint8"]
_COUNTED = frozenset("add sub mul neg abs pow square".split())  # those of integers that may wrap


def with_checks(program: Module) -> Module:
    """The Program with the checks `nan` and `overflow` that it asks for."""
    if not {"nan", "overflow"} & set(program.checks):
        return program
    return _Checks(program).run()


class _Checks:
    def __init__(self, program: Module) -> None:
        self.program = program
        self.ops: list[Op] = []
        self.at: Op | None = None
        regions = [program.body, *(i.default for i in program.inputs if i.default is not None)]
        self.defs = {v: op for r in regions for op in walk(r) for v in op.results}
        self.uses: dict[Value, list[tuple[Op | None, int]]] = {}
        for region in regions:
            self.count(region)
        for output in program.outputs:
            self.uses.setdefault(output.value, []).append((None, 0))
        self.optional: dict[Value, bool] = {}

    def run(self) -> Module:
        inputs = tuple(
            i if i.default is None else replace(i, default=self.region(i.default))
            for i in self.program.inputs
        )
        return replace(self.program, inputs=inputs, body=self.region(self.program.body))

    def count(self, region: Region) -> None:
        for op in region.ops:
            for k, v in enumerate(op.operands):
                self.uses.setdefault(v, []).append((op, k))
            for inner in op.regions:
                self.count(inner)
        for v in region.results:
            self.uses.setdefault(v, []).append((None, 0))

    def region(self, region: Region) -> Region:
        outer, self.ops = self.ops, []
        for op in region.ops:
            regions = tuple(map(self.region, op.regions))
            self.ops.append(replace(op, regions=regions) if regions else op)
            self.at = op
            for value in () if regions else op.results:
                if "nan" in self.program.checks and value.type.dtype.kind in "fc":
                    self.finite(op, value)
                if "overflow" in self.program.checks:
                    self.exact(op, value)
        done, self.ops = tuple(self.ops), outer
        return replace(region, ops=done)

    # ---- building --------------------------------------------------------------------------------

    def emit(self, what: Kind, *operands: Value) -> Value:
        (t,) = what.infer([v.type for v in operands])
        assert self.at is not None
        self.ops.append(Op(what, operands, (Value("check", t),), (), self.at.place))
        return self.ops[-1].result

    def map(self, fn: str, *operands: Value) -> Value:
        return self.emit(Map(fn), *operands)

    def cast(self, value: Value, dtype: DType) -> Value:
        same = value.type.dtype == dtype
        return value if same else self.emit(Map("cast", dtype=dtype), value)

    def every(self, fn: str, values: Sequence[Value], join: str = "logical_and") -> Value:
        """fn of each of them, joined."""
        total = self.map(fn, values[0])
        for v in values[1:]:
            total = self.map(join, total, self.map(fn, v))
        return total

    def full(self, value: float, dtype: DType, shape: Shape) -> Value:
        return self.emit(Full(value=value, dtype=dtype, shape=shape))

    def expect(self, check: str, value: Value, holds: Value, message: str, remedy: str) -> None:
        """That this holds of every element of a value."""
        assert self.at is not None
        place: tuple[str, ...] = ()
        start = self.program.starts.get(value) if value.type.ndim else None
        if value.type.ndim:
            whose = "of the array" if start is not None else "of this rank's part"
            place = (" (element ", POSITION, f" {whose})")
        text = (f"{message}{place[0]}", *place[1:]) if place else (message,)
        what = Expect((*text[:-1], f"{text[-1]}\n  try:      {remedy}"), start, check)
        self.ops.append(Op(what, (holds,), (), (), self.at.place))

    # ---- NaN and infinities ----------------------------------------------------------------------

    def finite(self, op: Op, value: Value) -> None:
        rule = _FINITE.get(op.kind)
        if rule is None or self.is_later(value):
            return
        holds = rule(self, op, value)
        if holds is not None:
            self.expect(
                "nan", value, holds,
                f"{self.name(op)} makes a NaN or an infinity where there was none",
                "np.where(condition, value, other) where it is not wanted; "
                "run --check=bounds,equal looks for no NaN",
            )  # fmt: skip

    def is_optional(self, value: Value) -> bool:
        """Whether it is only ever one choice of a np.where, or goes into such a choice; or into a
        truth value that holds only where another one does."""
        if value not in self.optional:
            op, uses = self.defs.get(value), self.uses.get(value, [])
            self.optional[value] = False  # of what follows from itself
            self.optional[value] = bool(uses) and op is not None and op.kind == "map" and all(
                use is not None and use.kind == "map"
                and ((use.attrs["fn"] == "select" and k > 0) or self.is_optional(use.result)
                     or (use.attrs["fn"] in _BOTH and use.result.type.dtype.kind == "b"))
                for use, k in uses
            )  # fmt: skip
        return self.optional[value]

    def is_later(self, value: Value) -> bool:
        """Whether it is checked with what it goes into: an optional one, or a part of an expression
        on one line that is no finite number where this part is none."""
        if self.is_optional(value):
            return True
        op, uses = self.defs.get(value), self.uses.get(value, [])
        number = value.type.dtype.kind in "fc"
        if not number or op is None or op.kind != "map" or len(uses) != 1 or op.place is None:
            return False
        use, k = uses[0]
        return (
            use is not None and use.kind == "map" and (use.attrs["fn"], k) in _SPREAD
            and use.place is not None and use.place.line == op.place.line
        )  # fmt: skip

    def name(self, op: Op) -> str:
        if op.kind == "map" and op.attrs["fn"] != "select" and any(map(self.is_later, op.operands)):
            return "this expression"
        return _name(op)

    def sources(self, op: Op) -> list[Value]:
        """The numbers that the result of a map follows from, of which each is checked itself."""
        found: dict[Value, None] = {}
        for v in op.operands[op.attrs["fn"] == "select" :]:
            if self.is_later(v):
                found.update(dict.fromkeys(self.sources(self.defs[v])))
            elif v.type.dtype.kind in "fc":
                found[v] = None
        return list(found)

    def map_finite(self, op: Op, value: Value) -> Value | None:
        fn, chosen = op.attrs["fn"], any(map(self.is_later, op.operands))
        if fn in _SAFE and not chosen:
            return None
        if fn == "cast" and not chosen and not _narrows(op.operands[0].type.dtype,
                                                        value.type.dtype):  # fmt: skip
            return None
        holds = self.map("isfinite", value)
        if known := self.sources(op):
            # it was there already: in the numbers that this one follows from
            was_nan = self.every("isnan", known, "logical_or")
            allowed = self.map("logical_or", was_nan, self.map("logical_not", self.map("isnan",
                                                                                      value)))
            infinite = self.map("logical_not", self.every("isfinite", known))
            holds = self.map("logical_or", holds, self.map("logical_and", infinite, allowed))
        return holds

    def unless(self, value: Value, was: Value) -> Value:
        return self.map("logical_or", self.map("isfinite", value), was)

    def not_finite(self, value: Value) -> Value:
        return self.map("logical_not", self.map("isfinite", value))

    def any_of(self, value: Value, dims: Sequence[int]) -> Value:
        return self.emit(Reduce(fn="or", dims=tuple(dims)), value) if dims else value

    def reduce_finite(self, op: Op, value: Value) -> Value | None:
        if op.attrs["fn"] not in ("add", "mul"):
            return None
        return self.unless(value, self.any_of(self.not_finite(op.operands[0]), op.attrs["dims"]))

    def cumulative_finite(self, op: Op, value: Value) -> Value | None:
        if op.attrs["fn"] not in ("add", "mul"):
            return None
        bits = self.cast(self.not_finite(op.operands[0]), _BYTE)
        before = self.emit(Cumulative(fn="max", dim=op.attrs["dim"]), bits)
        return self.unless(value, self.map("ne", before, self.full(0, _BYTE,
                                                                   value.type.shape)))  # fmt: skip

    def matmul_finite(self, op: Op, value: Value) -> Value:
        a, b = op.operands
        shape, n = value.type.shape, value.type.ndim
        rows = self.any_of(self.not_finite(a), [n - 1])
        columns = self.any_of(self.not_finite(b), [n - 2])
        batch = tuple(range(n - 2))
        wide = [self.emit(Broadcast(dims=(*batch, d), shape=shape), x)
                for x, d in ((rows, n - 2), (columns, n - 1))]  # fmt: skip
        return self.unless(value, self.map("logical_or", *wide))

    def kernel_finite(self, op: Op, value: Value) -> Value:
        given = [v for v in op.operands if v.type.dtype.kind in "fc"]
        holds = self.map("isfinite", value)
        for v in given:
            was = self.any_of(self.not_finite(v), range(v.type.ndim))
            wide = self.emit(Broadcast(dims=(), shape=value.type.shape), was)
            holds = self.map("logical_or", holds, wide if value.type.ndim else was)
        return holds

    # ---- integers --------------------------------------------------------------------------------

    def exact(self, op: Op, value: Value) -> None:
        """Integers wrap around: the same in float64 is then another number."""
        kind, fn = value.type.dtype.kind, op.attrs.get("fn", "")
        if op.kind == "map" and fn in ("floordiv", "mod", "fmod") and kind in "iu":
            divisor = op.operands[1]
            zero = self.full(0, divisor.type.dtype, value.type.shape)
            self.expect("overflow", value, self.map("ne", divisor, zero),
                        "an integer is divided by zero", "np.where(b != 0, a // b, 0), with "
                        "np.where(b != 0, b, 1) for b")  # fmt: skip
        rule = _EXACT.get(op.kind)
        same = rule(self, op) if rule is not None and kind in "iu" else None
        if same is None or (kind == "u" and fn != "cast"):  # unsigned ones wrap on purpose
            return
        apart = self.map("abs", self.map("sub", same, self.cast(value, dtypes.FLOAT64)))
        # float64 is exact up to 2**53; what wraps is off by 2**bits
        least = 1 if fn == "cast" else 2.0 ** (4 * value.type.dtype.size)
        limit = self.full(least, dtypes.FLOAT64, value.type.shape)
        what = f"{_name(op)} of integers overflows" if fn != "cast" else "a number does not fit"
        self.expect("overflow", value, self.map("lt", apart, limit),
                    f"{what} {value.type.dtype}", "a wider type: x.astype(np.int64)")  # fmt: skip

    def floats(self, op: Op) -> list[Value]:
        return [self.cast(v, dtypes.FLOAT64) for v in op.operands]

    def map_exact(self, op: Op) -> Value | None:
        fn = op.attrs["fn"]
        if fn == "cast":
            given = op.operands[0].type.dtype
            fits = given.kind == "b" or (
                given.kind == op.result.type.dtype.kind and given.size <= op.result.type.dtype.size
            )
            return None if fits or given.kind == "c" else self.floats(op)[0]
        return self.map(fn, *self.floats(op)) if fn in _COUNTED else None

    def other_exact(self, op: Op) -> Value | None:
        if op.attrs.get("fn", "add") not in ("add", "mul"):
            return None
        return self.emit(op.what, *self.floats(op))


def _narrows(source: DType, to: DType) -> bool:
    """Whether a finite number may be none in the other type."""
    return to.size < source.size if source.kind in "fc" else to.size == 2


def _name(op: Op) -> str:
    fn = op.attrs.get("fn", "")
    if op.kind == "map":
        return FUNCTIONS[fn].ufunc if fn not in ("cast", "select") else {
            "cast": "a conversion", "select": "np.where"}[fn]  # fmt: skip
    if op.kind == "kernel":
        return f"kernel {op.attrs['kernel'].name}"
    if op.kind == "reduce":
        return "a sum" if fn == "add" else "a product"
    return {"matmul": "a product of matrices", "cumulative": "a running total",
            "all_reduce": "what ranks combine"}[op.kind]  # fmt: skip


_FINITE: Mapping[str, Any] = {
    "map": _Checks.map_finite, "reduce": _Checks.reduce_finite, "matmul": _Checks.matmul_finite,
    "cumulative": _Checks.cumulative_finite, "kernel": _Checks.kernel_finite,
}  # fmt: skip
_EXACT: Mapping[str, Any] = {
    "map": _Checks.map_exact, "reduce": _Checks.other_exact, "matmul": _Checks.other_exact,
    "cumulative": _Checks.other_exact, "all_reduce": _Checks.other_exact,
}  # fmt: skip
