"""NumPy's own errors for calls that NumPy refuses too, where one of our functions fails.

Goes in: our function, NumPy's of that name, a call that failed. Comes out: NumPy's message, with
the user's line, if NumPy fails on arrays of the same shapes and element types.
Always holds: an exception that NumPy does not raise too is passed on unchanged.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.errors import ProgramError, SpmdError, UnsupportedError
from codegen.misspelt import KEYWORDS, keywords_of, takes_any_keyword
from codegen.suggest import meant, meant_keyword
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, Number

MISTAKES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
_LARGE_STAND_IN = 1 << 20  # elements; larger arrays that stand in are read-only and need no memory


def with_numpy_errors(name: str, ours: Callable[..., Any], theirs: Any) -> Callable[..., Any]:
    """Return our function, with NumPy's order of arguments, and NumPy's error where NumPy fails
    too."""

    known = _allowed_keywords(ours, theirs)

    @functools.wraps(ours)
    def call(*args: Any, **kwargs: Any) -> Any:
        if known and not known.issuperset(kwargs):
            word = next(k for k in kwargs if k not in known)
            raise ProgramError(f"TypeError: {name}() got an unexpected keyword argument {word!r}",
                               remedy=meant(word, known, "{}=…"))
        try:
            return ours(*args, **kwargs)
        except SpmdError:
            raise
        except MISTAKES as error:
            if (numpy_error := _of_numpy(ours, theirs, args, kwargs)) is not None:
                raise numpy_error from error
            if not isinstance(error, TypeError) or _binds(ours, args, kwargs):
                raise
            reordered = _reordered(theirs, args, kwargs)
            if reordered is None:
                raise UnsupportedError(
                    f"np.{name} does not take this argument here",
                    expected=f"{name}{inspect.signature(ours)}".replace("typing.", ""),
                    found=str(error).partition(") ")[2],
                ) from None
        return ours(*reordered[0], **reordered[1])

    return call


def _allowed_keywords(ours: Callable[..., Any], theirs: Any) -> frozenset[str]:
    """Return the keywords that a call may have, where our function takes any and NumPy's does not;
    else nothing."""
    takes_any = [p for p in inspect.signature(ours).parameters.values() if p.kind == p.VAR_KEYWORD]
    known = keywords_of(theirs) if takes_any and theirs is not None else []
    if not known or (takes_any_keyword(theirs) and theirs.__name__ not in KEYWORDS):
        return frozenset()
    return frozenset(known).union(keywords_of(ours))


def _of_numpy(ours: Any, theirs: Any, args: Any, kwargs: Any) -> ProgramError | None:
    """Make the same call in NumPy on stand-in arrays; return its error as a ProgramError, or None
    if it succeeds."""
    if theirs is None:
        return None
    try:
        stand_ins = _stand_in(list(args)), _stand_in(kwargs)
    except ValueError:
        return None
    try:
        with np.errstate(all="ignore"):
            theirs(*stand_ins[0], **stand_ins[1])
    except MISTAKES as error:
        known = [*_parameters(theirs), *keywords_of(ours)]
        remedy = meant_keyword(error, known) if isinstance(error, TypeError) else ""
        return ProgramError(f"{type(error).__name__}: {error}", remedy=remedy)
    return None


def _stand_in(x: Any) -> Any:
    """Return the value with NumPy's arrays for the program's. ValueError where no size is known."""
    if isinstance(x, Number):
        return _extent(x.expr)
    if isinstance(x, Array):
        shape = tuple(map(_extent, x.extents))
        zero = np.ones((), x.dtype)
        large = math.prod(shape) > _LARGE_STAND_IN
        return np.broadcast_to(zero, shape) if large else np.ones(shape, x.dtype)
    if type(x) in (list, tuple):
        return type(x)(map(_stand_in, x))
    return {k: _stand_in(v) for k, v in x.items()} if type(x) is dict else x


def _extent(e: Expr) -> int:
    """Return the value of an extent, or one that it may have."""
    for value in (e.value,) if e.is_const else e.samples:
        if value is not None and value >= 0:
            return value
    raise ValueError


def _reordered(theirs: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """Return the arguments with those in front that were given by NumPy's names; None: there are
    none."""
    names = _parameters(theirs)
    first, rest = list(args), dict(kwargs)
    for name in names[len(args) :]:
        if name not in rest or name in ("axis", "dtype", "out"):
            break
        first.append(rest.pop(name))
    return (first, rest) if len(first) > len(args) else None


def _parameters(theirs: Any) -> list[str]:
    """Return the names of a function's parameters; none where Python does not know them."""
    try:
        return list(inspect.signature(theirs).parameters)
    except (TypeError, ValueError):
        return []


def _binds(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Return whether a function has parameters for these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
