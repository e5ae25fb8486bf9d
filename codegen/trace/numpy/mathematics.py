"""Python's `math` and `round` on numbers that the program computes.

Always holds: numbers become float64, as in Python, and results are weak, as Python numbers are.
Where Python raises for a number outside a function's domain, the result is what NumPy gives: NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial, reduce
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.trace.array import Array, as_array, holds_traced, unsupported
from codegen.trace.number import Number
from codegen.trace.numpy.elementwise import apply, mapped, select
from codegen.trace.numpy.picking import round_

_UFUNCS = (
    "sqrt exp exp2 expm1 log2 log10 log1p cbrt sin cos tan sinh cosh tanh fabs degrees radians "
    "fmod copysign isnan isinf isfinite"
)
_OTHER_NAMES = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "atan2": np.arctan2, "pow": np.power,
}
_REMEDIES = {
    "fsum": "np.sum(x), which rounds each sum", "factorial": "math.gamma(n + 1), a float",
}


def aware(function: Any) -> Callable[..., Any] | None:
    """Return what a call of one of math's functions runs instead; None for other functions."""
    return _table().get(id(function))


@cache
def _table() -> dict[int, Callable[..., Any]]:
    """Return the replacements by the id of math's functions: what is called need not be
    hashable."""
    return {
        id(f): _for_traced(f) for name, f in vars(math).items() if callable(f) and name[0] != "_"
    }


def _for_traced(function: Callable[..., Any]) -> Callable[..., Any]:
    name = function.__name__

    def call(*args: Any, **options: Any) -> Any:
        if not holds_traced(args):
            return function(*args, **options)
        if name in ("prod", "sumprod"):  # Python's own products and sums of what is given
            return function(*args, **options) if name == "prod" else _sumprod(*args)
        ours = _ours(name)
        if ours is None:
            raise unsupported(f"math.{name} of a number of the program",
                              _REMEDIES.get(name, "@spmd.kernel, which may call it"))
        result = ours(*args, **options)
        return tuple(map(_weak, result)) if isinstance(result, tuple) else _weak(result)

    return call


def _weak(x: Any) -> Any:
    if isinstance(x, Array) and not x.ndim:
        x.weak = x.type.dtype.kind != "b"
    return x


def _real(x: Any) -> Array:
    """Return a number as a float64."""
    array = as_array(x)
    if array.ndim:
        raise unsupported("a function of `math` of an array", "NumPy's of the same name: "
                          "np.sqrt(x) takes arrays; x[k] is an element")
    if array.type.dtype.kind == "c":
        raise unsupported("a function of `math` of a complex number", "np.sqrt(z), z.real, z.imag")
    return as_array(array, dtypes.FLOAT64)


def _ours(name: str) -> Callable[..., Any] | None:
    ufunc = _OTHER_NAMES.get(name) or (getattr(np, name) if name in _UFUNCS.split() else None)
    if ufunc is not None:
        return lambda *args: apply(ufunc, *map(_real, args))
    return _OWN.get(name)


def _log(x: Any, base: Any = None) -> Any:
    logarithm = apply(np.log, _real(x))
    return logarithm if base is None else logarithm / apply(np.log, _real(base))


def _hypot(*parts: Any) -> Any:
    return reduce(lambda a, b: apply(np.hypot, a, b), map(_real, parts), _real(0.0))


def _sumprod(p: Any, q: Any) -> Any:
    return sum(a * b for a, b in zip(p, q, strict=True))


def _isclose(a: Any, b: Any, *, rel_tol: float = 1e-9, abs_tol: float = 0.0) -> Any:
    x, y = _real(a), _real(b)
    size = apply(np.maximum, apply(np.absolute, x), apply(np.absolute, y))
    most = apply(np.maximum, size * rel_tol, abs_tol)
    near = apply(np.less_equal, apply(np.absolute, x - y), most)
    return apply(np.equal, x, y) | (near & apply(np.isfinite, size))


def _remainder(x: Any, y: Any) -> Any:
    """Return IEEE 754's remainder, by CPython's formula, exactly."""
    a, b = (apply(np.absolute, _real(v)) for v in (x, y))
    rest = apply(np.fmod, a, b)
    over = b - rest
    tie = rest - 2.0 * apply(np.fmod, 0.5 * (a - rest), b)
    remainder = select(rest < over, rest, select(rest > over, -over, tie))
    remainder = apply(np.copysign, 1.0, _real(x)) * remainder
    return select(apply(np.isinf, b) & apply(np.isfinite, a), _real(x), remainder)


def _whole(ufunc: np.ufunc) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        if isinstance(x, Number):
            return x
        return as_array(x) if as_array(x).type.dtype.kind in "biu" and not as_array(x).ndim else (
            apply(ufunc, _real(x)).astype(np.int64))

    return call


def _divisors(ufunc: np.ufunc) -> Callable[..., Any]:
    return lambda *parts: reduce(lambda a, b: apply(ufunc, a, b), parts, int(ufunc is np.lcm))


def _mapped(fn: str, x: Any) -> Any:
    return mapped(fn, _real(x))


def _whole_root(n: Array) -> Any:
    """Return the whole root of n: the root of the float64 nearest to n is one off at most."""
    root = apply(np.sqrt, _real(n)).astype(np.int64)
    root = select(root > n // apply(np.maximum, root, 1), root - 1, root)
    return select((root + 1) <= n // (root + 1), root + 1, root)


_OWN: dict[str, Callable[..., Any]] = {
    "log": _log, "hypot": _hypot, "modf": lambda x: apply(np.modf, _real(x)),
    "dist": lambda p, q: _hypot(*(a - b for a, b in zip(p, q, strict=True))), "isclose": _isclose,
    "remainder": _remainder, "floor": _whole(np.floor), "ceil": _whole(np.ceil),
    "trunc": _whole(np.trunc), "gcd": _divisors(np.gcd), "lcm": _divisors(np.lcm),
    "frexp": lambda x: tuple(p.astype(t) for p, t in zip(
        apply(np.frexp, _real(x)), (np.float64, np.int64))),
    "ulp": lambda x: apply(
        np.spacing, apply(np.absolute, _real(x))),
    "ldexp": lambda x, k: apply(np.ldexp, _real(x), as_array(k, dtypes.INT64)),
    "nextafter": lambda x, y: apply(np.nextafter, _real(x), _real(y)),
    "isqrt": lambda n: _whole_root(as_array(n, dtypes.INT64)),
    **{name: partial(_mapped, fn) for name, fn in
       {"erf": "erf", "erfc": "erfc", "gamma": "gamma", "lgamma": "gammaln"}.items()},
}


def rounded(x: Array, digits: Any) -> Any:
    """Round as Python does: round(x) is an integer, round(x, digits) of x's own type; half to
    even."""
    if x.ndim:
        raise unsupported("round() of an array", "np.round(x, digits)")
    if digits is not None:
        result = round_(x, digits)
        result.weak = x.weak
        return result
    return _weak(apply(np.rint, _real(x)).astype(np.int64))
