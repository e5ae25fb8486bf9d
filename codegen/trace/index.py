"""Subscripts: x[key], x[key] = v, x.at[key] and ufunc.at.

Integers and slices give views; bounds are clamped as NumPy clamps them, symbolic ones too. Integers
known only at run time, or not proved in bounds, give a Dynamic step; integer arrays gather.
Always holds: the start of a Slice is in bounds unless the slice is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np

from codegen import dtypes, expr, ops
from codegen.errors import ShapeError, UnsupportedError
from codegen.expr import Expr
from codegen.functions import BY_UFUNC
from codegen.ir import Shape, Value
from codegen.mesh import part_of_block
from codegen.trace import elementwise, known, tree, view
from codegen.trace.array import Array, Number, as_array, is_traced, unsupported, wrap
from codegen.trace.context import Context, user_place
from codegen.trace.expecting import within
from codegen.trace.number import expr_of


@dataclass(frozen=True)
class Whole:
    """An integer: an Expr, or a 0-d array."""

    at: Expr | Value


@dataclass(frozen=True)
class Part:
    """A slice, its bounds already clamped."""

    start: Expr
    step: int
    extent: Expr


@dataclass(frozen=True, eq=False)
class Many:
    """An integer array."""

    index: Any


_RANKS = 10_000  # of a mesh of fixed sizes, whose shards are looked at one by one
NEW = object()  # np.newaxis
Item = Any  # Whole, Part, Many or NEW


def _index_error(message: str, expected: str, found: str, remedy: str = "") -> ShapeError:
    return ShapeError(message, place=user_place(), expected=expected, found=found, remedy=remedy)


# ---- reading the key -------------------------------------------------------------------------


def _bound(x: Any, extent: Expr) -> Expr | None:
    """A slice bound, negative ones counted from the end, not clamped."""
    if x is None:
        return None
    e = expr_of(x)
    if e is None and isinstance(x, Array) and x.ndim == 0:
        raise UnsupportedError(
            "the bounds of this slice depend on data, so its length would too",
            place=user_place(),
            expected="bounds made of integers, axis indices, scalars and loop counters",
            found=f"an array of {x.type}",
            remedy="spmd.dynamic_slice(x, start, extent) takes a box of a known extent; "
            "np.where with a mask keeps the whole",
        )
    if e is None:
        raise _index_error("slice bounds must be integers", "an integer or None",
                           type(x).__name__)  # fmt: skip
    if expr.nonneg(e):
        return e
    if expr.nonneg(-e - 1):
        return e + extent
    return expr.select(expr.ge0(e), e, e + extent)


def _smallest(values: Sequence[Expr]) -> Expr:
    out = values[0]
    for e in values[1:]:
        out = expr.minimum(out, e)
    return out


def part_of(key: slice, extent: Expr) -> Part:
    """NumPy's clamping as formulas, so that u[1:-1], u[:-2] and u[2:] have equal extents."""
    step_expr = expr.const(1) if key.step is None else expr_of(key.step)
    if step_expr is None or not step_expr.is_const or step_expr == 0:
        raise _index_error("the step of a slice must be known while building",
                           "an integer that is not 0", repr(key.step))  # fmt: skip
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
    span = expr.maximum(_smallest(spans), 0)
    size = abs(step)
    return Part(first, step, span if size == 1 else (span + (size - 1)) // size)


def _whole(x: Any, extent: Expr, dim: int) -> Whole:
    e = expr_of(x)
    if e is None:
        array = as_array(x)
        within(array.context, array.read(), extent, dim)
        return Whole(array.read())
    given = e
    if expr.nonneg(-e - 1):
        e = e + extent
    elif not expr.nonneg(e):
        e = expr.select(expr.ge0(e), e, e + extent)
    if expr.nonneg(-e - 1) or expr.nonneg(e - extent):
        raise _beyond(x, extent, dim)
    _stays_within(e, x, extent, dim)
    if (context := Context.current()) is not None:
        within(context, given, extent, dim)
    return Whole(e)


def _beyond(x: Any, extent: Expr, dim: int, found: str = "") -> ShapeError:
    return _index_error(
        f"index {x.expr if isinstance(x, Number) else x} is out of bounds for dim {dim}",
        f"an index below {extent}", found or f"dim {dim} has extent {extent}",
        "x[k:k + 1] is empty where there is no such element" if extent.symbols() else "",
    )  # fmt: skip


def _stays_within(e: Expr, x: Any, extent: Expr, dim: int) -> None:
    """An index that is known at launch: launches where some rank has no such element are refused.
    In loops and branches, which may never run, nothing is said."""
    context = Context.current()
    if context is None or not context.in_every_launch:
        return
    for room in (e, extent - 1 - e):
        least = _least_of_ranks(context, room, extent)
        if least is None or expr.nonneg(least):
            continue
        if expr.nonneg(-least - 1):
            raise _beyond(x, extent, dim, f"on some rank, dim {dim} has fewer elements")
        shown = x.expr if isinstance(x, Number) else x
        context.hold(expr.ge0(least), f"index {shown} is in bounds of dim {dim} on all ranks")


def _least_of_ranks(context: Context, room: Expr, extent: Expr) -> Expr | None:
    """The least that it is on any rank, where it falls or rises with every coordinate; the last
    shard is the smallest. None where that is not known, or not at launch."""
    axes = [a for a in context.mesh.axes if a.coord_sym in room.symbols()]
    if all(a.fixed for a in axes) and room.symbols() == {a.coord_sym for a in axes}:
        names = [a.coord_sym.name for a in axes]
        ranks = list(islice(product(*(range(a.fixed or 1) for a in axes)), _RANKS + 1))
        few = len(ranks) <= _RANKS
        least = min(room.evaluate(dict(zip(names, at))) for at in ranks)
        return expr.const(least) if few else None
    alike = room - extent  # room is a shard's extent and something that all ranks have
    shard = not any(s.kind == "coord" for s in alike.symbols()) and part_of_block(extent)
    for axis in axes:
        slope, rest = expr.linear_in(room, axis.coord_sym)
        ends = [room.subst({axis.coord_sym: k}) for k in (expr.const(0), axis.size - 1)]
        if slope is not None and slope.is_const and axis.coord_sym not in rest.symbols():
            room = ends[slope.value < 0]
        elif shard == "extent":
            room = ends[1]
        else:
            return None
    return room if {s.kind for s in room.symbols()} <= {"size"} else None


def consumes(item: Any) -> int:
    """Dims of the array that one item of a key takes."""
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
    """The items of a key, one per dim and newaxis, `...` written out; whether `...` stood there."""
    items = list(key) if isinstance(key, tuple) else [key]
    items = [as_array(i) if isinstance(i, list) and _traced(i) else i for i in items]
    items = [np.asarray(i) if isinstance(i, list) else i for i in items]
    dots = [k for k, item in enumerate(items) if item is Ellipsis]
    taken = sum(consumes(item) for item in items if item is not Ellipsis)
    missing = array.ndim - taken
    if missing < 0 or len(dots) > 1:
        raise _index_error(
            f"too many indices for an array of {array.ndim} dims",
            f"at most {array.ndim} of them",
            f"{taken} indices for {array.type}",
        )
    at = dots[0] if dots else len(items)
    items[at : at + len(dots)] = [slice(None)] * missing
    return items, bool(dots)


def _traced(items: list[Any]) -> bool:
    return any(
        isinstance(i, (Array, Number)) or (isinstance(i, list) and _traced(i)) for i in items
    )


def parse(array: Array, key: Any) -> tuple[list[Item], bool]:
    """The key as Whole, Part, Many and NEW items; whether the result is a scalar read."""
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
                    raise _index_error("a mask has another shape than the array",
                                       f"extent {e} in dim {d} of the mask", str(n))  # fmt: skip
            items += [Many(part) for part in np.nonzero(item)]
        elif isinstance(item, Array) and item.type.dtype.kind == "b":
            from codegen.trace import masks

            raise masks.refused()
        elif isinstance(item, (np.ndarray, Array)) and item.dtype.kind in "iu":
            items.append(Many(item))
        elif isinstance(item, np.ndarray) and not item.size:
            items.append(Many(item.astype(np.int64)))
        else:
            raise _index_error(
                "only integers, slices, ..., None and integer arrays are indices",
                "one of these", f"{getattr(item, 'dtype', type(item).__name__)}",
            )  # fmt: skip
        dim += consumes(item)
    return items, not dotted and all(isinstance(i, Whole) for i in items)


# ---- views -----------------------------------------------------------------------------------


def _static(at: Expr | Value, extent: Expr) -> bool:
    return isinstance(at, Expr) and expr.nonneg(at) and expr.nonneg(extent - 1 - at)


def basic_view(array: Array, items: Sequence[Item]) -> Array:
    """The view that Whole, Part and NEW items show."""
    extents = array.extents
    dims = [item for item in items if item is not NEW]
    one, zero = expr.const(1), expr.const(0)
    moved = [isinstance(i, Whole) and not _static(i.at, e) for i, e in zip(dims, extents)]
    if any(moved):
        starts = tuple(i.at if m else zero for i, m in zip(dims, moved))
        array = array.viewed(
            view.Dynamic(starts, tuple(one if m else e for m, e in zip(moved, extents)))
        )
    start, step, box = [], [], []
    for item, dynamic in zip(dims, moved):
        whole = isinstance(item, Whole)
        start.append(zero if dynamic else item.at if whole else item.start)
        step.append(1 if whole else item.step)
        box.append(one if whole else item.extent)
    array = array.viewed(view.Slice(tuple(start), tuple(step), tuple(box)))
    if any(i is NEW or isinstance(i, Whole) for i in items):
        kept = [one if i is NEW else i.extent for i in items if not isinstance(i, Whole)]
        array = array.viewed(view.Reshape(tuple(kept)))
    return array


def get(array: Array, key: Any) -> Any:
    """x[key]: a view; a new array for integer arrays and for single elements; with a mask,
    what it chooses."""
    from codegen.trace.masks import masked

    if _is_element(key):
        found = known.element(array, key if isinstance(key, tuple) else (key,))
        if found is not None:
            return found
    key = known.plain(key)
    if array.is_known and (found := _known_elements(array, key)) is not None:
        return found
    if (chosen := masked(array, key)) is not None:
        return chosen.copy()
    items, is_element = parse(array, key)
    if any(isinstance(i, Many) for i in items):
        base, plan = _gathered(array, items)
        return wrap(array.context, plan.read(base), scalar=False)
    shown = basic_view(array, items)
    if is_element or (array.scalar and not shown.extents):
        return wrap(array.context, shown.read(), array.weak, scalar=True)
    return shown


def _is_element(key: Any) -> bool:
    return type(key) is int or (type(key) is tuple and all(type(k) is int for k in key))


def _is_unknown(key: Any) -> bool:
    """Whether a key, or a value, is known at run time only."""
    leaves = [[x.start, x.stop, x.step] if isinstance(x, slice) else x for x in tree.leaves(key)]
    return any(map(is_traced, tree.leaves(leaves)))


def _is_basic(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice) or is_whole(item)


def _known_elements(array: Array, key: Any) -> Any:
    """What NumPy copies out of an array that is known; None where it shows a part of it."""
    items = key if isinstance(key, tuple) else (key,)
    if _is_unknown(key) or not (all(map(is_whole, items)) and len(items) == array.ndim) and all(
        map(_is_basic, items)
    ):  # fmt: skip
        return None
    try:
        found = known.plain(array)[key]
    except (IndexError, TypeError, ValueError):
        return None  # refused below, with its place
    return known.made(found.copy()) if isinstance(found, np.ndarray) else found


def basic_target(array: Array, key: Any) -> Array | None:
    """The part of an array that a key of integers and slices shows; None for other keys."""
    if not all(map(_is_basic, key if isinstance(key, tuple) else (key,))):
        return None
    return basic_view(array, parse(array, key)[0])


def set_(array: Array, key: Any, value: Any) -> None:
    """x[key] = value."""
    from codegen.trace.masks import masked

    if _is_element(key) and isinstance(value, (int, float, complex, np.generic)):
        if known.put_element(array, key if isinstance(key, tuple) else (key,), value):
            return
    key = known.plain(key)
    if known.writable(array) and not _is_unknown((key, value)):
        if known.assign(array, key, known.plain(value)):
            return
    if (chosen := masked(array, key)) is not None:
        chosen.write(value)
        return
    items, _ = parse(array, key)
    if any(isinstance(i, Many) for i in items):
        _scatter(array, items, value, "set")
        return
    target = basic_view(array, items)
    if isinstance(value, Array) and value.storage is array.storage and value.seen == target.seen:
        return  # the last act of x[key] += v: it has been written already
    elementwise.assign(target, value)


# ---- integer arrays --------------------------------------------------------------------------


@dataclass(frozen=True)
class Gather:
    """The dims of a viewed array that index values of one shape address; `at`: in the result."""

    context: Context
    dims: tuple[int, ...]
    at: int
    indices: tuple[Value, ...]

    def shape(self, base: Shape) -> Shape:
        rest = tuple(e for d, e in enumerate(base) if d not in self.dims)
        return (*rest[: self.at], *self.indices[0].type.shape, *rest[self.at :])

    def read(self, base: Array) -> Value:
        what = ops.Gather(self.dims, self.at)
        return self.context.emit_one(what, base.read(), *self.indices)

    def write(self, base: Array, value: Any, fn: str) -> None:
        shape = self.shape(base.extents)
        value = elementwise.normal(value)
        elementwise.check_assignable(elementwise.extents_of(value), shape)
        v = elementwise.operand_value(self.context, value, base.type.dtype, shape)
        what = ops.Scatter(self.dims, self.at, fn)
        base.write(self.context.emit_one(what, base.read(), v, *self.indices))


def _gathered(array: Array, items: Sequence[Item]) -> tuple[Array, Gather]:
    """A view with the basic items applied, and the gather on it (integers join the arrays)."""
    context = array.context
    one = [Part(expr.const(0), 1, e) for e in array.extents]
    basic: list[Item] = []
    places: list[int] = []
    chosen: list[tuple[Any, Expr, int]] = []
    dim = 0
    for position, item in enumerate(items):
        if isinstance(item, (Many, Whole)):
            places.append(position)
            chosen.append((item, array.extents[dim], dim))
            basic.append(one[dim])
        else:
            basic.append(item)
        dim += item is not NEW
    together = places[-1] - places[0] == len(places) - 1
    at = places[0] if together else 0
    arrays = [_index_array(context, *one) for one in chosen]
    shape = elementwise.broadcast_shapes([v.type.shape for v in arrays], "index arrays")
    values = tuple(elementwise.broadcast_value(context, v, shape) for v in arrays)
    return basic_view(array, basic), Gather(context, tuple(places), at, values)


def _index_array(context: Context, item: Item, extent: Expr, dim: int) -> Value:
    """An int64 value, negative indices counted from the end."""
    if isinstance(item, Whole):
        if isinstance(item.at, Expr):
            return view.index_value(context, item.at)
        return from_the_end(wrap(context, item.at), extent).read()
    if isinstance(item.index, np.ndarray):
        data = item.index.astype(np.int64)
        if extent.is_const:
            n = extent.value
            if data.size and (data.min() < -n or data.max() >= n):
                bad = int(data[(data < -n) | (data >= n)].flat[0])
                raise _index_error(f"index {bad} is out of bounds", f"indices from {-n} to {n - 1}",
                                   str(bad))  # fmt: skip
            return as_array(np.where(data < 0, data + n, data)).read()
        if data.size:
            for k in {int(data.min()), int(data.max())}:  # of two that are not negative, the last
                e = expr.const(k) + (extent if k < 0 else 0)
                if expr.nonneg(e - extent) or expr.nonneg(-e - 1):
                    raise _beyond(k, extent, dim)
                if k < 0 or k == data.max():
                    _stays_within(e, k, extent, dim)
        if not data.size or data.min() >= 0:
            return as_array(data).read()
    index = as_array(item.index, dtypes.INT64)
    within(context, index.read(), extent, dim)
    return from_the_end(index, extent).read()


def from_the_end(index: Array, extent: Expr) -> Array:
    """Negative indices counted from the end of a dim."""
    index = as_array(index, dtypes.INT64)
    return elementwise.select(index < 0, index + Number(extent), index)


def _scatter(array: Array, items: Sequence[Item], value: Any, fn: str) -> None:
    base, plan = _gathered(array, items)
    plan.write(base, value, fn)


# ---- x.at[key].add(v), np.add.at(x, key, v) --------------------------------------------------

_SCATTER = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def combine_at(array: Array, key: Any, value: Any, fn: str) -> None:
    """array[key] = fn(array[key], value), duplicates of integer arrays combined one by one."""
    key = known.plain(key)
    if fn == "set":
        set_(array, key, value)
        return
    from codegen.trace.masks import masked

    if (chosen := masked(array, key)) is not None:
        chosen.write(_SCATTER[fn](chosen, value))
        return
    items, _ = parse(array, key)
    if any(isinstance(i, Many) for i in items):
        _scatter(array, items, value, fn)
        return
    target = basic_view(array, items)
    elementwise.apply(_SCATTER[fn], target, value, out=target)


class At:
    """x.at: `x.at[key].add(v)` is a new array with v added at key; also set, mul, min, max."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> AtKey:
        return AtKey(self._array, key)


class AtKey:
    def __init__(self, array: Array, key: Any) -> None:
        self._array = array
        self._key = key

    def _combined(self, value: Any, fn: str) -> Array:
        new: Array = self._array.copy()
        combine_at(new, self._key, value, fn)
        return new

    def get(self) -> Any:
        return get(self._array, self._key)

    def set(self, value: Any) -> Array:
        return self._combined(value, "set")

    def add(self, value: Any) -> Array:
        return self._combined(value, "add")

    def mul(self, value: Any) -> Array:
        return self._combined(value, "mul")

    multiply = mul

    def min(self, value: Any) -> Array:
        return self._combined(value, "min")

    def max(self, value: Any) -> Array:
        return self._combined(value, "max")


_AT = {"add": "add", "multiply": "mul", "minimum": "min", "maximum": "max"}


def ufunc_at(ufunc: np.ufunc, array: Any, key: Any, value: Any = None) -> None:
    """np.add.at(x, key, v), also subtract, multiply, minimum, maximum."""
    if not isinstance(array, Array):
        raise unsupported(f"np.{ufunc.__name__}.at on a NumPy array", "an array of the program")
    if ufunc is np.subtract:
        combine_at(array, key, -as_array(value), "add")
    elif ufunc.__name__ in _AT and ufunc.__name__ in BY_UFUNC:
        combine_at(array, key, value, _AT[ufunc.__name__])
    else:
        raise unsupported(f"np.{ufunc.__name__}.at", "np.add.at, or x[k] = f(x[k])")
