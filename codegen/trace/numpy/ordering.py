"""Sorting: sort, argsort, partition, and the elements that stand at given places of sorted lanes.

Along a split dim ranks merge their blocks (merging.py); elements at given places are found by
counting digits. Always holds: no rank holds more of a split dim than its block and another rank's.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import ShapeError
from codegen.mesh import as_written, local_offset
from codegen.ops import Count, Fold, Partition, Sort
from codegen.ops.kind import layout_of
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, number, unsupported
from codegen.trace.control.functional import fori_loop
from codegen.trace.numpy import creation, joining, picking, reducing, shaping
from codegen.trace.numpy.derived import derived
from codegen.trace.numpy.elementwise import apply, select
from codegen.trace.numpy.merging import lexsort_over_ranks, sort_over_ranks
from codegen.trace.numpy.order_keys import (
    axes_of_dim,
    complex_keys,
    emit_op,
    from_keys,
    int64_key,
    keys_of,
    order_by,
    order_of,
    padded_rows,
    part_type,
)
from codegen.trace.ranks import communicate, mapping

# ---- sorted --------------------------------------------------------------------------------------


def _sort_back(args: Any, outputs: Any, cotangents: Any, stable: Any) -> Any:
    """Put each element of the cotangent where the sorted element came from."""
    x, axis = args[:2]
    if axis is None:
        (flat,) = _sort_back((shaping.ravel(x), 0), outputs, cotangents, stable)
        return [shaping.reshape(flat, x.shape)]
    order = argsort(argsort(x, axis, stable=True), axis)
    return [picking.take_along_axis(cotangents[0], order, axis)]


@derived(_sort_back)
def sort(x: Any, axis: Any = -1, kind: Any = None, order: Any = None, *,
         stable: Any = None) -> Any:
    """Sort in ascending order, NaN last; -0.0 before 0.0, or as they stand where it is to be
    stable."""
    array, d = _lane(x, axis, order, "np.sort", kind)
    axes, dtype = axes_of_dim(array, d), array.type.dtype
    if axes and dtype.kind == "c":
        parts = [keys_of(part(array)) for part in (picking.real, picking.imag)]
        _, *sorted_parts = lexsort_over_ranks(complex_keys(array), d, axes, parts)
        result = creation.zeros_like(array)
        result.real, result.imag = (from_keys(as_array(x, k.type.dtype), part_type(dtype))
                                for x, k in zip(sorted_parts, parts))
        return result
    if (stable or kind in ("stable", "mergesort")) and dtype.kind in "fc":
        if not axes:
            return picking.take_along_axis(array, argsort(array, d), d)
        keys, places = sort_over_ranks(array, d, axes, True)
        value = from_keys(keys, dtype)
        return select((value == 0) & (places % 2 == 1), -value, value)
    if axes:
        return from_keys(sort_over_ranks(array, d, axes, None)[0], dtype)
    return array if dtype.kind == "c" and not array.ndim else _sorted(array, d)


def _sorted(array: Array, d: int) -> Array:
    if array.type.dtype.kind == "c":
        return emit_op(array, Sort(dim=d))
    return from_keys(emit_op(keys_of(array), Sort(dim=d)), array.type.dtype)


def argsort(x: Any, axis: Any = -1, kind: Any = None, order: Any = None, *,
            stable: Any = None) -> Any:
    """Return the positions of the elements in sorted order; stable, whatever `kind` says."""
    array, d = _lane(x, axis, order, "np.argsort", kind)
    if axes := axes_of_dim(array, d):
        if array.type.dtype.kind == "c":
            return lexsort_over_ranks(complex_keys(array), d, axes)[0]
        return sort_over_ranks(array, d, axes, False)[1]
    return order_of(array, d)


def _lane(x: Any, axis: Any, order: Any, function: str, kind: Any = None) -> tuple[Array, int]:
    """Return the array and the dim that is sorted. Raise UnsupportedError for order=, and for a
    kind= that NumPy does not know."""
    if function.endswith("partition"):
        if kind not in (None, "introselect"):
            raise unsupported(f"{function} with kind={kind!r}", "kind='introselect', as NumPy")
    elif kind is not None and str(kind)[:1].lower() not in ("q", "h", "m", "s"):  # as NumPy does
        raise unsupported(f"{function} with kind={kind!r}", "kind='stable'; 'quicksort', "
                          "'heapsort' and 'mergesort' are taken as well")
    if order is not None:
        raise unsupported(f"{function} with order=")
    return reducing.flat_or(x, axis, function)


def lexsort(keys: Any, axis: Any = -1) -> Array:
    """Return the order by the last key, of equal ones by the one before, and so on."""
    rows = [as_array(k) for k in keys]
    d = reducing.dim_of(axis, rows[0].ndim, "np.lexsort")
    if axes := next((a for row in rows if (a := axes_of_dim(row, d))), ()):
        flat = [key for row in reversed(rows) for key in (
            complex_keys(row) if row.type.dtype.kind == "c" else [int64_key(row)])]
        return lexsort_over_ranks(flat, d, axes)[0]
    return order_by(rows, d)


def sort_complex(a: Any) -> Any:
    ordered = sort(a)
    dtype = ordered.type.dtype
    if dtype.kind == "c":
        return ordered
    narrow = dtype.name in ("int8", "uint8", "int16", "uint16")
    return ordered.astype(np.complex64 if narrow else np.complex128)


def top_k(x: Any, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """Return the k largest elements along an axis, the largest first, and their positions (int64).

    As jax.lax.top_k: of equal elements the one that stands first comes first, and NaN count as the
    largest. k: an integer, at most the extent (ShapeError). Along a split dim each rank finds its
    k largest, and these are compared.

    >>> top_k(np.array([1, 3, 2]) + axis_index("r"), 2)[0]
    [3 2], [4 3], [5 4], [6 5]
    """
    reducing.no_complex(x, "spmd.top_k")
    array = as_array(x)
    d, count = reducing.dim_of(axis, array.ndim, "spmd.top_k"), operator.index(k)
    n = array.extents[d]
    if count < 0 or expr.nonneg(count - 1 - n):
        raise ShapeError(f"spmd.top_k: k is {count}", expected=f"0 to {n}", found=str(count))
    axes = axes_of_dim(array, d)
    if not count or not axes:
        largest = _largest(shaping.moveaxis(array, d, -1), count)
    else:
        largest = _largest_of_ranks(array, d, axes, count)
    values, places = (shaping.moveaxis(v, -1, d) for v in largest)
    return values, places


def _falling(values: Array) -> Any:
    """Return integers that increase where values decrease."""
    return apply(np.invert, keys_of(values, one_zero=True))


def _largest(rows: Array, k: int) -> tuple[Array, Array]:
    if not k:
        return rows[..., :0], as_array(rows[..., :0], np.int64)
    falling = _falling(rows)
    places = argpartition(falling, k - 1)[..., :k]
    order = argsort(picking.take_along_axis(falling, places, -1))
    places = picking.take_along_axis(places, order, -1)
    return picking.take_along_axis(rows, places, -1), places


def _largest_of_ranks(array: Array, d: int, axes: tuple[str, ...], k: int) -> Any:
    context, n = array.context, array.extents[d]
    mesh, layout = context.mesh, array.read().type.layout
    assert layout is not None
    size = mesh.size(axes)
    most = expr.maximum(expr.floordiv(n + size - 1, size), k)

    def largest_of_block(part: Array) -> Any:
        rows = shaping.moveaxis(part, d, -1)
        desc = padded_rows(_falling(rows), most)
        places = argpartition(desc, k - 1)[..., :k]
        gone = apply(np.greater_equal, places, rows.shape[-1])
        block = creation.zeros((*rows.shape[:-1], number(most)), rows.dtype)
        block[..., : rows.shape[-1]] = rows
        mine = (picking.take_along_axis(block, places, -1),
                places + number(local_offset(mesh, n, axes)), gone)
        all_of = [communicate.all_gather(v, axes, rows.ndim - 1, tiled=True) for v in mine]
        order = lexsort([_falling(all_of[0]), all_of[2]])[..., :k]
        return tuple(picking.take_along_axis(v, order, -1) for v in all_of[:2])

    spec = (*as_written((*layout[:d], *layout[d + 1 :])), None)
    return mapping.call(context, largest_of_block, (array,), {}, None, None, (spec, spec))


# ---- elements at places --------------------------------------------------------------------------


def partition(x: Any, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
    """Return an array with, at each k, what sorting puts there, nothing larger before it, nothing
    less behind it."""
    array, d = _lane(x, axis, order, "np.partition", kind)
    places = _places(array, d, kth, "np.partition")
    if axes_of_dim(array, d) or array.type.dtype.kind == "c" or array.context.recordings:
        return sort(array, d)
    rows = shaping.moveaxis(keys_of(array), d, -1)
    return from_keys(shaping.moveaxis(_partitioned(rows, places), -1, d), array.type.dtype)


def argpartition(x: Any, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
    """Return the positions of elements less than the one at each k, of its equals, then of the
    rest."""
    array, d = _lane(x, axis, order, "np.argpartition", kind)
    places = _places(array, d, kth, "np.argpartition")
    if array.type.dtype.kind == "c" or not 0 < len(places) < 64:
        return argsort(array, d)
    keys = keys_of(array, one_zero=True)
    rows = shaping.moveaxis(keys, d, -1)
    pivots = order_statistics(keys, d, places)
    classes = sum(as_array(c, np.int8) for k in range(len(places))
                  for c in (rows >= pivots[..., k, None], rows > pivots[..., k, None]))
    return shaping.moveaxis(argsort(classes, -1), -1, d)


def _places(array: Array, d: int, kth: Any, function: str) -> list[Any]:
    n = array.extents[d]
    for k in np.ravel(kth):
        if n.is_const and not -n.value <= k < n.value:
            raise ShapeError(f"{function}: kth {k} is out of bounds",
                             expected=f"{-n.value} to {n.value - 1}", found=str(k))
    kept = sorted({int(k) for k in np.ravel(kth)})
    return [array.shape[d] + k for k in kept if k < 0] + [k for k in kept if k >= 0]


def _partitioned(rows: Array, places: Any) -> Array:
    return emit_op(rows, Partition(dim=rows.ndim - 1), _places_per_row(rows, places))


def _places_per_row(rows: Array, places: Any) -> Array:
    """Return the places for each row."""
    if isinstance(places, list):
        places = joining.stack([as_array(k, dtypes.INT64) for k in places])
    return shaping.broadcast_to(places, (*rows.shape[:-1], places.shape[-1]))


def _order_statistics_back(args: Any, outputs: Any, cotangents: Any) -> Any:
    array, d, places = args
    rows = shaping.moveaxis(argsort(array, d), d, -1)
    indices = picking.take_along_axis(rows, _places_per_row(rows, places), -1)
    lines = shaping.moveaxis(creation.zeros_like(array, cotangents[0].dtype), d, -1)
    where = [shaping.expand_dims(creation.arange(e), tuple(
        j for j in range(indices.ndim) if j != k)) for k, e in enumerate(indices.shape[:-1])]
    return [shaping.moveaxis(lines.at[(*where, indices)].add(cotangents[0]), -1, d), None, None]


@derived(_order_statistics_back)
def order_statistics(array: Array, d: int, places: Any) -> Array:
    """Return the elements that stand at these places when dim d is sorted, along a last dim.
    places: a list of numbers, or an array that has them along its last dim, the other ones as
    `array`."""
    dtype = array.type.dtype
    if dtype.kind == "c":
        rows = shaping.moveaxis(sort(array, d), d, -1)
        if isinstance(places, list):
            return joining.concatenate([rows[..., k : k + 1] for k in places], -1)
        return picking.take_along_axis(rows, _places_per_row(rows, places), -1)
    if axes := axes_of_dim(array, d):
        other = _dim_to_split_instead(array, d)
        if other is None:
            return from_keys(_radix_select(array, d, axes, places), dtype)
        layout = [() if e == d else axes if e == other else entry
                  for e, entry in enumerate(layout_of(array.read().type))]
        array = mapping.relayout(array, as_written(tuple(layout)))
    rows = shaping.moveaxis(keys_of(array), d, -1)
    parted = _partitioned(rows, places)
    if isinstance(places, list):  # the same of every row, which ranks then have where they lie
        columns = [parted[..., k : k + 1] for k in places]
        return from_keys(joining.concatenate(columns, -1), dtype)
    return from_keys(picking.take_along_axis(parted, _places_per_row(rows, places), -1), dtype)


def _dim_to_split_instead(array: Array, d: int) -> int | None:
    """Return a dim that is not split and at least as long as split dim d; None if there is none.
    With many short lanes, it is cheaper to exchange whole lanes than to add up 256 counts of each
    lane."""
    layout, n = layout_of(array.read().type), array.extents
    return next((e for e in range(array.ndim) if not layout[e] and n[e].is_const and n[d].is_const
                 and n[e].value >= n[d].value), None)


def _radix_select(array: Array, d: int, axes: tuple[str, ...], places: Any) -> Array:
    """Find the keys at places along a split dim by radix selection: digit after digit, the ranks
    add up how many elements with the leading digits known so far have each next digit."""
    layout = array.read().type.layout
    assert layout is not None
    rest = as_written((*layout[:d], *layout[d + 1 :]))
    rows = shaping.moveaxis(array, d, -1)
    wanted = _places_per_row(rows, places)
    n, many = array.extents[d], expr.product(wanted.extents)
    # long lanes are gone through less often; there must be room for the counts of all digits
    wide = (not n.is_const or n.value >= 2**18) and many.is_const and many.value <= 32

    def keys_at_places(part: Array, left: Array) -> Array:
        keys = keys_of(shaping.moveaxis(part, d, -1))
        dtype = keys.type.dtype
        width = 8 * dtype.size
        bits = 16 if wide and width > 8 else 8

        def digit(step: Any, state: Any) -> Any:
            leading, left = state
            shift = as_array(width - bits * (step + 1), dtypes.INT64)
            counts = emit_op(emit_op(keys, Count(bits), leading, shift), Fold(axes, "add"))
            up_to = reducing.cumsum(counts, -1)
            below = apply(np.less_equal, up_to, shaping.expand_dims(left, -1))
            k = as_array(reducing.sum_(below, -1), dtypes.INT64)
            less = reducing.sum_(select(below, counts, 0), -1)
            return as_array(leading * 2**bits + k), as_array(left - less)

        zero = creation.zeros(left.shape, np.int64)
        leading, _ = fori_loop(0, width // bits, digit, (zero, left))
        if dtype.kind == "i":
            leading = apply(np.bitwise_xor, leading, -(2**63) if width == 64 else 2 ** (width - 1))
        return as_array(as_array(leading), dtype)

    spec = (*rest, None)
    keys = mapping.call(array.context, keys_at_places, (array, wanted), {}, None,
                        (as_written(layout), spec), spec)
    return as_array(keys)
