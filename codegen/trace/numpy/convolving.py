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
    """Return sums of x[b, start + stride o + dilation k, g, c] w[g, k, c, f] y[b, o, g, f] of two
    of the three arrays x, w, y: over all dims that the third one does not have.

    gives: "y", which is the convolution, or "x" or "w", its transposes. a, b: the other two, in the
    order x, w, y. start, stride, dilation: integers, one for each spatial dim; o and k have such
    dims, and a channel c of group g meets the channels of its group alone. What is beyond the ends
    of x is 0. shape: the extents of the result along its spatial dims.
    """
    x, y = as_array(a), as_array(b)
    kind, context = result_type(x, y), x.context
    convolution = Convolve(gives, tuple(map(as_expr, start)), tuple(stride), tuple(dilation),
                    tuple(as_expr(expr_of(e) or e) for e in shape))
    values = (cast_value(context, v.read(), kind) for v in (x, y))
    return wrap(context, context.emit_one(convolution, *values), scalar=False)
