"""Functions of scipy.special that are written with others; scipy need not be there.

Those of the C library are rows of codegen/functions.py. Always holds: floats in, floats out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.dtypes import numpy_dtype
from codegen.functions import SPECIAL, scipy_special
from codegen.ops import Map
from codegen.trace.array import Array, as_array, unsupported, wrap
from codegen.trace.numpy import reducing
from codegen.trace.numpy.elementwise import (
    apply,
    broadcast_shapes,
    extents_of,
    loop_dtypes,
    operand_value,
    result_type,
    select,
)


class _Functions:
    """np.NAME on arrays of the program and numbers, for formulas."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ufunc = getattr(np, name, None) or getattr(scipy_special(), name)
        return lambda *args: apply(ufunc, *args)


f = _Functions()


def _log_of(x: Any, log_y: Any, y: Any) -> Any:
    """x times a logarithm, which is 0 where x is."""
    return select((x == 0) & ~f.isnan(y), 0.0, x * log_y)


def _logit(x: Any) -> Any:
    off = 2 * (x - 0.5)
    near = f.log1p(off) - f.log1p(-off)
    return select((x >= 0.3) & (x <= 0.65), near, f.log(x / (1 - x)))


def _entropy(x: Any, y: Any, more: Any, at_zero: Any) -> Any:
    """x log(x / y) + more of what is positive; infinity where it is not defined."""
    made = select((x > 0) & (y > 0), x * f.log(x / y) + more,
                  select((x == 0) & (y >= 0), at_zero, np.inf))
    return select(f.isnan(x) | f.isnan(y), np.nan, made)


def _pseudo_huber(delta: Any, r: Any) -> Any:
    made = delta * delta * f.expm1(0.5 * f.log1p(f.square(r / delta)))
    return select(delta < 0, np.inf, select((delta == 0) | (r == 0), 0.0, made))


def _huber(delta: Any, r: Any) -> Any:
    size = f.absolute(r)
    made = select(size <= delta, 0.5 * r * r, delta * (size - 0.5 * delta))
    return select(delta < 0, np.inf, made)


def _boxcox(log_x: Any, power: Any) -> Any:
    return select(f.absolute(power * log_x) < 1e-19, log_x, f.expm1(power * log_x) / power)


def _inv_boxcox(y: Any, power: Any) -> Any:
    """The logarithm of what it gives."""
    return select(power == 0, y, f.log1p(power * y) / power)


_FORMULAS: dict[str, Callable[..., Any]] = {
    "expit": lambda x: 1 / (1 + f.exp(-x)),
    "log_expit": lambda x: f.minimum(x, 0) - f.log1p(f.exp(-f.absolute(x))),
    "logit": _logit,
    "xlogy": lambda x, y: _log_of(x, f.log(y), y),
    "xlog1py": lambda x, y: _log_of(x, f.log1p(y), y),
    "entr": lambda x: select(
        x < 0, -np.inf, select(x == 0, 0.0, -x * f.log(x))),
    "rel_entr": lambda x, y: _entropy(x, y, 0.0, 0.0),
    "kl_div": lambda x, y: _entropy(x, y, y - x, y),
    "huber": _huber,
    "pseudo_huber": _pseudo_huber,
    "ndtr": lambda x: 0.5 * f.erfc(x * -math.sqrt(0.5)),
    "ndtri": lambda p: -math.sqrt(2) * f.erfcinv(2 * p),
    "exp10": lambda x: f.power(10.0, x),
    "exprel": lambda x: select(x == 0, 1.0, select(x == np.inf, np.inf, f.expm1(x) / x)),
    "cosm1": lambda x: -2 * f.square(f.sin(x / 2)),
    "boxcox": lambda x, power: _boxcox(f.log(x), power),
    "boxcox1p": lambda x, power: _boxcox(f.log1p(x), power),
    "inv_boxcox": lambda y, power: f.exp(_inv_boxcox(y, power)),
    "inv_boxcox1p": lambda y, power: f.expm1(_inv_boxcox(y, power)),
}


def _of_floats(name: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    def call(*operands: Any) -> Any:
        dtype = loop_dtypes(getattr(scipy_special(), name), operands, None)[-1]
        if dtype.kind == "c":
            raise unsupported(f"scipy.special.{name} of complex numbers", "z.real, z.imag")
        made = formula(*(as_array(x, dtype) for x in operands))
        return as_array(made, dtype)

    return call


UFUNCS = {name: _of_floats(name, formula) for name, formula in _FORMULAS.items()}


# ---- functions that are no ufuncs ----------------------------------------------------------------


def _shifted(x: Any, axis: Any, keepdims: bool = True) -> tuple[Array, Array]:
    """x minus its largest element along an axis, and that element: 0 where it is infinite."""
    array = reducing.floats(as_array(x))
    most = reducing.max_(array, axis, keepdims=True)
    most = select(f.isfinite(most), most, as_array(0, numpy_dtype(array.type.dtype)))
    return array - most, most


def softmax(x: Any, axis: Any = None) -> Any:
    powers = f.exp(_shifted(x, axis)[0])
    return powers / reducing.sum_(powers, axis, keepdims=True)


def log_softmax(x: Any, axis: Any = None) -> Any:
    less, _ = _shifted(x, axis)
    return less - f.log(reducing.sum_(f.exp(less), axis, keepdims=True))


def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False,
              return_sign: bool = False) -> Any:
    if b is not None or return_sign:
        raise unsupported("scipy.special.logsumexp with b= or return_sign=",
                          "np.log(np.sum(b * np.exp(a)))")
    less, most = _shifted(a, axis)
    made = f.log(reducing.sum_(f.exp(less), axis, keepdims=True)) + most
    return made if keepdims else made.squeeze(axis)


def zeta(x: Any, q: Any = None) -> Any:
    if q is None:
        raise unsupported("scipy.special.zeta of one argument", "scipy.special.zeta(x, 1.0)")
    x, q = (reducing.floats(as_array(v)) for v in (x, q))
    dtype = result_type(x, q)
    shape = broadcast_shapes([extents_of(x), extents_of(q)])
    values = [operand_value(x.context, v, dtype, shape) for v in (x, q)]
    return wrap(x.context, x.context.emit_one(Map("zeta"), *values))


def polygamma(n: Any, x: Any) -> Any:
    """The n-th derivative of psi; n is known when the program is built."""
    if not isinstance(n, (int, np.integer)) or n < 0:
        raise unsupported(f"scipy.special.polygamma of order {n}", "a Python integer from 0 on")
    if n == 0:
        return f.psi(x)
    return (-1.0) ** (n + 1) * math.factorial(int(n)) * zeta(n + 1.0, x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "polygamma": polygamma,
    "zeta": zeta,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
}


def names() -> list[str]:
    """What of scipy.special works in programs."""
    return sorted({*SPECIAL.split(), *UFUNCS, *FUNCTIONS, "cbrt", "exp2", "expm1", "log1p"})


def ours_of(function: Any) -> Callable[..., Any] | None:
    """Our function for one of scipy.special that is no ufunc."""
    name = getattr(function, "__name__", "")
    own = getattr(sys.modules.get("scipy.special"), name, None) if name in FUNCTIONS else None
    return FUNCTIONS[name] if own is function else None
