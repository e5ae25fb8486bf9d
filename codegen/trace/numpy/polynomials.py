"""Convolutions and polynomials, whose coefficients stand in an array, the highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.errors import ShapeError, UsageError
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, unsupported
from codegen.trace.numpy import joining, linear, shaping
from codegen.trace.numpy.creation import arange, zeros
from codegen.trace.numpy.elementwise import apply, result_type
from codegen.trace.numpy.reducing import floats, sum_
from codegen.trace.numpy.refused import REMEDIES


def _operands(what: str, a: Any, v: Any) -> tuple[Array, Array]:
    """Of one dim and one element at least."""
    x, y = as_array(a), as_array(v)
    for z in (x, y):
        if z.ndim != 1 or z.extents[0] == 0:
            raise ShapeError(f"{what} takes two arrays of one dim with elements",
                             expected="one dim, one element at least",
                             found=str(z.type))
    return x, y


def _shorter(what: str, x: Array, y: Array, mode: str) -> bool:
    """Whether x has fewer elements than y; of no matter where all overlaps are asked for."""
    n, m = x.extents[0], y.extents[0]
    if not expr.nonneg(n - m) and not expr.nonneg(m - n) and mode != "full":
        raise unsupported(f"{what} where it is not known which operand is longer",
                          f"{what}(a, v), which gives all overlaps, and a slice of it")
    return expr.nonneg(m - n - 1)


def _mode(what: str, mode: Any) -> str:
    """NumPy takes numbers and first letters too."""
    names = ("valid", "same", "full")
    found = {key: n for k, n in enumerate(names) for key in (k, n, n[0])}
    if mode not in found:
        raise UsageError(f"{what}: no mode {mode!r}", expected=", ".join(names), found=repr(mode))
    return str(found[mode])


def convolve(a: Any, v: Any, mode: Any = "full") -> Any:
    """By shifted products of the longer operand; with a long kernel, by a sum for each result."""
    mode = _mode("np.convolve", mode)
    x, kernel = _operands("np.convolve", shaping.atleast_1d(a), shaping.atleast_1d(v))
    if _shorter("np.convolve", x, kernel, mode) or not kernel.extents[0].is_const:
        x, kernel = kernel, x
    count, n = kernel.shape[0], x.shape[0]
    if kernel.extents[0].is_const and kernel.extents[0].value <= 64:
        out = zeros(n + count - 1, result_type(x, kernel))
        for k in range(count):
            out[k : k + n] += x * kernel[k]
    else:
        around = zeros(n + 2 * (count - 1), result_type(x, kernel))
        around[count - 1 : count - 1 + n] = x
        at = arange(n + count - 1)[:, None] + arange(count)
        out = sum_(around[at] * kernel[::-1], axis=1, dtype=around.dtype)
    if mode == "full":
        return out
    if mode == "same":
        return out[(count - 1) // 2 : (count - 1) // 2 + n]
    return out[count - 1 : n]


def correlate(a: Any, v: Any, mode: Any = "valid") -> Any:
    """Of a longer operand and a kernel; the other way round, all is turned."""
    mode = _mode("np.correlate", mode)
    x, y = _operands("np.correlate", a, v)
    if _shorter("np.correlate", x, y, mode):
        turned = convolve(y, apply(np.conjugate, x)[::-1], mode)
        return apply(np.conjugate, turned)[::-1]
    return convolve(x, apply(np.conjugate, y)[::-1], mode)


def polyval(p: Any, x: Any) -> Any:
    """Horner's rule."""
    out: Any = shaping.broadcast_to(np.zeros((), as_array(x).dtype), as_array(x).shape)
    for c in p if isinstance(p, Array) else np.asarray(p):
        out = apply(np.add, apply(np.multiply, out, x), c)
    return out


def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    array = as_array(x, result_type(as_array(x), np.int64(0)))
    powers = range(array.shape[0] if N is None else N)
    columns = [array**k for k in (powers if increasing else reversed(powers))]
    return joining.stack(columns, -1)


def aligned(ufunc: np.ufunc, a: Any, b: Any) -> Any:
    """A ufunc of coefficients of equal powers."""
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
    """The m-th derivative."""
    made = as_array(p)
    for _ in range(m):
        made = made[:-1] * arange(_count(made) - 1, 0, -1)
    return made


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The m-th integral; k: its m constants, zeros by default."""
    given = [0.0] * m if k is None else [k] * m if np.ndim(k) == 0 else list(k)
    given = given * m if len(given) == 1 else given
    made = as_array(p)
    for constant in given[:m]:
        divided = apply(np.divide, made, arange(_count(made), 0, -1))
        made = joining.concatenate([divided, shaping.atleast_1d(constant)])
    return made


def poly(seq_of_zeros: Any) -> Any:
    """The coefficients of the polynomial with these roots."""
    roots = shaping.atleast_1d(seq_of_zeros)
    if roots.ndim != 1 or roots.type.dtype.kind == "c":
        raise unsupported("np.poly of a matrix, or of complex roots,", REMEDIES["roots"])
    roots = floats(roots)
    made: Any = np.ones(1, roots.dtype)
    for k in range(_count(roots)):
        made = convolve(made, joining.stack([np.ones((), roots.dtype), -roots[k]]))
    return as_array(made)


def polyfit(x: Any, y: Any, deg: int, rcond: Any = None, full: bool = False, w: Any = None,
            cov: Any = False) -> Any:
    """The polynomial of least squares, by np.linalg.lstsq of the matrix of powers."""
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
    found, sums, rank, singular = linear.lstsq(powers, values, least)
    made = (found.T / scale).T
    if full:
        return made, sums, rank, singular, least
    if not cov:
        return made
    base = linear.inv(powers.T @ powers) / (scale[:, None] * scale)
    if cov != "unscaled":
        factor = sums / (_count(places) - deg - 1)
        base = base * factor if values.ndim == 1 else base[:, :, None] * factor
    return made, base
