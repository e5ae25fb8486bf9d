"""Scalar functions: one row each, read by the tracer, the oracles and the emitter.

Always holds: a function named like NumPy's gives NumPy's result for operands of its loop's dtypes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from codegen import dtypes, philox
from codegen.dtypes import DType
from codegen.errors import UsageError
from codegen.places import user_place

# C of a function: (head, *parts). A part is the number of an operand, another form, or a text.
# A head is an operator; the name of a support function, which gets an ending for the compute type
# (i8 … u64 f32 f64 c64 c128); or ",": the second part, where the first is of no account.
# A head alone stands for (head, *operands), a number alone for that operand.
Form = int | str | tuple["Form", ...]


@dataclass(frozen=True)
class Function:
    """A row describes a scalar function. ufunc: NumPy's name for it, or scipy.special's (resolves
    promotion, computes the reference). c: by dtype kind, or one form for all. result: same (as the
    first operand), bool, int32, real (of a complex one), or other: a float's integer of the same
    size, an integer's float. header: of the C, where not every image includes it; header_for: "f"
    if it is that of floats only. lanes: images that use it say so, and their loops call it for
    vectors (csrc/spmd_lanes.h)."""

    name: str
    ufunc: str
    arity: int
    c: Form
    result: str = "same"
    c_float: Form | None = None
    c_complex: Form | None = None
    c_bool: Form | None = None
    c_unsigned: Form | None = None
    header: str = ""
    header_for: str = ""
    lanes: bool = False

    def form(self, dtype: DType) -> Form:
        """Return the C form for operands of this dtype."""
        special = {"f": self.c_float, "c": self.c_complex, "b": self.c_bool, "u": self.c_unsigned}
        special_form = special.get(dtype.kind)
        return self.c if special_form is None else special_form

    def result_dtype(self, first: DType) -> DType:
        if self.result in ("bool", "int32"):
            return dtypes.BY_NAME[self.result]
        if self.result == "real" and first.kind == "c":
            return dtypes.FLOAT32 if first.size == 8 else dtypes.FLOAT64
        if self.result == "other":
            return dtypes.BY_NAME[f"{'int' if first.kind == 'f' else 'float'}{8 * first.size}"]
        return first

    @property
    def numpy(self) -> Callable[..., object]:
        known = _OWN.get(self.name) or getattr(np, self.ufunc, None)
        function: Callable[..., object] = known or getattr(scipy_special(), self.ufunc)
        return function


def scipy_special() -> Any:
    """Return the module whose functions are traced, if the user has imported it; oracles import
    it."""
    return importlib.import_module("scipy.special")


def _with(part: str, z: Any, w: Any) -> Any:
    out = np.array(np.broadcast_arrays(z, w)[0])
    setattr(out, part, w.real)
    return out


def order_key(x: Any) -> Any:
    """Return floats as integers of the same size in the order of sorting: -0.0 before 0.0, NaN
    last."""
    bits = np.asarray(x).view(f"i{np.asarray(x).itemsize}")
    not_a_number = np.array(np.nan, x.dtype).view(bits.dtype)
    return np.where(np.isnan(x), not_a_number, _turned(bits))


def _of_order_key(key: Any) -> Any:
    return _turned(np.asarray(key)).view(f"f{np.asarray(key).itemsize}")


def _turned(bits: Any) -> Any:
    """Return bits with all but the sign inverted, where that is set."""
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


# What NumPy has no function for. Operands of philox are position, stream and seed.
_OWN: dict[str, Callable[..., object]] = {
    "philox_first": philox.first, "philox_second": philox.second,
    "with_real": partial(_with, "real"), "with_imag": partial(_with, "imag"),
    "mantissa": lambda x: np.frexp(x)[0], "exponent": lambda x: np.frexp(x)[1],
    "order_key": order_key, "of_order_key": _of_order_key,
}


def _math(names: str, header: str = "", lanes: bool = False) -> tuple[Function, ...]:
    """Return functions of one float or complex number, with names as C has them."""
    arcs = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh",
            "acosh": "arccosh", "atanh": "arctanh"}
    return tuple(
        Function(n, arcs.get(n, n), 1, f"spmd_{n}", header=header, header_for="f", lanes=lanes)
        for n in names.split()
    )


def _special(name: str, arity: int = 1, result: str = "same") -> Function:
    """Return a function of csrc/spmd_special.h, for integers or for floats."""
    return Function(name, name, arity, f"spmd_{name}", result, header="spmd_special.h")


# Of scipy.special, where NumPy has none of the name.
SPECIAL = "erf erfc erfinv erfcinv gamma gammaln psi i0 i0e i1 i1e j0 j1 y0 y1"

_ROWS = (
    Function("add", "add", 2, "+", c_bool="|"),
    Function("sub", "subtract", 2, "-"),
    Function("mul", "multiply", 2, "*", c_bool="&",
             c_complex="spmd_mul"),
    Function("div", "divide", 2, "/", c_complex="spmd_div"),
    Function("floordiv", "floor_divide", 2, "spmd_floordiv"),
    Function("mod", "remainder", 2, "spmd_mod"),
    Function("pow", "power", 2, "spmd_pow", header="spmd_power.h", header_for="f", lanes=True),
    Function("neg", "negative", 1, "-"),
    Function("abs", "absolute", 1, "spmd_abs", "real", c_unsigned=0),
    Function("sign", "sign", 1, "spmd_sign"),
    Function("maximum", "maximum", 2, "spmd_maximum", c_bool="|"),
    Function("minimum", "minimum", 2, "spmd_minimum", c_bool="&"),
    Function("eq", "equal", 2, "==", "bool"),
    Function("ne", "not_equal", 2, "!=", "bool"),
    Function("lt", "less", 2, "<", "bool", c_complex="spmd_lt"),
    Function("le", "less_equal", 2, "<=", "bool", c_complex="spmd_le"),
    Function("gt", "greater", 2, ">", "bool", c_complex="spmd_gt"),
    Function("ge", "greater_equal", 2, ">=", "bool", c_complex="spmd_ge"),
    Function("logical_and", "logical_and", 2, ("&", ("!=", 0, "0"), ("!=", 1, "0")), "bool",
             c_bool="&"),
    Function("logical_or", "logical_or", 2, ("|", ("!=", 0, "0"), ("!=", 1, "0")), "bool",
             c_bool="|"),
    Function("logical_xor", "logical_xor", 2, ("!=", ("!", 0), ("!", 1)), "bool"),
    Function("logical_not", "logical_not", 1, "!", "bool"),
    Function("bit_and", "bitwise_and", 2, "&"),
    Function("bit_or", "bitwise_or", 2, "|"),
    Function("bit_xor", "bitwise_xor", 2, "^"),
    Function("invert", "invert", 1, "~", c_bool="!"),
    Function("shl", "left_shift", 2, "spmd_shl"),
    Function("shr", "right_shift", 2, "spmd_shr"),
    Function("square", "square", 1, ("*", 0, 0), c_complex=("spmd_mul", 0, 0)),
    Function("reciprocal", "reciprocal", 1, "spmd_reciprocal"),
    Function("isnan", "isnan", 1, (",", 0, "0"), "bool", c_float=("!=", 0, 0),
             c_complex="spmd_isnan"),
    Function("isinf", "isinf", 1, (",", 0, "0"), "bool", c_float="spmd_isinf",
             c_complex="spmd_isinf"),
    Function("isfinite", "isfinite", 1, (",", 0, "1"), "bool", c_float="spmd_isfinite",
             c_complex="spmd_isfinite"),
    Function("signbit", "signbit", 1, ("<", 0, "0"), "bool", c_unsigned=(",", 0, "0"),
             c_float="spmd_signbit"),
    Function("copysign", "copysign", 2, "spmd_copysign"),
    Function("conj", "conjugate", 1, 0, c_complex="spmd_conj"),
    Function("real", "real", 1, 0, "real", c_complex="spmd_real"),
    Function("imag", "imag", 1, (",", 0, "0"), "real", c_complex="spmd_imag"),
    # the first operand with one part from the real part of the second; complex ones only
    Function("with_real", "", 2, "", c_complex="spmd_with_real"),
    Function("with_imag", "", 2, "", c_complex="spmd_with_imag"),
    # floats as integers in their order, and back: of float32 and float64
    Function("order_key", "", 1, "spmd_order_key", "other"),
    Function("of_order_key", "", 1, "spmd_of_order_key", "other"),
    Function("atan2", "arctan2", 2, "spmd_atan2", header="spmd_arc.h", header_for="f"),
    Function("hypot", "hypot", 2, "spmd_hypot"),
    Function("logaddexp", "logaddexp", 2, "spmd_logaddexp"),
    Function("fmod", "fmod", 2, "spmd_fmod"),
    Function("floor", "floor", 1, 0, c_float="spmd_floor"),
    Function("ceil", "ceil", 1, 0, c_float="spmd_ceil"),
    Function("trunc", "trunc", 1, 0, c_float="spmd_trunc"),
    Function("rint", "rint", 1, 0, c_float="spmd_rint", c_complex="spmd_rint"),
    *_math("exp exp2", "spmd_exp.h", lanes=True),
    *_math("expm1 sinh cosh tanh", "spmd_exp.h"),
    *_math("log log2 log10 log1p asinh acosh atanh", "spmd_log.h", lanes=True),
    *_math("sin cos tan", "spmd_trig.h"),
    *_math("asin acos atan", "spmd_arc.h"),
    *_math("cbrt", "spmd_power.h"),
    *_math("sqrt"),
    Function("fmax", "fmax", 2, "spmd_maximum", c_bool="|", c_float="spmd_fmax",
             c_complex="spmd_fmax"),
    Function("fmin", "fmin", 2, "spmd_minimum", c_bool="&", c_float="spmd_fmin",
             c_complex="spmd_fmin"),
    *(_special(n, 2) for n in ("gcd", "lcm", "nextafter", "ldexp")),
    _special("mantissa"),  # the results of frexp
    _special("exponent", result="int32"),
    *map(_special, SPECIAL.split()),
    _special("zeta", 2),  # Hurwitz'
    # no ufunc: the tracer and the oracles know these by name
    Function("select", "where", 3, "spmd_select"),
    Function("guard", "where", 3, "?"),  # reads {1} only where {0} holds
    Function("cast", "astype", 1, ""),
    Function("philox_first", "", 3, "spmd_philox_first"),
    Function("philox_second", "", 3, "spmd_philox_second"),
)

FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}
# The name of a ufunc, NumPy's or scipy.special's -> our function
BY_UFUNC: dict[str, Function] = {
    row.ufunc: row for row in _ROWS
    if row.ufunc in SPECIAL.split() or isinstance(getattr(np, row.ufunc, None), np.ufunc)
}

# Combining functions of reductions and collectives: our map function, and the value it starts from.
COMBINE: dict[str, str] = {
    "add": "add", "mul": "mul", "min": "minimum", "max": "maximum",
    "and": "logical_and", "or": "logical_or",
    "bit_and": "bit_and", "bit_or": "bit_or", "bit_xor": "bit_xor",
    "xor": "logical_xor", "fmin": "fmin", "fmax": "fmax", "gcd": "gcd", "lcm": "lcm",
    "hypot": "hypot", "logaddexp": "logaddexp",
}
# How OpenMP calls those whose loops are vectorised in any order.
OPENMP = {
    "add": "+", "mul": "*", "min": "min", "max": "max", "and": "&&", "or": "||", "bit_and": "&",
    "bit_or": "|", "bit_xor": "^", "fmin": "spmd_fmin", "fmax": "spmd_fmax",
}


def neutral(fn: str, dtype: DType) -> int | float | bool | complex:
    """Return the value that leaves the other operand of a combining function unchanged."""
    if fn in ("add", "or", "xor", "bit_or", "bit_xor", "gcd", "hypot"):
        return 0
    if fn in ("mul", "and", "lcm"):
        return 1
    if fn == "logaddexp":
        return float("-inf")
    if fn in ("fmin", "fmax"):  # NaN is no number; every integer is one
        return float("nan") if dtype.kind in "fc" else neutral(fn[1:], dtype)
    if fn == "bit_and":
        return 1 if dtype.kind == "b" else (-1 if dtype.kind == "i" else 2 ** (8 * dtype.size) - 1)
    if dtype.kind == "f":
        return float("inf") if fn == "min" else float("-inf")
    if dtype.kind == "c":
        end = float("inf" if fn == "min" else "-inf")
        return complex(end, end)
    if dtype.kind == "b":
        return fn == "min"
    info = np.iinfo(dtype.name)
    return int(info.max if fn == "min" else info.min)


def neutral_sign(fn: str, dtype: DType) -> int | float | bool | complex:
    """Return the neutral element, but -0.0 for sums, which leaves -0.0 as it is: NumPy's np.sum
    begins with 0.0, its running sums and sums of parts with their first element."""
    if fn == "add" and dtype.kind in "fc":
        return -0.0 if dtype.kind == "f" else complex(-0.0, -0.0)
    return neutral(fn, dtype)


# What users call the functions that arrays are combined with: rows of COMBINE.
OPS = {
    "sum": "add", "prod": "mul", "min": "min", "max": "max",
    "and": "bit_and", "or": "bit_or", "xor": "bit_xor",
}


def fn_of(op: Any, operation: str) -> str:
    """Return the row of COMBINE that a user's op= means."""
    if not isinstance(op, str) or op not in OPS:
        raise UsageError(
            f"{operation}: no op {op!r}",
            place=user_place(),
            expected=f"one of {', '.join(OPS)}",
            found=repr(op),
        )
    return OPS[op]
