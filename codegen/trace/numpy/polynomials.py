"""Convolutions and polynomials, whose coefficients stand in an array, the highest power first.

Always holds: lengths follow from lengths; coefficients that turn out to be 0 stay where they are.
"""

from __future__ import annotations

import types
from functools import reduce
from typing import Any

import numpy as np
from numpy.polynomial import polyutils

from codegen.errors import ShapeError, UsageError
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, unsupported
from codegen.trace.control.conversion import rewritten
from codegen.trace.declare import shape_of
from codegen.trace.expecting import expect
from codegen.trace.numpy import joining, linear, ordering, picking, shaping
from codegen.trace.numpy.creation import arange, asarray, eye, zeros
from codegen.trace.numpy.elementwise import apply, result_type
from codegen.trace.numpy.reducing import floats, sum_


def _operands(function: str, a: Any, v: Any) -> tuple[Array, Array]:
    """Return two arrays of one dim; raise ShapeError for other dims, or for no elements."""
    x, y = as_array(a), as_array(v)
    for z in (x, y):
        if z.ndim != 1 or z.extents[0] == 0:
            raise ShapeError(f"{function} takes two arrays of one dim with elements",
                             expected="one dim, one element at least",
                             found=str(z.type))
    return x, y


def _shorter(function: str, x: Array, y: Array, mode: str) -> bool:
    """Return whether x has fewer elements than y. Raise UnsupportedError where that is not known
    and the mode depends on it."""
    n, m = x.extents[0], y.extents[0]
    if not expr.nonneg(n - m) and not expr.nonneg(m - n) and mode != "full":
        raise unsupported(f"{function} where it is not known which operand is longer",
                          f"{function}(a, v), which gives all overlaps, and a slice of it")
    return expr.nonneg(m - n - 1)


def _mode(function: str, mode: Any) -> str:
    """Return a mode by its name; NumPy takes numbers and first letters too."""
    names = ("valid", "same", "full")
    mode_names = {key: n for k, n in enumerate(names) for key in (k, n, n[0])}
    if mode not in mode_names:
        raise UsageError(f"{function}: no mode {mode!r}", expected=", ".join(names),
                         found=repr(mode))
    return str(mode_names[mode])


def convolve(a: Any, v: Any, mode: Any = "full") -> Any:
    """Convolve by shifted products of the longer operand: all of a kernel whose extent is known, in
    sums of 64 at most; else by a sum for each result."""
    mode = _mode("np.convolve", mode)
    x, kernel = _operands("np.convolve", shaping.atleast_1d(a), shaping.atleast_1d(v))
    if _shorter("np.convolve", x, kernel, mode):
        x, kernel = kernel, x
    count, n = kernel.shape[0], x.shape[0]
    if not kernel.extents[0].is_const:
        x, kernel = kernel, x
    wide = kernel.extents[0].value if kernel.extents[0].is_const else 0
    whole = expr.nonneg(x.extents[0] - wide)
    if 0 < wide <= _TERMS_PER_LOOP and mode == "valid" and whole:
        return _overlapping(x, kernel, wide)
    out = _everywhere(x, kernel, wide)
    if mode == "full":
        return out
    if mode == "same":
        return out[(count - 1) // 2 : (count - 1) // 2 + n]
    return out[count - 1 : n]


_LONGEST_UNROLLED = 128  # with a longer kernel, C would be long
_TERMS_PER_LOOP = 64  # elements of a kernel that one loop sums up


def _everywhere(x: Array, kernel: Array, wide: int) -> Any:
    """Convolve also where only a part of the kernel overlaps; wide: its known extent, or 0."""
    count, n = kernel.shape[0], x.shape[0]
    if 0 < wide <= 8 and expr.nonneg(x.extents[0] - wide):
        out = zeros(n + wide - 1, result_type(x, kernel))
        out[wide - 1 : n] = _overlapping(x, kernel, wide)
        for k in range(wide - 1):  # at the ends
            out[k : wide - 1] += x[: wide - 1 - k] * kernel[k]
            out[n : n + k + 1] += x[n - k - 1 :] * kernel[k + 1]
        return out
    if not expr.nonneg(x.extents[0] - kernel.extents[0]):
        return _overlaps(x, kernel, 0, n + count - 1)
    out = zeros(n + count - 1, result_type(x, kernel))
    out[: count - 1] = _overlaps(x, kernel, 0, count - 1)
    out[n:] = _overlaps(x, kernel, n, n + count - 1)
    if 0 < wide <= _LONGEST_UNROLLED:
        ends = [*range(_TERMS_PER_LOOP, wide, _TERMS_PER_LOOP), wide]
        parts = [_overlapping(x[wide - end : n - k], kernel[k:end], end - k)
                 for k, end in zip([0, *ends], ends)]
        out[count - 1 : n] = reduce(lambda total, part: apply(np.add, total, part), parts)
    else:
        positions = arange(count - 1, n)[:, None] - arange(count)
        out[count - 1 : n] = sum_(x[positions] * kernel, axis=1, dtype=out.dtype)
    return out


def _overlaps(x: Array, kernel: Array, begin: Any, end: Any) -> Any:
    """Return results `begin` to `end`, each a sum over the part of the kernel that overlaps x."""
    positions = (arange(end - begin) + begin)[:, None] - arange(kernel.shape[0])
    inside = (positions >= 0) & (positions < x.shape[0])
    dtype = result_type(x, kernel)
    parts = x[picking.clip(positions, 0, x.shape[0] - 1)] * kernel
    return sum_(picking.where(inside, parts, 0), axis=1, dtype=dtype)


def _overlapping(x: Array, kernel: Array, wide: int) -> Any:
    """Return the results where all of the kernel overlaps x: a sum of slices, which one loop
    computes."""
    n = x.shape[0]
    parts = (x[wide - 1 - k : n - k] * kernel[k] for k in range(wide))
    return reduce(lambda total, part: apply(np.add, total, part), parts)


def correlate(a: Any, v: Any, mode: Any = "valid") -> Any:
    """Correlate the longer operand with the shorter one as a kernel; swapped operands give a
    reversed result."""
    mode = _mode("np.correlate", mode)
    x, y = _operands("np.correlate", a, v)
    if _shorter("np.correlate", x, y, mode):
        return _conjugate(convolve(y, _conjugate(x)[::-1], mode))[::-1]
    return convolve(x, _conjugate(y)[::-1], mode)


def _conjugate(x: Array) -> Any:
    return apply(np.conjugate, x) if x.type.dtype.kind == "c" else x  # a bool stays one


def polyval(p: Any, x: Any) -> Any:
    """Evaluate a polynomial by Horner's rule."""
    out: Any = shaping.broadcast_to(np.zeros((), as_array(x).dtype), as_array(x).shape)
    for c in p if isinstance(p, Array) else np.asarray(p):
        out = apply(np.add, apply(np.multiply, out, x), c)
    return out


def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    array = as_array(x, result_type(as_array(x), np.int64(0)))
    shape_of(array.shape[0] if N is None else N, "np.vander")
    powers = range(array.shape[0] if N is None else N)
    columns = [array**k for k in (powers if increasing else reversed(powers))]
    return joining.stack(columns, -1) if columns else zeros((*array.shape, 0), array.dtype)


def aligned(ufunc: np.ufunc, a: Any, b: Any) -> Any:
    """Apply a ufunc to coefficients of equal powers."""
    p, q = shaping.atleast_1d(a), shaping.atleast_1d(b)
    n = max(_count(p), _count(q))
    wide = [joining.concatenate([zeros(n - _count(x), x.dtype), x]) for x in (p, q)]
    return apply(ufunc, *wide)


def _count(p: Array) -> int:
    if not p.extents[0].is_const:
        raise unsupported("a polynomial whose number of coefficients depends on the ranks",
                          "coefficients whose number is known while building")
    return p.extents[0].value


def polyder(p: Any, m: int = 1) -> Any:
    """Return the m-th derivative."""
    coefficients = as_array(p)
    for _ in range(m):
        coefficients = coefficients[:-1] * arange(_count(coefficients) - 1, 0, -1)
    return coefficients


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """Return the m-th integral; k: its m constants, zeros by default."""
    constants = [0.0] * m if k is None else [k] * m if np.ndim(k) == 0 else list(k)
    constants = constants * m if len(constants) == 1 else constants
    coefficients = as_array(p)
    for constant in constants[:m]:
        divided = apply(np.divide, coefficients, arange(_count(coefficients), 0, -1))
        coefficients = joining.concatenate([divided, shaping.atleast_1d(constant)])
    return coefficients


def polymul(a1: Any, a2: Any) -> Any:
    return convolve(shaping.atleast_1d(a1), shaping.atleast_1d(a2))


def polydiv(u: Any, v: Any) -> Any:
    """Return quotient and remainder; the remainder is as long as a remainder can be."""
    p, q = (shaping.atleast_1d(x) + 0.0 for x in (u, v))
    rest, short = p.astype(result_type(p, q)), _count(q) - 1
    many = max(_count(p) - short, 1)
    quotient = zeros(many, rest.dtype)
    for k in range(_count(p) - short):
        quotient[k] = 1.0 / q[0] * rest[k]
        rest[k : k + short + 1] -= quotient[k] * q
    return quotient, rest[max(min(many, _count(p) - 1), 0) :] if _count(p) > short else rest


def poly(seq_of_zeros: Any) -> Any:
    """Return the coefficients of the polynomial with these roots, or with the eigenvalues of a
    matrix."""
    roots = shaping.atleast_1d(seq_of_zeros)
    if roots.type.dtype.kind == "c":
        raise unsupported("np.poly of complex numbers, real where they come in conjugate pairs,",
                          "functools.reduce(np.convolve, [np.stack([z ** 0, -z]) for z in roots])")
    matrix = roots.ndim > 1
    roots = linear.eigvals(roots) if matrix else floats(roots)
    coefficients: Any = np.ones(1, roots.dtype)
    for k in range(_count(roots)):
        coefficients = convolve(coefficients, joining.stack([np.ones((), roots.dtype), -roots[k]]))
    return picking.real(as_array(coefficients)).copy() if matrix else as_array(coefficients)


def roots(p: Any) -> Any:
    """Return eigenvalues of the companion matrix, those that are 0 last; always complex."""
    coefficients = floats(shaping.atleast_1d(p))
    n = _count(coefficients) - 1
    if coefficients.ndim != 1:
        raise ShapeError("Input must be a rank-1 array.", expected="1 dim",
                         found=str(coefficients.type))
    if n < 1:
        return zeros(0, coefficients.dtype)
    expect(coefficients.context, apply(np.not_equal, coefficients[0], 0).read(),
           "np.roots: the first coefficient is 0\n  expected: as many coefficients as the "
           "polynomial has\n  try:      np.roots(p[1:])")
    first_row = (-coefficients[1:] / coefficients[0])[None]
    matrix = joining.concatenate([first_row, eye(n - 1, n, dtype=coefficients.dtype)])
    eigenvalues = linear.eigvals(matrix)
    return eigenvalues[ordering.argsort(apply(np.equal, eigenvalues, 0))]


def polyfit(x: Any, y: Any, deg: int, rcond: Any = None, full: bool = False, w: Any = None,
            cov: Any = False) -> Any:
    """Return the polynomial of least squares, by np.linalg.lstsq of the matrix of powers."""
    places, values = (floats(as_array(v)) for v in (x, y))
    if not isinstance(deg, (int, np.integer)):
        raise unsupported("np.polyfit with several degrees", "np.linalg.lstsq(np.vander(x, k), y)")
    if places.ndim != 1 or values.ndim not in (1, 2):
        raise ShapeError("np.polyfit takes places in one dim, and values in one or two",
                         expected="x of 1 dim, y of 1 or 2",
                         found=f"{places.type} and {values.type}")
    powers = as_array(vander(places, deg + 1))
    if w is not None:
        weights = floats(as_array(w))
        powers = powers * weights[:, None]
        values = values * (weights[:, None] if values.ndim == 2 else weights)
    scale = apply(np.sqrt, sum_(powers * powers, axis=0))
    powers = powers / scale
    least = _count(places) * np.finfo(places.dtype).eps if rcond is None else rcond
    solution, sums, rank, singular = linear.lstsq(powers, values, least)
    coefficients = (solution.T / scale).T
    if full:
        return coefficients, sums, rank, singular, least
    if not cov:
        return coefficients
    base = linear.inv(powers.T @ powers) / (scale[:, None] * scale)
    if cov != "unscaled":
        factor = sums / (_count(places) - deg - 1)
        base = base * factor if values.ndim == 1 else base[:, :, None] * factor
    return coefficients, base


# ---- np.polynomial: NumPy's own source, with the lowest power first ------------------------------


def of_library(function: Any) -> Any:
    """Return a function of np.polynomial, which is Python on arrays, compiled as the user's own
    are; but for what would look at coefficients while building."""
    if not isinstance(function, types.FunctionType):  # a polynomial, which is called
        method: Any = type(function).__call__
        return types.MethodType(rewritten(method), function)
    return _WITHOUT_VALUE_CHECKS.get(function.__name__) or rewritten(function)


def _series(several: Any, trim: bool = True) -> list[Array]:
    arrays = [shaping.atleast_1d(a) for a in several]
    for a in arrays:
        if a.ndim != 1 or a.extents[0] == 0:
            raise ShapeError("coefficients of a polynomial stand in one dim",
                             expected="1 dim, one element at least", found=str(a.type))
    dtype = np.common_type(*(np.empty(0, a.dtype) for a in arrays))
    return [as_array(asarray(a, dtype).copy()) for a in arrays]


def _fitted(vander_f: Any, x: Any, y: Any, deg: Any, rcond: Any = None, full: bool = False,
            w: Any = None) -> Any:
    """Fit as np.polynomial does, without the warning of a low rank, which only the run knows."""
    fit: Any = polyutils._fit
    result = rewritten(fit)(vander_f, x, y, deg, rcond, True, w)
    return result if full else result[0]


def _divided(mul_f: Any, c1: Any, c2: Any) -> Any:
    raise unsupported("division of such polynomials", "cheb2poly and its kin give powers, which "
                      "np.polynomial.polynomial.polydiv divides")


_WITHOUT_VALUE_CHECKS = {
    "as_series": _series, "_fit": _fitted, "_div": _divided, "trimseq": lambda seq: seq,
    "polymulx": lambda c: joining.concatenate([zeros(1, as_array(c).dtype), *_series([c])]),
    "polydiv": lambda c1, c2: tuple(x[::-1] for x in polydiv(c1[::-1], c2[::-1])),
}
