"""Shapes: reshape, transpose, broadcasting, cutting, turning, repeating.

Always holds: what is a view in NumPy is a view here, and can be written through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen import dtypes, ops
from codegen.dtypes import DType
from codegen.errors import DtypeError, ShapeError
from codegen.ir.graph import Shape
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace import known, view
from codegen.trace.array import (
    Array,
    as_array,
    as_value,
    constant,
    is_traced,
    number,
    unsupported,
    wrap,
)
from codegen.trace.constants import blank_value
from codegen.trace.context import extent_unknown
from codegen.trace.control.blocks import Blocks
from codegen.trace.declare import global_indices, shape_of
from codegen.trace.number import expr_of
from codegen.trace.numpy import memory_order
from codegen.trace.numpy.creation import arange, zeros
from codegen.trace.numpy.elementwise import apply, broadcast_shapes, same_extent, select, shape_text
from codegen.trace.numpy.reducing import along, dim_of, dims_of
from codegen.user.numbers import element_type

ZERO, ONE = expr.const(0), expr.const(1)


# ---- reshape ---------------------------------------------------------------------------------


def _wanted(shape: Any) -> list[Expr | None]:
    if isinstance(shape, np.ndarray):
        shape = shape.ravel().tolist()
    items = shape if isinstance(shape, (tuple, list)) else (shape,)
    out: list[Expr | None] = []
    for item in items:
        e = expr_of(item)
        if e is None:
            extent_unknown()
            raise ShapeError("reshape takes integers",
                             expected="extents known while building or at launch",
                             found=repr(item))
        out.append(None if e == -1 else e)
    return out


def _missing(have: Shape, known_extents: Sequence[Expr]) -> Expr | None:
    """Return the extent x with product(given) * x = product(have); None: there is none."""
    left, over = list(have), []
    for e in known_extents:
        match = next((k for k, h in enumerate(left) if same_extent(h, e)), None)
        if match is None:
            over.append(e)
        else:
            left.pop(match)
    top, bottom = expr.product(left), expr.product(over)
    x = expr.floordiv(top, bottom)
    if bottom == 0:
        return None
    return x if same_extent(x * bottom, top) else None


def reshape(x: Any, shape: Any, order: str = "C", *, copy: Any = None) -> Array:
    """Return the same elements in row-major order; a view where NumPy's is one."""
    array = as_array(x)
    if order == "F":
        reverse = tuple(shape)[::-1] if isinstance(shape, (tuple, list)) else shape
        return transpose(reshape(transpose(array), reverse))
    if order not in ("C", "A", None):
        raise unsupported(f"reshape with order={order!r}", "x.reshape(...), x.T.reshape(...)")
    wanted = _wanted(shape)
    known_extents = [e for e in wanted if e is not None]
    fill = _missing(array.extents, known_extents) if len(known_extents) < len(wanted) else ONE
    fits = fill is not None and len(wanted) - len(known_extents) <= 1
    if fits and len(known_extents) == len(wanted):
        fits = same_extent(expr.product(known_extents), expr.product(array.extents))
    if not fits:
        text = ", ".join("-1" if e is None else str(e) for e in wanted)
        raise ShapeError(f"cannot reshape {shape_text(array.extents)} into ({text})",
                         expected=f"a shape of {expr.product(array.extents)} elements",
                         found=f"({text})")
    assert fill is not None
    full_shape = tuple(fill if e is None else e for e in wanted)
    result = array.viewed(ops.Reshape(full_shape))
    shared = view.may_reshape(array.seen, array.base_type.shape, full_shape)
    if array.storage.transposed and not copy and array.ndim > 1:
        return memory_order.linked_copy(array, _copied(result))
    return _copied(result) if copy or not shared else result


def _copied(array: Array) -> Array:
    return wrap(array.context, array.read(), scalar=False)


def ravel(x: Any, order: str = "C") -> Array:
    return reshape(x, (-1,), order) if as_array(x).ndim != 1 else as_array(x)


def transpose(x: Any, axes: Any = None) -> Array:
    """Return a view with its dims in another order; reversed by default."""
    array = as_array(x)
    perm = tuple(reversed(range(array.ndim))) if axes is None else dims_of(
        axes, array.ndim, "transpose",
    )
    if len(perm) != array.ndim:
        raise ShapeError("axes don't match array", expected=f"{array.ndim} dims", found=str(axes))
    return array.viewed(ops.Transpose(perm))


def swapaxes(x: Any, axis1: Any, axis2: Any) -> Array:
    ndim = as_array(x).ndim
    a, b = dim_of(axis1, ndim, "swapaxes"), dim_of(axis2, ndim, "swapaxes")
    perm = list(range(ndim))
    perm[a], perm[b] = b, a
    return transpose(x, perm)


def moveaxis(x: Any, source: Any, destination: Any) -> Array:
    ndim = as_array(x).ndim
    src, dst = dims_of(source, ndim, "moveaxis"), dims_of(destination, ndim, "moveaxis")
    order = [d for d in range(ndim) if d not in src]
    for to, d in sorted(zip(dst, src)):
        order.insert(to, d)
    return transpose(x, order)


def rollaxis(x: Any, axis: int, start: int = 0) -> Array:
    n = as_array(x).ndim
    axis, start = dim_of(axis, n, "np.rollaxis"), start + n if start < 0 else start
    return moveaxis(x, axis, start - (axis < start))


def ix_(*arrays: Any) -> Any:
    """Return index arrays that select a grid, one for each dim; a boolean array stands for the
    places where it holds."""
    for x in arrays:
        if as_array(x).ndim != 1:
            raise ShapeError("np.ix_: places in one dim are 1-D", expected="1-D arrays or lists",
                             found=f"{as_array(x).ndim} dims",
                             remedy="np.ix_(a.ravel(), b.ravel())")
    parts = [np.flatnonzero(known.plain(x)) if not is_traced(x) and np.asarray(
        known.plain(x)).dtype == bool else x for x in arrays]
    if any(isinstance(x, Array) and x.type.dtype.kind == "b" for x in parts):
        raise unsupported("np.ix_ of flags that depend on data", "np.where(mask, x, 0)")
    return meshgrid(*parts, sparse=True, indexing="ij")


def squeeze(x: Any, axis: Any = None) -> Array:
    array = as_array(x)
    if axis is None:
        dims = tuple(d for d, e in enumerate(array.extents) if e == 1)
        for d, e in enumerate(array.extents):
            if e != 1 and e.has_extents and not expr.nonneg(e - 2):
                raise unsupported(f"squeeze of {shape_text(array.extents)}, where only a run knows "
                                  f"whether dim {d} has one element", "squeeze(axis=…)")
    else:
        dims = dims_of(axis, array.ndim, "squeeze")
    for d in dims:
        if array.extents[d] != 1:
            raise ShapeError("cannot squeeze a dim whose extent is not 1",
                             expected=f"extent 1 in dim {d}",
                             found=shape_text(array.extents))
    kept = tuple(e for d, e in enumerate(array.extents) if d not in dims)
    return array.viewed(ops.Reshape(kept))


def expand_dims(x: Any, axis: Any) -> Array:
    array = as_array(x)
    items = axis if isinstance(axis, (tuple, list)) else (axis,)
    dims = dims_of(items, array.ndim + len(items), "expand_dims")
    shape = list(array.extents)
    for d in sorted(dims):
        shape.insert(d, ONE)
    return array.viewed(ops.Reshape(tuple(shape)))


def _at_least(n: int) -> Any:
    def call(*arrays: Any) -> Any:
        def widened(x: Any) -> Array:
            a = as_array(x)
            if a.ndim >= n:
                return a
            if n == 3 and a.ndim == 2:
                return expand_dims(a, 2)
            if n == 3 and a.ndim == 1:
                return expand_dims(a, (0, 2))
            return reshape(a, (*[1] * (n - a.ndim), *a.shape))

        results = [widened(x) for x in arrays]
        return results[0] if len(results) == 1 else tuple(results)

    return call


atleast_1d, atleast_2d, atleast_3d = _at_least(1), _at_least(2), _at_least(3)


def broadcast_to(x: Any, shape: Any, subok: bool = False) -> Array:
    """Return a read-only view of a larger shape."""
    array = as_array(x)
    wanted = shape_of(shape, "np.broadcast_to", scalars=True)
    joined = broadcast_shapes([array.extents, wanted], "broadcast_to")
    if len(joined) != len(wanted) or not all(map(same_extent, joined, wanted)):
        raise ShapeError(f"{shape_text(array.extents)} cannot be broadcast to {shape_text(wanted)}",
                         expected=shape_text(wanted), found=shape_text(array.extents))
    if array.extents == wanted:
        return array
    dims = tuple(range(len(wanted) - array.ndim, len(wanted)))
    return array.viewed(ops.Broadcast(dims, wanted))


def broadcast_arrays(*arrays: Any, subok: bool = False) -> tuple[Array, ...]:
    operands = [as_array(x) for x in arrays]
    shape = broadcast_shapes([a.extents for a in operands])
    return tuple(broadcast_to(a, tuple(number(e) for e in shape)) for a in operands)


# ---- cutting and turning ---------------------------------------------------------------------


def array_split(x: Any, indices: Any, axis: Any = 0) -> list[Array]:
    array = as_array(x)
    d = dim_of(axis, array.ndim, "np.array_split")
    if isinstance(indices, (list, tuple, np.ndarray)):
        cuts = [0, *indices, array.shape[d]]
        return [along(array, d, slice(a, b)) for a, b in zip(cuts, cuts[1:])]
    return list(Blocks(array, indices, d))


def split(x: Any, indices: Any, axis: Any = 0) -> list[Array]:
    array = as_array(x)
    d = dim_of(axis, array.ndim, "np.split")
    count = expr_of(indices) if not isinstance(indices, (list, tuple, np.ndarray)) else None
    if count is not None and not same_extent(array.extents[d] % count, ZERO):
        raise ShapeError("array split does not result in an equal division",
                         expected=f"a multiple of {count} in dim {d}",
                         found=shape_text(array.extents),
                         remedy="np.array_split, or spmd.blocks")
    return array_split(x, indices, axis)


def flip(x: Any, axis: Any = None) -> Array:
    """Return a view, reversed along dims."""
    array = as_array(x)
    dims = dims_of(axis, array.ndim, "np.flip")
    got: Array = array[tuple(slice(None, None, -1 if d in dims else 1) for d in range(array.ndim))]
    return got


def rot90(x: Any, k: int = 1, axes: Any = (0, 1)) -> Array:
    a, b = axes
    turns = k % 4
    if turns == 0:
        return as_array(x)
    if turns == 2:
        return flip(x, (a, b))
    return flip(swapaxes(x, a, b), a) if turns == 1 else swapaxes(flip(x, a), a, b)


def roll(x: Any, shift: Any, axis: Any = None) -> Array:
    """Return elements moved along dims, around the end; shifts may be symbolic."""
    array = as_array(x)
    if axis is None:
        return reshape(roll(ravel(array), shift, 0), array.shape)
    axes = list(axis) if isinstance(axis, (tuple, list)) else [axis]
    several = isinstance(shift, (tuple, list)) or (isinstance(shift, np.ndarray) and shift.ndim)
    shifts = list(shift) if several else [shift]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ShapeError("np.roll: the shifts and the axes do not pair up",
                         expected="as many shifts as axes, or one of them",
                         found=f"{len(shifts)} and {len(axes)}")
    dims = [d for a in axes for d in dims_of(a, array.ndim, "np.roll")]
    totals: dict[int, Any] = {}  # several shifts of one dim add up
    for s, d in zip(shifts * len(dims) if len(shifts) == 1 else shifts,
                    dims * len(shifts) if len(dims) == 1 else dims):
        totals[d] = totals[d] + s if d in totals else s
    for d, total in totals.items():
        array = _rolled(array, total, d)
    return _copied(array) if array.storage is getattr(x, "storage", None) else array


def _rolled(array: Array, shift: Any, d: int) -> Array:
    e = expr_of(shift)
    if e is None:  # known only at run time
        return along(array, d, (arange(array.shape[d]) - shift) % as_array(array.shape[d]))
    n = array.extents[d]
    k = expr.mod(e, n)
    if k == 0:
        return array
    if not array.context.rank_view:
        shift = e if e.is_const and not n.is_const else k  # the shorter way round
        if k.is_const and n.is_const and 2 * k.value > n.value:
            shift = k - n
        rolled = array.context.emit_one(ops.Roll(dim=d, shift=shift), array.read())
        return wrap(array.context, rolled, scalar=False)
    zeros, step = [ZERO] * array.ndim, (1,) * array.ndim
    value = blank_value(array.context, array.type.dtype, array.extents)
    pieces = ((ZERO, k, n - k), (n - k, ZERO, k))  # the layout follows from the first
    for source, target, extent in pieces if k == 1 else pieces[::-1]:
        start, box = (*zeros[:d], source, *zeros[d + 1 :]), list(array.extents)
        box[d] = extent
        piece = array.viewed(ops.Slice(start, step, tuple(box))).read()
        target_start = (*zeros[:d], target, *zeros[d + 1 :])
        value = array.context.emit_one(ops.Update(start=target_start, step=step), value, piece)
    return wrap(array.context, value, scalar=False)


def fft_shift(x: Any, axes: Any, sign: int) -> Array:
    array = as_array(x)
    dims = dims_of(axes, array.ndim, "np.fft.fftshift")
    halves = tuple(number(sign * (array.extents[d] // 2)) for d in dims)
    return roll(array, halves, dims) if dims else _copied(array)


def resize(x: Any, shape: Any) -> Array:
    """Return an array of this shape whose elements are those of x, repeated in row-major order."""
    array = ravel(x)
    wanted = [constant(e, "np.resize", "") for e in shape_of(shape, "np.resize")]
    have = constant(array.extents[0], "np.resize", "np.tile")
    total = int(np.prod(wanted))
    if not have:
        return as_array(np.zeros(wanted, array.dtype))
    return reshape(tile(array, -(-total // have))[:total], tuple(wanted))


def tile(x: Any, reps: Any) -> Array:
    array = as_array(x)
    counts = list(reps) if isinstance(reps, (tuple, list)) else [reps]
    if any(isinstance(n, int) and n < 0 for n in counts):
        raise ShapeError("np.tile: a count is negative", expected="counts of 0 or more",
                         found=f"reps={reps}", remedy="reps of 0 or more; x[::-1] turns x around")
    counts = [1] * (array.ndim - len(counts)) + counts
    array = reshape(array, (*[1] * (len(counts) - array.ndim), *array.shape))
    wide: list[Any] = []
    pairs: list[Any] = []
    for n, e in zip(counts, array.shape):
        wide += [n, e]
        pairs += [1, e]
    full = broadcast_to(reshape(array, tuple(pairs)), tuple(wide))
    return _copied(reshape(full, tuple(n * e for n, e in zip(counts, array.shape))))


def repeat(x: Any, repeats: Any, axis: Any = None) -> Array:
    array = ravel(x) if axis is None else as_array(x)
    d = dim_of(axis or 0, array.ndim, "np.repeat")
    if expr_of(repeats) is None:
        if isinstance(repeats, Array):
            raise unsupported("np.repeat with counts that depend on data", "one count for all")
        n = constant(array.extents[d], "np.repeat with several counts", "one count for all")
        return along(array, d, np.repeat(np.arange(n), repeats))
    shape = array.shape
    wide = broadcast_to(expand_dims(array, d + 1), (*shape[: d + 1], repeats, *shape[d + 1 :]))
    return _copied(reshape(wide, (*shape[:d], shape[d] * repeats, *shape[d + 1 :])))


# ---- copies ----------------------------------------------------------------------------------


def copy(x: Any, order: str = "K", subok: bool = False) -> Array:
    copied = _copied(as_array(x))
    return memory_order.with_order_of(copied, x) if order == "K" else copied


def check_casting(have: DType, wanted: DType, casting: Any = None) -> None:
    """Raise DtypeError where NumPy would not convert."""
    rule: Any = casting or "same_kind"
    if not np.can_cast(dtypes.numpy_dtype(have), dtypes.numpy_dtype(wanted), rule):
        raise DtypeError(f"cannot cast {have} to {wanted}",
                         expected=f"a conversion that casting={rule!r} allows", found=str(have),
                         remedy="x.real or np.floor(x) first; or x.astype(t)")


def astype(x: Any, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None,
           copy: Any = True, *, device: Any = None) -> Array:
    """Return a new array of another element type."""
    array = as_array(x)
    check_casting(array.type.dtype, element_type(dtype), casting or "unsafe")
    if not copy and isinstance(x, Array) and element_type(dtype) == array.type.dtype:
        return x
    value = as_value(array.context, array, dtype)
    scalar = array.scalar or None if array.ndim == 0 else False
    converted = wrap(array.context, value, scalar=scalar)
    return memory_order.with_order_of(converted, array) if order == "K" else converted


def triangle(keep_lower: bool, function: str) -> Any:
    def call(m: Any, k: Any = 0) -> Array:
        array = as_array(m)
        if array.ndim < 2:
            raise ShapeError(f"{function} needs two dims", expected="2 dims",
                             found=shape_text(array.extents))
        rows, columns = _grid(array, -2), _grid(array, -1)
        compare = np.greater_equal if keep_lower else np.less_equal
        mask = apply(compare, rows + k, columns)
        zero = as_array(np.zeros((), array.dtype))
        return select(mask, array, zero)

    return call


def _grid(array: Array, dim: int) -> Array:
    """Return positions along one of the last two dims, as a column or a row."""
    return global_indices(array.context, array.extents[dim], ZERO, dim + 2, 2)


tril, triu = triangle(True, "np.tril"), triangle(False, "np.triu")


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    array = moveaxis(x, (axis1, axis2), (0, 1))
    n, m = array.extents[:2]
    k = constant(expr_of(offset) or ZERO, "the offset of a diagonal", "")
    count = expr.maximum(expr.minimum(n + min(k, 0), m - max(k, 0)), 0)
    rest = array.extents[2:]
    starts = (expr.const(max(-k, 0)), expr.const(max(k, 0)), *[ZERO] * len(rest))
    square = array.viewed(ops.Slice(starts, (1,) * array.ndim, (count, count, *rest)))
    return moveaxis(square.viewed(ops.Diagonal(0, 1)), 0, -1)


def diag(x: Any, k: int = 0) -> Array:
    array = as_array(x)
    if array.ndim == 2:
        return diagonal(array, k)
    n = array.shape[0] + abs(k)
    matrix = zeros((n, n), array.dtype)
    positions = arange(array.shape[0])
    matrix[positions + max(-k, 0), positions + max(k, 0)] = array
    return matrix


def meshgrid(*arrays: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if indexing not in ("xy", "ij"):
        raise unsupported(f"np.meshgrid with indexing={indexing!r}",
                          "indexing='xy', the first two dims turned, or indexing='ij'")
    parts = [ravel(x) for x in arrays]
    order = list(range(len(parts)))
    if indexing == "xy" and len(parts) > 1:
        order[:2] = [1, 0]
    out = []
    for k, p in enumerate(parts):
        shape = [1] * len(parts)
        shape[order[k]] = p.shape[0]
        out.append(reshape(p, tuple(shape)))
    return tuple(out) if sparse else tuple(_copied(a) for a in broadcast_arrays(*out))
