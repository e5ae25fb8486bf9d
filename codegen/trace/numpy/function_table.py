"""NumPy's functions and ours: one row each, which is a function of another file or an expression.

Always holds: our function takes arguments in NumPy's order, and fails as NumPy's fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import ShapeError
from codegen.trace.array import Array, as_array, unsupported
from codegen.trace.blame import asked
from codegen.trace.expecting import expect
from codegen.trace.numpy import (
    creation,
    elementwise,
    fourier,
    joining,
    linear,
    ordering,
    padding,
    picking,
    polynomials,
    products,
    reducing,
    searching,
    shaping,
    statistics,
)
from codegen.trace.numpy.elementwise import apply, store
from codegen.user.half_types import ADDING, PRODUCTS, adding

Function = Callable[..., Any]

# Functions of these files have NumPy's own names.
_SAME: dict[Any, str] = {
    creation: "arange array asarray empty empty_like eye full full_like identity linspace "
    "logspace ones ones_like zeros zeros_like",
    reducing: "argmax argmin average count_nonzero cumprod cumsum mean prod std trapezoid var",
    ordering: "argpartition argsort lexsort partition sort sort_complex",
    shaping: "array_split astype atleast_1d atleast_2d atleast_3d broadcast_arrays "
    "broadcast_to copy diag diagonal expand_dims flip meshgrid moveaxis ravel repeat reshape "
    "resize roll rot90 split squeeze swapaxes tile transpose tril triu",
    joining: "block column_stack concatenate hstack stack",
    padding: "delete insert pad",
    searching: "bincount digitize histogram histogram2d histogram_bin_edges histogramdd interp "
    "isin searchsorted",
    statistics: "corrcoef cov cross ediff1d gradient median nanargmax nanargmin nancumprod "
    "nancumsum nanmax nanmean nanmedian nanmin nanprod nanquantile nanstd nansum nanvar quantile "
    "unwrap",
    polynomials: "convolve correlate poly polyder polydiv polyfit polyint polymul polyval roots "
    "vander",
    products: "dot einsum einsum_path inner kron outer tensordot",
    picking: "angle argwhere array_equal array_equiv choose clip compress copyto "
    "diag_indices_from diff fill_diagonal flatnonzero imag isclose isneginf isposinf "
    "min_scalar_type nan_to_num nonzero packbits place put put_along_axis putmask "
    "ravel_multi_index real sinc take take_along_axis tril_indices_from triu_indices_from "
    "unpackbits unravel_index where",
}
LINALG = (
    "cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_norm matrix_power matrix_rank "
    "multi_dot norm pinv qr slogdet solve svd svdvals tensorinv tensorsolve vector_norm"
)


def _vstack(arrays: Any, **more: Any) -> Array:
    return joining.concatenate([shaping.atleast_2d(x) for x in arrays], 0, **more)


def _with_initial(name: str, running: Function, initial: int) -> Function:
    def call(x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None,
             include_initial: bool = False) -> Any:
        array = as_array(x)
        if axis is None and array.ndim > 1:
            raise ShapeError(f"np.{name} needs an axis", expected="axis= of an array of "
                             f"{array.ndim} dims", found="none")
        totals = running(array, axis, dtype)
        if include_initial:
            d = 0 if axis is None else reducing.dim_of(axis, array.ndim, name)
            first_shape = (*totals.shape[:d], 1, *totals.shape[d + 1 :])
            first = creation.full_like(totals, initial, shape=first_shape)
            totals = joining.concatenate([first, totals], d)
        return store(totals, out)

    return call


def _over_axes(function: Function, a: Any, axes: Any) -> Any:
    result = as_array(a)
    for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
        reduced = as_array(function(result, axis))
        if reduced.ndim != result.ndim:
            reduced = shaping.expand_dims(reduced, axis % result.ndim)
        result = reduced
    return result


def _finite(a: Any, dtype: Any = None, order: Any = None) -> Any:
    array = creation.asarray(a, dtype)
    if array.type.dtype.kind in "fc":
        finite = apply(np.isfinite, array).read()
        expect(array.context, finite, "array must not contain infs or NaNs")
    return array


def _is_complex(x: Any) -> bool:
    return bool(as_array(x).type.dtype.kind == "c")


def _hundredth(function: str, q: Any) -> Any:
    if isinstance(q, Array):
        return q
    if not np.all((0 <= np.asarray(q)) & (np.asarray(q) <= 100)):
        raise unsupported(f"{function} with q={q!r}", "q from 0 to 100")
    return np.true_divide(q, 100)


def _trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None,
           out: Any = None) -> Any:
    diagonal = shaping.diagonal(x, offset, axis1, axis2)
    return reducing.sum_(diagonal, axis=-1, dtype=dtype, out=out)


_OTHER: dict[str, Function] = {
    # other names for them
    "sum": reducing.sum_, "min": reducing.min_, "max": reducing.max_, "amin": reducing.min_,
    "amax": reducing.max_, "any": reducing.any_, "all": reducing.all_,
    "round": picking.round_, "around": picking.round_, "select": picking.select_,
    "permute_dims": shaping.transpose, "concat": joining.concatenate,
    "cumulative_sum": _with_initial("cumulative_sum", reducing.cumsum, 0),
    "cumulative_prod": _with_initial("cumulative_prod", reducing.cumprod, 1),
    "vstack": _vstack, "row_stack": _vstack, "trace": _trace,
    "asarray_chkfinite": _finite, "asanyarray": creation.asarray,
    "ascontiguousarray": creation.asarray, "asfortranarray": creation.asarray,
    "linalg.matmul": products.matmul, "linalg.outer": products.outer, "linalg.trace":
    lambda x, /, *, offset=0, dtype=None: _trace(x, offset, -2, -1, dtype),
    "linalg.diagonal": lambda x, /, *, offset=0: shaping.diagonal(x, offset, -2, -1),
    "linalg.tensordot": products.tensordot,
    "linalg.vecdot": products.vecdot,
    "lib.stride_tricks.sliding_window_view": joining.sliding_window_view,
    # what one expression says
    "require": lambda a, dtype=None, requirements=None, **_: creation.asarray(a, dtype),
    "i0": lambda x: elementwise.mapped("i0", reducing.floats(
        reducing.no_complex(x, "np.i0"))),
    "fix": lambda x, out=None: apply(np.trunc, x, out=out),
    "conj": lambda x, out=None: store(apply(np.conjugate, as_array(x)), out),
    "ptp": lambda x, axis=None, out=None, keepdims=False: store(
        reducing.max_(x, axis, None, keepdims) - reducing.min_(x, axis, None, keepdims), out),
    "percentile": lambda x, q, axis=None, **options: statistics.quantile(
        x, _hundredth("np.percentile", q), axis, **options),
    "nanpercentile": lambda x, q, axis=None, *args, **options: statistics.nanquantile(
        x, _hundredth("np.nanpercentile", q), axis, *args, **options),
    "linalg.cross": lambda a, b, *, axis=-1: statistics.cross(a, b, axis=axis),
    "apply_over_axes": _over_axes, "piecewise": picking.piecewise,
    "extract": lambda condition, arr: shaping.ravel(arr)[shaping.ravel(condition)],
    "geomspace": creation.geomspace,
    "vdot": lambda x, y: products.vdot(shaping.ravel(x), shaping.ravel(y)),
    "polyadd": lambda a1, a2: polynomials.aligned(np.add, a1, a2),
    "polysub": lambda a1, a2: polynomials.aligned(np.subtract, a1, a2),
    # of types and shapes
    "iscomplexobj": _is_complex,
    "isrealobj": lambda x: not _is_complex(x),
    "shape": lambda x: as_array(x).shape,
    "ndim": lambda x: as_array(x).ndim,
    "size": lambda x, axis=None: as_array(x).size if axis is None else as_array(x).shape[axis],
    "result_type": lambda *operands: dtypes.numpy_dtype(elementwise.result_type(*operands)),
    "common_type": lambda *arrays: np.common_type(
        *(np.empty(0, as_array(x).dtype) for x in arrays)),
    # comparisons
    "iscomplex": lambda x: apply(np.not_equal, picking.imag(x), 0),
    "isreal": lambda x: apply(np.equal, picking.imag(x), 0),
    "allclose": lambda a, b, rtol=1e-5, atol=1e-8, equal_nan=False: reducing.all_(
        picking.isclose(a, b, rtol, atol, equal_nan)),
    # shapes
    "rollaxis": shaping.rollaxis, "ix_": shaping.ix_,
    "matrix_transpose": lambda x: shaping.swapaxes(x, -1, -2),
    "linalg.matrix_transpose": lambda x: shaping.swapaxes(x, -1, -2),
    "hsplit": lambda x, indices: shaping.split(x, indices, 0 if as_array(x).ndim == 1 else 1),
    "vsplit": lambda x, indices: shaping.split(x, indices, 0),
    "dsplit": lambda x, indices: shaping.split(x, indices, 2),
    "unstack": lambda x, *, axis=0: tuple(shaping.moveaxis(x, axis, 0)),
    "fliplr": lambda x: shaping.flip(x, 1),
    "flipud": lambda x: shaping.flip(x, 0),
    "diagflat": lambda v, k=0: shaping.diag(shaping.ravel(v), k),
    "append": lambda x, values, axis=None: joining.concatenate([x, values], axis),
    "dstack": lambda arrays: joining.concatenate([shaping.atleast_3d(x) for x in arrays], 2),
    **{f"fft.{name}": getattr(fourier, name) for name in
       "fft fft2 fftfreq fftn hfft ifft ifft2 ifftn ihfft irfft irfft2 irfftn rfft rfft2 rfftfreq "
       "rfftn".split()},
    "fft.fftshift": lambda x, axes=None: shaping.fft_shift(x, axes, 1),
    "fft.ifftshift": lambda x, axes=None: shaping.fft_shift(x, axes, -1),
}


@cache
def table() -> dict[str, Function]:
    """Return our functions by NumPy's names (dotted in a submodule)."""
    rows = {n: getattr(module, n) for module, names in _SAME.items() for n in names.split()}
    rows |= {f"linalg.{n}": getattr(linear, n) for n in LINALG.split()} | _OTHER
    rows |= {name: adding(ours) for name, ours in rows.items() if name in ADDING - PRODUCTS}
    return {name: asked(name, ours, of_numpy_name(name)) for name, ours in rows.items()}


def of_numpy_name(name: str) -> Any:
    """Return the attribute of NumPy with this name, dotted in a submodule; None if there is
    none."""
    member: Any = np
    for part in name.split("."):
        member = getattr(member, part, None)
    return member
