"""Sorting: sort, argsort, partition, and the elements that stand at given places of sorted lanes.

Along a split dim ranks sort their blocks, then merge them pairwise: Batcher's odd-even merge sort
(Knuth, The Art of Computer Programming, 5.2.2), whose exchanges depend on the index alone. Elements
at given places are found by counting digits. Floats are sorted as integers (`order_key`).
Always holds: no rank holds more of a split dim than its block and another rank's.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import ShapeError
from codegen.mesh import as_written, local_offset
from codegen.ops import ArgSort, Count, Fold, Kind, Map, Merge, Partition, Sort
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, as_value, number, unsupported, wrap
from codegen.trace.control.functional import fori_loop, while_loop
from codegen.trace.control.letting import as_symbol
from codegen.trace.number import expr_of
from codegen.trace.numpy import creation, joining, picking, reducing, shaping
from codegen.trace.numpy.elementwise import apply, select
from codegen.trace.ranks import communicate, mapping

_LAST = 2**63 - 1  # the place of what fills blocks up: behind all others

# ---- elements as integers ------------------------------------------------------------------------


def made(x: Array, what: Kind, *more: Array) -> Array:
    """The result of an op of this kind, of x and more operands."""
    value = x.context.emit_one(what, x.read(), *(y.read() for y in more))
    return wrap(x.context, value, scalar=False)


def keys_of(array: Array, one_zero: bool = False) -> Array:
    """Integers in the order of the elements, none of them complex. one_zero: -0.0 is 0.0."""
    if array.type.dtype.kind != "f":
        return array
    wide = as_array(array, np.float64 if array.type.dtype.size == 8 else np.float32)
    return made(as_array(wide + 0.0) if one_zero else wide, Map("order_key"))


def of_keys(keys: Array, dtype: DType) -> Array:
    """The elements of which these are the keys."""
    return as_array(made(keys, Map("of_order_key")), dtype) if dtype.kind == "f" else keys


def split_over(array: Array, d: int) -> tuple[str, ...]:
    """The axes that split a dim; () for a local array."""
    layout = array.read().type.layout
    return layout[d] if layout and not array.read().type.free else ()


# ---- sorted --------------------------------------------------------------------------------------


def sort(x: Any, axis: Any = -1, kind: Any = None, order: Any = None, *,
         stable: Any = None) -> Any:
    """Ascending, NaN last; -0.0 before 0.0, or as they stand where it is to be stable."""
    array, d = _lane(x, axis, order, "np.sort", kind)
    axes, dtype = split_over(array, d), array.type.dtype
    if axes and dtype.kind == "c":
        parts = [keys_of(part(array)) for part in (picking.real, picking.imag)]
        _, *found = _by_tuples(_pair(array), d, axes, parts)
        made = creation.zeros_like(array)
        made.real, made.imag = (of_keys(as_array(x, k.type.dtype), _part(dtype))
                                for x, k in zip(found, parts))
        return made
    if (stable or kind in ("stable", "mergesort")) and dtype.kind in "fc":
        if not axes:
            return picking.take_along_axis(array, argsort(array, d), d)
        keys, places = _over_ranks(array, d, axes, True)
        value = of_keys(keys, dtype)
        return select((value == 0) & (places % 2 == 1), -value, value)
    if axes:
        return of_keys(_over_ranks(array, d, axes, None)[0], dtype)
    return array if dtype.kind == "c" and not array.ndim else _sorted(array, d)


def _sorted(array: Array, d: int) -> Array:
    if array.type.dtype.kind == "c":
        return made(array, Sort(dim=d))
    return of_keys(made(keys_of(array), Sort(dim=d)), array.type.dtype)


def argsort(x: Any, axis: Any = -1, kind: Any = None, order: Any = None, *,
            stable: Any = None) -> Any:
    """The positions of the elements in sorted order; stable, whatever `kind` says."""
    array, d = _lane(x, axis, order, "np.argsort", kind)
    if axes := split_over(array, d):
        if array.type.dtype.kind == "c":
            return _by_tuples(_pair(array), d, axes)[0]
        return _over_ranks(array, d, axes, False)[1]
    keys = array if array.type.dtype.kind == "c" else keys_of(array, one_zero=True)
    return made(keys, ArgSort(dim=d))


def _lane(x: Any, axis: Any, order: Any, what: str, kind: Any = None) -> tuple[Array, int]:
    if what.endswith("partition"):
        if kind not in (None, "introselect"):
            raise unsupported(f"{what} with kind={kind!r}", "kind='introselect', as NumPy")
    elif kind is not None and str(kind)[:1].lower() not in ("q", "h", "m", "s"):  # as NumPy does
        raise unsupported(f"{what} with kind={kind!r}", "kind='stable'; 'quicksort', 'heapsort' "
                          "and 'mergesort' are taken as well")
    if order is not None:
        raise unsupported(f"{what} with order=")
    return reducing.flat_or(x, axis, what)


def lexsort(keys: Any, axis: Any = -1) -> Array:
    """The order by the last key, of equal ones by the one before, and so on."""
    rows = [as_array(k) for k in keys]
    d = reducing.dim_of(axis, rows[0].ndim, "np.lexsort")
    if axes := next((a for row in rows if (a := split_over(row, d))), ()):
        flat = [key for row in reversed(rows) for key in (
            _pair(row) if row.type.dtype.kind == "c" else [_whole_key(row)])]
        return _by_tuples(flat, d, axes)[0]
    order = argsort(rows[0], axis)
    for key in rows[1:]:
        placed = argsort(picking.take_along_axis(key, order, axis), axis)
        order = picking.take_along_axis(order, placed, axis)
    return as_array(order)


def sort_complex(a: Any) -> Any:
    found = sort(a)
    kind = found.type.dtype
    if kind.kind == "c":
        return found
    narrow = kind.name in ("int8", "uint8", "int16", "uint16")
    return found.astype(np.complex64 if narrow else np.complex128)


def top_k(x: Any, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """The k largest elements along an axis, the largest first, and their positions (int64).

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
    axes = split_over(array, d)
    if not count or not axes:
        found = _largest(shaping.moveaxis(array, d, -1), count)
    else:
        found = _largest_of_ranks(array, d, axes, count)
    values, places = (shaping.moveaxis(v, -1, d) for v in found)
    return values, places


def _falling(values: Array) -> Any:
    """Integers that increase where values decrease."""
    return apply(np.invert, keys_of(values, one_zero=True))


def _largest(rows: Array, k: int) -> tuple[Array, Array]:
    if not k:
        return rows[..., :0], as_array(rows[..., :0], np.int64)
    falling = _falling(rows)
    at = argpartition(falling, k - 1)[..., :k]
    at = picking.take_along_axis(at, argsort(picking.take_along_axis(falling, at, -1)), -1)
    return picking.take_along_axis(rows, at, -1), at


def _largest_of_ranks(array: Array, d: int, axes: tuple[str, ...], k: int) -> Any:
    context, n = array.context, array.extents[d]
    mesh, layout = context.mesh, array.read().type.layout
    assert layout is not None
    size = mesh.size(axes)
    most = expr.maximum(expr.floordiv(n + size - 1, size), k)

    def found(part: Array) -> Any:
        rows = shaping.moveaxis(part, d, -1)
        desc = filled(_falling(rows), most)
        at = argpartition(desc, k - 1)[..., :k]
        gone = apply(np.greater_equal, at, rows.shape[-1])
        block = creation.zeros((*rows.shape[:-1], number(most)), rows.dtype)
        block[..., : rows.shape[-1]] = rows
        mine = (picking.take_along_axis(block, at, -1), at + number(local_offset(mesh, n, axes)),
                gone)
        all_of = [communicate.all_gather(v, axes, rows.ndim - 1, tiled=True) for v in mine]
        order = lexsort([_falling(all_of[0]), all_of[2]])[..., :k]
        return tuple(picking.take_along_axis(v, order, -1) for v in all_of[:2])

    spec = (*as_written((*layout[:d], *layout[d + 1 :])), None)
    return mapping.call(context, found, (array,), {}, None, None, (spec, spec))


# ---- over ranks ----------------------------------------------------------------------------------


def _over_ranks(array: Array, d: int, axes: tuple[str, ...], signed: bool | None) -> list[Array]:
    """The keys sorted along a split dim, and unless signed is None the places that they had; if it
    is true, twice the place, and 1 more for an element with a sign."""
    context = array.context
    mesh, n = context.mesh, array.extents[d]
    size = mesh.size(axes)
    most = expr.floordiv(n + size - 1, size)  # how long the longest block is
    begin = local_offset(mesh, n, axes)
    layout = array.read().type.layout
    assert layout is not None

    def blocks(part: Array) -> Any:
        mine = shaping.moveaxis(part, d, -1)
        block = filled(keys_of(mine, signed is not None), most)
        if signed is None:
            rows = [made(block, Sort(dim=block.ndim - 1))]
        else:
            order = made(block, ArgSort(dim=block.ndim - 1))
            place = order + number(begin)
            if signed:
                signs = filled(as_array(keys_of(mine) < 0, dtypes.INT64), most)
                place = 2 * place + picking.take_along_axis(signs, order, -1)
            there = apply(np.less, order, part.shape[d])
            place = as_array(select(there, place, _LAST))
            rows = [picking.take_along_axis(block, order, -1), place]
        merged = tuple(shaping.moveaxis(x, -1, d) for x in _merged(axes, rows, Merge()))
        return merged if len(merged) > 1 else merged[0]

    blocks.__name__ = "sorted"
    spec = as_written(layout)
    found = mapping.call(context, blocks, (array,), {}, None, None,
                         spec if signed is None else (spec, spec))
    whole = (slice(None),) * d
    return [x[(*whole, slice(0, number(n)))] for x in (found if signed is not None else (found,))]


def _whole_key(array: Array) -> Array:
    """Keys as int64; zeros of both signs are equal."""
    keys = keys_of(array, one_zero=True)
    whole = as_array(keys, dtypes.INT64)
    return whole ^ -(2**63) if keys.type.dtype.name == "uint64" else whole


def _part(dtype: DType) -> DType:
    """The type of the real and the imaginary part."""
    return dtypes.BY_NAME[f"float{4 * dtype.size}"]


def _pair(array: Array) -> list[Array]:
    """Complex numbers as two keys: numbers first, then x + nan j, nan + y j, and nan + nan j."""
    parts = [part(array) for part in (picking.real, picking.imag)]
    (re, im), (no_re, no_im) = ([f(x) for x in parts] for f in (
        _whole_key, lambda x: apply(np.isnan, x)))
    nan = as_array(_NAN[_part(array.type.dtype).size], dtypes.INT64)
    first = select(no_re | no_im, nan + 2 * no_re + no_im - 1, re)
    return [as_array(first), as_array(select(no_re, select(no_im, 0, im), select(no_im, re, im)))]


_NAN = {4: 0x7FC00000, 8: 0x7FF8000000000000}  # its key


def _by_tuples(
    keys: list[Array], d: int, axes: tuple[str, ...], carried: Sequence[Array] = (),
) -> list[Array]:
    """The places of elements sorted along a split dim, by the first key, then by the next; and
    what is carried along. Equal ones stay in their order."""
    context = keys[0].context
    mesh, n = context.mesh, keys[0].extents[d]
    size = mesh.size(axes)
    most = expr.floordiv(n + size - 1, size)
    split = next(x for x in keys if split_over(x, d) == axes).read().type.layout
    assert split is not None

    def blocks(*parts: Array) -> Any:
        rows = [filled(as_array(shaping.moveaxis(p, d, -1), dtypes.INT64), most) for p in parts]
        order = lexsort(rows[: len(keys)][::-1])
        there = apply(np.less, order, parts[0].shape[d])
        place = select(there, order + number(local_offset(mesh, n, axes)), _LAST)
        column = [picking.take_along_axis(row, order, -1) for row in rows]
        column.insert(len(keys), as_array(place))
        (merged,) = _merged(axes, [joining.stack(column, -2)], Merge(tuples=True))
        return tuple(shaping.moveaxis(merged[..., k, :], -1, d)
                     for k in range(len(keys), len(column)))

    spec = as_written(split)
    given = (*keys, *carried)
    found = mapping.call(context, blocks, given, {}, None, (spec,) * len(given),
                         (spec,) * (1 + len(carried)))
    whole = (slice(None),) * d
    return [x[(*whole, slice(0, number(n)))] for x in found]


def filled(rows: Array, n: Expr) -> Array:
    """Rows made n long by what stands behind all keys."""
    kind = rows.type.dtype
    last = True if kind.kind == "b" else int(np.iinfo(kind.name).max)
    block = creation.full((*rows.shape[:-1], number(n)), last, dtypes.numpy_dtype(kind))
    block[..., : rows.shape[-1]] = rows
    return block


def _merged(axes: tuple[str, ...], rows: list[Array], what: Merge) -> list[Array]:
    """Blocks of one length, sorted on each rank, to blocks that are sorted from rank to rank."""
    context = rows[0].context
    mesh, n = context.mesh, context.mesh.size(axes)
    p = communicate.member_of(context, axes)
    at = expr.symbol(p)

    def exchanged(rows: Sequence[Array], to: Expr, sends: Expr) -> list[Array]:
        """The one of two partners that stands first keeps the first half of both blocks."""
        theirs = communicate.send_by(context, axes, p, to, sends, rows)
        side = (sends * (1 + expr.lt(to, at))).subst({p: mesh.position(axes)})
        values = [x.read() for pair in zip(rows, theirs, strict=True) for x in pair]
        values.append(as_value(context, number(side), dtypes.INT64))
        return [wrap(context, v, scalar=False) for v in context.emit(what, values)]

    def swapped(distance: Expr, down: int) -> Expr:
        """The partner at a distance: the one above or, if there is an odd number of times the
        distance before a member, below; down 1: the other way round."""
        odd = expr.eq(expr.mod(expr.floordiv(at, distance), expr.const(2)), 1)
        return at + distance * ((1 - 2 * odd) * (1 - 2 * down))

    def stage(state: Any) -> Any:
        rows, length = state
        half = _symbol(length)
        to = swapped(half, 0)
        rows = exchanged(rows, to, expr.lt(to, n))

        def finer(state: Any) -> Any:
            rows, distance = state
            to = swapped(_symbol(apply(np.maximum, distance, 1)), 1)
            together = expr.eq(expr.floordiv(to, 2 * half), expr.floordiv(at, 2 * half))
            sends = expr.ge0(to) * expr.lt(to, n) * together
            return exchanged(rows, to, sends), distance // 2

        rows, _ = while_loop(lambda state: state[1] > 0, finer, (rows, length // 2))
        return rows, length * 2

    one = as_array(1, dtypes.INT64)
    merged, _ = while_loop(lambda state: state[1] < number(n), stage, (rows, one))
    return list(merged)


def _symbol(x: Any) -> Expr:
    found = expr_of(as_symbol(x))
    assert found is not None
    return found


# ---- elements at places --------------------------------------------------------------------------


def partition(x: Any, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
    """At each k what sorting puts there, nothing larger before it, nothing less behind it."""
    array, d = _lane(x, axis, order, "np.partition", kind)
    places = _places(array, d, kth, "np.partition")
    if split_over(array, d) or array.type.dtype.kind == "c":
        return sort(array, d)
    rows = shaping.moveaxis(keys_of(array), d, -1)
    return of_keys(shaping.moveaxis(_partitioned(rows, places), -1, d), array.type.dtype)


def argpartition(x: Any, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
    """Positions: of what is less than the element at each k, of what equals it, of what is more."""
    array, d = _lane(x, axis, order, "np.argpartition", kind)
    places = _places(array, d, kth, "np.argpartition")
    if array.type.dtype.kind == "c" or not 0 < len(places) < 64:
        return argsort(array, d)
    keys = keys_of(array, one_zero=True)
    rows = shaping.moveaxis(keys, d, -1)
    at = at_places(keys, d, places)
    classes = sum(as_array(c, np.int8) for k in range(len(places))
                  for c in (rows >= at[..., k, None], rows > at[..., k, None]))
    return shaping.moveaxis(argsort(classes, -1), -1, d)


def _places(array: Array, d: int, kth: Any, what: str) -> list[Any]:
    n = array.extents[d]
    for k in np.ravel(kth):
        if n.is_const and not -n.value <= k < n.value:
            raise ShapeError(f"{what}: kth {k} is out of bounds",
                             expected=f"{-n.value} to {n.value - 1}", found=str(k))
    kept = sorted({int(k) for k in np.ravel(kth)})
    return [array.shape[d] + k for k in kept if k < 0] + [k for k in kept if k >= 0]


def _partitioned(rows: Array, places: Any) -> Array:
    return made(rows, Partition(dim=rows.ndim - 1), _of_rows(rows, places))


def _of_rows(rows: Array, places: Any) -> Array:
    """The places for each row."""
    if isinstance(places, list):
        places = joining.stack([as_array(k, dtypes.INT64) for k in places])
    return shaping.broadcast_to(places, (*rows.shape[:-1], places.shape[-1]))


def at_places(array: Array, d: int, places: Any) -> Array:
    """The elements that stand at these places when dim d is sorted, along a last dim. places: a
    list of numbers, or an array that has them along its last dim, the other ones as `array`."""
    dtype = array.type.dtype
    if dtype.kind == "c":
        rows = shaping.moveaxis(sort(array, d), d, -1)
        if isinstance(places, list):
            return joining.concatenate([rows[..., k : k + 1] for k in places], -1)
        return picking.take_along_axis(rows, _of_rows(rows, places), -1)
    if axes := split_over(array, d):
        return of_keys(_counted(array, d, axes, places), dtype)
    rows = shaping.moveaxis(keys_of(array), d, -1)
    parted = _partitioned(rows, places)
    if isinstance(places, list):  # the same of every row, which ranks then have where they lie
        return of_keys(joining.concatenate([parted[..., k : k + 1] for k in places], -1), dtype)
    return of_keys(picking.take_along_axis(parted, _of_rows(rows, places), -1), dtype)


def _counted(array: Array, d: int, axes: tuple[str, ...], places: Any) -> Array:
    """Keys at places along a split dim, digit by digit: the ranks count together how many elements
    with the digits found so far have which one next."""
    layout = array.read().type.layout
    assert layout is not None
    rest = as_written((*layout[:d], *layout[d + 1 :]))
    rows = shaping.moveaxis(array, d, -1)
    wanted = _of_rows(rows, places)
    n, many = array.extents[d], expr.product(wanted.extents)
    # long lanes are gone through less often; there must be room for the counts of all digits
    wide = (not n.is_const or n.value >= 2**18) and many.is_const and many.value <= 32

    def found(part: Array, left: Array) -> Array:
        keys = keys_of(shaping.moveaxis(part, d, -1))
        kind = keys.type.dtype
        width = 8 * kind.size
        bits = 16 if wide and width > 8 else 8

        def digit(step: Any, state: Any) -> Any:
            leading, left = state
            shift = as_array(width - bits * (step + 1), dtypes.INT64)
            counts = made(made(keys, Count(bits), leading, shift), Fold(axes, "add"))
            up_to = reducing.cumsum(counts, -1)
            below = apply(np.less_equal, up_to, shaping.expand_dims(left, -1))
            k = as_array(reducing.sum_(below, -1), dtypes.INT64)
            less = reducing.sum_(select(below, counts, 0), -1)
            return as_array(leading * 2**bits + k), as_array(left - less)

        zero = creation.zeros(left.shape, np.int64)
        leading, _ = fori_loop(0, width // bits, digit, (zero, left))
        if kind.kind == "i":
            leading = apply(np.bitwise_xor, leading, -(2**63) if width == 64 else 2 ** (width - 1))
        return as_array(as_array(leading), kind)

    spec = (*rest, None)
    keys = mapping.call(array.context, found, (array, wanted), {}, None,
                        (as_written(layout), spec), spec)
    return as_array(keys)
