"""Functions of scipy.special that are written with others; scipy need not be there.

Those of the C library are rows of codegen/functions.py. Always holds: floats in, floats out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen.dtypes import numpy_dtype
from codegen.functions import SPECIAL, scipy_special
from codegen.ops import Map
from codegen.trace.array import Array, as_array, unsupported, wrap
from codegen.trace.numpy import reducing
from codegen.trace.numpy.derived import with_slopes
from codegen.trace.numpy.elementwise import (
    apply,
    broadcast_shapes,
    extents_of,
    loop_dtypes,
    operand_value,
    result_type,
    select,
)
from codegen.user.half_types import adding


class _Functions:
    """np.NAME on arrays of the program and numbers, for formulas."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ufunc = getattr(np, name, None) or getattr(scipy_special(), name)
        return lambda *args: apply(ufunc, *args)


f = _Functions()


def _log_of(x: Any, log_y: Any, y: Any) -> Any:
    """Return x * log_y, and 0 where x is 0 and y is a number."""
    return select((x == 0) & ~f.isnan(y), 0.0, x * log_y)


def _logit(x: Any) -> Any:
    off = 2 * (x - 0.5)
    near = f.log1p(off) - f.log1p(-off)
    return select((x >= 0.3) & (x <= 0.65), near, f.log(x / (1 - x)))


def _entropy(x: Any, y: Any, more: Any, at_zero: Any) -> Any:
    """Return x log(x / y) + more where x and y are positive; infinity where it is not defined."""
    value = select((x > 0) & (y > 0), x * f.log(x / y) + more,
                  select((x == 0) & (y >= 0), at_zero, np.inf))
    return select(f.isnan(x) | f.isnan(y), np.nan, value)


def _expit(x: Any) -> Any:
    positive = x >= 0
    small = f.exp(select(positive, -x, x))  # never overflows, so that derivatives are finite too
    return select(positive, 1.0, small) / (1 + small)


def _pseudo_huber(delta: Any, r: Any) -> Any:
    total = delta + f.hypot(delta, r)
    loss = delta * r * (r / select(total == 0, 1.0, total))
    return select(delta < 0, np.inf, loss)


def _huber(delta: Any, r: Any) -> Any:
    size = f.absolute(r)
    small = select(size <= delta, r, 0.0)  # no infinity, which times 0 has no derivative
    loss = select(size <= delta, 0.5 * small * small, delta * (size - 0.5 * delta))
    return select(delta < 0, np.inf, loss)


def _boxcox(log_x: Any, power: Any) -> Any:
    near = (power == 0) | (f.absolute(power * log_x) < 1e-19)
    return select(near, log_x, f.expm1(power * log_x) / power)


def _inv_boxcox(y: Any, power: Any) -> Any:
    """Return the logarithm of the inverse Box-Cox transform."""
    return select(power == 0, y, f.log1p(power * y) / power)


# ---- derivatives, where those of the formulas divide by zero or cancel ---------------------------


def _series(coefficients: Sequence[float], x: Any) -> Any:
    """Return the sum of coefficients[k] * x**k."""
    total: Any = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = total * x + c
    return total


_EXPREL_SLOPE = [(k + 1) / math.factorial(k + 2) for k in range(18)]
_LOG_SLOPE = [(-1) ** (k + 1) * (k + 1) / (k + 2) for k in range(18)]
_SINC_SLOPE = [(-1) ** (k + 1) * (2 * k + 2) / math.factorial(2 * k + 3) for k in range(10)]


def _exprel_slope(x: Any) -> Any:
    """Return the derivative of (exp(x) - 1) / x."""
    near = f.absolute(x) < 1.0
    large = f.minimum(select(near, 1.0, x), 1e4)  # where exp is infinite
    far = f.exp(large) / large * (1 - 1 / large) + 1 / large / large
    return select(near, _series(_EXPREL_SLOPE, select(near, x, 0.0)), far)


def sinc_slope(x: Any) -> Any:
    """Return the derivative of sin(x) / x."""
    near = f.absolute(x) < 1.0
    small, large = select(near, x, 0.0), select(near, 1.0, x)
    far = (f.cos(large) - f.sin(large) / large) / large
    return select(near, small * _series(_SINC_SLOPE, small * small), far)


def _boxcox_slope(log_x: Any, power: Any, transformed: Any) -> Any:
    """Return the derivative of (exp(log_x * power) - 1) / power by the power."""
    product = power * log_x
    near = (f.absolute(product) < 1.0) | (power == 0)
    small = select(near & f.isfinite(log_x), log_x, 0.0)
    safe = select(near, 1.0, power)
    grown = select(log_x == -np.inf, 0.0, f.exp(product) * log_x)
    return select(near, small * small * _exprel_slope(small * power), (grown - transformed) / safe)


def _inv_boxcox_slopes(y: Any, power: Any, grown: Any) -> list[Any]:
    """Return the derivatives of (1 + y * power) ** (1 / power), which is `grown`."""
    product = power * y
    near = f.absolute(product) < 0.1
    small, safe = select(near, product, 0.0), select(power == 0, 1.0, power)
    by_y = select(near, grown / (1 + small), f.power(1 + product, 1 / safe - 1))
    shrunk = select(grown == 0, 0.0, grown * f.log1p(product))
    return [by_y, select(near, grown * y * y * _series(_LOG_SLOPE, small),
                         (by_y * y - shrunk / safe) / safe)]


def _quotient(x: Any, y: Any) -> Any:
    """Return x / y, and 0 where both are 0."""
    return x / select((x == 0) & (y == 0), 1.0, y)


# By function: from its operands and its result, the partial derivatives by the operands.
_SLOPES: dict[str, Callable[..., list[Any]]] = {
    "logit": lambda x, _: [1 / (x * (1 - x))],
    "xlogy": lambda x, y, _: [f.log(y), _quotient(x, y)],
    "xlog1py": lambda x, y, _: [f.log1p(y), _quotient(x, 1 + y)],
    "entr": lambda x, _: [-f.log(x) - 1],
    "rel_entr": lambda x, y, _: [f.log(x) - f.log(y) + 1, -_quotient(x, y)],
    "kl_div": lambda x, y, _: [f.log(x) - f.log(y), 1 - _quotient(x, y)],
    "exprel": lambda x, _: [_exprel_slope(x)],
    "boxcox": lambda x, power, transformed: [
        f.power(x, power - 1), _boxcox_slope(f.log(x), power, transformed)],
    "boxcox1p": lambda x, power, transformed: [
        f.power(1 + x, power - 1), _boxcox_slope(f.log1p(x), power, transformed)],
    "inv_boxcox": _inv_boxcox_slopes,
    "inv_boxcox1p": lambda y, power, shifted: _inv_boxcox_slopes(y, power, shifted + 1),
}

_FORMULAS: dict[str, Callable[..., Any]] = {
    "expit": _expit,
    "log_expit": lambda x: -f.logaddexp(0.0, -x),
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
        arrays = [as_array(x, dtype) for x in operands]
        context = arrays[0].context
        if context.recordings and len(arrays) > 1 and name in _SLOPES:
            shape, kind = broadcast_shapes([extents_of(x) for x in arrays]), arrays[0].type.dtype
            arrays = [wrap(context, operand_value(context, x, kind, shape)) for x in arrays]
        return as_array(formula(*arrays), dtype)

    if name in _SLOPES:
        formula = with_slopes(_SLOPES[name])(formula)
    return call


UFUNCS = {name: _of_floats(name, formula) for name, formula in _FORMULAS.items()}


# ---- functions that are no ufuncs ----------------------------------------------------------------


def _shifted(x: Any, axis: Any, keepdims: bool = True) -> tuple[Array, Array]:
    """Return x minus its largest element along an axis, and that element: 0 where it is
    infinite."""
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
    logarithm = f.log(reducing.sum_(f.exp(less), axis, keepdims=True)) + most
    return logarithm if keepdims else logarithm.squeeze(axis)


def zeta(x: Any, q: Any = None) -> Any:
    if q is None:
        raise unsupported("scipy.special.zeta of one argument", "scipy.special.zeta(x, 1.0)")
    x, q = (reducing.floats(reducing.no_complex(v, "scipy.special.zeta")) for v in (x, q))
    dtype = result_type(x, q)
    shape = broadcast_shapes([extents_of(x), extents_of(q)])
    values = [operand_value(x.context, v, dtype, shape) for v in (x, q)]
    return wrap(x.context, x.context.emit_one(Map("zeta"), *values))


def polygamma(n: Any, x: Any) -> Any:
    """Return the n-th derivative of psi; n is known when the program is built."""
    if not isinstance(n, (int, np.integer)) or n < 0:
        raise unsupported(f"scipy.special.polygamma of order {n}", "a Python integer from 0 on")
    if n == 0:
        return f.psi(x)
    return (-1.0) ** (n + 1) * math.factorial(int(n)) * zeta(n + 1.0, x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "polygamma": polygamma,
    "zeta": zeta,
    "softmax": adding(softmax),
    "log_softmax": adding(log_softmax),
    "logsumexp": adding(logsumexp),
}


def names() -> list[str]:
    """Return the names of scipy.special that work in programs."""
    return sorted({*SPECIAL.split(), *UFUNCS, *FUNCTIONS, "cbrt", "exp2", "expm1", "log1p"})


def ours_of(function: Any) -> Callable[..., Any] | None:
    """Return our function for one of scipy.special that is no ufunc."""
    name = getattr(function, "__name__", "")
    own = getattr(sys.modules.get("scipy.special"), name, None) if name in FUNCTIONS else None
    return FUNCTIONS[name] if own is function else None
