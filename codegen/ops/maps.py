"""The op that computes element by element: one of FUNCTIONS, of operands of one shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import InternalError
from codegen.functions import FUNCTIONS
from codegen.ir.cuts import Cut, Window
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import Index, apply
from codegen.mesh import joined_layout
from codegen.ops.exchanges import Fold
from codegen.ops.kind import Array, Eval, Kind, Types, layout_of
from codegen.ops.magnitudes import compared
from codegen.ops.partials import FLAT, PARTIALS, of_power
from codegen.ops.rules import (
    BatchBuilder,
    CheckBuilder,
    Element,
    ElementResolver,
    GradientBuilder,
    GraphBuilder,
    Shards,
    Values,
)
from codegen.symbolic.expr import const
from codegen.target import TARGET

# Functions that give a number for numbers, and a finite one for finite ones.
_SAFE = frozenset(
    "select guard neg abs sign maximum minimum fmax fmin copysign conj real imag with_real "
    "with_imag floor ceil trunc rint tanh atan atan2 sin cos asinh cbrt".split()
)
_COUNTED = frozenset("add sub mul neg abs pow square".split())  # those of integers that may wrap
_TITLES = {"cast": "a conversion", "select": "np.where"}
_PARTS = frozenset("conj real imag with_real with_imag".split())
# Functions that are computed again rather than stored.
_CHEAP = frozenset("add sub mul neg cast eq ne lt le gt ge select logical_and logical_or".split())



@dataclass(frozen=True)
class Map(Kind):
    """Compute FUNCTIONS[fn] of operands of one shape, element by element; cast has dtype."""

    name = "map"
    fuses = True
    inline = True
    fn: str
    dtype: DType | None = None

    def infer(self, types: Types) -> list[ArrayType]:
        fn, shape = FUNCTIONS[self.fn], types[0].shape
        for t in types[1:]:
            if t.shape != shape:
                raise InternalError(f"map {fn.name}: shapes {types[0]} and {t} differ")
        if self.dtype is not None:
            return [ArrayType(self.dtype, shape)]
        if fn.name == "select":
            return [ArrayType(types[1].dtype, shape)]
        return [ArrayType(fn.result_dtype(types[0].dtype), shape)]

    def work(self, op: Op) -> Iterable[Shape]:
        by_header = FUNCTIONS[self.fn].header
        steps = const(TARGET.header_function_steps if by_header else TARGET.function_steps)
        return [op.result.type.shape if self.fn in _CHEAP else (*op.result.type.shape, steps)]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return joined_layout([layout_of(t) for t in operands])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        if self.dtype is not None:
            return [operands[0].astype(dtypes.numpy_dtype(self.dtype))]
        return [np.asarray(FUNCTIONS[self.fn].numpy(*operands))]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        args = tuple(resolver.operand(v, index) for v in op.operands)
        operand = op.operands[-1 if self.fn == "select" else 0].type.dtype
        return compared(self.fn, args) or apply(self.fn, op.result.type.dtype, args, operand)

    @property
    def flat(self) -> bool:  # type: ignore[override]
        return self.fn in FLAT

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (g,), xs, fn = cotangents, op.operands, self.fn
        assert g is not None
        if fn in ("select", "guard"):
            nothing = builder.full(0, g)
            parts = [(g, nothing), (nothing, g)][: len(xs) - 1]
            return [None, *(builder.map("select", xs[0], a, b) for a, b in parts)]
        if fn in ("cast", "order_key", "of_order_key"):
            return [g]
        if fn == "sign" and xs[0].type.dtype.kind != "c":
            return [None]
        if fn in _PARTS or (fn in ("abs", "sign") and xs[0].type.dtype.kind == "c"):
            return self._of_parts(op, g, builder)
        if fn not in PARTIALS:
            raise builder.none(op)
        forms = PARTIALS[fn]
        if fn == "pow" and isinstance(exponent := builder.numbers.get(xs[1]), float):
            forms = (of_power(exponent), forms[1])
        return [builder.times(g, form, xs, op.result) if x in builder.active else None
                for x, form in zip(xs, forms, strict=True)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self, *batch.every(op, stacked))]

    def _of_parts(self, op: Op, g: Value, builder: GradientBuilder) -> Values:
        """Return the cotangents for functions of the parts of complex numbers, in JAX's convention:
        linear functions are transposed, not conjugated."""
        x, fn = op.operands[0], self.fn
        if x.type.dtype.kind != "c":
            return [g if fn in ("conj", "real") else None]
        if fn == "conj":
            return [builder.map("conj", g)]
        if fn == "with_real":
            nothing = builder.full(0, g)
            return [builder.map("with_real", g, nothing), builder.map("with_imag", g, nothing)]
        if fn == "with_imag":
            nothing = builder.full(0, g)
            return [builder.map("with_imag", g, nothing),
                    builder.map("neg", builder.map("imag", g))]
        if fn == "sign":
            return [self._of_sign(op, g, builder)]
        wide = builder.cast(g, x.type.dtype)
        if fn == "real":
            return [wide]
        if fn == "imag":
            return [builder.map("mul", wide, builder.full(-1j, x))]
        return [builder.map("mul", wide, builder.map("conj", builder.map("sign", x)))]  # abs

    def _of_sign(self, op: Op, g: Value, builder: GradientBuilder) -> Value:
        """Return the cotangent of z for z / |z|: only a change that turns z matters; 0 where z is
        0."""
        (z,), sign = op.operands, op.result
        along = builder.cast(builder.map("real", builder.map("mul", g, sign)), g.type.dtype)
        across = builder.map("sub", g, builder.map("mul", along, builder.map("conj", sign)))
        size = builder.map("abs", z)
        zero = builder.map("eq", size, builder.full(0, size))
        safe = builder.map("select", zero, builder.full(1, size), size)
        cotangent = builder.map("div", across, builder.cast(safe, g.type.dtype))
        return builder.map("select", zero, builder.full(0, cotangent), cotangent)

    def title(self) -> str:
        return _TITLES.get(self.fn) or FUNCTIONS[self.fn].ufunc

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        if self.fn in ("order_key", "of_order_key"):  # what is sorted was there before
            return None
        if not any(map(builder.is_later, op.operands)):
            narrows = self.fn == "cast" and _narrows(op.operands[0].type.dtype, value.type.dtype)
            if self.fn in _SAFE or (self.fn == "cast" and not narrows):
                return None
        holds = builder.map("isfinite", value)
        if known := builder.sources(op):
            # it was there already: in the numbers that this one follows from
            was_nan = builder.every("isnan", known, "logical_or")
            no_nan = builder.map("logical_not", builder.map("isnan", value))
            allowed = builder.map("logical_or", was_nan, no_nan)
            infinite = builder.map("logical_not", builder.every("isfinite", known))
            holds = builder.map("logical_or", holds, builder.map("logical_and", infinite, allowed))
        return holds

    def exact(self, op: Op, builder: CheckBuilder) -> Value | None:
        if self.fn == "cast":
            source, to = op.operands[0].type.dtype, op.result.type.dtype
            fits = source.kind == "b" or (source.kind == to.kind and source.size <= to.size)
            return None if fits or source.kind == "c" else builder.floats(op)[0]
        return builder.map(self.fn, *builder.floats(op)) if self.fn in _COUNTED else None

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        return next((c for v in op.operands if (c := shards.natural(v, dim)).axes), None)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [window] * len(op.operands)

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        value = build.emit(self, operands)
        axes = shards.partial.get(op.result)
        if axes and op.result not in shards.later:
            value = build.emit(Fold(axes, "add"), (value,))
            value = build.cast(value, op.result.type.dtype)
        return value

    def is_cheap(self) -> bool:
        return self.fn in _CHEAP


def _narrows(source: DType, to: DType) -> bool:
    """Return whether a finite number may be none in the other type."""
    return to.size < source.size if source.kind in "fc" else to.size == 2
