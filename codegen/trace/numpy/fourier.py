"""np.fft: transforms along one dim, and what NumPy makes of those; sample frequencies.

Always holds: a transform that needs a split dim whole moves the split to another dim, once; an
array of one split dim is transformed in four steps where its length has two good factors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import isqrt
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.mesh import as_written
from codegen.ops import Fourier, Slice
from codegen.ops.kind import layout_of
from codegen.ops.transforms import COMPLEX, FACTOR, FOUR_STEPS, SCALES
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, number, wrap
from codegen.trace.declare import shape_of
from codegen.trace.number import expr_of
from codegen.trace.numpy import joining, padding
from codegen.trace.numpy.creation import arange
from codegen.trace.numpy.elementwise import apply, select, store
from codegen.trace.numpy.picking import real
from codegen.trace.numpy.reducing import along, dim_of
from codegen.trace.numpy.shaping import reshape, transpose
from codegen.trace.ranks.mapping import relayout

_ALIKE = {None: "backward", "backward": "backward", "ortho": "ortho", "forward": "forward"}
_SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
_SCALE_OF = {norm: scale for scale, norm in SCALES.items()}


def _swapped(norm: Any) -> str:
    if norm not in _ALIKE:
        raise ValueError(f"Invalid norm value {norm}")
    return _SWAPPED[_ALIKE[norm]]


def _scale(fn: str, norm: Any) -> str:
    forward = fn in ("fft", "rfft")
    return _SCALE_OF[_SWAPPED[_swapped(norm)] if forward else _swapped(norm)]


def _real_type(array: Array, fn: str) -> tuple[DType, np.dtype[Any]]:
    """Return the dtype in which a transform computes real numbers, and that of the real numbers in
    NumPy's result: float16 stays; bfloat16 becomes float32, or float64 for `irfft`."""
    dtype = dtypes.numpy_dtype(array.type.dtype)
    real_type = np.empty(0, dtype).real.dtype if array.type.dtype.kind == "c" else dtype
    theirs = real_type if real_type.kind == "f" else np.dtype(np.float64)
    if array.type.dtype.name == "bfloat16" and fn != "irfft":
        theirs = np.dtype(np.float32)
    return dtypes.FLOAT64 if theirs.itemsize == 8 else dtypes.FLOAT32, theirs


def _along(fn: str, a: Any, n: Any, axis: Any, norm: Any, out: Any = None) -> Any:
    """Transform a dim by one of the op's four functions; the dim is cut or filled up with zeros to
    n points."""
    array = as_array(a)
    d, scale = dim_of(axis, array.ndim, f"np.fft.{fn}"), _scale(fn, norm)
    have = array.extents[d]
    points = (have - 1) * 2 if fn == "irfft" else have
    if n is not None:
        turns = any(s.kind == "counter" for e in [expr_of(n)] if e for s in e.symbols())
        (points,) = shape_of(n, f"np.fft.{fn}", scalars=not turns)
    if expr.nonneg(-points):
        raise ValueError(f"Invalid number of FFT data points ({points}) specified.")
    array.context.hold(expr.gt(points, 0), f"np.fft.{fn} of at least one point")
    if fn == "rfft" and array.type.dtype.kind == "c":
        raise TypeError("ufunc 'rfft_n_even' did not contain a loop with signature matching types")
    kind, theirs = _real_type(array, fn)
    wanted = kind if fn == "rfft" else dtypes.BY_NAME[COMPLEX[kind.name]]
    array = _fitted(array, d, points // 2 + 1 if fn == "irfft" else points)
    array = as_array(array, wanted)
    transformed = _transform(fn, array, d, points, scale)
    if fn == "irfft" and theirs.itemsize == 2:
        transformed = transformed.astype(theirs)
    return store(transformed, out)


def _fitted(array: Array, d: int, n: Expr) -> Array:
    have = array.extents[d]
    if have == n:
        return array
    if not expr.nonneg(have - n):
        array = padding.pad(array, {d: (0, number(expr.maximum(n - have, 0)))})
    shape = tuple(n if k == d else e for k, e in enumerate(array.extents))
    return array.viewed(Slice((expr.const(0),) * array.ndim, (1,) * array.ndim, shape))


def _transform(fn: str, array: Array, d: int, n: Expr, scale: str) -> Array:
    split = not array.context.rank_view and layout_of(array.read().type)[d]
    alone = all(e == 1 for k, e in enumerate(array.extents) if k != d)
    factor = _factor(n) if split and alone else 0
    if factor:
        line = _four_steps(fn, reshape(array, -1), factor, n.value // factor, scale)
        return reshape(line, tuple(-1 if k == d else 1 for k in range(array.ndim)))
    return _lanes(fn, array, d, n, scale)


def _lanes(fn: str, array: Array, d: int, n: Expr, scale: str) -> Array:
    value = array.context.emit_one(Fourier(fn, d, n, scale), array.read())
    return wrap(array.context, value, scalar=False)


# ---- four steps ----------------------------------------------------------------------------------


def _factor(n: Expr) -> int:
    """Return the greatest divisor up to the square root, where that is worth while; else 0."""
    if not n.is_const or n.value < FOUR_STEPS:
        return 0
    return next((k for k in range(isqrt(n.value), FACTOR - 1, -1) if n.value % k == 0), 0)


def _four_steps(fn: str, x: Array, rows: int, columns: int, scale: str) -> Array:
    """Transform a row of rows * columns elements in four steps (D. Bailey, FFTs in external or
    hierarchical memory, 1990).

    Element j1 * columns + j2 stands at (j1, j2). Columns are transformed, element (k1, j2) is
    multiplied by w^(k1 * j2), rows are transformed, and (k1, k2) is element k2 * rows + k1 of the
    result. Real numbers are transformed as complex ones.
    """
    n = rows * columns
    if fn == "rfft":
        x = as_array(x, dtypes.BY_NAME[COMPLEX[x.type.dtype.name]])
        return along(_four_steps("fft", x, rows, columns, scale), 0, slice(None, n // 2 + 1))
    if fn == "irfft":
        mirrored = apply(np.conjugate, x[1 : (n + 1) // 2])[::-1]
        whole = joining.concatenate([x, mirrored])
        return as_array(real(_four_steps("ifft", whole, rows, columns, scale)))
    by_rows = as_written((layout_of(x.read().type)[0], ()))
    grid = relayout(reshape(x, (rows, columns)), by_rows)
    grid = _lanes(fn, grid, 0, expr.const(rows), scale)
    # w^(k1 * j2), of two short tables that hold w^(columns * p) and w^q
    turn = (-2j if fn == "fft" else 2j) * np.pi
    high = np.exp(turn * np.arange(rows) / rows).astype(grid.dtype)
    low = np.exp(turn * np.arange(columns) / n).astype(grid.dtype)
    by = arange(rows)[:, None] * arange(columns)
    grid = grid * as_array(high)[by // columns] * as_array(low)[by % columns]
    grid = _lanes(fn, grid, 1, expr.const(columns), scale)
    return reshape(relayout(transpose(grid), by_rows), n)


# ---- NumPy's functions ---------------------------------------------------------------------------


def _one(fn: str) -> Callable[..., Any]:
    def call(a: Any, n: Any = None, axis: Any = -1, norm: Any = None, out: Any = None) -> Any:
        return _along(fn, a, n, axis, norm, out)

    return call


fft, ifft, rfft, irfft = map(_one, ("fft", "ifft", "rfft", "irfft"))


def hfft(a: Any, n: Any = None, axis: Any = -1, norm: Any = None, out: Any = None) -> Any:
    return irfft(apply(np.conjugate, as_array(a)), n, axis, _swapped(norm), out)


def ihfft(a: Any, n: Any = None, axis: Any = -1, norm: Any = None, out: Any = None) -> Any:
    return store(apply(np.conjugate, rfft(a, n, axis, _swapped(norm))), out)


def _lengths(array: Array, s: Any, axes: Any, to_real: bool) -> tuple[list[Any], list[Any]]:
    """Return the numbers of points, and the dims that are transformed; None is the default
    number."""
    if axes is None:
        axes = range(-(array.ndim if s is None else len(s)), 0)
    axes = list(axes)
    if s is None:
        lengths: list[Any] = [None] * len(axes)  # what the transform of one dim takes by default
    else:
        lengths = [None if n is None or isinstance(n, int) and n == -1 else n for n in s]
        if to_real and lengths and lengths[-1] is None:
            lengths[-1] = array.shape[axes[-1]]
    if len(lengths) != len(axes):
        raise ValueError("Shape and axes have different lengths.")
    return lengths, axes


def _several(fn: str, a: Any, s: Any, axes: Any, norm: Any, out: Any) -> Any:
    """Transform several dims. Those that are not split come first, since a transform of a split dim
    moves the split to another one. Real numbers are transformed first, or come out last."""
    array = as_array(a)
    lengths, dims = _lengths(array, s, axes, fn == "irfft")
    places = [dim_of(d, array.ndim, "np.fft of several dims") for d in dims]
    todo = list(zip(lengths, places, strict=True))
    last = todo.pop() if fn in ("rfft", "irfft") else None
    if last and fn == "rfft":
        array = _along(fn, array, *last, norm)
    while todo:
        layout = layout_of(array.read().type)
        n, d = todo.pop(max(range(len(todo)), key=lambda k: (not layout[todo[k][1]], k)))
        array = _along({"rfft": "fft", "irfft": "ifft"}.get(fn, fn), array, n, d, norm)
    if last and fn == "irfft":
        array = _along(fn, array, *last, norm)
    return store(array, out)


def _of_dims(fn: str, default: Any) -> Callable[..., Any]:
    def call(a: Any, s: Any = None, axes: Any = default, norm: Any = None, out: Any = None) -> Any:
        return _several(fn, a, s, axes, norm, out)

    return call


fft2, ifft2, rfft2, irfft2 = (_of_dims(f, (-2, -1)) for f in ("fft", "ifft", "rfft", "irfft"))
fftn, ifftn, rfftn, irfftn = (_of_dims(f, None) for f in ("fft", "ifft", "rfft", "irfft"))


def fftfreq(n: Any, d: Any = 1.0, device: Any = None) -> Any:
    k = arange(n)
    return select(apply(np.less, k, (n - 1) // 2 + 1), k, k - n) * (1.0 / (n * d))


def rfftfreq(n: Any, d: Any = 1.0, device: Any = None) -> Any:
    return arange(n // 2 + 1) * (1.0 / (n * d))


# ---- scipy.fft -----------------------------------------------------------------------------------

NAMES = frozenset(
    "fft fft2 fftn hfft ifft ifft2 ifftn ihfft irfft irfft2 irfftn rfft rfft2 rfftn".split()
)


def ours_of(function: Any) -> Callable[..., Any] | None:
    """Return our function for one of scipy.fft that NumPy has too; how many workers it asks for,
    and whether it may write over its operand, changes nothing here."""
    name = getattr(function, "__name__", "")
    own = getattr(sys.modules.get("scipy.fft"), name, None) if name in NAMES else None
    if own is not function or own is None:
        return None
    ours = globals()[name]

    def call(x: Any, *args: Any, **options: Any) -> Any:
        array = as_array(x)
        if array.type.dtype.kind == "f" and array.type.dtype.size == 2:
            array = as_array(array, dtypes.FLOAT32)
        kept = {k: v for k, v in options.items() if k not in ("overwrite_x", "workers", "plan")}
        return ours(array, *args[:3], **kept)

    return call
