"""What a converted function calls instead: helpers converted, built-ins that know unknown values.

Always holds: on plain Python values every function here does what the built-in does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from types import FunctionType
from typing import Any

import numpy as np

from codegen.errors import ShapeError, TracedValueError
from codegen.places import user_frame
from codegen.symbolic import expr
from codegen.trace import known, traced_text
from codegen.trace.array import Array, as_array, is_traced
from codegen.trace.context import Context
from codegen.trace.control.conversion import convert
from codegen.trace.control.over_rows import Indices
from codegen.trace.control.stateful import (
    hashed,
    identity,
    iterating,
    ordered,
    refuse_left_early,
    watched,
)
from codegen.trace.messages import printed
from codegen.trace.number import Number, condition_of, expr_of, number
from codegen.trace.numpy import mathematics
from codegen.trace.numpy.dispatch import aware, elsewhere
from codegen.trace.numpy.logic import truth
from codegen.trace.numpy.masks import Chosen
from codegen.trace.numpy.operators import maximum, minimum
from codegen.trace.vectorized import vectorized
from codegen.user import pytree


def call(function: Any) -> Any:
    """Return what runs instead of a function that the user's code calls: a converted helper, or a
    built-in that also takes values known only at run time."""
    context = Context.current()
    if context is None:
        return function
    function = watched(context, function)
    if not context.left_early or isinstance(function, FunctionType):
        return _called(function)

    def checked(*args: Any, **kwargs: Any) -> Any:
        for x in (*args, *kwargs.values()):
            refuse_left_early(x)
        return _called(function)(*args, **kwargs)

    return checked


def _called(function: Any) -> Any:
    builtin = _BUILTINS.get(id(function))
    if builtin is not None:
        return builtin
    if isinstance(function, type):
        if issubclass(function, np.generic):
            return _scalar_type(function)
        if function is np.ndarray:
            return _new_array
        return _constructor(function)
    if isinstance(function, FunctionType) and "registry" in vars(function):
        return _by_type(function, vars(function)["dispatch"])
    if isinstance(function, partial):
        return partial(call(function.func), *function.args, **function.keywords)
    if isinstance(function, np.vectorize):
        return vectorized(function)
    return aware(function) or mathematics.aware(function) or convert(function)


def _by_type(function: Any, dispatch: Callable[[type], Any]) -> Callable[..., Any]:
    """Return a functools.singledispatch function; an array counts as an ndarray, as isinstance
    says."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        variant = dispatch(type(_example(args[0]))) if args and is_traced(args[0]) else function
        return (variant if variant is function else call(variant))(*args, **kwargs)

    return chosen


def _new_array(shape: Any, dtype: Any = float, *args: Any, **kwargs: Any) -> Any:
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, *args, **kwargs)
    return known.known_array(np.zeros(shape, dtype)) if array.base is None else array


def _constructor(cls: type) -> Callable[..., Any]:
    """Return the class, with its __init__ converted where that is the user's."""
    init = cls.__init__  # type: ignore[misc]
    if not isinstance(init, FunctionType) or type(cls).__call__ is not type.__call__:
        return elsewhere(cls) or cls
    converted = convert(init)
    if converted is init:
        return elsewhere(cls) or cls

    def make(*args: Any, **kwargs: Any) -> Any:
        instance = cls.__new__(cls, *args, **kwargs)
        if isinstance(instance, cls):
            converted(instance, *args, **kwargs)
        return instance

    return make


def _scalar_type(cls: type[np.generic]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and is_traced(args[0]):
            return as_array(args[0]).astype(cls)
        return cls(*args, **kwargs)

    return make


def _extreme(plain_: Callable[..., Any], unknown: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        if "key" in kwargs and any(map(is_traced, args)):
            raise TracedValueError(
                f"{plain_.__name__}() with key= compares elements while building",
                expected="elements known while building", found="values that only the run knows",
                remedy=f"x[np.arg{plain_.__name__}(key(x))] of an array x")
        if kwargs:
            return plain_(*args, **kwargs)
        if len(args) == 1 and _is_row(args[0]):
            return _of_row(args[0], plain_.__name__)
        values = tuple(args[0]) if len(args) == 1 and not is_traced(args[0]) else args
        if len(values) < 2 or not any(is_traced(v) for v in values):
            return plain_(values) if len(args) == 1 else plain_(*args)
        return unknown(*values)

    return extreme


def _of_row(x: Array, name: str) -> Any:
    """Return Python's min or max of the elements of x: NaN is passed over, but for the first."""
    if x.dtype.kind != "f":
        return getattr(x, name)()
    return np.where(np.isnan(x[0]), x[0], getattr(np, f"nan{name}")(x))[()]


def _is_row(x: Any) -> bool:
    """Return whether x is an array whose elements Python would go through, one by one."""
    return isinstance(x, Array) and x.ndim == 1


def _of_truths(plain_: Callable[..., bool], join: np.ufunc) -> Callable[..., Any]:
    def whether(values: Any) -> Any:
        if _is_row(values):
            return truth(getattr(values, plain_.__name__)())
        held = list(values)
        if not any(is_traced(v) for v in held):
            return plain_(held)
        return reduce(join, [truth(v) for v in held])

    return whether


def _sorted(values: Any, **options: Any) -> Any:
    values = values if is_traced(values) else list(ordered(values))
    if is_traced(values) or ("key" not in options and any(map(is_traced, values))):
        raise TracedValueError("sorted() compares elements while building",
                               expected="elements known while building",
                               found=f"{values!r}, known only at run time",
                               remedy="np.sort(x), and [::-1] for the other order; np.stack makes "
                               "an array of a list")
    return sorted(values, **options)


def _range(*args: Any) -> Any:
    if any(is_traced(a) for a in args):
        unknown = next(a for a in args if is_traced(a))
        raise TracedValueError(
            "range(n) needs a Python integer, because it is unrolled while building",
            expected="bounds known while building",
            found=f"{getattr(unknown, 'expr', repr(unknown))}, known only at run time",
            remedy="for i in spmd.range(...), which is compiled to a loop",
        )
    return range(*args)


def _converted(plain_: type, dtype: Any) -> Callable[..., Any]:
    def convert_number(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or not is_traced(args[0]):
            return plain_(*args, **kwargs)
        x = args[0]
        e = expr_of(x)
        if e is not None and plain_ is int:
            return number(e)
        if e is not None and plain_ is bool:
            return number(condition_of(x), True)  # type: ignore[arg-type]
        if isinstance(x, Array) and not all(n == 1 for n in x.extents):
            raise ShapeError(
                f"{plain_.__name__}() of an array with several elements",
                expected="a number, or an array of one element", found=str(x.type),
                remedy="say which: x[0], x.sum(), x.any(); x.astype(t) converts every element",
            )
        array = truth(x) if plain_ is bool else as_array(x).astype(dtype)
        array = array.reshape(()) if array.ndim else array
        array.weak = True
        return array

    return convert_number


def _len(x: Any) -> Any:
    if isinstance(x, Chosen):
        return x.shape[0]
    if isinstance(x, Array) and x.ndim:
        return x.shape[0]
    if is_traced(x):
        raise ShapeError("len() of a number", expected="an array of at least one dim, or a list",
                         found=str(x.type) if isinstance(x, Array) else repr(x))
    return len(x)


# ---- of what type something is: as NumPy and Python would answer ---------------------------------


def _isinstance(x: Any, classes: Any) -> bool:
    """Return what isinstance returns: an array is an ndarray, an element a NumPy scalar, a number
    Python's."""
    ours = isinstance(x, Array) and any(c is Array for c in pytree.leaves(classes))
    return ours or isinstance(_example(x), classes)


def _type(*args: Any, **options: Any) -> Any:
    if len(args) == 1:
        return type(_example(args[0]))
    name, bases, body = args
    frame = user_frame()  # the class is of the module that makes it
    module = frame.f_globals.get("__name__", "__main__") if frame else "__main__"
    return type(name, bases, {"__module__": module, **body}, **options)


def _hasattr(x: Any, name: str) -> bool:
    example = _example(x)
    own = isinstance(example, np.ndarray) and not name.startswith("_")  # .at, .layout
    return hasattr(example, name) or (own and hasattr(x, name))


def _getattr(x: Any, name: str, *default: Any) -> Any:
    ours = isinstance(x, (Array, Number))
    return default[0] if default and ours and not _hasattr(x, name) else getattr(x, name, *default)


def _example(x: Any) -> Any:
    """Return a value of the type that x would have if NumPy ran the program."""
    if isinstance(x, Number):
        return number(expr.const(0), x.truth, x.strong)
    if not isinstance(x, Array):
        return x
    if x.ndim or not x.scalar:
        return np.empty(0)
    zero = np.zeros((), x.dtype)[()]
    return zero.item() if x.weak else zero


def _each(plain_: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap map, filter or reduce: the function that it calls is converted, as where the user's code
    calls it."""

    def over(function: Any, *rows: Any) -> Any:
        return plain_(function and call(function), *map(ordered, rows))

    return over


# by id: what is called need not be hashable
_BUILTINS: dict[int, Callable[..., Any]] = {
    id(min): _extreme(min, minimum),
    id(max): _extreme(max, maximum),
    id(any): _of_truths(any, np.logical_or),
    id(all): _of_truths(all, np.logical_and),
    id(sorted): _sorted,
    id(range): _range,
    id(int): _converted(int, np.int64),
    id(float): _converted(float, np.float64),
    id(bool): _converted(bool, np.bool_),
    id(len): _len,
    id(isinstance): _isinstance,
    id(type): _type,
    id(hasattr): _hasattr,
    id(getattr): _getattr,
    id(map): _each(map),
    id(filter): _each(filter),
    id(reduce): _each(reduce),
    id(id): identity,
    id(hash): hashed,
    id(np.ndindex): Indices,
    id(print): printed,
    **{id(f): traced_text.of(f) for f in (str, repr, ascii)},
    **{id(f): iterating(f) for f in (list, tuple, enumerate, iter, zip)},
    id(np.isscalar): lambda x: bool(np.isscalar(_example(x))),
}
