"""Functions that pick, compare and round: take, clip, where, isclose, diff …"""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import DtypeError, ShapeError
from codegen.ops import Relayout
from codegen.symbolic import expr
from codegen.trace import view
from codegen.trace.array import Array, as_array, constant, is_traced, number, unsupported, wrap
from codegen.trace.declare import global_indices
from codegen.trace.expecting import between, within
from codegen.trace.number import Number, expr_of
from codegen.trace.numpy import joining, shaping
from codegen.trace.numpy.creation import arange, zeros_like
from codegen.trace.numpy.derived import with_slopes
from codegen.trace.numpy.elementwise import (
    apply,
    normal,
    result_type,
    same_extent,
    select,
    shape_text,
    store,
)
from codegen.trace.numpy.index import Gather, from_the_end
from codegen.trace.numpy.masks import MaskPlaces
from codegen.trace.numpy.reducing import all_, along, cumsum, dim_of, sum_
from codegen.trace.numpy.special import sinc_slope


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return nonzero(condition, "where")
    if x is None or y is None:
        raise unsupported("np.where with one of x and y", "np.where(mask, x, y), or both left out")
    return select(condition, x, y)


def nonzero(x: Any, name: str = "nonzero") -> tuple[MaskPlaces, ...]:
    """Return, dim by dim, the places of elements that are not 0; only the run knows their
    number."""
    mask = _as_mask(x)
    if not mask.ndim:
        raise ShapeError(f"np.{name} of a number", expected="an array of at least one dim",
                         found=str(mask.type), remedy="np.atleast_1d(x)")

    def places(dim: int) -> Array:
        index = arange(mask.shape[dim])
        shape = [1] * mask.ndim
        shape[dim] = mask.shape[dim]
        return shaping.broadcast_to(shaping.reshape(index, tuple(shape)), mask.shape)

    return tuple(MaskPlaces(mask, d, partial(places, d), name) for d in range(mask.ndim))


def flatnonzero(a: Any) -> MaskPlaces:
    return MaskPlaces(mask := _as_mask(shaping.ravel(a)), 0, lambda: arange(mask.shape[0]),
                  "flatnonzero")


def argwhere(a: Any) -> MaskPlaces:
    mask = _as_mask(shaping.atleast_1d(a))
    places = nonzero(mask)
    return MaskPlaces(mask, None, lambda: joining.stack([p.whole for p in places], axis=-1),
                      "argwhere")


def _as_mask(x: Any) -> Array:
    """Return an array of its own, which says where elements are not 0."""
    mask = as_array(x, np.bool_)
    return wrap(mask.context, mask.read(), scalar=False)


def select_(conditions: Any, choices: Any, default: Any = 0) -> Array:
    if len(conditions) != len(choices):
        raise ShapeError("np.select: as many conditions as choices",
                         expected=f"{len(conditions)} choices",
                         found=str(len(choices)))
    dtype = result_type(*[normal(x) for x in (*choices, default)])
    out: Any = as_array(default, dtype)
    for mask, choice in reversed(list(zip(conditions, choices))):
        out = select(mask, as_array(choice, dtype), out)
    return as_array(out)


def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **options: Any) -> Any:
    """Apply functions to those elements for which a condition holds, each in its place."""
    array = shaping.atleast_1d(x)
    conditions = condlist if isinstance(condlist, (list, tuple)) else list(
        [condlist] if as_array(condlist).ndim < 2 else condlist)
    if as_array(x).ndim and not as_array(conditions[0]).ndim:
        conditions = [condlist]
    masks = [as_array(c, dtypes.BOOL).reshape(array.shape) for c in conditions]
    if len(funclist) == len(masks) + 1:
        masks.append(apply(np.logical_not, reduce(lambda p, q: p | q, masks)))
    if len(funclist) != len(masks):
        raise ShapeError("np.piecewise: with as many conditions as there are, as many functions, "
                         "or one more, are expected", expected=f"{len(masks)} functions",
                         found=str(len(funclist)))
    result = zeros_like(array)
    for mask, f in zip(masks, funclist):
        result[mask] = f(array[mask], *args, **options) if callable(f) else f
    return result.reshape(as_array(x).shape)


def clip(x: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None,
         max: Any = None, dtype: Any = None) -> Any:
    if dtype is not None:
        raise unsupported("np.clip with dtype=", "np.clip(x.astype(t), low, high)")
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    result: Any = normal(x)
    kind = as_array(result).type.dtype
    if kind.kind in "iu":  # as NumPy: a Python integer that the type cannot hold limits nothing
        limits = np.iinfo(kind.name)
        low = None if type(low) is int and low <= limits.min else low
        high = None if type(high) is int and high >= limits.max else high
        if isinstance(low, Number):
            low = number(expr.maximum(low.expr, int(limits.min)))
        if isinstance(high, Number) and limits.max < 2**63 - 1:
            high = number(expr.minimum(high.expr, int(limits.max)))
    if low is None and high is None:
        return store(as_array(result).copy(), out)
    if low is not None:
        result = apply(np.maximum, low, result)  # which is the second one where they are equal
    if high is not None:
        result = apply(np.minimum, high, result)
    return store(as_array(result), out)


def take(x: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    array = as_array(x)
    if axis is None:
        array, axis = shaping.ravel(array), 0
    d = dim_of(axis, array.ndim, "np.take")
    indices = _by_mode(indices, array.shape[d], mode)
    plain = isinstance(indices, (Array, int)) or not np.ndim(indices)
    key = indices if plain else np.asarray(indices)
    return store(along(array, d, key).copy(), out)  # never a view, as x[:, 0] is


def _by_mode(indices: Any, count: Any, mode: str) -> Any:
    """Return indices of `count` elements, those beyond the ends moved as mode= says."""
    if mode == "wrap":
        return as_array(indices) % as_array(count)
    return clip(indices, 0, count - 1) if mode == "clip" else indices


def take_along_axis(x: Any, indices: Any, axis: Any = -1) -> Array:
    """Take x at one index per place along a dim."""
    array, positions = as_array(x), as_array(indices, dtypes.INT64)
    if axis is None:
        array, axis = shaping.ravel(array), 0
    d = dim_of(axis, array.ndim, "np.take_along_axis")
    plan = _along(array, positions, d)
    return wrap(array.context, plan.read(array), scalar=False)


def put_along_axis(x: Any, indices: Any, values: Any, axis: Any) -> None:
    array, positions = as_array(x), as_array(indices, dtypes.INT64)
    d = dim_of(axis, array.ndim, "np.put_along_axis")
    _along(array, positions, d).write(array, values, "set")


def _along(array: Array, indices: Array, d: int) -> Gather:
    if indices.ndim != array.ndim:
        raise ShapeError("`indices` and `arr` must have the same number of dimensions",
                         expected=f"{array.ndim} dims", found=f"{indices.ndim}")
    # Dims beyond those along which the indices differ are read as they lie, split or not.
    differ = [d, *(k for k in range(array.ndim) if indices.extents[k] != 1)]
    dims = range(min(differ), max(differ) + 1)
    indices = shaping.reshape(indices, tuple(indices.shape[k] for k in dims))
    grids = []
    wide = tuple(indices.shape[j] if k == d else array.shape[k] for j, k in enumerate(dims))
    for j, k in enumerate(dims):
        if k == d:
            within(array.context, indices.read(), array.extents[d], d)
            grid = from_the_end(indices, array.extents[d])
        else:
            grid = global_indices(array.context, array.extents[k], expr.const(0), j, len(dims))
            grid = _split_as(grid, j, array, k)
        grids.append(shaping.broadcast_to(grid, wide).read())
    return Gather(array.context, tuple(dims), dims[0], tuple(grids))


def _split_as(grid: Array, j: int, array: Array, k: int) -> Array:
    """Return a grid of indices along its dim j, which lies as dim k of an array does."""
    layout = array.read().type.layout
    if not layout or not layout[k]:
        return grid
    to = tuple(layout[k] if d == j else () for d in range(grid.ndim))
    return wrap(grid.context, grid.context.emit_one(Relayout(to), grid.read()), scalar=False)


def round_(x: Any, decimals: int = 0, out: Any = None) -> Any:
    """Round as NumPy does: scale by a power of ten, half to even."""
    array = as_array(x)
    kind = array.type.dtype.kind
    if kind in "iu" and decimals >= 0:
        return store(array.copy(), out)
    if kind in "iu":
        raise unsupported("rounding integers to tens",
                          "np.round(x.astype(float), -1).astype(x.dtype)")
    if decimals == 0:
        return store(apply(np.rint, array), out)
    if kind == "b":
        raise unsupported("rounding bools to decimals", "x.astype(np.float64)")
    if kind == "c":  # each part by itself, infinities and NaN too
        result = zeros_like(array)
        result.real, result.imag = round_(real(array), decimals), round_(imag(array), decimals)
        return store(result if result.ndim else result[()], out)
    scale = 10.0 ** abs(decimals)
    up, down = (np.multiply, np.divide) if decimals > 0 else (np.divide, np.multiply)
    return store(apply(down, apply(np.rint, apply(up, array, scale)), scale), out)


def real(x: Any) -> Array:
    array = as_array(x)
    return _part(array, "real") if array.type.dtype.kind == "c" else array


def imag(x: Any) -> Array:
    array = as_array(x)
    if array.type.dtype.kind != "c":
        return shaping.broadcast_to(zeros_like(array, shape=()), array.shape)  # read-only
    return _part(array, "imag")


def _part(array: Array, fn: str) -> Array:
    """Return a view of one part, as NumPy's; of a scalar, a scalar."""
    shown = array.viewed(view.Part(fn, array.extents))
    return wrap(array.context, shown.read()) if array.scalar else shown


def angle(z: Any, deg: bool = False) -> Any:
    z = as_array(z)
    above = imag(z) if z.type.dtype.kind == "c" else 0  # an integer, as NumPy
    radians = apply(np.arctan2, above, real(z))
    return apply(np.multiply, radians, 180 / np.pi) if deg else radians


def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Array:
    a, b = normal(a), normal(b)
    b = as_array(b, result_type(b, 1.0))
    finite = apply(np.isfinite, b)
    near = apply(np.absolute, apply(np.subtract, a, b)) <= atol + rtol * apply(np.absolute, b)
    result = (near & finite) | apply(np.equal, a, b)
    return as_array(_or_nan(result, a, b) if equal_nan else result)


def array_equal(a: Any, b: Any, equal_nan: bool = False) -> Any:
    a, b = as_array(a), as_array(b)
    if a.ndim != b.ndim or not all(map(same_extent, a.extents, b.extents)):
        _check_known("np.array_equal", a, b)
        return False
    same = apply(np.equal, a, b)
    return all_(_or_nan(same, a, b) if equal_nan else same)


def _or_nan(same: Any, a: Any, b: Any) -> Any:
    return same | (apply(np.isnan, a) & apply(np.isnan, b))


def array_equiv(a1: Any, a2: Any) -> Any:
    """Return whether arrays are equal once broadcast; shapes that do not fit each other are not."""
    try:
        return all_(apply(np.equal, a1, a2))
    except ShapeError:
        _check_known("np.array_equiv", as_array(a1), as_array(a2))
        return False


def _check_known(function: str, a: Array, b: Array) -> None:
    """Refuse shapes of which only a run knows whether they are equal."""
    bounded = any(e.has_extents for e in (*a.extents, *b.extents))
    pairs = list(zip(a.extents[::-1], b.extents[::-1]))
    differ = any(expr.nonneg(m - n - 1) or expr.nonneg(n - m - 1) for m, n in pairs)
    if bounded and a.ndim == b.ndim and not differ:
        raise unsupported(f"{function} of {shape_text(a.extents)} and {shape_text(b.extents)}, "
                          "which only a run knows to be equal or not", "slices of equal extents")


def isneginf(x: Any, out: Any = None) -> Any:
    return store(apply(np.isinf, x) & apply(np.signbit, x), out)


def isposinf(x: Any, out: Any = None) -> Any:
    return store(apply(np.isinf, x) & apply(np.logical_not, apply(np.signbit, x)), out)


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None,
               neginf: Any = None) -> Any:
    array = as_array(x)
    result = array.copy()
    if array.type.dtype.kind == "c":
        result = shaping.reshape(result, array.shape)  # of a scalar too, it is written below
        result.real = _numbers_for(real(array), nan, posinf, neginf)
        result.imag = _numbers_for(imag(array), nan, posinf, neginf)
    elif array.type.dtype.kind == "f":
        result = _numbers_for(array, nan, posinf, neginf)
    return result if copy or not isinstance(x, Array) or x.scalar else store(result, x)


def _numbers_for(array: Array, nan: Any, posinf: Any, neginf: Any) -> Array:
    info = np.finfo(array.dtype)
    top = float(info.max) if posinf is None else posinf
    bottom = float(info.min) if neginf is None else neginf
    out = select(apply(np.isnan, array), nan, array)
    return select(isneginf(array), bottom, select(isposinf(array), top, out))


def diff(x: Any, n: int = 1, axis: Any = -1, prepend: Any = None, append: Any = None) -> Array:
    array = as_array(x)
    d = dim_of(axis, array.ndim, "np.diff")
    if n < 0:
        raise ShapeError("np.diff: the order is negative", expected="n=0 or more", found=f"n={n}",
                         remedy="np.cumsum(x) is the inverse of np.diff(x, prepend=0)")
    if n == 0:
        return array
    for extra, first in ((prepend, True), (append, False)):
        if extra is None:
            continue
        part = as_array(extra)
        if part.ndim == 0:
            part = shaping.broadcast_to(part, (*array.shape[:d], 1, *array.shape[d + 1 :]))
        array = joining.concatenate([part, array] if first else [array, part], d)
    ufunc = np.not_equal if array.type.dtype.kind == "b" else np.subtract
    for _ in range(n):
        array = apply(ufunc, along(array, d, slice(1, None)), along(array, d, slice(None, -1)))
    return array


def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    array, values = as_array(a), as_array(v)
    places = as_array(ind)
    count, value_count = (expr.product(x.extents) for x in (places, values))
    if count.is_const and value_count.is_const and 1 < value_count.value < count.value:
        # NumPy repeats values that are fewer than the places
        v = values.ravel()[np.arange(count.value) % value_count.value].reshape(places.shape)
    array.flat[_by_mode(ind, array.size, mode)] = v


def sinc(x: Any) -> Any:
    return _sinc(as_array(apply(np.multiply, x, np.pi)))


@with_slopes(lambda turned, _: [sinc_slope(turned)])
def _sinc(turned: Any) -> Any:
    tiny = float(np.finfo(turned.dtype).eps) if turned.dtype.kind == "f" else 1e-20
    turned = select(apply(np.equal, turned, 0), tiny, turned)
    return apply(np.divide, apply(np.sin, turned), turned)


def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    out: list[Any] = []
    rest: Any = as_array(indices, dtypes.INT64)
    shape = shape if isinstance(shape, (tuple, list)) else (shape,)
    size = expr_of(math.prod(shape))
    if size is not None and size.is_const:
        between(indices, 0, size.value - 1, "an index of np.unravel_index is out of bounds",
                "np.clip(k, 0, size - 1)")
    for e in shape if order == "F" else reversed(shape):
        out.append(rest % e)
        rest = rest // e
    return tuple(out if order == "F" else reversed(out))


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    modes = mode if isinstance(mode, tuple) else (mode,) * len(dims)
    steps = list(zip(multi_index, dims, modes, strict=True))
    flat: Any = 0
    for index, e, how in reversed(steps) if order == "F" else steps:
        index = _by_mode(as_array(index, dtypes.INT64), e, how)
        if isinstance(e, (int, np.integer)) and how == "raise":
            between(index, 0, int(e) - 1, "an index of np.ravel_multi_index is out of bounds",
                    "np.clip(k, 0, n - 1)")
        flat = flat * e + index
    return flat


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    store(src if where is True else as_array(src), dst, where)


def putmask(a: Any, mask: Any, values: Any) -> None:
    """Put values where the mask holds; fewer than the elements of `a` come again and again."""
    array = as_array(a)
    new = as_array(values, array.type.dtype)
    if new.ndim and not expr.equal(expr.product(new.extents), expr.product(array.extents)):
        new = shaping.resize(new, array.shape)
    new = new.reshape(array.shape) if new.ndim else new
    array[...] = select(mask, new, array)


def place(arr: Any, mask: Any, vals: Any) -> None:
    """Put vals, again and again, in the place of the elements for which the mask holds, in their
    order."""
    array, values = as_array(arr), shaping.ravel(as_array(vals, as_array(arr).type.dtype))
    chosen = shaping.ravel(as_array(mask, dtypes.BOOL))
    value_index = (cumsum(chosen) - 1) % values.shape[0]
    mask_of_all, repeated = chosen.reshape(array.shape), values[value_index].reshape(array.shape)
    array[...] = select(mask_of_all, repeated, array)


def unpackbits(a: Any, axis: Any = None, count: Any = None, bitorder: str = "big") -> Array:
    """Return the bits of bytes, as bytes of 0 and 1."""
    array, d = _bytes("np.unpackbits", a, axis)
    if array.dtype != np.uint8:
        raise DtypeError("np.unpackbits takes bytes", expected="uint8", found=str(array.dtype))
    shifts = np.arange(8, dtype=np.uint8)[:: -1 if bitorder == "big" else 1]
    wide = shaping.expand_dims(array, d + 1) >> as_array(shifts).reshape(
        (8, *[1] * (array.ndim - 1 - d)))
    bits = (wide & np.uint8(1)).reshape(
        (*array.shape[:d], array.shape[d] * 8, *array.shape[d + 1 :]))
    if count is None or bits.shape[d] == count:
        return as_array(bits)
    if count >= 0 and count > bits.shape[d]:
        return joining.concatenate([bits, zeros_like(bits, shape=(
            *bits.shape[:d], count - bits.shape[d], *bits.shape[d + 1 :]))], d)
    return along(bits, d, slice(0, count))


def packbits(a: Any, axis: Any = None, bitorder: str = "big") -> Array:
    """Return truth values as the bits of bytes; the last byte is filled with zeros."""
    array, d = _bytes("np.packbits", a, axis)
    flags = as_array(as_array(array, dtypes.BOOL), np.uint8)
    count = constant(flags.extents[d], "np.packbits", "an extent known while building")
    before, after = flags.shape[:d], flags.shape[d + 1 :]
    if count % 8:
        flags = joining.concatenate(
            [flags, zeros_like(flags, shape=(*before, -count % 8, *after))], d)
    parts = flags.reshape((*before, -(-count // 8), 8, *after))
    shifts = np.arange(8, dtype=np.uint8)[:: -1 if bitorder == "big" else 1]
    moved = parts << as_array(shifts).reshape((8, *[1] * len(after)))
    return as_array(sum_(moved, axis=d + 1, dtype=np.uint8))


def _bytes(function: str, a: Any, axis: Any) -> tuple[Array, int]:
    array = shaping.ravel(a) if axis is None else as_array(a)
    if array.type.dtype.kind not in "biu":
        raise DtypeError(f"{function} takes bools or integers", expected="bool, uint8",
                         found=str(array.dtype), remedy="x != 0")
    return array, dim_of(axis or 0, array.ndim, function)


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Return an array whose elements come from the choice that the element of `a` names by its
    number."""
    options = [normal(c) for c in choices]
    choice, count = as_array(a, dtypes.INT64), len(options)
    choice = _by_mode(choice, count, mode)
    if mode == "raise":
        between(a, 0, count - 1, "np.choose: there is no such choice", 'mode="clip", or "wrap"')
    result: Any = as_array(options[-1], result_type(*options))
    for k in reversed(range(count - 1)):
        result = select(apply(np.equal, choice, k), options[k], result)
    return store(select(choice == count - 1, options[-1], result), out)


def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    """Return the parts along a dim that a condition chooses; a shorter condition stands for the
    first."""
    if is_traced(condition):
        if out is not None:
            raise unsupported("np.compress with out=, by a condition known only at run time",
                              "x[mask] = y[mask]")
        a = shaping.ravel(a) if axis is None else as_array(a)
        before = (slice(None),) * (0 if axis is None else dim_of(axis, a.ndim, "np.compress"))
        first = a[(*before, slice(condition.shape[0]))]
        return first[(*before, condition)]
    return take(a, np.flatnonzero(condition), axis, out)


def min_scalar_type(a: Any) -> Any:
    if as_array(a).ndim == 0:
        raise unsupported("np.min_scalar_type of a number of the program", "x.dtype")
    return as_array(a).dtype


def _of_shape(function: Any) -> Any:
    """Return np.tril_indices_from and its kin: of a shape known while building."""

    def call(a: Any, *args: Any, **options: Any) -> Any:
        shape = tuple(constant(e, function.__name__, "") for e in as_array(a).extents)
        return function(np.broadcast_to(np.empty(()), shape), *args, **options)

    return call


diag_indices_from = _of_shape(np.diag_indices_from)
tril_indices_from = _of_shape(np.tril_indices_from)
triu_indices_from = _of_shape(np.triu_indices_from)


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    array = as_array(a)
    if array.ndim < 2 or (array.ndim > 2 and len(set(array.extents)) > 1):
        raise ShapeError("np.fill_diagonal takes a matrix, or dims of one extent",
                         expected="2 dims, or equal extents", found=str(array.type))
    count, values = expr.minimum(*array.extents[:2]), normal(val)
    positions: Any = arange(number(count))
    key = (positions,) * array.ndim
    if wrap and array.ndim == 2:  # the diagonal again below the square, one row apart
        rows, columns = (constant(e, "np.fill_diagonal with wrap=True", "") for e in array.extents)
        key = tuple(np.divmod(np.arange(0, rows * columns, columns + 1), columns))
        positions = key[0]
    if np.ndim(values) if not isinstance(values, Array) else values.ndim:
        values = shaping.resize(values, positions.shape)
    array[key] = values
