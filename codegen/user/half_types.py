"""Half types, float16 and bfloat16: what adds them up does so in float32, and rounds once.

In: functions of arrays, NumPy's or a program's. Always holds: arrays of other types pass unchanged.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.user.pytree import leaves, map_tree

HALF_TYPES = ("float16", "bfloat16")

# NumPy's functions, by name, whose results are sums or products of many elements, or made of them.
ADDING = frozenset(
    "average convolve correlate cumprod cumsum cumulative_prod cumulative_sum dot einsum gradient "
    "inner linalg.matmul linalg.matrix_norm linalg.matrix_power linalg.multi_dot linalg.norm "
    "linalg.tensordot linalg.trace linalg.vecdot linalg.vector_norm matmul matvec mean median "
    "nancumprod nancumsum nanmean nanmedian nanpercentile nanprod nanquantile nanstd nansum nanvar "
    "percentile polyval prod quantile std sum tensordot trace trapezoid var vdot vecdot vecmat"
    .split())
# Of these, what is one product of matrices: in an image it is one op, which adds in float32 itself.
PRODUCTS = frozenset(
    "dot inner linalg.matmul linalg.tensordot matmul matvec tensordot vdot vecmat".split())


def is_half(x: Any) -> bool:
    """Return whether an array, a number or a type of NumPy, or a dtype, is of a half type."""
    if isinstance(x, type) and issubclass(x, np.generic):
        x = np.dtype(x)
    return str(getattr(x, "dtype", x)) in HALF_TYPES


def half_type_of(operands: Any, ints: bool = True) -> Any:
    """Return the half type that a result has whose operands are the arrays in a tree, or None.

    Python's numbers have no say, and neither have bools; ints=False leaves integers out too.
    """
    ignored = "b" if ints else "biu"
    types = {str(x.dtype): x.dtype for x in leaves(operands)
             if isinstance(getattr(x, "dtype", None), np.dtype)
             and not getattr(x, "weak", False) and x.dtype.kind not in ignored}
    return types.popitem()[1] if len(types) == 1 and {*types} <= {*HALF_TYPES} else None


def widened(tree: Any, wide: Any = np.float32) -> Any:
    """Return a tree of arrays with those of half types in a wide one."""
    return map_tree(lambda x: x.astype(wide) if _is_half_array(x) else x, tree)


def narrowed(tree: Any, half: Any, wide: Any = np.float32) -> Any:
    """Return a tree of arrays with those of the wide type in a half one; None changes nothing."""
    if half is None:
        return tree
    return map_tree(lambda x: x.astype(half) if getattr(x, "dtype", None) == wide else x, tree)


def in_weak_type(operands: Any) -> Any:
    """Return operands with Python's numbers as bfloat16 where one of them is an array of it.

    NumPy does not know this type, and takes float32 for what is 0.5 times it.
    """
    if not any(str(getattr(x, "dtype", "")) == "bfloat16" for x in operands):
        return operands
    bfloat16 = next(x.dtype for x in operands if str(getattr(x, "dtype", "")) == "bfloat16")
    return tuple(np.asarray(x, bfloat16) if type(x) in (int, float) else x for x in operands)


def _is_half_array(x: Any) -> bool:
    return isinstance(getattr(x, "dtype", None), np.dtype) and is_half(x)


@functools.lru_cache(256)
def _positions(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's positional parameters; none, where it does not say them."""
    try:
        listed = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of NumPy's own code
        return ()
    return tuple(p.name for p in listed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def _by_keyword(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments so that dtype and out, and what stands behind them, are keywords."""
    names = _positions(function)
    if len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
        return args, kwargs  # some have no names, or NumPy refuses one that is given twice
    first = min([k for k, name in enumerate(names) if name in ("dtype", "out")] or [len(args)])
    return args[:first], {**dict(zip(names[first:], args[first:])), **kwargs}


def adding(
    function: Callable[..., Any], wide: Any = np.float32, like: Any = None
) -> Callable[..., Any]:
    """Return one of ADDING's functions so that it computes half types in a wide one.

    dtype= and out= mean what NumPy says of them: an explicit half type is that of the result. like:
    the function whose parameters it has, where that is another one.
    """
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _by_keyword(like or function, args, kwargs)
        dtype, out = kwargs.get("dtype"), kwargs.get("out")
        half = dtype if is_half(dtype) else half_type_of((args, kwargs)) if dtype is None else None
        if half is None or (out is not None and not _is_half_array(out)):
            return function(*args, **kwargs)
        named = {k: v for k, v in kwargs.items() if k not in ("dtype", "out")}
        if dtype is not None:
            args, named["dtype"] = (args[0].astype(half), *args[1:]), wide
        result = narrowed(function(*widened(args, wide), **widened(named, wide)), half, wide)
        if out is None:
            return result
        out[...] = result
        return out

    return call
