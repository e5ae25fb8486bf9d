"""Subscripts: x[key], x[key] = v, x.at[key].

Integers and slices give views, as subscripts.py reads them; integer arrays gather, masks choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen import dtypes, ops
from codegen.functions import COMBINE, FUNCTIONS
from codegen.ir.graph import Shape, Value
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace import constants, integer_tables, known, view
from codegen.trace.array import Array, Number, as_array, is_traced, wrap
from codegen.trace.context import Context
from codegen.trace.expecting import within
from codegen.trace.numpy import elementwise, progressions
from codegen.trace.numpy.masks import as_masks, masked
from codegen.trace.numpy.subscripts import (
    NEW,
    Item,
    Many,
    Part,
    Whole,
    basic_target,
    basic_view,
    beyond,
    index_error,
    is_basic,
    is_whole,
    parse,
    stays_within,
)
from codegen.user import pytree


def get(array: Array, key: Any) -> Any:
    """Return what x[key] is in NumPy: a view; a new array for integer arrays and for single
    elements; with a mask, a Chosen."""
    if _is_element(key):
        known_value = known.element(array, key if isinstance(key, tuple) else (key,))
        if known_value is not None:
            return known_value
    if array.context.selecting and array.is_known and (
            formula := integer_tables.in_formula(array.known, key)) is not None:
        return formula
    key = as_masks(known.plain(key))
    if array.is_known and (known_value := _known_elements(array, key)) is not None:
        return known_value
    if (chosen := masked(array, key)) is not None:
        return chosen.copy()
    items, is_element = parse(array, key)
    if any(isinstance(i, Many) for i in items):
        if (part := progressions.slice_view(array, items)) is not None:
            return wrap(array.context, part.read(), scalar=False)
        base, plan = _gathered(array, items)
        return wrap(array.context, plan.read(base), scalar=False)
    shown = basic_view(array, items)
    if is_element or (array.scalar and not shown.extents):
        return wrap(array.context, shown.read(), array.weak, scalar=True)
    return shown


def _is_element(key: Any) -> bool:
    return type(key) is int or (type(key) is tuple and all(type(k) is int for k in key))


def _is_unknown(key: Any) -> bool:
    """Return whether a key, or a value, is known at run time only."""
    leaves = [[x.start, x.stop, x.step] if isinstance(x, slice) else x for x in pytree.leaves(key)]
    return any(map(is_traced, pytree.leaves(leaves)))


def _known_elements(array: Array, key: Any) -> Any:
    """Return the elements that NumPy copies out of an array whose content is known; None where
    x[key] is a view, or where NumPy refuses the key."""
    items = key if isinstance(key, tuple) else (key,)
    if _is_unknown(key) or not (all(map(is_whole, items)) and len(items) == array.ndim) and all(
        map(is_basic, items)
    ):
        return None
    try:
        elements = known.plain(array)[key]
    except (IndexError, TypeError, ValueError):
        return None  # refused below, with its place
    return known.known_array(elements.copy()) if isinstance(elements, np.ndarray) else elements


def _assign_known(x: Array, key: Any, value: Any) -> bool:
    """Assign x[key] = value by NumPy itself; return False where NumPy refuses it."""
    has_formula = x.storage.content.formula is not None
    target = None
    if has_formula:
        target = x if key is ... else basic_target(x, key)
    try:
        known.put(x, key, value)
    except (ValueError, TypeError, IndexError):
        return False
    if target is None:
        x.storage.content.wrote(None, 0)
    else:
        x.storage.content.wrote(target.seen, value if np.ndim(value) == 0 else target.known)
    return True


def set_(array: Array, key: Any, value: Any) -> None:
    """Assign x[key] = value."""
    if _is_element(key) and isinstance(value, (int, float, complex, np.generic)):
        if known.put_element(array, key if isinstance(key, tuple) else (key,), value):
            return
    key = as_masks(known.plain(key))
    if known.writable(array) and not _is_unknown((key, value)):
        if _assign_known(array, key, known.plain(value)):
            return
    if (chosen := masked(array, key)) is not None:
        chosen.write(value)
        return
    items, _ = parse(array, key)
    if any(isinstance(i, Many) for i in items):
        base, plan = _gathered(array, items)
        plan.write(base, value, "set")
        return
    target = basic_view(array, items)
    if isinstance(value, Array) and value.storage is array.storage and value.seen == target.seen:
        return  # the last act of x[key] += v: it has been written already
    elementwise.assign(target, value)


# ---- integer arrays --------------------------------------------------------------------------


@dataclass(frozen=True)
class Gather:
    """The dims of a viewed array that index values of one shape address. The dims of the index
    values stand in the result from `result_dim` on."""

    context: Context
    dims: tuple[int, ...]
    result_dim: int
    indices: tuple[Value, ...]

    def shape(self, base: Shape) -> Shape:
        rest = tuple(e for d, e in enumerate(base) if d not in self.dims)
        return (*rest[: self.result_dim], *self.indices[0].type.shape, *rest[self.result_dim :])

    def read(self, base: Array) -> Value:
        kind = ops.Gather(self.dims, self.result_dim)
        return self.context.emit_one(kind, base.read(), *self.indices)

    def write(self, base: Array, value: Any, fn: str) -> None:
        shape = self.shape(base.extents)
        value = elementwise.normal(value)
        elementwise.check_assignable(elementwise.extents_of(value), shape)
        v = elementwise.operand_value(self.context, value, base.type.dtype, shape)
        kind = ops.Scatter(self.dims, self.result_dim, fn)
        base.write(self.context.emit_one(kind, base.read(), v, *self.indices))


def _gathered(array: Array, items: Sequence[Item]) -> tuple[Array, Gather]:
    """Return a view with the basic items applied, and the gather on it (integers join the
    arrays)."""
    context = array.context
    full_slices = [Part(expr.const(0), 1, e) for e in array.extents]
    basic: list[Item] = []
    places: list[int] = []
    chosen: list[tuple[Any, Expr, int]] = []
    dim = 0
    for position, item in enumerate(items):
        if isinstance(item, (Many, Whole)):
            places.append(position)
            chosen.append((item, array.extents[dim], dim))
            basic.append(full_slices[dim])
        else:
            basic.append(item)
        dim += item is not NEW
    together = places[-1] - places[0] == len(places) - 1
    result_dim = places[0] if together else 0
    arrays = [_index_array(context, *selection) for selection in chosen]
    shape = elementwise.broadcast_shapes([v.type.shape for v in arrays], "index arrays")
    values = tuple(constants.broadcast_value(context, v, shape) for v in arrays)
    return basic_view(array, basic), Gather(context, tuple(places), result_dim, values)


def _index_array(context: Context, item: Item, extent: Expr, dim: int) -> Value:
    """Return an int64 value, negative indices counted from the end."""
    if isinstance(item, Whole):
        if isinstance(item.index, Expr):
            return view.index_value(context, item.index)
        return from_the_end(wrap(context, item.index), extent).read()
    if isinstance(item.index, np.ndarray):
        data = item.index.astype(np.int64)
        if extent.is_const:
            n = extent.value
            if data.size and (data.min() < -n or data.max() >= n):
                bad = int(data[(data < -n) | (data >= n)].flat[0])
                raise index_error(f"index {bad} is out of bounds", f"indices from {-n} to {n - 1}",
                                   str(bad))
            return as_array(np.where(data < 0, data + n, data)).read()
        if data.size:
            for k in {int(data.min()), int(data.max())}:  # of two that are not negative, the last
                e = expr.const(k) + (extent if k < 0 else 0)
                if expr.nonneg(e - extent) or expr.nonneg(-e - 1):
                    raise beyond(k, extent, dim)
                if k < 0 or k == data.max():
                    stays_within(e, k, extent, dim)
        if not data.size or data.min() >= 0:
            return as_array(data).read()
    index = as_array(item.index, dtypes.INT64)
    within(context, index.read(), extent, dim)
    return from_the_end(index, extent).read()


def from_the_end(index: Array, extent: Expr) -> Array:
    """Return the indices, of which negative ones are counted from the end of the dim."""
    index = as_array(index, dtypes.INT64)
    return elementwise.select(index < 0, index + Number(extent), index)


# ---- x.at[key].add(v), np.add.at(x, key, v) --------------------------------------------------

def combine_at(array: Array, key: Any, value: Any, fn: str) -> None:
    """Assign array[key] = fn(array[key], value), with duplicates of integer arrays combined one by
    one."""
    key = as_masks(known.plain(key))
    if fn == "set":
        set_(array, key, value)
        return
    ufunc = getattr(np, FUNCTIONS[COMBINE[fn]].ufunc)
    if (chosen := masked(array, key)) is not None:
        chosen.write(ufunc(chosen, value))
        return
    items, _ = parse(array, key)
    if any(isinstance(i, Many) for i in items):
        base, plan = _gathered(array, items)
        plan.write(base, value, fn)
        return
    target = basic_view(array, items)
    elementwise.apply(ufunc, target, value, out=target)


class At:
    """x.at is of this class: `x.at[key].add(v)` is a new array with v added at key; also set, mul,
    min, max."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> AtKey:
        return AtKey(self._array, key)


def _combined(fn: str) -> Any:
    """Return a method of AtKey."""

    def call(self: AtKey, value: Any) -> Array:
        new: Array = self._array.copy()
        combine_at(new, self._key, value, fn)
        return new

    call.__name__, call.__qualname__ = fn, f"x.at[key].{fn}"
    return call


class AtKey:
    def __init__(self, array: Array, key: Any) -> None:
        self._array, self._key = array, key

    def get(self) -> Any:
        return get(self._array, self._key)

    set, add, min, max = map(_combined, ("set", "add", "min", "max"))
    mul = multiply = _combined("mul")
