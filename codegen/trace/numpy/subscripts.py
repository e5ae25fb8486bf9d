"""Keys of subscripts: what x[key] asks for, and the view that integers and slices show.

Bounds are clamped as NumPy clamps them, symbolic ones too. Integers known only at run time, or not
proved in bounds, give a Dynamic step.
Always holds: the start of a Slice is in bounds unless the slice is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice, product
from typing import Any

import numpy as np

from codegen import ops
from codegen.errors import ShapeError, UnsupportedError
from codegen.ir.graph import Value
from codegen.symbolic import expr
from codegen.symbolic.block_laws import evened
from codegen.symbolic.expr import Expr
from codegen.trace import view
from codegen.trace.array import Array, Number, as_array, holds_traced
from codegen.trace.context import Context, extent_unknown
from codegen.trace.expecting import within
from codegen.trace.number import expr_of


@dataclass(frozen=True)
class Whole:
    """An item of a key that is one integer: an Expr, or a 0-d array."""

    index: Expr | Value


@dataclass(frozen=True)
class Part:
    """A slice, its bounds already clamped."""

    start: Expr
    step: int
    extent: Expr


@dataclass(frozen=True, eq=False)
class Many:
    """An item of a key that is an integer array."""

    index: Any


_RANKS = 10_000  # of a mesh of fixed sizes, whose shards are looked at one by one
NEW = object()  # np.newaxis
Item = Any  # Whole, Part, Many or NEW


def index_error(message: str, expected: str, found: str, remedy: str = "") -> ShapeError:
    return ShapeError(message, expected=expected, found=found, remedy=remedy)


# ---- reading the key -------------------------------------------------------------------------


def _bound(x: Any, extent: Expr) -> Expr | None:
    """Return a slice bound, negative ones counted from the end, not clamped."""
    if x is None:
        return None
    e = expr_of(x)
    if e is None and isinstance(x, Array) and x.ndim == 0:
        extent_unknown()
        raise UnsupportedError(
            "the bounds of this slice depend on data, so its length would too",
            expected="bounds made of integers, axis indices, scalars and loop counters",
            found=f"an array of {x.type}",
            remedy="spmd.dynamic_slice(x, start, extent) takes a box of a known extent; "
            "np.where with a mask keeps the whole",
        )
    if e is None:
        raise index_error("slice bounds must be integers", "an integer or None", type(x).__name__)
    return from_the_end(e, extent)


def from_the_end(e: Expr, extent: Expr) -> Expr:
    """Return a position in a dim; a negative one counts from the end."""
    if expr.nonneg(e):
        return e
    return e + extent if expr.nonneg(-e - 1) else expr.select(expr.ge0(e), e, e + extent)


def part_of(key: slice, extent: Expr) -> Part:
    """Return NumPy's clamping as formulas, so that u[1:-1], u[:-2] and u[2:] have equal extents."""
    step_expr = expr.const(1) if key.step is None else expr_of(key.step)
    if step_expr is None or not step_expr.is_const or step_expr == 0:
        raise index_error("the step of a slice must be known while building",
                           "an integer that is not 0", repr(key.step),
                           "a mask: x[(i >= start) & ((i - start) % step == 0)] of "
                           "i = np.arange(x.shape[0])")
    step = step_expr.value
    start, stop = _bound(key.start, extent), _bound(key.stop, extent)
    if step > 0:
        low = expr.const(0) if start is None else start
        high = extent if stop is None else stop
        spans = [high - low, extent - low, high, extent]
        first = expr.maximum(low, 0)
    else:
        high = extent - 1 if start is None else start
        low = expr.const(-1) if stop is None else stop
        spans = [high - low, extent - 1 - low, high + 1, extent]
        first = expr.minimum(high, extent - 1)
    span = expr.maximum(reduce(expr.minimum, spans), 0)
    size = abs(step)
    return Part(first, step, span if size == 1 else (span + (size - 1)) // size)


def _whole(x: Any, extent: Expr, dim: int) -> Whole:
    e = expr_of(x)
    if e is None:
        array = as_array(x)
        within(array.context, array.read(), extent, dim)
        return Whole(array.read())
    signed_index, e = e, from_the_end(e, extent)
    if expr.nonneg(-e - 1) or expr.nonneg(e - extent):
        raise beyond(x, extent, dim)
    stays_within(e, x, extent, dim)
    if (context := Context.current()) is not None:
        within(context, signed_index, extent, dim)
    return Whole(e)


def beyond(x: Any, extent: Expr, dim: int, found: str = "") -> ShapeError:
    return index_error(
        f"index {x.expr if isinstance(x, Number) else x} is out of bounds for dim {dim}",
        f"an index below {extent}", found or f"dim {dim} has extent {extent}",
        "x[k:k + 1] is empty where there is no such element" if extent.symbols() else "",
    )


def stays_within(e: Expr, x: Any, extent: Expr, dim: int) -> None:
    """Refuse launches where some rank has no element at an index that is known at launch. In loops
    and branches, which may never run, nothing is said."""
    context = Context.current()
    if context is None or not context.in_every_launch:
        return
    for room in (e, extent - 1 - e):
        least = _least_of_ranks(context, room, extent)
        if least is None or expr.nonneg(least):
            continue
        if expr.nonneg(-least - 1):
            raise beyond(x, extent, dim, f"on some rank, dim {dim} has fewer elements")
        shown = x.expr if isinstance(x, Number) else x
        context.hold(expr.ge0(least), f"index {shown} is in bounds of dim {dim} on all ranks")


def _least_of_ranks(context: Context, room: Expr, extent: Expr) -> Expr | None:
    """Return the least value of `room` on any rank, if it rises or falls with every coordinate (the
    last shard is the smallest). None where that is not known at launch."""
    axes = [a for a in context.mesh.axes if a.coord_sym in room.symbols()]
    if all(a.fixed for a in axes) and room.symbols() == {a.coord_sym for a in axes}:
        names = [a.coord_sym.name for a in axes]
        ranks = list(islice(product(*(range(a.fixed or 1) for a in axes)), _RANKS + 1))
        few = len(ranks) <= _RANKS
        least = min(room.evaluate(dict(zip(names, coords))) for coords in ranks)
        return expr.const(least) if few else None
    alike = room - extent
    if not any(s.kind == "coord" for s in alike.symbols()):
        room = alike + evened(extent, -1)  # of a shard and something that all ranks have
    for axis in axes:
        slope, rest = expr.linear_in(room, axis.coord_sym)
        ends = [room.subst({axis.coord_sym: k}) for k in (expr.const(0), axis.size - 1)]
        if slope is not None and slope.is_const and axis.coord_sym not in rest.symbols():
            room = ends[slope.value < 0]
        else:
            return None
    return room if {s.kind for s in room.symbols()} <= {"size"} else None


def consumes(item: Any) -> int:
    """Return how many dims of the array one item of a key takes."""
    if item is None:
        return 0
    if isinstance(item, (np.ndarray, Array)) and item.dtype == np.bool_:
        return item.ndim
    return 1


def is_whole(item: Any) -> bool:
    if isinstance(item, (bool, np.bool_)):
        return False
    if isinstance(item, Array):
        return item.ndim == 0 and item.type.dtype.kind in "iu"
    return expr_of(item) is not None or (
        isinstance(item, np.ndarray) and item.ndim == 0 and item.dtype.kind in "iu"
    )


def expand(array: Array, key: Any) -> tuple[list[Any], bool]:
    """Return the items of a key, one per dim and newaxis, `...` written out; whether `...` stood
    there."""
    items = list(key) if isinstance(key, tuple) else [key]
    items = [as_array(i) if isinstance(i, list) and holds_traced(i) else i for i in items]
    items = [np.asarray(i) if isinstance(i, list) else i for i in items]
    dots = [k for k, item in enumerate(items) if item is Ellipsis]
    taken = sum(consumes(item) for item in items if item is not Ellipsis)
    missing = array.ndim - taken
    if missing < 0 or len(dots) > 1:
        raise index_error(f"too many indices for an array of {array.ndim} dims",
                          f"at most {array.ndim} of them",
                          f"{taken} indices for {array.type}")
    position = dots[0] if dots else len(items)
    items[position : position + len(dots)] = [slice(None)] * missing
    return items, bool(dots)


def parse(array: Array, key: Any) -> tuple[list[Item], bool]:
    """Return the key as Whole, Part, Many and NEW items; whether the result is a scalar read."""
    raw, dotted = expand(array, key)
    items: list[Item] = []
    dim = 0
    for item in raw:
        if item is None:
            items.append(NEW)
            continue
        extent = array.extents[dim]
        if isinstance(item, slice):
            items.append(part_of(item, extent))
        elif is_whole(item):
            items.append(_whole(item, extent, dim))
        elif isinstance(item, np.ndarray) and item.dtype == np.bool_:
            for d, n in enumerate(item.shape):
                if (e := array.extents[dim + d]).is_const and e.value != n:
                    raise index_error("a mask has another shape than the array",
                                       f"extent {e} in dim {d} of the mask", str(n))
            items += [Many(part) for part in np.nonzero(item)]
        elif isinstance(item, Array) and item.type.dtype.kind == "b":
            raise refused()
        elif isinstance(item, (np.ndarray, Array)) and item.dtype.kind in "iu":
            items.append(Many(item))
        elif isinstance(item, np.ndarray) and not item.size:
            items.append(Many(item.astype(np.int64)))
        else:
            if hasattr(item, "refused"):  # x[mask] as an index
                raise item.refused("spmd.numpy.extract(mask, x, size=n) has a length; np.add.at(a, "
                                   "x, np.where(mask, v, 0)) adds where the mask holds")
            raise index_error("only integers, slices, ..., None and integer arrays are indices",
                              "one of these",
                              f"{getattr(item, 'dtype', type(item).__name__)}", _as_index(item))
        dim += consumes(item)
    return items, not dotted and all(isinstance(i, Whole) for i in items)


def _as_index(item: Any) -> str:
    """Return what to write in place of a key of floats; "" for other keys."""
    if getattr(getattr(item, "dtype", None), "kind", "f" if isinstance(item, float) else "") != "f":
        return ""
    return ("i // 2 in place of i / 2; x.astype(np.int64) of an array; x[mask] with a mask such as "
            "x > 0")


# ---- views -----------------------------------------------------------------------------------


def _static(index: Expr | Value, extent: Expr) -> bool:
    return isinstance(index, Expr) and expr.nonneg(index) and expr.nonneg(extent - 1 - index)


def basic_view(array: Array, items: Sequence[Item]) -> Array:
    """Return the view that Whole, Part and NEW items show."""
    extents = array.extents
    dims = [item for item in items if item is not NEW]
    unit, zero = expr.const(1), expr.const(0)
    moved = [isinstance(i, Whole) and not _static(i.index, e) for i, e in zip(dims, extents)]
    if any(moved):
        starts = tuple(i.index if m else zero for i, m in zip(dims, moved))
        array = array.viewed(
            view.Dynamic(starts, tuple(unit if m else e for m, e in zip(moved, extents)))
        )
    start, step, box = [], [], []
    for item, dynamic in zip(dims, moved):
        whole = isinstance(item, Whole)
        start.append(zero if dynamic else item.index if whole else item.start)
        step.append(1 if whole else item.step)
        box.append(unit if whole else item.extent)
    array = array.viewed(ops.Slice(tuple(start), tuple(step), tuple(box)))
    if any(i is NEW or isinstance(i, Whole) for i in items):
        kept = [unit if i is NEW else i.extent for i in items if not isinstance(i, Whole)]
        array = array.viewed(ops.Reshape(tuple(kept)))
    return array


def is_basic(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice) or is_whole(item)


def basic_target(array: Array, key: Any) -> Array | None:
    """Return the part of an array that a key of integers and slices shows; None for other keys."""
    if not all(map(is_basic, key if isinstance(key, tuple) else (key,))):
        return None
    return basic_view(array, parse(array, key)[0])


def refused(remedy: str = "") -> UnsupportedError:
    """Return the error where the number of elements that a mask chooses would have to be known."""
    return UnsupportedError(
        "the length of x[mask] depends on data, so it cannot be used here",
        expected="element-wise functions, sums and means of x[mask], or x[mask] = v",
        found="a boolean array known only at run time",
        remedy=remedy or "np.where(mask, x, other) keeps the shape; np.max(x, where=mask, "
        "initial=-np.inf) takes the chosen ones; spmd.numpy.extract(mask, x, size=n) has a length",
    )
