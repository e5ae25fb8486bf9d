"""The op under convolutions: sums of products over windows that move along arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codegen.ops import Convolve
from codegen.symbolic.expr import as_expr
from codegen.trace.array import Array, as_array, cast_value, wrap
from codegen.trace.number import expr_of
from codegen.trace.numpy.elementwise import result_type


def convolve(gives: str, a: Any, b: Any, start: Sequence[int], stride: Sequence[int],
             dilation: Sequence[int], shape: Sequence[int]) -> Array:
    """Emit a codegen.ops.Convolve of two arrays that have a dim for groups of channels; return its
    result."""
    x, y = as_array(a), as_array(b)
    kind, context = result_type(x, y), x.context
    what = Convolve(gives, tuple(map(as_expr, start)), tuple(stride), tuple(dilation),
                    tuple(as_expr(expr_of(e) or e) for e in shape))
    values = (cast_value(context, v.read(), kind) for v in (x, y))
    return wrap(context, context.emit_one(what, *values), scalar=False)
