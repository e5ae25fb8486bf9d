"""What ranks have, combined by a function of the user's own: op= of preduce and of pscan.

Comes in: a Python function of two arrays, or a kernel of two arrays and an output. Comes out: the
operands of all members, or of those up to each, combined one after the other.
Always holds: they are combined in the order of the members, by each of them: all have one result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen import expr
from codegen.errors import CarryError, KernelError
from codegen.trace.array import Array, as_array, number
from codegen.trace.communicate import all_gather
from codegen.trace.context import Context, user_place
from codegen.trace.functional import fori_loop
from codegen.trace.kernel_call import Kernel
from codegen.trace.rooted import pbroadcast
from codegen.trace.source import given

Axes = tuple[str, ...]
SHORT = 48  # bytes: what all can have of all, on many ranks too, and what costs no more to move


def folded(context: Context, axes: Axes, x: Array, op: Any, what: str, prefix: bool) -> Array:
    """x of all members combined by op; prefix: of those up to this one.

    In as many steps as there are members, in each of which all get the next one's x; a short x all
    get from all at once. Raises CarryError where op gives another shape or element type than it is
    given.
    """
    from codegen.trace.api import __getattr__ as public

    called = combining(op, what, public("empty_like"))
    size, own = (number(e) for e in (context.mesh.size(axes), context.mesh.position(axes)))
    bytes_ = expr.product(x.type.shape) * x.type.dtype.size
    every = all_gather(x, axes) if bytes_.is_const and bytes_.value <= SHORT else None

    def of(k: Any) -> Any:
        return pbroadcast(x, axes, k) if every is None else every[k]

    def step(k: Any, total: Any) -> Any:
        new = as_array(called(total, of(k)))
        if new.type.dtype != total.type.dtype or new.extents != total.extents:
            raise CarryError(
                f"op= of {what} gives another type than it is given",
                place=user_place(),
                expected=f"{total.type}, as of its two arguments",
                found=str(new.type),
                remedy="combine element by element; .astype(a.dtype) converts",
            )
        return np.where(k <= own, new, total) if prefix else new

    whole: Array = fori_loop(1, size, step, as_array(of(0)))
    return whole


def combining(op: Any, what: str, like: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """op as a function of two arrays. like: makes what a kernel writes into."""
    if not isinstance(op, Kernel):
        return given(op, f"op= of {what}", "a", "b")
    names = list(inspect.signature(op.function).parameters)
    if len(names) != 3:
        raise KernelError(
            f'kernel "{op.name}" cannot be the op= of {what}',
            place=user_place(),
            expected="a kernel of two arrays and the output: (a, b, out)",
            found=f"{op.name}({', '.join(names)})",
        )
    return lambda a, b: op(a, b, **{names[2]: like(a)})
