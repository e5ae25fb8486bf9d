"""Reductions and scans over ranks by a function of the user's own: op= of preduce and of pscan.

In: a Python function of two arrays, or a kernel of two arrays and an output. Out: the operands of
all members, or of those up to each, combined one after the other. Always holds: operands are
combined in the order of the members; they are cut into blocks only where op works element by
element.
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
SHORT = 48  # bytes: so short an x costs no more when all members gather it, also on many ranks


def folded(context: Context, axes: Axes, x: Array, op: Any, function: str, prefix: bool) -> Array:
    """Combine x of all members by op; prefix: of those up to this one.

    A short x is gathered on all members. Where op works element by element, each member combines
    one block of all members' x; else each combines all of them, in as many steps as there are
    members, each of which broadcasts the next x. Raise CarryError where op changes the shape or the
    element type.
    """
    combined = op.combining(function, empty_like) if isinstance(op, Kernel) else (
        checked_callback(op, f"op= of {function}", "a", "b"))
    called = _checked(combined, function)
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


def _checked(op: Op, function: str) -> Op:
    def called(a: Any, b: Any) -> Array:
        new, old = as_array(op(a, b)), as_array(a)
        if new.type.dtype != old.type.dtype or new.extents != old.extents:
            raise CarryError(
                f"the function op= of {function} returns another type than its arguments have",
                expected=f"{old.type}, as of its two arguments", found=str(new.type),
                remedy="combine element by element; .astype(a.dtype) converts",
            )
        return new

    return called


# ---- element by element ------------------------------------------------------------------------


def _element_by_element(context: Context, called: Op, x: Array) -> Region | None:
    """Return op as a region, if it does the same with every element and neither reads nor writes
    anything else; else None.

    Op is captured for that, and the capture is undone.
    """
    mark, around = Mark.of(context), context.blocks
    block = Block(tuple(Value(name, x.type) for name in "ab"))
    context.blocks = [block]  # no value from outside is used again: it would be read from there
    try:
        with context.watching_writes() as written:
            a, b = (wrap(context, v) for v in block.args)
            region = block.close([called(a, b).read()])
    finally:
        context.blocks = around
        mark.restore_storages()
        mark.forget_later(context, "loop", user_place())
        mark.restore_declared(context)
    alone = all(isinstance(op.kind, (Map, Full, Broadcast)) for op in region.ops)
    kept = any(storage in written for storage, *_ in mark.storages)
    return region if alone and not kept and not free_values(region) else None


def _again(context: Context, region: Region, a: Array, b: Array) -> Array:
    """Emit the region's ops on arrays of another shape, which all of its values then have."""
    values = dict(zip(region.args, (a.read(), b.read())))
    for op in region.ops:
        operands = [values[v] for v in op.operands]
        if isinstance(op.kind, Map):
            values[op.result] = context.emit(op.kind, operands, place=op.place)[0]
        elif isinstance(op.kind, Full):
            values[op.result] = full_value(context, op.kind.value, op.kind.dtype, a.extents)
        else:  # broadcast: of what has this shape already
            (values[op.result],) = operands
    return wrap(context, values[region.results[0]], scalar=False)


def _in_blocks(context: Context, axes: Axes, x: Array, each: Region, prefix: bool) -> Array:
    """Combine x in blocks: member k gets block k of all members' x, combines these, and sends the
    results to the members."""
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
