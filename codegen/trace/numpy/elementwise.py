"""Element-wise functions: NumPy's promotion and broadcasting, then one `map` per function.

Weak operands (Python numbers, Numbers, run-time scalars) promote as Python numbers do; an operator
between weak operands gives a weak result, a NumPy function a strong one.
Always holds: operands of an emitted map have one shape, and the dtypes of one loop of the ufunc.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import DtypeError, ShapeError
from codegen.functions import BY_UFUNC, SPECIAL
from codegen.ir.graph import Shape, Value
from codegen.ops import Map
from codegen.places import module_of
from codegen.symbolic import expr
from codegen.symbolic.expr import LAUNCH, Expr
from codegen.symbolic.facts import environments, tried
from codegen.trace.array import (
    Array,
    Number,
    as_array,
    as_value,
    cast_value,
    full_value,
    unsupported,
    wrap,
)
from codegen.trace.constants import broadcast_value
from codegen.trace.context import Context, require_context
from codegen.trace.expecting import between, held_by, hold_in
from codegen.trace.number import expr_of
from codegen.trace.numpy import memory_order
from codegen.trace.numpy.refused import KERNEL, REMEDIES, SPARSE
from codegen.user import dims
from codegen.user.numbers import element_type

Operand = Any  # Array, Number, Python number or NumPy array


def same_extent(a: Expr, b: Expr) -> bool:
    """Return whether two extents are proved equal."""
    return a == b or expr.equal(a, b)


def shape_text(shape: Shape) -> str:
    inner = ", ".join(str(e) for e in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def broadcast_shapes(shapes: Sequence[Shape], subject: str = "operands") -> Shape:
    """Return the shape that NumPy broadcasts to: from the right, extents are equal or one of them
    is the constant 1. Raise ShapeError where they are neither."""
    ndim = max((len(s) for s in shapes), default=0)
    out = []
    for d in range(-ndim, 0):
        extent = expr.const(1)
        for s in shapes:
            if len(s) < -d or s[d] == 1:
                continue
            if extent == 1:
                extent = s[d]
            elif not same_extent(extent, s[d]):
                raise _cannot_broadcast(shapes, subject, extent, s[d])
        out.append(extent)
    return tuple(out)


def _cannot_broadcast(shapes: Sequence[Shape], subject: str, a: Expr, b: Expr) -> ShapeError:
    symbolic = not (a.is_const and b.is_const)
    reason, remedy = f"{a} is not {b}", ""
    if symbolic:
        reason = f"{a} and {b} are not proved equal{example_of_difference(a, b)}"
        remedy = "slice both to one extent, or give the mesh axis a fixed size"
        names = sorted(s.name for s in a.symbols() | b.symbols() if s.kind == "scalar")
        if a.has_extents or b.has_extents:
            remedy = "one spmd.Dim in the shapes of both inputs, or slices of equal extents"
        elif names:
            remedy = (f"say what {names[0]} can be, spmd.require(1 <= {names[0]} < n); or keep the "
                      "extent: np.roll(x, k), or x[...] with np.where and np.arange")
    return ShapeError(f"{subject} could not be broadcast together",
                      expected="equal extents, or 1, counted from the last dim",
                      found=f"shapes {' and '.join(shape_text(s) for s in shapes)}: {reason}",
                      remedy=remedy)


_EXAMPLES = 2000  # values that are tried for one


def example_of_difference(a: Expr, b: Expr) -> str:
    """Return values, each within its bounds, for which two extents differ, as text; or ""."""
    places = islice(environments(a.symbols() | b.symbols()), _EXAMPLES)
    for values, (left, right) in tried(places, (a, b), ()):
        if left() != right():
            text = ", ".join(f"{name} = {values[name]}" for name in sorted(values))
            return f"; for {text} they are {left()} and {right()}"
    return ""


# ---- promotion -------------------------------------------------------------------------------


def kind_of(x: Operand) -> Any:
    """Return what NumPy's promotion sees: a dtype, or int, float, complex for weak operands."""
    if isinstance(x, Array):
        if x.weak:
            return {"i": int, "u": int, "f": float, "c": complex}.get(x.type.dtype.kind, x.dtype)
        return x.dtype
    if isinstance(x, Number):
        return x.dtype if x.truth or x.strong else int
    if isinstance(x, bool):
        return np.dtype(np.bool_)
    if isinstance(x, np.generic):
        return x.dtype
    if isinstance(x, (int, float, complex)):
        return complex if isinstance(x, complex) else float if isinstance(x, float) else int
    return np.asarray(x).dtype


def is_weak(x: Operand) -> bool:
    return isinstance(kind_of(x), type)


def _kinds_of(operands: Sequence[Operand]) -> list[Any]:
    """Return kind_of each operand. Beside bfloat16, which NumPy does not know, weak numbers are of
    that type."""
    kinds = [kind_of(x) for x in operands]
    half = next((k for k in kinds if not isinstance(k, type) and k == "bfloat16"), None)
    return kinds if half is None else [half if k in (int, float) else k for k in kinds]


def result_type(*operands: Operand) -> DType:
    """Return np.result_type with weak operands."""
    samples = {int: 0, float: 0.0, complex: 0j}
    kinds = _kinds_of(operands)
    try:
        return element_type(np.result_type(*(samples.get(k, k) for k in kinds)))
    except TypeError as error:
        raise _no_common_type(operands, str(error)) from None


def joined_type(parts: Sequence[Any]) -> DType:
    """Return the type of one array that holds all parts. No number is weak there: 1.5 beside a
    float32 is a float64."""
    kinds = (dtypes.numpy_dtype(as_array(p).type.dtype) for p in parts)
    try:
        return element_type(np.result_type(*kinds))
    except TypeError as error:
        raise _no_common_type(parts, str(error)) from None


def _no_common_type(operands: Sequence[Operand], reason: str) -> DtypeError:
    return DtypeError(reason.split("\n")[0], expected="element types that NumPy combines",
                      found=" and ".join(_kind_text(x) for x in operands),
                      remedy="convert one with x.astype(...)")


def _kind_text(x: Operand) -> str:
    kind = kind_of(x)
    return f"a Python {kind.__name__}" if isinstance(kind, type) else str(kind)


def loop_dtypes(ufunc: np.ufunc, operands: Sequence[Operand], dtype: Any) -> list[DType]:
    """Return element types of the inputs, then of the outputs, of the loop that NumPy would run."""
    kinds = _kinds_of(operands)
    if kinds and all(isinstance(k, type) for k in kinds):  # weak ones alone: as default dtypes
        kinds = [np.dtype({int: np.int64}.get(k, k)) for k in kinds]
    options: dict[str, Any] = {}
    if dtype is not None:
        wanted = dtypes.numpy_dtype(element_type(dtype))
        options["signature"] = (*[None] * ufunc.nin, *[wanted] * ufunc.nout)
    try:
        loop = ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout), **options)
    except TypeError as error:
        raise _no_common_type(operands, f"np.{ufunc.__name__}: {error}") from None
    return [element_type(d) for d in loop]


# ---- application -----------------------------------------------------------------------------


def sparse() -> DtypeError:
    """Return the error for a sparse matrix beside an array of a program."""
    return DtypeError(
        "sparse matrices are no arrays of programs", expected="arrays of numbers",
        found="a matrix of scipy.sparse",
        remedy=SPARSE,
    )


def normal(x: Any) -> Operand:
    """Return a list as an array, and any other operand as it is. Raise DtypeError for what holds no
    numbers."""
    x = dims.extent_of(x)
    if isinstance(x, (list, tuple)):
        return as_array(x)
    if isinstance(x, (Array, Number, bool, int, float, complex, np.ndarray, np.generic)):
        return as_array(x) if isinstance(x, Array) else x
    if hasattr(x, "__array__"):
        return as_array(x)
    if module_of(type(x)).startswith("scipy.sparse"):
        raise sparse()
    raise DtypeError(
        f"an operand of type {type(x).__name__!r} for an array of the program",
        expected="numbers, and arrays of numbers", found=repr(x)[:60],
        remedy="numbers that stand for it: np.where(x > 0, 0, 1), and names after the run" if
        isinstance(x, (str, bytes)) else "np.asarray(...) of it, where it holds numbers",
    )


def extents_of(x: Operand) -> Shape:
    if isinstance(x, Array):
        return x.extents
    return tuple(expr.const(n) for n in np.shape(x)) if not isinstance(x, Number) else ()


def operand_value(context: Context, x: Operand, dtype: DType, shape: Shape) -> Value:
    """Return an operand in the loop's dtype and shape."""
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        return full_value(context, x, dtype, shape)
    if isinstance(x, Number) and not x.truth and dtype.kind in "iu":
        hold_in(x, dtype)
    value = as_value(context, x, None if isinstance(x, Number) else dtype)
    return broadcast_value(context, cast_value(context, value, dtype), shape)


COMPOSITE: dict[str, Callable[..., Any]] = {}  # of other files: registration.py


def apply(
    ufunc: np.ufunc, *inputs: Any, out: Any = None, where: Any = True, dtype: Any = None
) -> Any:
    """Apply a ufunc to arrays. Raises DtypeError, ShapeError, UnsupportedError."""
    if ufunc is np.matmul:
        return store(COMPOSITE["matmul"](*inputs), out)
    operands = [normal(x) for x in inputs]
    if ufunc is np.power:
        ufunc, operands = _simple_power(operands)
    if is_known(ufunc) and ufunc.__name__ in COMPOSITE:
        if dtype is not None:
            raise unsupported(f"np.{ufunc.__name__} with dtype=", "x.astype(t), before or after")
        if any(isinstance(x, complex) or np.dtype(getattr(x, "dtype", "b")).kind == "c"
               for x in operands):
            loop_dtypes(ufunc, operands, None)  # many are functions of real numbers only
        return store(COMPOSITE[ufunc.__name__](*operands), out, where)
    function = BY_UFUNC.get(ufunc.__name__) if is_known(ufunc) else None
    if function is None:
        remedy = REMEDIES.get(ufunc.__name__, KERNEL)
        own = getattr(np, ufunc.__name__, None) is ufunc
        name = f"{'np' if own else 'scipy.special'}.{ufunc.__name__}"
        if ufunc.__name__.endswith("(vectorized)"):
            name = "a function that np.frompyfunc has made"
        raise unsupported(name, remedy)
    context = require_context(f"np.{ufunc.__name__}")
    if ufunc in _COMPARISONS:
        operands = _exactly_compared(operands)
    loop = loop_dtypes(ufunc, operands, dtype)
    if ufunc is np.power and loop[-1].kind == "i":
        _check_exponent(context, operands)
    if function.ufunc in SPECIAL.split() and loop[-1].kind == "c":
        raise unsupported(f"scipy.special.{ufunc.__name__} of complex numbers", "z.real, z.imag")
    if ufunc in _COMPARISONS and len(set(loop[:-1])) > 1:
        return store(_compare_mixed(ufunc, *operands), out, where)
    if ufunc is np.nextafter and loop[-1].size == 2:  # half types are computed in float32
        value = COMPOSITE["nextafter of half types"](*operands, loop[-1])
        return store(value, out, where, casting=True)
    shape = broadcast_shapes([extents_of(x) for x in operands])
    if (known := _out_of_range(ufunc, operands)) is not None:
        value = full_value(context, known, dtypes.BOOL, shape)
        return store(wrap(context, value), out, where, casting=True)
    values = [operand_value(context, x, d, shape) for x, d in zip(operands, loop)]
    result = wrap(context, context.emit_one(Map(function.name), *values))
    return store(memory_order.with_order_of(result, *operands), out, where, casting=True)


def mapped(fn: str, x: Array) -> Array:
    """Apply one of FUNCTIONS that is no ufunc of NumPy's."""
    return wrap(x.context, x.context.emit_one(Map(fn), x.read()))


def is_known(ufunc: np.ufunc) -> bool:
    """Return whether programs can call a ufunc: NumPy's own or scipy.special's."""
    name, special = ufunc.__name__, sys.modules.get("scipy.special")
    own = ufunc in (getattr(np, name, None), getattr(special, name, None))
    return own and (name in COMPOSITE or name in BY_UFUNC)


_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def _out_of_range(ufunc: np.ufunc, operands: list[Operand]) -> bool | None:
    """Return what NumPy's comparison gives for integers and a Python integer that their dtype
    cannot hold; None for all other operands."""
    if ufunc not in _COMPARISONS or not any(type(x) is int for x in operands):
        return None
    plain = [np.zeros((), x.dtype) if isinstance(x, Array) and not x.weak else x for x in operands]
    dtype = next((x.dtype for x in plain if isinstance(x, np.ndarray)), None)
    value = next(x for x in operands if type(x) is int)
    if dtype is None or dtype.kind not in "iu":
        return None
    if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        return None
    return bool(ufunc(*plain))


def _exactly_compared(operands: list[Operand]) -> list[Operand]:
    """Return the operands of a comparison, with integers that only the run knows as int64 where the
    other operand's type may not hold them: 300 is more than every int8."""
    other = next((x.type.dtype for x in operands if isinstance(x, Array) and not x.weak), None)
    if other is None or other.kind not in "iu":
        return operands
    return [as_array(x, dtypes.INT64)
            if isinstance(x, Number) and not x.truth and not held_by(x, other) else x
            for x in operands]


def _compare_mixed(ufunc: np.ufunc, a: Any, b: Any) -> Array:
    """Compare int64 with uint64, exactly as NumPy does."""
    name = ufunc.__name__
    a, b = as_array(a), as_array(b)
    if a.type.dtype.kind == "u":
        mirrored = {"less": np.greater, "less_equal": np.greater_equal, "greater": np.less,
                    "greater_equal": np.less_equal}
        return _compare_mixed(mirrored.get(name, ufunc), b, a)
    if name not in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
        raise unsupported(f"np.{name} of {a.dtype} and {b.dtype}", "convert one with .astype")
    negative = apply(np.less, a, 0)
    as_unsigned = apply(ufunc, a.astype(np.uint64), as_array(b, dtypes.BY_NAME["uint64"]))
    return select(negative, name in ("less", "less_equal", "not_equal"), as_unsigned)


_POWERS: dict[float, np.ufunc] = {2: np.square, 0.5: np.sqrt, -1: np.reciprocal}


def _simple_power(operands: list[Operand]) -> tuple[np.ufunc, list[Operand]]:
    """Return x ** 2, 0.5 and -1 as NumPy computes them: square, sqrt and reciprocal, to the bit."""
    x, exponent = operands
    if is_negative(exponent) and all(kind_of(o) is int for o in operands):
        return np.power, [apply(np.multiply, x, 1.0), exponent]  # of Python integers: a float
    kind = x.type.dtype.kind if isinstance(x, Array) else ""
    if isinstance(exponent, np.floating) and isinstance(x, Array):
        x, exponent = as_array(x, result_type(x, exponent)), float(exponent)
        kind = x.type.dtype.kind
    plain = type(exponent) in (int, float) and (kind in "fc" or (kind in "iu" and exponent == 2))
    if plain and exponent in _POWERS and (kind in "fc" or type(exponent) is int):
        return _POWERS[exponent], [x]
    return np.power, operands


def is_negative(x: Operand) -> bool:
    """Return whether it surely is a negative integer."""
    e = expr_of(x)
    return e is not None and expr.nonneg(-e - 1)


def _check_exponent(context: Context, operands: Sequence[Operand]) -> None:
    """Refuse negative powers of integers, as NumPy does; of Python's own they are floats."""
    e = expr_of(operands[1])
    if e is not None and all(kind_of(x) is int for x in operands) and context.in_every_launch:
        if {s.kind for s in e.symbols()} <= LAUNCH:
            context.hold(expr.ge0(e), f"the exponent {e} is not negative")
    between(operands[1], 0, None, "integers to negative integer powers are not allowed",
            "x ** -1.0, or 1 / x, which are floats")


def store(result: Any, out: Any, where: Any = True, casting: bool = True) -> Any:
    """Write a result into `out=` (where the mask holds), as a ufunc does."""
    if isinstance(out, tuple):
        return tuple(store(r, o, where) for r, o in zip(result, out))
    if out is None:
        if where is not True:
            raise unsupported("where= without out=", "np.where(mask, f(x), other)")
        return result
    if not isinstance(out, Array):
        raise unsupported("out= that is a NumPy array", "an array of the program, or no out=")
    result = as_array(result)
    if casting and not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise DtypeError(f"cannot store {result.dtype} in an array of {out.dtype}",
                         expected=f"a result that casts to {out.dtype} with casting 'same_kind'",
                         found=f"{result.dtype}",
                         remedy=f"x = x + y makes a new array of {result.dtype}; or convert with "
                         f".astype(np.{out.dtype})")
    if where is not True:
        result = select(where, result, out)
    assign(out, result)
    return out


def assign(target: Array, value: Any) -> None:
    """Assign target[...] = value: the value is broadcast to the target's shape and cast to its
    dtype."""
    context = target.context
    value = normal(value)
    if isinstance(value, np.integer) and target.type.dtype.kind in "iu":
        value = int(value)  # which has to fit
    shape = target.extents
    check_assignable(extents_of(value), shape)
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        target.write(full_value(context, value, target.type.dtype, shape))
        return
    if isinstance(value, Array) and len(value.extents) > len(shape):
        value = value.reshape(tuple(value.shape[len(value.extents) - len(shape) :]))
    target.write(operand_value(context, value, target.type.dtype, shape))


def check_assignable(source: Shape, target: Shape) -> None:
    extra = len(source) - len(target)
    fits = all(e == 1 for e in source[: max(extra, 0)])
    for a, b in zip(reversed(source), reversed(target)):
        fits = fits and (a == 1 or same_extent(a, b))
    if not fits:
        raise ShapeError(
            f"could not broadcast input array from shape {shape_text(source)} "
            f"into shape {shape_text(target)}",
            expected=f"a value of shape {shape_text(target)}, or one that broadcasts to it",
            found=f"shape {shape_text(source)}",
        )


def select(mask: Any, a: Any, b: Any) -> Array:
    """Return np.where(mask, a, b)."""
    context = require_context("np.where")
    operands = [normal(x) for x in (mask, a, b)]
    dtype = result_type(*operands[1:])
    shape = broadcast_shapes([extents_of(x) for x in operands])
    condition = operand_value(context, operands[0], dtypes.BOOL, shape)
    values = [operand_value(context, x, dtype, shape) for x in operands[1:]]
    return wrap(context, context.emit_one(Map("select"), condition, *values))
