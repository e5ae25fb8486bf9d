"""What a converted function calls instead: helpers converted, built-ins that know unknown values.

Always holds: on plain Python values every function here does what the built-in does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.errors import TracedValueError
from codegen.trace.array import Array, as_array, is_traced, maximum, minimum
from codegen.trace.context import Context, user_place
from codegen.trace.logic import truth
from codegen.trace.number import condition_of, expr_of, number


def call(function: Any) -> Any:
    """What to call instead: helpers converted, built-ins that know unknown values."""
    if Context.current() is None:
        return function
    known = _BUILTINS.get(id(function))
    if known is not None:
        return known
    if isinstance(function, type):
        if issubclass(function, np.generic):
            return _scalar_type(function)
        return function
    from codegen.trace.dispatch import aware
    from codegen.trace.source import convert

    return aware(function) or convert(function)


def _scalar_type(cls: type[np.generic]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and is_traced(args[0]):
            return as_array(args[0]).astype(cls)
        return cls(*args, **kwargs)

    return make


def _extreme(plain_: Callable[..., Any], unknown: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        values = args
        if len(args) == 1 and isinstance(args[0], (list, tuple)):
            values = tuple(args[0])
        if kwargs or len(values) < 2 or not any(is_traced(v) for v in values):
            return plain_(*args, **kwargs)
        return unknown(*values)

    return extreme


def _range(*args: Any) -> Any:
    if any(is_traced(a) for a in args):
        unknown = next(a for a in args if is_traced(a))
        raise TracedValueError(
            "range(n) needs a Python integer, because it is unrolled while building",
            place=user_place(),
            expected="bounds known while building",
            found=f"{unknown!r}, known only at run time",
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
        array = truth(x) if plain_ is bool else as_array(x).astype(dtype)
        array = array.reshape(()) if array.ndim else array
        array.weak = plain_ is not bool
        return array

    return convert_number


def _len(x: Any) -> Any:
    if isinstance(x, Array) and x.ndim:
        return x.shape[0]
    return len(x)


# by id: what is called need not be hashable
_BUILTINS: dict[int, Callable[..., Any]] = {
    id(min): _extreme(min, minimum),
    id(max): _extreme(max, maximum),
    id(range): _range,
    id(int): _converted(int, np.int64),
    id(float): _converted(float, np.float64),
    id(bool): _converted(bool, np.bool_),
    id(len): _len,
}
