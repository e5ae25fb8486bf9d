"""The op that computes element by element: one of FUNCTIONS, of operands of one shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import InternalError
from codegen.functions import FUNCTIONS
from codegen.indexing import Index
from codegen.ir import ArrayType, Op, Value
from codegen.layouts.cuts import Cut, Window
from codegen.mesh import joined_layout
from codegen.ops.exchanges import AllReduce
from codegen.ops.kind import Array, Eval, Kind, Types, layout_of
from codegen.plan import Node, apply

if TYPE_CHECKING:
    from codegen.access import Resolver
    from codegen.layouts.localize import Builder, Localizer



# Functions that are computed again rather than stored.
_CHEAP = frozenset("add sub mul neg cast eq ne lt le gt ge select logical_and logical_or".split())


@dataclass(frozen=True)
class Map(Kind):
    """FUNCTIONS[fn] of operands of one shape; cast has dtype."""

    name = "map"
    inline = True
    group = "map"
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

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return joined_layout([layout_of(t) for t in operands])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        if self.dtype is not None:
            return [operands[0].astype(dtypes.numpy_dtype(self.dtype))]
        return [np.asarray(FUNCTIONS[self.fn].numpy(*operands))]

    def element(self, op: Op, index: Index, at: Resolver) -> Node:
        args = tuple(at.node(v, index) for v in op.operands)
        operand = op.operands[-1 if self.fn == "select" else 0].type.dtype
        return apply(self.fn, op.result.type.dtype, args, operand)

    def lies(self, op: Op, dim: int, at: Localizer) -> Cut | None:
        return next((c for v in op.operands if (c := at.natural(v, dim)).axes), None)

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        return [window] * len(op.operands)

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        value = build.emit(self, operands)
        axes = at.partial.get(op.result)
        if axes and op.result not in at.later:
            value = build.emit(AllReduce(axes, "add"), (value,))
            value = at.cast(value, op.result.type.dtype, build)
        return value

    def is_cheap(self) -> bool:
        return self.fn in _CHEAP
