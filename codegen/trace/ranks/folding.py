"""What ranks have, combined by a function of the user's own: op= of preduce and of pscan.

Comes in: a Python function of two arrays, or a kernel of two arrays and an output. Comes out: the
operands of all members, or of those up to each, combined one after the other.
Always holds: they are combined in the order of the members, whole: who takes only a block of them
has seen that op does the same with every element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.errors import CarryError
from codegen.ir.graph import Region, Value, free_values
from codegen.ops import Broadcast, Full, Map
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, full_value, number, wrap
from codegen.trace.context import Block, Context
from codegen.trace.control.conversion import checked_callback
from codegen.trace.control.functional import fori_loop
from codegen.trace.control.regions import Mark
from codegen.trace.kernel_call import Kernel
from codegen.trace.numpy.creation import empty_like
from codegen.trace.ranks.communicate import all_gather, all_to_all
from codegen.trace.ranks.rooted import pbroadcast

Axes = tuple[str, ...]
Op = Callable[[Any, Any], Any]
SHORT = 48  # bytes: what all can have of all, on many ranks too, and what costs no more to move


def folded(context: Context, axes: Axes, x: Array, op: Any, what: str, prefix: bool) -> Array:
    """Combine x of all members by op; prefix: of those up to this one.

    A short x all get from all at once. Where op works element by element, each member combines a
    block of everybody's x; else all combine all, in as many steps as there are members, in each of
    which they get the next one's x. Raises CarryError where op gives another shape or element type
    than it is given.
    """
    combined = op.combining(what, empty_like) if isinstance(op, Kernel) else (
        checked_callback(op, f"op= of {what}", "a", "b"))
    called = _checked(combined, what)
    size, own = (number(e) for e in (context.mesh.size(axes), context.mesh.position(axes)))
    bytes_ = expr.product(x.type.shape) * x.type.dtype.size
    every = all_gather(x, axes) if bytes_.is_const and bytes_.value <= SHORT else None
    if every is None and (each := _element_by_element(context, called, x)):
        return _in_blocks(context, axes, x, each, prefix)

    def of(k: Any) -> Any:
        return pbroadcast(x, axes, k) if every is None else every[k]

    def step(k: Any, total: Any) -> Any:
        new = called(total, of(k))
        return np.where(k <= own, new, total) if prefix else new

    whole: Array = fori_loop(1, size, step, as_array(of(0)))
    return whole


def _checked(op: Op, what: str) -> Op:
    def called(a: Any, b: Any) -> Array:
        new, old = as_array(op(a, b)), as_array(a)
        if new.type.dtype != old.type.dtype or new.extents != old.extents:
            raise CarryError(
                f"the function op= of {what} returns another type than its arguments have",
                expected=f"{old.type}, as of its two arguments", found=str(new.type),
                remedy="combine element by element; .astype(a.dtype) converts",
            )
        return new

    return called


# ---- element by element ------------------------------------------------------------------------


def _element_by_element(context: Context, called: Op, x: Array) -> Region | None:
    """Return op as a region, if it does the same with every element and needs and leaves nothing
    else; else None.

    It is captured once, and nothing of that is kept.
    """
    mark, around = Mark.of(context), context.blocks
    block = Block(tuple(Value(name, x.type) for name in "ab"))
    context.blocks = [block]  # what was computed outside is not reused: it would come from there
    try:
        with context.watching_writes() as written:
            a, b = (wrap(context, v) for v in block.args)
            region = block.close([called(a, b).read()])
    finally:
        context.blocks = around
        mark.restore_storages()
        mark.forget_later(context, "loop", user_place())
        mark.restore_declared(context)
    alone = all(isinstance(op.what, (Map, Full, Broadcast)) for op in region.ops)
    kept = any(storage in written for storage, *_ in mark.storages)
    return region if alone and not kept and not free_values(region) else None


def _again(context: Context, region: Region, a: Array, b: Array) -> Array:
    """Return the region on arrays of another shape; whatever it makes has that shape."""
    made = dict(zip(region.args, (a.read(), b.read())))
    for op in region.ops:
        operands = [made[v] for v in op.operands]
        if isinstance(op.what, Map):
            made[op.result] = context.emit(op.what, operands, place=op.place)[0]
        elif isinstance(op.what, Full):
            made[op.result] = full_value(context, op.what.value, op.what.dtype, a.extents)
        else:  # broadcast: of what has this shape already
            (made[op.result],) = operands
    return wrap(context, made[region.results[0]], scalar=False)


def _in_blocks(context: Context, axes: Axes, x: Array, each: Region, prefix: bool) -> Array:
    """Combine x in blocks: member k gets block k of everybody's x, combines, and gives back what
    others want of it."""
    size = number(context.mesh.size(axes))
    rows = all_to_all(x.reshape((1, -1)), axes, 1, 0, tiled=True)

    def up_to(k: Any, rows: Any) -> Any:
        rows[k] = _again(context, each, rows[k - 1], rows[k])
        return rows

    def total(k: Any, total: Any) -> Any:
        return _again(context, each, total, rows[k])

    if prefix:
        back = all_to_all(fori_loop(1, size, up_to, rows), axes, 0, 1, tiled=True)
    else:
        back = all_gather(fori_loop(1, size, total, rows[0]), axes, tiled=True)
    whole: Array = back.reshape(x.shape)
    return whole
