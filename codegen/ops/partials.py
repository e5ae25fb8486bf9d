"""Partial derivatives of scalar functions: a row each, read where programs are differentiated.

A form is a number of an operand; OUT, the result; a float; or (function, *forms), of FUNCTIONS.
Always holds: every function of FUNCTIONS has a row here, or stands in FLAT or in OTHERWISE.
"""

from __future__ import annotations

import math

OUT = "out"
Form = int | float | str | tuple["Form", ...]

_ROOT_PI = math.sqrt(math.pi)
_BOTH_ZERO = ("logical_and", ("eq", 0, 0.0), ("eq", 1, 0.0))
_SAFE = ("select", ("eq", 0, 0.0), 1.0, 0)  # the operand, and 1 where it is 0
_NEAR = ("lt", ("abs", 0), 1.0)
_SMALL = ("select", _NEAR, 0, 0.0)
_LARGE = ("select", _NEAR, 1.0, 0)


def _larger(first: str) -> tuple[Form, Form]:
    """Return the partial derivatives of the larger or smaller of two numbers; where they are equal,
    each is 1/2."""
    half = ("select", ("eq", 0, 1), 0.5, 0.0)
    second = "lt" if first == "gt" else "gt"
    return ("select", (first, 0, 1), 1.0, half), ("select", (second, 0, 1), 1.0, half)


def _number(first: str) -> tuple[Form, Form]:
    """Return the partial derivatives of the larger or smaller of two numbers, by a function that
    ignores a NaN (fmax, fmin)."""
    a, b = _larger(first)
    return ("select", ("isnan", 1), 1.0, a), ("select", ("isnan", 0), 1.0, b)


def _share(k: int) -> Form:
    """Return the share of exp(operand) in the sum of both; of an infinite sum, the larger one has
    all."""
    return ("select", ("isinf", OUT), _larger("gt")[k], ("exp", ("sub", k, OUT)))


def _near_zero(sign: float) -> Form:
    """Return the derivative of I1, or of J1 for sign -1, where |x| < 1: as a series, since the
    difference of I0 and I1 / x loses its digits there."""
    squared: Form = ("square", _SMALL)
    total: Form = 0.0
    for k in reversed(range(10)):
        factor = sign**k * (2 * k + 1) / (2 * 4**k * math.factorial(k) * math.factorial(k + 1))
        total = ("add", factor, ("mul", squared, total)) if total else factor
    return total


# By function, for each operand; None: steps, whose derivative is 0 where there is one.
PARTIALS: dict[str, tuple[Form | None, ...]] = {
    "add": (1.0, 1.0),
    "sub": (1.0, -1.0),
    "mul": (1, 0),
    "div": (("reciprocal", 1), ("neg", ("div", OUT, 1))),
    "mod": (1.0, ("neg", ("floordiv", 0, 1))),
    "fmod": (1.0, ("neg", ("trunc", ("div", 0, 1)))),
    "pow": (
        ("select", _BOTH_ZERO, 0.0,
         ("mul", 1, ("pow", ("select", _BOTH_ZERO, 1.0, 0), ("sub", 1, 1.0)))),
        ("mul", OUT, ("log", _SAFE)),
    ),
    "neg": (-1.0,),
    "abs": (("sign", 0),),
    "maximum": _larger("gt"),
    "minimum": _larger("lt"),
    "fmax": _number("gt"),
    "fmin": _number("lt"),
    "square": (("add", 0, 0),),
    "reciprocal": (("neg", ("square", OUT)),),
    "copysign": (("mul", ("sign", 0), ("copysign", 1.0, 1)), None),
    "atan2": (
        ("div", 1, ("add", ("square", 0), ("square", 1))),
        ("neg", ("div", 0, ("add", ("square", 0), ("square", 1)))),
    ),
    "hypot": (("div", 0, OUT), ("div", 1, OUT)),
    "logaddexp": (_share(0), _share(1)),
    "exp": (OUT,),
    "exp2": (("mul", OUT, math.log(2)),),
    "expm1": (("add", OUT, 1.0),),
    "sinh": (("cosh", 0),),
    "cosh": (("sinh", 0),),
    "tanh": (("sub", 1.0, ("square", OUT)),),
    "log": (("reciprocal", 0),),
    "log2": (("div", 1 / math.log(2), 0),),
    "log10": (("div", 1 / math.log(10), 0),),
    "log1p": (("reciprocal", ("add", 0, 1.0)),),
    "asinh": (("reciprocal", ("sqrt", ("add", ("square", 0), 1.0))),),
    "acosh": (("reciprocal", ("mul", ("sqrt", ("sub", 0, 1.0)), ("sqrt", ("add", 0, 1.0)))),),
    "atanh": (("reciprocal", ("sub", 1.0, ("square", 0))),),
    "sin": (("cos", 0),),
    "cos": (("neg", ("sin", 0)),),
    "tan": (("add", ("square", OUT), 1.0),),
    "asin": (("reciprocal", ("sqrt", ("sub", 1.0, ("square", 0)))),),
    "acos": (("neg", ("reciprocal", ("sqrt", ("sub", 1.0, ("square", 0))))),),
    "atan": (("reciprocal", ("add", ("square", 0), 1.0)),),
    "sqrt": (("div", 0.5, OUT),),
    "cbrt": (("div", 1 / 3, ("square", OUT)),),
    "ldexp": (("ldexp", 1.0, 1), None),
    "mantissa": (("ldexp", 1.0, ("neg", ("exponent", 0))),),
    "nextafter": (1.0, None),
    "erf": (("mul", 2 / _ROOT_PI, ("exp", ("neg", ("square", 0)))),),
    "erfc": (("mul", -2 / _ROOT_PI, ("exp", ("neg", ("square", 0)))),),
    "erfinv": (("mul", _ROOT_PI / 2, ("exp", ("square", OUT))),),
    "erfcinv": (("mul", -_ROOT_PI / 2, ("exp", ("square", OUT))),),
    "gamma": (("mul", OUT, ("psi", 0)),),
    "gammaln": (("psi", 0),),
    "psi": (("zeta", 2.0, 0),),
    "zeta": (None, ("neg", ("mul", 0, ("zeta", ("add", 0, 1.0), 1)))),
    "i0": (("i1", 0),),
    "i0e": (("sub", ("i1e", 0), ("mul", ("sign", 0), OUT)),),
    "i1": (("select", _NEAR, _near_zero(1.0), ("sub", ("i0", 0), ("div", OUT, _LARGE))),),
    "i1e": (("sub", ("select", _NEAR, ("mul", ("exp", ("neg", ("abs", _SMALL))), _near_zero(1.0)),
                     ("sub", ("i0e", 0), ("div", OUT, _LARGE))), ("mul", ("sign", 0), OUT)),),
    "j0": (("neg", ("j1", 0)),),
    "j1": (("select", _NEAR, _near_zero(-1.0), ("sub", ("j0", 0), ("div", OUT, _LARGE))),),
    "y0": (("neg", ("y1", 0)),),
    "y1": (("sub", ("y0", 0), ("div", OUT, 0)),),
}



def of_power(exponent: float) -> Form:
    """Return the derivative of x**exponent by x for a known exponent, without a second power where
    none is needed. Below 0, the result over x has the same zeros, infinities and NaN as the power
    has."""
    if exponent == 0 or exponent == 1:
        return exponent
    less = exponent - 1
    if exponent < 0:  # of numbers below 0 there is no power, but -0.0 and -inf have one
        return ("mul", exponent, ("div", OUT, 0 if exponent == int(exponent) else ("abs", 0)))
    powers: dict[float, Form] = {0.5: ("sqrt", 0), 1.0: 0, 2.0: ("square", 0)}
    return ("mul", exponent, powers.get(less, ("pow", 0, less)))


# Steps: their derivative is 0 wherever there is one.
FLAT = frozenset(
    "floordiv eq ne lt le gt ge logical_and logical_or logical_xor logical_not bit_and bit_or "
    "bit_xor invert shl shr isnan isinf isfinite signbit floor ceil trunc rint gcd lcm exponent "
    "philox_first philox_second".split()
)
# Those whose rule is more than a factor: maps.Map has them.
OTHERWISE = frozenset(
    "sign select guard cast conj real imag with_real with_imag order_key of_order_key".split()
)
