"""Arrays whose elements are known while building: NumPy made them in the program, and Python wrote.

In: arrays whose content is a storage.Known. Out: their elements as NumPy's arrays, for any Python
to use; what NumPy made of them as arrays of the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.ir.graph import Value
from codegen.trace.array import Array
from codegen.trace.context import Context
from codegen.trace.storage import Known, Storage
from codegen.user import pytree

_COMPUTED_MOST = 1 << 22  # elements; formulas of larger arrays are not computed while building


# ---- arrays of known content ---------------------------------------------------------------------


def known_array(data: np.ndarray[Any, Any], formula: Callable[[], Value] | None = None) -> Any:
    """Return an array of the program with these elements, which belong to it from now on."""
    context, dtype = Context.current(), dtypes.from_numpy(data.dtype)
    if context is None or dtype is None or type(data) is not np.ndarray:
        return data
    if not data.flags.c_contiguous and data.T.flags.c_contiguous and data.base is None:
        return lazy_array(context, data.shape[::-1], dtype, lambda: data.T, formula).transpose()
    kept = data if data.flags.c_contiguous and data.flags.writeable else data.copy()
    return lazy_array(context, data.shape, dtype, lambda: kept, formula)


def lazy_array(
    context: Context, shape: tuple[int, ...], dtype: DType,
    make: Callable[[], np.ndarray[Any, Any]], formula: Callable[[], Value] | None,
) -> Array:
    return Array(context, Storage(context, Known(context, shape, dtype, make, formula)))


def is_known(x: Any) -> bool:
    """Return whether x is an array of the program whose elements are known now."""
    return isinstance(x, Array) and x.is_known


def is_huge(x: Any) -> bool:
    """Return whether x is a formula of so many elements that what is computed of it stays one."""
    content = x.storage.content if is_known(x) else None
    if content is None:
        return False
    return bool(content.formula) and math.prod(content.shape) > _COMPUTED_MOST


def plain(x: Any, may_write: bool = False) -> Any:
    """Return x with NumPy's arrays in place of arrays of known content, in lists, tuples and dicts
    too.

    They show the elements themselves, and cannot be written unless `may_write`.
    """
    if is_known(x):
        if may_write and writable(x):
            shown = owned(x)
            x.storage.content.wrote(None, 0)
            return shown
        return x.frozen()
    if _is_tree(x) and any(map(is_known, pytree.leaves(x))):
        return pytree.map_tree(lambda leaf: plain(leaf, may_write), x)
    return x


def writable(x: Array) -> bool:
    """Return whether Python may write x in place: what runs now runs once, where x was made."""
    storage = x.storage
    return x.is_known and not storage.shadows and storage.region is x.context.region()


def put(x: Array, key: Any, value: Any) -> None:
    """Assign x[key] = value by NumPy itself, here, where what it raises is the user's
    (spmd.source)."""
    owned(x)[key] = value


def owned(x: Array) -> np.ndarray[Any, Any]:
    """Return the elements of x, which may be written in place now."""
    content = x.storage.content
    if content.epoch != x.context.epoch:  # a piece of code that may be undone began since
        x.storage.content = content.copied()
    shown = x.known
    assert shown is not None
    return shown


def element(x: Array, key: Any) -> Any:
    """Return the element x[key] for a key of integers; None where it is not known."""
    shown = x.known
    if shown is None or len(key) != shown.ndim:
        return None
    try:
        return shown[key]
    except IndexError:
        return None  # refused with its place


def put_element(x: Array, key: Any, value: Any) -> bool:
    """Assign x[key] = value for a key of integers and a number, now; return False where it cannot
    be."""
    if not writable(x) or x.storage.content.formula is not None:
        return False
    shown = owned(x)
    if len(key) != shown.ndim:
        return False
    try:
        shown[key] = value
    except (IndexError, TypeError, ValueError):
        return False
    x.storage.content.version += 1
    return True


# ---- NumPy's functions on them -------------------------------------------------------------------


def evaluate(
    function: Callable[..., Any], ours: Callable[..., Any] | None, args: Sequence[Any],
    kwargs: dict[str, Any], written: Sequence[Any] = (),
) -> Any:
    """Run a function of NumPy's now: its arguments are known. `written`: those it writes into.

    New arrays are arrays of the program; `ours` makes what shows the memory of an argument.
    """
    targets = {id(x): owned(x) for x in written}

    def plain_argument(x: Any) -> Any:
        return targets[id(x)] if id(x) in targets else plain(x)

    arguments = [_mapped(plain_argument, x) for x in args]
    options = {k: _mapped(plain_argument, x) for k, x in kwargs.items()}
    result = function(*arguments, **options)
    for x in written:
        x.storage.content.wrote(x.seen, targets[id(x)])
    back = {id(targets[id(x)]): x for x in written}
    owner = getattr(function, "__self__", None)
    theirs = {id(root(x)) for x in pytree.leaves((arguments, options, owner))
              if isinstance(x, np.ndarray)}
    ids = {id(root(x.known)) for x in pytree.leaves((args, kwargs)) if is_known(x)}
    if ours is not None and any(id(root(x)) in ids and id(x) not in back for x in _arrays(result)):
        return ours(*args, **kwargs)

    return taken(result, theirs - ids, back)


def taken(result: Any, theirs: set[int], back: dict[int, Any] | None = None) -> Any:
    """Return NumPy's result with its new arrays as arrays of the program.

    theirs: ids of the owners of memory that stays a constant. back: what some arrays stand for.
    """
    known_as = back or {}

    def as_program_array(x: Any) -> Any:
        if id(x) in known_as:
            return known_as[id(x)]
        if type(x) is not np.ndarray or id(root(x)) in theirs:
            return x
        return known_array(x.copy() if x.base is not None else x)

    return _mapped(as_program_array, result)


def _mapped(f: Callable[[Any], Any], x: Any) -> Any:
    """Return f of an array, or of those in a list, tuple or dict that holds some."""
    if _is_tree(x):
        held = any(isinstance(leaf, np.ndarray) or is_known(leaf) for leaf in pytree.leaves(x))
        return pytree.map_tree(f, x) if held else x
    return f(x)


def _is_tree(x: Any) -> bool:
    """Return whether x may be made again with other leaves: no subclass with a constructor of its
    own."""
    return type(x) in (list, tuple, dict) or (isinstance(x, tuple) and hasattr(x, "_fields"))


def _arrays(x: Any) -> list[Any]:
    return [leaf for leaf in pytree.leaves(x) if isinstance(leaf, np.ndarray)]


def root(x: np.ndarray[Any, Any]) -> Any:
    """Return the array that owns the memory under x."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x
