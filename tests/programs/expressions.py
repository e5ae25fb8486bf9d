"""One-line expressions over every function of NumPy that takes arrays, by the function's name.

A line is statements and a last expression, apart by `;`. EXPRESSIONS of refused functions are
those that must be refused. The arrays stand in ARRAYS, with the layouts that a program gives them.
"""

from __future__ import annotations

import numpy as np

_DRAW = np.random.default_rng(11)


def _odd(x: np.ndarray) -> np.ndarray:
    """With what is no number, infinite, or a zero with a sign."""
    x = x.copy()
    x.flat[[2, 9, 11]] = np.nan
    x.flat[[4, 30]] = np.inf
    x.flat[7], x.flat[8], x.flat[13] = -np.inf, -0.0, 0.0
    return x


_x = _DRAW.normal(0, 2, (7, 5)).round(3)
ARRAYS: dict[str, tuple[np.ndarray, tuple[str | None, ...]]] = {
    "x": (_x, ("r", None)),
    "y": (_DRAW.normal(1, 2, (7, 5)).round(3), (None, "r")),
    "f": (_DRAW.normal(0, 3, (7, 5)).round(2).astype(np.float32), ("r", None)),
    "w": (_odd(_x[:, ::-1]), ("r", None)),
    "v": (_DRAW.normal(0, 2, 7).round(2), ("r",)),
    "o": (np.array([-3.5, -2, -0.5, 0.25, 1, 2.5, 4]), ("r",)),  # in order
    "s": (np.array([-3.0, -1, -1, 0, 0.5, 2, np.nan]), ("r",)),
    "z": (_DRAW.normal(0, 2, (7, 5)).round(2) + 1j * _DRAW.normal(0, 2, (7, 5)).round(2),
          ("r", None)),
    "i": (_DRAW.integers(-9, 9, (7, 5)), ("r", None)),
    "j": (_DRAW.integers(0, 5, 7), ("r",)),
    "u": (_DRAW.integers(0, 255, (7, 5)).astype(np.uint8), ("r", None)),
    "h": (_DRAW.integers(-128, 127, (7, 5)).astype(np.int8), (None, "r")),
    "b": (_DRAW.random((7, 5)) < 0.5, ("r", None)),
    "q": (_DRAW.normal(0, 1, (5, 5)).round(2), ("r", None)),
    "t": (_DRAW.normal(0, 1, (4, 3, 2)).round(2), ("r", None, None)),
}

EXPRESSIONS: dict[str, str] = {
    # -- element by element ------------------------------------------------------------------------
    **{n: f"np.{n}(x) | np.{n}(w) | np.{n}(f) | np.{n}(i) | np.{n}(h)" for n in
       "abs absolute fabs floor ceil trunc rint fix sign square negative positive sqrt cbrt exp "
       "exp2 "
       "expm1 log log10 log1p log2 sin cos tan arcsin arccos arctan arcsinh arccosh arctanh sinh "
       "cosh tanh asin acos atan asinh acosh atanh deg2rad rad2deg degrees radians isnan isinf "
       "isfinite signbit conj conjugate reciprocal sinc".split()},
    **{n: f"np.{n}(x, y) | np.{n}(f, 2) | np.{n}(i, 3) | np.{n}(w, y) | np.{n}(u, u[::-1])" for n in
       "add subtract multiply divide true_divide floor_divide mod remainder fmod power pow "
       "float_power maximum minimum fmax fmin equal not_equal less less_equal greater "
       "greater_equal logical_and logical_or logical_xor divmod".split()},
    **{n: f"np.{n}(x, y) | np.{n}(f, 2) | np.{n}(w, y)" for n in
       "arctan2 atan2 hypot copysign logaddexp logaddexp2 heaviside".split()},
    **{n: f"np.{n}(i, 6) | np.{n}(u, u[::-1]) | np.{n}(b, b[::-1]) | np.{n}(h, i)" for n in
       "bitwise_and bitwise_or bitwise_xor".split()},
    **{n: f"np.{n}(i) | np.{n}(u) | np.{n}(h) | np.{n}(b)" for n in
       "invert bitwise_not bitwise_invert bitwise_count".split()},
    **{n: f"np.{n}(i, 2) | np.{n}(u, np.uint8(3)) | np.{n}(h, np.int8(9))" for n in
       "left_shift right_shift bitwise_left_shift bitwise_right_shift".split()},
    "logical_not": "np.logical_not(x) | np.logical_not(b) | np.logical_not(w)",
    "modf": "np.modf(x) | np.modf(w) | np.modf(f)",
    "angle": "np.angle(z) | np.angle(x, deg=True) | np.angle(-x * 0)",
    "real": "np.real(z) | np.real(x)", "imag": "np.imag(z) | np.imag(x)",
    "iscomplex": "np.iscomplex(z) | np.iscomplex(x)", "isreal": "np.isreal(z) | np.isreal(x)",
    "iscomplexobj": "np.iscomplexobj(z)", "isrealobj": "np.isrealobj(z)",
    "isneginf": "np.isneginf(w)", "isposinf": "np.isposinf(w) | np.isposinf(w, out=b); b",
    "isclose": "np.isclose(x, x + 1e-9) | np.isclose(w, w, equal_nan=True) | np.isclose(i, i + 1) "
               "| np.isclose(w, y)",
    "allclose": "np.allclose(x, x + 1e-9) | np.allclose(w, w)",
    "nan_to_num": "np.nan_to_num(w) | np.nan_to_num(w + 1j * w) | np.nan_to_num(w, nan=2.5, "
                  "posinf=9) | np.nan_to_num(i) | np.nan_to_num(w, copy=False); w",
    "clip": "np.clip(x, -1, 1) | np.clip(w, 0, None) | np.clip(i, -2, 3) | np.clip(x, y, 2) "
            "| np.clip(u, 3, 200) | np.clip(x, 1, -1) | np.clip(w, np.nan, 1)",
    "round": "np.round(x, 1) | np.round(i) | np.round(z, 1) | np.round(f, 2) | np.round(x, -1)",
    "around": "np.around(x, 2) | np.around(w)",
    "where": "np.where(x > 0, x, y) | np.where(b, i, 2.5) | np.where(b, f, 0) | np.where(j, v, 0)",
    "select": "np.select([x > 1, x < -1], [x, y], 7) | np.select([b, x > 0], [i, i * 2])",
    "choose": "np.choose(j % 3, [v, v * 2, 1.0]) | np.choose(i, [x, y], mode='clip') "
              "| np.choose(i, [x, y, 3], mode='wrap') | (j % 2).choose([v, j])",
    "frexp": "np.frexp(w) | np.frexp(f) | np.frexp(i)", "isnat": "np.isnat(x)",
    "ldexp": "np.ldexp(x, i) | np.ldexp(f, h) | np.ldexp(w, 2)",
    "gcd": "np.gcd(i, i[::-1]) | np.gcd(u, 6) | np.gcd(i, h)",
    "lcm": "np.lcm(i, 6) | np.lcm(h, h[::-1])",
    "nextafter": "np.nextafter(w, y) | np.nextafter(f, 2)", "spacing": "np.spacing(w) "
       "| np.spacing(f) | np.spacing(w.astype(np.float16)) | np.spacing(h) | np.spacing(b) "
       "| np.nextafter(h, j[:, None][:, [0] * 5].astype(np.int8)) "
       "| a = (x * 2.0**-17).astype(np.float16); np.nextafter(a, np.float16(0)) "
       "| a = np.exp2(np.floor(w)).astype(np.float16); (np.nextafter(a, a[::-1]), "
       "np.nextafter(-a, np.float16(np.inf)), np.nextafter(a, np.float16(-1)))",
    "i0": "np.i0(x * 20) | np.i0(f) | np.i0(j) | np.i0(x * 1e307)",
    "unwrap": "np.unwrap(v * 3) | np.unwrap(x * 3, axis=0) | "
                                "np.unwrap(i, period=6) | np.unwrap(x, discont=4.0)",
    # -- reductions --------------------------------------------------------------------------------
    **{n: f"np.{n}(x) | np.{n}(x, axis=0) | np.{n}(i, axis=1, keepdims=True) | np.{n}(u, axis=0) "
          f"| np.{n}(b, axis=1) | np.{n}(t, axis=(0, 2)) | np.{n}(z) | np.{n}(w, axis=0)"
       for n in "sum prod".split()},
    **{n: f"np.{n}(x) | np.{n}(x, axis=0) | np.{n}(i, axis=1, keepdims=True) | np.{n}(h, axis=0) "
          f"| np.{n}(w, axis=0) | np.{n}(u) | np.{n}(b, axis=1) | np.{n}(z, axis=0) | np.{n}(z)"
       for n in "max min amax amin".split()},
    "ptp": "np.ptp(x) | np.ptp(i, axis=0) | np.ptp(u, axis=1)",
    **{n: f"np.{n}(x) | np.{n}(x, axis=0) | np.{n}(i, axis=1, keepdims=True) | np.{n}(u, axis=0) "
          f"| np.{n}(b) | np.{n}(z, axis=0) | np.{n}(f) | np.{n}(w, axis=1)"
       for n in "mean var std".split()},
    "any": "np.any(x > 4) | np.any(b, axis=0) | np.any(w, axis=1)",
    "all": "np.all(x > -9) | np.all(b, axis=0) | np.all(i, axis=1)",
    "count_nonzero": "np.count_nonzero(i) | np.count_nonzero(b, axis=0) | np.count_nonzero(w)",
    "average": "np.average(x, axis=0, weights=v) | np.average(x) | np.average(i, axis=1) "
               "| np.average(x, weights=np.abs(y)) | np.average(f, axis=0) "
               "| np.average(x, axis=1, weights=[1, 2, 3, 4, 5.], returned=True) "
               "| np.average(i, returned=True)",
    "median": "np.signbit(np.median(v * -0.0)) | np.median(x) | np.median(x, axis=0) "
              "| np.median(i, axis=1) | np.median(w, axis=0) "
              "| np.median(f[:, :4], axis=1, keepdims=True) | np.median(x[:6] * 1e308, axis=0)",
    "quantile": "np.quantile(x, 0.3) | np.quantile(x, [0.1, 0.9], axis=0) | np.quantile(w, 0.5, 1)",
    "percentile": "np.percentile(x, 30) | np.percentile(i, [5, 50], axis=1)",
    "cumsum": "np.cumsum(x, axis=0) | np.cumsum(i) | np.cumsum(u, axis=1) | np.cumsum(z, axis=0)",
    "cumprod": "np.cumprod(x, axis=0) | np.cumprod(h) | np.cumprod(v)",
    "cumulative_sum": "np.cumulative_sum(v) | np.cumulative_sum(x, axis=0, include_initial=True) "
                      "| np.cumulative_sum(x, axis=-1, include_initial=True)",
    "cumulative_prod": "np.cumulative_prod(v) "
       "| np.cumulative_prod(x, axis=1, include_initial=True)",
    **{n: f"np.{n}(x) | np.{n}(x, axis=0) | np.{n}(w, axis=1) | np.{n}(w) | np.{n}(b, axis=0) "
          f"| np.{n}(i) | np.{n}(u, axis=1, keepdims=True) | np.{n}(z, axis=0)"
       for n in "argmax argmin".split()},
    **{n: f"np.{n}(w) | np.{n}(w, axis=0) | np.{n}(i, axis=1) | np.{n}(x, axis=1)" for n in
       "nansum nanprod nanmax nanmin nanmean nanvar nanstd nanmedian nanargmax nanargmin".split()},
    "nancumsum": "np.nancumsum(w, axis=1) | np.nancumsum(x)",
    "nancumprod": "np.nancumprod(w[4:], axis=1) | np.nancumprod(i, axis=0)",
    "nanquantile": "np.nanquantile(x, 0.4, axis=0) | np.nanquantile(w[3:], 0.3) "
       "| np.nanquantile(w[3:], [0.2, 0.7], axis=0) "
                   "| np.nanquantile(x, 0.4, axis=1, keepdims=True) | np.nanquantile(s, 0.5)",
    "nanpercentile": "np.nanpercentile(x, 30, axis=0) | np.nanpercentile(w[3:], 30) "
       "| np.nanpercentile(x, [20, 60], axis=1)",
    "trapezoid": "np.trapezoid(x) | np.trapezoid(x, axis=0, dx=0.5) | np.trapezoid(v, j * 1.0)",
    "cov": "np.cov(x) | np.cov(x, rowvar=False) | np.cov(v, j) | np.cov(z) "
           "| np.cov(x, y, fweights=j[:5] + 1, aweights=[1, 2, 3, 4, 5.], ddof=0)",
    "corrcoef": "np.corrcoef(x) | np.corrcoef(v, j)",
    "trace": "np.trace(q) | np.trace(x, offset=1) | np.trace(i)",
    # -- order and search --------------------------------------------------------------------------
    "sort": "np.sort(x, axis=0) | np.sort(w) | np.sort(h, axis=None) | np.sort(z, axis=0) "
            "| np.sort(b, axis=0) | np.sort(v)",
    "argsort": "np.argsort(x, axis=0) | np.argsort(v) | np.argsort(w, kind='stable') "
               "| np.argsort(z, axis=0)",
    "lexsort": "np.lexsort((v, j)) | np.lexsort((x, i % 3)) | np.lexsort((y, i % 2), axis=0)",
    "partition": "np.sort(np.partition(v, 3)[:3]) | np.partition(x, 2, axis=0)[2]",
    "argpartition": "np.argpartition(x, 0, axis=1)[:, 0] | v[np.argpartition(v, 3)][3]",
    "sort_complex": "np.sort_complex(v) | np.sort_complex(z) | np.sort_complex(h)",
    "searchsorted": "np.searchsorted(o, x) | np.searchsorted(np.sort(v), x) "
       "| np.searchsorted(s, w) | "
                    "np.searchsorted(s, [np.nan, 0, -1, 9], side='right') | np.searchsorted(s, 0.5)"
                    "| np.searchsorted(v, w, sorter=np.argsort(v)) | np.searchsorted([1, 4], i)"
                    "| np.searchsorted(np.array([0.1], np.float32), 0.1 + 0 * v[0], 'right')"
                    "| np.searchsorted(np.sort(z[0]), z[1]) | np.searchsorted(np.sort(u[0]), 300)",
    "digitize": "np.digitize(w, [-1.0, 0, 1]) | np.digitize(x, [2.0, 0, -2], right=True) "
                "| np.digitize(v, np.sort(y[0])) | np.digitize(v, np.sort(y[0])[::-1]) "
                "| np.digitize(i, [0, 3])",
    "interp": "np.interp(x, o, y[:, 0]) | np.interp(w, [-1.0, 0, 2], [3.0, 1, 5]) "
              "| np.interp(x, [0, 1, 2], [1j, 2, 3 + 1j]) | np.interp(x, [1.0], [2.0]) "
              "| np.interp(x, [0, 1], [5, 6], left=-1, right=9) "
              "| np.interp(x, [0, 1, 2], [1.0, 4, 2], period=3) | np.interp(0.5, np.sort(v), v)",
    "isin": "np.isin(x, v, invert=True) | np.isin(i, [1, 2, -3]) | np.isin(w, w)",
    "histogram": "np.histogram(x, 4) | np.histogram(v) | np.histogram(x, [-2.0, 0, 1, 5]) "
                 "| np.histogram(x, 3, (-1, 1)) | np.histogram(i, 5) | np.histogram(u, 16) "
                 "| np.histogram(f, 7) | np.histogram(x, 4, density=True) | np.histogram(h, 3) "
                 "| np.histogram(x, 4, weights=y) | np.histogram(i, [0, 0, 2, 2], weights=i) "
                 "| np.histogram(v * 0, 2) | np.histogram(b.astype(np.int8), 2) "
                 "| np.histogram(w, 3, (-2, 2)) | np.histogram(w, [-1, 0, np.inf]) "
                 "| np.histogram(x, [-1, 1, 2], density=True) | np.histogram(x[:0], 3)",
    "bincount": "np.bincount(j, minlength=50)",
    "histogram2d": "np.histogram2d(v, j, 3) "
       "| np.histogram2d(x.ravel(), y.ravel(), [2, [-1.0, 0, 4]])"
                   "| np.histogram2d(v, j, 2, [[-1, 1], [0, 5]], density=True, weights=v)",
    "histogramdd": "np.histogramdd(x[:, :3], 2) | np.histogramdd([v, j], [2, 3], weights=v)",
    "histogram_bin_edges": "np.histogram_bin_edges(x, 4) | np.histogram_bin_edges(i, 3, (0, 5))",
    "unique": "np.unique(i)", "unique_all": "np.unique_all(i)",
    "unique_counts": "np.unique_counts(i)", "unique_inverse": "np.unique_inverse(i)",
    "unique_values": "np.unique_values(i)", "union1d": "np.union1d(v, v)",
    "intersect1d": "np.intersect1d(v, v)", "setdiff1d": "np.setdiff1d(v, v)",
    "setxor1d": "np.setxor1d(v, v)",
    "nonzero": "x[np.nonzero(i)] = 7; x | np.nonzero(i)[1].sum() | len(np.nonzero(x > 0)[0]) * f",
    "argwhere": "np.argwhere(i).sum(0) | np.argwhere(b).shape[0] * x",
    "flatnonzero": "v[np.flatnonzero(v > 0)] += v[np.flatnonzero(v > 0)]; v "
       "| np.flatnonzero(i > 0).sum() * f", "extract": "np.extract(b, x).sum()",
    "trim_zeros": "np.trim_zeros(v)", "piecewise": "np.piecewise(x, [x > 0], [np.abs, 2]) "
       "| np.piecewise(v, v > 0, [lambda q, c=3: q * c]) "
       "| np.piecewise(i, [i < 0, i > 3], [2.7, -1])"
       "| np.piecewise(v[0], [v[0] < 0, v[0] >= 0], [-1, lambda q: q])",
    "compress": "np.compress(x[:, 0] > 0, x, axis=0).sum(0) | np.compress(b.ravel(), x).sum() "
       "| np.compress(v[:3] > 0, v).sum() | np.compress([True, False, True], x, axis=0) "
       "| x.compress([False, True])",
    # -- shapes ------------------------------------------------------------------------------------
    "reshape": "np.reshape(x, (5, 7)) | np.reshape(x.T, -1) | np.reshape(t, (3, -1, 2)) "
               "| np.reshape(x[::2], (-1, 2)) | np.reshape(x[:, ::2].T, (7, 3))",
    "ravel": "np.ravel(x) | np.ravel(x.T) | np.ravel(t[:, 1])",
    "transpose": "np.transpose(x) | np.transpose(t, (2, 0, 1))",
    "permute_dims": "np.permute_dims(t, (1, 2, 0))", "matrix_transpose": "np.matrix_transpose(t)",
    "swapaxes": "np.swapaxes(t, 0, 2)", "moveaxis": "np.moveaxis(t, 0, -1)",
    "rollaxis": "np.rollaxis(t, 2) | np.rollaxis(t, -1) | np.rollaxis(t, 1, -1)",
    "squeeze": "np.squeeze(x[:1]) | np.squeeze(v[:, None], 1)",
    "expand_dims": "np.expand_dims(x, 1)", "atleast_1d": "np.atleast_1d(x[0, 0])",
    "atleast_2d": "np.atleast_2d(v)", "atleast_3d": "np.atleast_3d(x)",
    "broadcast_to": "np.broadcast_to(v[:, None], (7, 3))",
    "broadcast_arrays": "np.broadcast_arrays(v, x.T)",
    "flip": "np.flip(x) | np.flip(t, (0, 2))", "fliplr": "np.fliplr(x)", "flipud": "np.flipud(x)",
    "rot90": "np.rot90(x) | np.rot90(x, 2) | np.rot90(x, -1)",
    "roll": "np.roll(x, 2, axis=0) | np.roll(x, 3) | np.roll(x, (1, -2), axis=(0, 1)) "
            "| np.roll(x, (1, 3), axis=(0, 0))",
    "tile": "np.tile(v, 2) | np.tile(x, (2, 1))", "resize": "np.resize(v, (3, 4)) "
       "| np.resize(x, 6)",
    "repeat": "np.repeat(v, 2) | np.repeat(x, 3, axis=0) | np.repeat(v[:3], [1, 0, 2]) "
              "| np.repeat(x, np.array([2]), axis=0)",
    "split": "np.split(x[:6], 3) | np.split(v, [2, 5])", "array_split": "np.array_split(v, 3)",
    "hsplit": "np.hsplit(x, [1, 3])", "vsplit": "np.vsplit(x, [2])", "dsplit": "np.dsplit(t, 2)",
    "unstack": "np.unstack(t, axis=1)", "copy": "np.copy(x)",
    "astype": "np.astype(x, np.float32) | np.astype(x, np.int64) | np.astype(i, np.uint8)",
    "tril": "np.tril(x) | np.tril(q, -1)", "triu": "np.triu(x) | np.triu(t, 1)",
    "diag": "np.diag(v) | np.diag(q) | np.diag(x, 1) | np.diag(v, -2)",
    "diagonal": "np.diagonal(x) | np.diagonal(t, 0, 1, 2)", "diagflat": "np.diagflat(x[:2])",
    "meshgrid": "np.meshgrid(v, j) | np.meshgrid(v, j, indexing='ij', sparse=True)",
    "ix_": "np.ix_(j, [0, 1]) | np.ix_(j, [True, False, True]) | x[np.ix_([0, 2], [1, 3])]",
    "shape": "np.zeros(np.shape(x)) + x",
    "size": "np.size(x) | np.size(x, 1)", "ndim": "np.ndim(t)",
    # -- joining -----------------------------------------------------------------------------------
    "concatenate": "np.concatenate([x, w]) | np.concatenate([x, y]) "
       "| np.concatenate((x, i), axis=1) "
                   "| np.concatenate([x, v], axis=None)",
    "concat": "np.concat([x, w])", "stack": "np.stack([x, y], axis=-1) | np.stack([v, j])",
    "vstack": "np.vstack([v, j]) | np.vstack([x, y])", "row_stack": "np.vstack([v, v])",
    "hstack": "np.hstack([v, j]) | np.hstack([x, y])", "dstack": "np.dstack([x, y])",
    "column_stack": "np.column_stack([v, x])", "append": "np.append(v, j) "
       "| np.append(x, y, axis=0)",
    "block": "np.block([[x, w], [w, x]]) | np.block([v, j])",
    "pad": "np.pad(x, 1) | np.pad(v, (2, 1), mode='edge') "
       "| np.pad(x, ((0, 2), (1, 0)), mode='wrap')"
           "| np.pad(v, 2, mode='reflect') | np.pad(v, 3, 'symmetric') "
           "| np.pad(i, 1, constant_values=4) | np.pad(x, 1, constant_values=((1, 2), (3, 4))) "
           "| np.pad(x, 2, mode='reflect', reflect_type='odd') | np.pad(i, 2, 'linear_ramp') "
           "| np.pad(h, 5, 'linear_ramp', end_values=(9, 2)) | np.pad(f, 3, 'linear_ramp') "
           "| np.pad(x, ((0, 0), (1, 2)), 'linear_ramp', end_values=((1, 2), (3, 4))) "
           "| np.pad(x, ((1, 2), (2, 0)), 'maximum', stat_length=((1, 2), (2, 3))) "
           "| np.pad(t, 1, mode='minimum') | np.pad(i, 1, mode='mean') "
           "| np.pad(x, 1, mode='median')"
           "| np.pad(x, 1, mode='empty')[1:-1, 1:-1]",
    "insert": "np.insert(v, 2, 9.0) | np.insert(x, 1, v, axis=1) "
       "| np.insert(v, [2, 1, 1], [7., 8, 9])"
              "| np.insert(x, [0, 3], [[1], [2]], axis=0) | np.insert(i, slice(1, 5, 2), 9.7) "
              "| np.insert(x, [1], v[:, None], axis=1) | np.insert(v, [], []) "
              "| np.insert(v, np.arange(7).repeat(6), 1.5)",
    "delete": "np.delete(v, 3) | np.delete(x, -1, axis=0) | np.delete(x, [0, 3, -1], axis=0) "
              "| np.delete(v, slice(None, None, -2)) | np.delete(x, [True] + [False] * 4, 1) "
              "| np.delete(v, []) | np.delete(np.repeat(v, 20), slice(0, 120, 3))",
    "array": "np.array(x) | np.array([v, v * 2]) | np.array([[v[0], 1], [2, v[1]]]) "
             "| np.array(x, ndmin=3)",
    "asarray": "np.asarray(x) | np.asarray([v[0], v[1]])", "asanyarray": "np.asanyarray(x)",
    "ascontiguousarray": "np.ascontiguousarray(x.T)", "asfortranarray": "np.asfortranarray(x)",
    "require": "np.require(x, np.float32)", "asarray_chkfinite": "np.asarray_chkfinite(x)",
    # -- new arrays --------------------------------------------------------------------------------
    "zeros": "np.zeros((2, 3)) + v[0]", "ones": "np.ones(3, np.int8) * v[0]",
    "empty": "e = np.empty(3); e[:] = v[0]; e", "full": "np.full((2, 2), v[0])",
    "zeros_like": "np.zeros_like(i)", "ones_like": "np.ones_like(x, dtype=np.int8)",
    "empty_like": "e = np.empty_like(x); e[...] = 2; e", "full_like": "np.full_like(i, 7)",
    "arange": "np.arange(7) * v | np.arange(0.5, 3, 0.5)", "eye": "np.eye(5) @ q",
    "identity": "np.identity(5) + q",
    "linspace": "np.linspace(v[0], v[1], 5) | np.linspace(x[0], x[1], 4) | np.linspace(0, 1, 7) * v"
                "| np.linspace(x[0], 9, 3, axis=-1) | np.linspace(v[0], 4, 3, endpoint=False)"
                "| np.linspace(j[0], j[1], 6, dtype=np.int64) "
                "| np.linspace(f[0], 2, 3, retstep=True)"
                "| np.linspace(v[0], v[1], 1)",
    "logspace": "np.logspace(v[0], v[1], 4) | np.logspace(0, 1, 7) * v "
       "| np.logspace(v, 1, 3, base=2) | np.logspace(0, v, 3, base=np.abs(v) + 1, axis=1)",
    "geomspace": "np.geomspace(np.abs(v), 4, 3) | np.geomspace(-np.abs(v), -4., 3, axis=1) "
       "| np.geomspace(z[0, 0], z[1, 1], 4)",
    "vander": "np.vander(v, 3) | np.vander(j) | np.vander(v, 0)",
    **{n: f"np.{n}(7) * v" for n in "bartlett blackman hamming hanning".split()},
    "kaiser": "np.kaiser(7, 2.0) * v", "tri": "np.tri(5) * q",
    "indices": "np.indices((7, 5))[0] * x",
    "fromfunction": "np.fromfunction(lambda a, c: a + c, (7, 5)) * x",
    "fromiter": "np.fromiter([1.0] * 7, float) * v", "frombuffer": "np.frombuffer(bytes(8)) * v[0]",
    "fromstring": "np.fromstring('1 2 3', sep=' ') * v[0]",
    "diag_indices": "q[np.diag_indices(5)]", "tril_indices": "q[np.tril_indices(5)]",
    "triu_indices": "q[np.triu_indices(5, 1)]",
    "diag_indices_from": "np.stack(np.diag_indices_from(q)) + j[0]",
    "tril_indices_from": "np.stack(np.tril_indices_from(q)) + j[0]",
    "triu_indices_from": "np.stack(np.triu_indices_from(x, 1)) + j[0]",
    "mask_indices": "q[np.mask_indices(5, np.triu)]",
    # -- indices -----------------------------------------------------------------------------------
    "take": "np.take(x, [0, 2, -1], axis=0) | np.take(x, j) | np.take(x, j, axis=1) "
            "| np.take(v, [9, -9], mode='clip') | np.take(v, j * 3, mode='wrap')",
    "take_along_axis": "np.take_along_axis(x, np.argsort(x, axis=0), axis=0) "
                       "| np.take_along_axis(x, j[:, None], axis=1)",
    "put_along_axis": "np.put_along_axis(x, j[:, None], 9.0, axis=1); x",
    "put": "np.put(v, [0, 3], [7.0, 8]); v | np.put(v, [0, 2, -1], [1, 0]); v "
           "| np.put(v, [9, -9], 1, mode='clip'); v "
           "| np.put(x, j * 9, 2, mode='wrap'); x", "copyto": "np.copyto(x, y, where=b); x",
    "putmask": "np.putmask(x, b, y); x | np.putmask(x, x > 0, -1); x "
       "| np.putmask(i, i > 0, [1, 2, 3]); i",
    "place": "np.place(x, b, [1]); x | np.place(x, x > 0, v); x",
    "fill_diagonal": "np.fill_diagonal(q, 3.0); q | np.fill_diagonal(x, 1); x "
                     "| d = t[:2, :2] * 1; np.fill_diagonal(d, 4); d "
                     "| np.fill_diagonal(x, 1, wrap=True); x | np.fill_diagonal(q, [1, 2, 3]); q",
    "unravel_index": "np.unravel_index(j, (2, 4), order='F') | np.unravel_index(j, (2, 4)) "
       "| np.unravel_index(np.argmax(x), x.shape)",
    "ravel_multi_index": "np.ravel_multi_index((j, j % 2), (5, 2)) "
       "| np.ravel_multi_index((j, j), (3, 2), mode=('clip', 'wrap'), order='F')",
    "packbits": "np.packbits(b) | np.packbits(i, axis=0, bitorder='little')",
    "unpackbits": "np.unpackbits(u, count=7) | np.unpackbits(u, axis=1, bitorder='little')",
    # -- products ----------------------------------------------------------------------------------
    "matmul": "np.matmul(x, q) | np.matmul(x.T, y) | np.matmul(v, x) | np.matmul(i, i.T)",
    "dot": "np.dot(x, q) | np.dot(v, v) | np.dot(x, 2) | np.dot(t, q[:2])",
    "inner": "np.inner(x, y) | np.inner(v, v)", "outer": "np.outer(v, j) | np.outer(x, v[:2])",
    "vdot": "np.vdot(z, z) | np.vdot(v, v)",
    "vecdot": "np.vecdot(x, y) | np.vecdot(z, z) | np.vecdot(z, z, axis=0)",
    "matvec": "np.matvec(x, q[0])", "vecmat": "np.vecmat(v, x) | np.vecmat(z[:, 0], x)",
    "tensordot": "np.tensordot(x, y, ((0,), (0,))) | np.tensordot(x, q, 1)",
    "einsum": "np.einsum('ij,kj', x, y) | np.einsum('ij,ij->j', x, y) | np.einsum('ii', q) "
              "| np.einsum('i,j,k->ijk', v, j, [1, 2]) "
              "| np.einsum(t, [0, 1, 2], x[:3], [1, 3], [3, 0, 2]) "
              "| np.einsum('ij,jk,kl,lm', x, q, q, y.T, optimize='optimal') "
              "| np.einsum('i,ij,jk->k', v, x, q, optimize=['einsum_path', (1, 2), (0, 1)])",
    "kron": "np.kron(v, [1, 2]) | np.kron(q[:2], q[:, :2])",
    "cross": "np.cross(x[:, :3], y[:, 2:]) | np.cross(x[:, :2], y[:, :2]) "
             "| np.cross(x[:, :3], y[:, :2])",
    "einsum_path": "v * len(np.einsum_path('ij,jk', x, q)[0])",
    # -- differences, polynomials ------------------------------------------------------------------
    "diff": "np.diff(x, axis=0) | np.diff(v, 2) | np.diff(u, axis=1) | np.diff(v, prepend=0) "
            "| np.diff(b, axis=0) | np.diff(x, n=0, prepend=0)",
    "ediff1d": "np.ediff1d(v) | np.ediff1d(x, to_end=9, to_begin=[1, 2])",
    "gradient": "np.gradient(v) | np.gradient(x, 0.5, axis=0) | np.gradient(x) "
                "| np.gradient(x, o, np.array([0, 1, 3, 4, 9.]), edge_order=2) "
                "| np.gradient(x, 2, axis=0, edge_order=2)",
    "convolve": "np.convolve(v, [1, 2.0]) | np.convolve(v, [1, 0, -1], 'same') "
                "| np.convolve(v, j, 'valid') | np.convolve(v, j, 1) "
                "| np.convolve(x.ravel(), np.arange(70) - 30, 'same') "
                "| np.convolve(x.ravel(), [1.0] * 9 + [np.inf])",
    "correlate": "np.correlate(v, [1, 2.0]) | np.correlate(v, j, 'full') "
                 "| np.correlate(z[:, 0], z[:3, 0], 'same') | np.correlate(z[:2, 0], z[:, 0])",
    "polyval": "np.polyval([1.0, 2, 3], x) | np.polyval(v, x) | np.polyval([1, 2], i)",
    "polyadd": "np.polyadd(v, [1, 2])", "polysub": "np.polysub([1.0, 2], v)",
    "polyder": "np.polyder(v) | np.polyder(v, 2)", "polyint": "np.polyint(v) | np.polyint(j, 2, 3)",
    "polymul": "np.polymul(v, v)",
    "polydiv": "np.polydiv(v, [1, 2]) | np.polydiv(v[:2], v) | np.polydiv(v, v[1:4])",
    "poly": "np.poly(v[:4]) | np.poly(j[:3]) | np.poly(q)",
    "polyfit": "np.polyfit(o, v, 2) | np.polyfit(o, x, 1, w=np.abs(v)) | np.polyfit(o, f[:, 0], 1) "
               "| np.polyfit(o, v, 1, cov=True)", "roots": "np.sort_complex(np.roots(v)) "
       "| np.sort_complex(np.roots(np.append(v, [0, 0])))",
    # -- what is asked of arrays -------------------------------------------------------------------
    "array_equal": "np.array_equal(x, y) | np.array_equal(w, w, equal_nan=True) "
                   "| np.array_equal(x, v)",
    "array_equiv": "np.array_equiv(x, x[:1]) | np.array_equiv(x, v)",
    "result_type": "np.zeros(2, np.result_type(x, f, 1)) + v[0]",
    "common_type": "np.zeros(2, np.common_type(f, f))", "min_scalar_type":
    "np.zeros(2, np.min_scalar_type(f))",
    "isfortran": "np.isfortran(x)", "may_share_memory": "np.may_share_memory(x, x)",
    "shares_memory": "np.shares_memory(x, x)", "real_if_close": "np.real_if_close(z)",
    # -- functions of functions, text, files -------------------------------------------------------
    "apply_along_axis": "np.apply_along_axis(np.sum, 0, x)",
    "apply_over_axes": "np.apply_over_axes(np.sum, t, [0, 2])",
    "vectorize": "np.vectorize(lambda a, c: a - c if a > c else a * 2.0)(x, y) "
                 "| np.vectorize(lambda a, c=2: (a * c, a > c))(v[:, None], x[0]) "
                 "| np.vectorize(np.sin)(x) "
                 "| np.vectorize(lambda a: a + 1, otypes=[np.float32])(i)",
    "frompyfunc": "np.frompyfunc(abs, 1, 1)(x)", "nested_iters": "np.nested_iters(x, [[0], [1]])",
    "array2string": "np.array2string(x)", "array_repr": "np.array_repr(x)",
    "array_str": "np.array_str(x)", "save": "np.save('f.npy', x)", "savez": "np.savez('f.npz', x)",
    "savez_compressed": "np.savez_compressed('f.npz', x)", "savetxt": "np.savetxt('f.txt', x)",
    "asmatrix": "np.asmatrix(x)", "bmat": "np.bmat([[x, x]])",
    "from_dlpack": "np.from_dlpack(x)",
    # -- submodules --------------------------------------------------------------------------------
    **{f"emath.{n}": f"np.emath.{n}(x)" for n in
       "arccos arcsin arctanh log log10 log2 sqrt".split()},
    "emath.logn": "np.emath.logn(2, x)", "emath.power": "np.emath.power(x, 2)",
    "linalg.norm": "np.linalg.norm(x) | np.linalg.norm(x, axis=1) | np.linalg.norm(v, 1) "
                   "| np.linalg.norm(v, np.inf) | np.linalg.norm(z) | np.linalg.norm(x, 2) "
                   "| np.linalg.norm(z, 'nuc', keepdims=True) | np.linalg.norm(x, -np.inf) "
                   "| np.linalg.norm(x, 1, axis=(1, 0)) | np.linalg.norm(i, 3, axis=0)",
    "linalg.vector_norm": "np.linalg.vector_norm(x, axis=0) | np.linalg.vector_norm(x) "
                          "| np.linalg.vector_norm(z, ord=0)",
    "linalg.matrix_norm": "np.linalg.matrix_norm(q) | np.linalg.matrix_norm(t, ord=-2)",
    "linalg.matmul": "np.linalg.matmul(x, q)", "linalg.outer": "np.linalg.outer(v, j)",
    "linalg.trace": "np.linalg.trace(q) | np.linalg.trace(t, offset=-1)",
    "linalg.diagonal": "np.linalg.diagonal(q) | np.linalg.diagonal(t, offset=1)",
    "linalg.tensordot": "np.linalg.tensordot(x, q, axes=1)",
    "linalg.matrix_transpose": "np.linalg.matrix_transpose(t)",
    "linalg.vecdot": "np.linalg.vecdot(x, y)",
    "linalg.cross": "np.linalg.cross(x[:, :3], y[:, 2:])",
    **{f"linalg.{n}": f"np.linalg.{n}(q) | np.linalg.{n}(np.stack([q, q.T, q * 1j]))" for n in
       "det eig eigvals inv slogdet".split()},
    **{f"linalg.{n}": f"np.linalg.{n}(q) | np.linalg.{n}(z) | np.linalg.{n}(i[:4])" for n in
       "svdvals matrix_rank pinv".split()},
    "linalg.cond": "np.linalg.cond(q) | np.linalg.cond(z) | np.linalg.cond(q, 1) "
                   "| np.linalg.cond(q * 0)",
    "linalg.qr": "np.linalg.qr(x) | np.linalg.qr(z.T, 'complete') | np.linalg.qr(f, 'r') "
                 "| np.linalg.qr(x.reshape(7, 1, 5)) | np.linalg.qr(x, 'raw')",
    "linalg.svd": "np.linalg.svd(x) | np.linalg.svd(z.T, full_matrices=False) "
                  "| np.linalg.svd(t, compute_uv=False)",
    "linalg.eigh": "np.linalg.eigh(q) | np.linalg.eigh(np.stack([z[:5], q * 2j]), 'U')",
    "linalg.eigvalsh": "np.linalg.eigvalsh(q) | np.linalg.eigvalsh(z[:5], UPLO='U')",
    "linalg.cholesky": "np.linalg.cholesky(q @ q.T + np.eye(5)) "
                       "| np.linalg.cholesky(np.stack([q @ q.T + np.eye(5)] * 3), upper=True)",
    "linalg.lstsq": "np.linalg.lstsq(x, v) | np.linalg.lstsq(x.T, y.T[:, :2])",
    "linalg.solve": "np.linalg.solve(q, q[0]) | np.linalg.solve(z[:5], y[:5]) "
                    "| np.linalg.solve(np.stack([q, q.T]), x[None, :5])",
    "linalg.matrix_power": "np.linalg.matrix_power(q, 3) | np.linalg.matrix_power(q, -2) "
                           "| np.linalg.matrix_power(np.stack([q, q.T]), 0)",
    "linalg.multi_dot": "np.linalg.multi_dot([x, q, q]) | np.linalg.multi_dot([v, x, q, j[:5]])",
    "linalg.tensorinv": "np.linalg.tensorinv(q.reshape(1, 5, 5, 1))",
    "linalg.tensorsolve": "np.linalg.tensorsolve(q.reshape(1, 5, 5, 1), q[:1])",
    **{f"fft.{n}": f"np.fft.{n}(x) | np.fft.{n}(x, 9, 0, 'ortho') | np.fft.{n}(f, n=4, axis=0) "
       f"| np.fft.{n}(v, norm='forward') | np.fft.{n}(t, 5, 1) | np.fft.{n}(i.T, norm='backward')"
       for n in "fft hfft ifft ihfft irfft rfft".split()},
    **{f"fft.{n}": f"np.fft.{n}(x) | np.fft.{n}(f, (4, 9), (0, 1), 'ortho') | np.fft.{n}(y) "
       f"| np.fft.{n}(t, axes=(0, 2)) | np.fft.{n}(t[:, 1:], (-1, 3), (1, -3), norm='forward')"
       for n in "fft2 fftn ifft2 ifftn irfft2 irfftn rfft2 rfftn".split()},
    "fft.fftshift": "np.fft.fftshift(v) | np.fft.fftshift(x) | np.fft.fftshift(x, 0)",
    "fft.ifftshift": "np.fft.ifftshift(v) | np.fft.ifftshift(x, axes=(1,))",
    "fft.fftfreq": "np.fft.fftfreq(7) * v", "fft.rfftfreq": "np.fft.rfftfreq(12) * v",
    "lib.stride_tricks.as_strided": "np.lib.stride_tricks.as_strided(x, (2, 2), (8, 8))",
    "lib.stride_tricks.sliding_window_view":
        "np.lib.stride_tricks.sliding_window_view(v, 3) "
        "| np.lib.stride_tricks.sliding_window_view(x, (3, 3)) "
        "| np.lib.stride_tricks.sliding_window_view(x, 2, axis=0).sum(-1) "
        "| np.lib.stride_tricks.sliding_window_view(x, (2, 3), axis=(1, 1))",
    # -- ufunc methods -----------------------------------------------------------------------------
    "ufunc.reduce": "np.add.reduce(x) | np.maximum.reduce(x, axis=1) | np.multiply.reduce(i) "
                    "| np.logical_or.reduce(b) | np.bitwise_xor.reduce(i, axis=0) "
                    "| np.minimum.reduce([x, y]) | np.logical_and.reduce(i, axis=1) "
                    "| np.gcd.reduce(i) | np.lcm.reduce(i % 4 + 1, axis=1) | np.hypot.reduce(x) "
                    "| np.logaddexp.reduce(x, axis=(0, 1)) | np.fmax.reduce(w, keepdims=True) "
                    "| np.fmin.reduce(i) | np.logical_xor.reduce(x, axis=1) "
                    "| np.subtract.reduce(i) | np.add.reduce(x, initial=2, where=b) "
                    "| np.fmax.reduce(z) | np.lcm.reduce(-x[:1].astype(int)) "
                    "| np.divide.reduce(x, 1) | np.floor_divide.reduce(i + 20, keepdims=True) "
                    "| np.equal.reduce(b) "
                    "| np.divide.reduce(i, initial=3)",
    "ufunc.accumulate": "np.signbit(np.add.accumulate(np.where(np.arange(7) < 5, -0.0, o))) "
                        "| np.multiply.accumulate(np.where(o < -3, np.inf, np.where(o < 0, 1j, 1)))"
                        "[:3] "
                        "| np.add.accumulate(x) | np.maximum.accumulate(x, axis=1) "
                        "| np.minimum.accumulate(w) | np.multiply.accumulate(v) "
                        "| np.maximum.accumulate(z) | np.minimum.accumulate(z, axis=1) "
                        "| np.logical_or.accumulate(i) | np.bitwise_and.accumulate(i, axis=1) "
                        "| np.gcd.accumulate(i) | np.hypot.accumulate(-x) "
                        "| np.subtract.accumulate(x) | np.subtract.accumulate(w) "
                        "| np.fmin.accumulate(w, axis=1) "
                        "| np.logaddexp.accumulate(f) | np.logical_xor.accumulate(b) "
                        "| np.divide.accumulate(x, axis=1) | np.power.accumulate(np.abs(x))",
    "ufunc.outer": "np.add.outer(v, j) | np.less.outer(v, x[0]) "
                   "| np.divide.outer(v, o, dtype=np.float32)",
    "ufunc.at": "np.add.at(v, j, 1.0); v | np.maximum.at(v, [0, 0, 2], 9.0); v "
                "| np.subtract.at(v, j, 2); v | np.logaddexp.at(v, j, v); v "
                "| np.negative.at(v, [0, 1]); v "
                "| np.bitwise_xor.at(j, j, 3); j | np.divide.at(x, slice(1, 3), 2); x "
                "| np.power.at(x, (0, [1, 2]), 2); x | np.fmax.at(v, j, 3); v "
                "| np.logical_or.at(b, ([0, 1], [0, 0]), True); b "
                "| np.divide.at(v, j, 2); v | np.sqrt.at(o, [1, 1]); o "
                "| np.power.at(x, ([0, 0, 1], [1, 1, 2]), [2, 3, 2]); x",
    "ufunc.reduceat": "np.signbit(np.add.reduceat(np.where(o < 2, -0.0, o), [0, 3, 5])) "
                      "| np.add.reduceat(v, [0, 3]) | np.multiply.reduceat(x, [0, 3, 3, 1]) "
                      "| np.add.reduceat(x * q[0], np.sort(j), axis=0) "
                      "| np.add.reduceat(b, [0, 2], 1) "
                      "| np.add.reduceat(np.tile(v, 12), np.arange(2, 60, 3)) "
                      "| np.maximum.reduceat(i, np.sort(j)) "
                      "| np.logaddexp.reduceat(x, [2, 0], axis=1) "
                      "| np.subtract.reduceat(x, [0, 2, 1, 5]) "
                      "| np.divide.reduceat(x, j % 5, axis=1)",
    # -- attributes and methods of arrays ----------------------------------------------------------
    **{f"ndarray.{n}": f"x.{n}() | x.{n}(axis=0) | i.{n}()" for n in
       "all any argmax argmin cumprod cumsum max mean min prod std sum var".split()},
    "ndarray.argsort": "v.argsort() | i.argsort(kind='stable')",
    **{f"ndarray.{n}": f"z.{n}" for n in "T imag real itemsize nbytes ndim size mT".split()},
    "ndarray.shape": "np.ones(z.shape) * x",
    "ndarray.dtype": "np.zeros(2, f.dtype)", "ndarray.flat": "x.flat[7]",
    "ndarray.astype": "x.astype(np.int32) | b.astype(float) | x.astype(np.complex64)",
    "ndarray.choose": "(j % 2).choose([v, 2 * v])", "ndarray.clip": "x.clip(-1, 1) | i.clip(max=2)",
    "ndarray.compress": "v.compress([True, False, True])", "ndarray.conj": "z.conj()",
    "ndarray.conjugate": "z.conjugate()", "ndarray.copy": "x.copy()",
    "ndarray.diagonal": "x.diagonal(1)", "ndarray.dot": "x.dot(q)", "ndarray.fill": "x.fill(3); x",
    "ndarray.flatten": "x.flatten() | x.T.flatten()",
    "ndarray.nonzero": "x[(x > 0).nonzero()].sum()",
    "ndarray.partition": "v.partition(3); v[3]", "ndarray.argpartition": "x.argpartition(0)[:, 0]",
    "ndarray.put": "v.put([1, 2], 5); v", "ndarray.ravel": "x.ravel() | x[:, 1:].ravel()",
    "ndarray.repeat": "v.repeat(2)", "ndarray.reshape": "x.reshape(5, 7) | x.reshape((-1,))",
    "ndarray.round": "x.round(1) | x.round()", "ndarray.searchsorted": "o.searchsorted(x)",
    "ndarray.sort": "x.sort(axis=0); x | v.sort(); v", "ndarray.squeeze": "x[:, :1].squeeze()",
    "ndarray.swapaxes": "t.swapaxes(0, 1)", "ndarray.take": "x.take([0, 2, -1], axis=0) "
       "| x.take([1, 2], axis=1)",
    "ndarray.trace": "q.trace()", "ndarray.transpose": "t.transpose(1, 0, 2) | t.transpose()",
    **{f"ndarray.{n}": f"x.{n}" for n in "base ctypes data device flags strides".split()},
    "ndarray.byteswap": "x.byteswap()", "ndarray.dump": "x.dump('f')", "ndarray.dumps": "x.dumps()",
    "ndarray.getfield": "x.getfield(np.int8)", "ndarray.setfield": "x.setfield(0, np.int8)",
    "ndarray.item": "x.item(3) * f | v[:1].item() + x | x.item(1, 2) * 2",
    "ndarray.resize": "x.resize(3)",
    "ndarray.setflags": "x.setflags()",
    "ndarray.to_device": "x.to_device('cpu')", "ndarray.tobytes": "x.tobytes()",
    "ndarray.tofile": "x.tofile('f')", "ndarray.tolist": "x.tolist()",
    "ndarray.view": "x.view('i8')",
}

# Of scipy.special.
EXPRESSIONS |= {
    **{f"scipy.special.{n}": f"sp.{n}(w) | sp.{n}(f) | sp.{n}(j)" for n in
       "erf erfc gamma gammaln psi i0 i0e i1 i1e j0 j1 y0 y1 expit log_expit entr ndtr exp10 "
       "exprel cosm1 cbrt exp2 expm1 log1p".split()},
    **{f"scipy.special.{n}": f"sp.{n}(np.abs(x) % 0.9) | sp.{n}(np.abs(f) % 0.875)" for n in
       "erfinv erfcinv logit ndtri".split()},
    "scipy.special.zeta": "sp.zeta(1.5 + np.abs(x), 0.5 + np.abs(y)) | sp.zeta(np.abs(f) + 2, 1.0)",
    "scipy.special.polygamma": "sp.polygamma(0, v) | sp.polygamma(2, np.abs(x) + 0.25) "
                               "| sp.polygamma(3, j + 1)",
    **{f"scipy.special.{n}": f"sp.{n}(np.abs(w), y) | sp.{n}(j, np.abs(v))" for n in
       "xlogy xlog1py rel_entr kl_div huber pseudo_huber boxcox boxcox1p inv_boxcox "
       "inv_boxcox1p".split()},
    **{f"scipy.special.{n}": f"sp.{n}(x) | sp.{n}(f, axis=0) | sp.{n}(i, axis=1)" for n in
       "softmax log_softmax logsumexp".split()},
}

# Beyond NumPy's namespace: operators, lists of arrays, Python's own functions.
MORE = [
    "x.view()[1:] + 1", "len(x[b]) * v",
    "np.quantile(x, [0.2, 0.7], axis=0, weights=np.abs(y), method='inverted_cdf')",
    "np.nanpercentile(w, 30, weights=np.ones_like(w), method='inverted_cdf')",
    "np.polynomial.polynomial.polyval(x, v)", "np.polynomial.chebyshev.chebmul(v, v)",
    "np.polynomial.legendre.legval(v, [1, 2, 3])", "np.polynomial.Polynomial([1, 2, 3])(v)",
    "np.polynomial.polynomial.polyfit(o, v, 2)", "np.polynomial.polynomial.polydiv(v, [1, 2])",
    "np.isin(i, j)", "np.isin(w, w * 1.0)", "np.isin(x, np.append(y.ravel(), x[0]), invert=True)",
    "np.sum([v, j], axis=0)", "np.maximum.reduce([v, j, v * 2])", "np.mean([x, y], axis=0)",
    "np.max([x[0], y[0]])", "np.exp([v[0], 1.0])", "np.add([v[0], v[1]], 2)", "np.sort([v, j])",
    "np.median([v[0], v[1], 3.0])", "np.r_[v, j]", "np.c_[v, j]", "np.r_[1, 2, v, 0:3]",
    "np.r_['-1', x, y]", "np.c_[x, v]", "np.r_[v[0], 1:2:3j]", "np.cumsum((v[0], v[1], v[2]))",
    "np.where([b, b], 1, 2)", "np.dot([v[0], 1], [2, v[1]])", "np.transpose([v, j])",
    "np.argmax([v[0], v[1]])", "np.clip([v[0], v[1]], -1, 1)", "np.array([v, j]).T",
    "round(v[0], 1)", "round(v[0])", "round(f[0, 0], 1)", "math.sqrt(v[0] ** 2)",
    "math.floor(v[0])", "math.ceil(v[0])", "math.trunc(v[0])", "math.isnan(w[0, 2])",
    "math.hypot(v[0], v[1], v[2])", "math.hypot(v[0], 3)", "math.pow(v[0], 2)", "math.pi * v",
    "math.isfinite(v[0])", "math.isinf(w[0, 4])", "math.atan2(v[0], v[1])", "math.exp(v[0])",
    "math.log(abs(v[0]))", "math.log(abs(v[0]), 2)", "math.log2(abs(v[0]))", "math.fabs(v[0])",
    "math.copysign(2.0, v[0])", "math.fmod(v[0], 2)", "math.degrees(v[0])", "math.radians(v[0])",
    "math.sin(v[0]) + math.cos(v[0])", "math.tan(v[0])", "math.asin(v[0] / 9)", "math.cbrt(v[0])",
    "math.sinh(v[0])", "math.expm1(v[0])", "math.log1p(abs(v[0]))", "math.modf(v[0])",
    "math.prod([v[0], v[1], 2])",  "math.dist(x[0], y[0])",
    "math.isclose(v[0], v[0] + 1e-12)", "math.remainder(v[0], 0.7)",
    "math.exp2(v[0])", "math.erf(v[0])", "math.erfc(v[0])", "math.gamma(v[0])", "math.lgamma(v[0])",
    "math.gcd(j[0], 6, j[1])", "math.lcm(j[1], 3)", "math.isqrt(j[0] + 15)", "math.frexp(v[0])",
    "math.ldexp(v[0], 2)", "math.nextafter(v[0], 3)", "math.ulp(v[0])",
    "f * math.sqrt(v[0] ** 2)", "i // 2", "i % -3", "u - np.uint8(3)", "u + 200", "h * 2", "-u",
    "i ** 2", "2 ** j", "x ** -1", "divmod(x, 0.7)", "x // 0.3", "abs(h)", "~b", "x > y", "i == 3",
    "b ** 2",
    "x @ q", "x[::-1, ::2]", "x[j % 5]", "x[[0, -1], [1, 2]]", "x[..., None, 1:]", "x[-1]",
    "x.T.ravel()", "x.reshape(5, 7).T.reshape(-1)", "x[:0].sum(axis=0)", "x[:0].mean() * 0 == 1",
    "np.prod(x[:0])", "np.any(x[:0])", "np.sort(x[:0], axis=0)", "np.concatenate([x[:0], y])",
]
