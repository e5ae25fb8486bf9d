"""The arguments of a function under spmd.jit: what an image is built for, and its inputs.

In: the arguments of a call. Out: a key, the arrays among them in their order, and a Leaf for each.
Always holds: arguments of one key have equal trees, shapes, dtypes and static values.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import InputError, UsageError
from codegen.trace.jitted import Leaf
from codegen.user.layout_trees import is_layout
from codegen.user.named import below, held, rebuilt
from codegen.user.numbers import element_type
from codegen.user.spec import Spec
from spmd.distributed import Distributed, Local

# Python's numbers among the arguments, and the element type of each.
_NUMBERS: dict[type, dtypes.DType] = {
    bool: dtypes.BOOL, int: dtypes.INT64, float: dtypes.FLOAT64, complex: dtypes.COMPLEX128,
}


class NotAnArray(Exception):
    """An argument that is no array."""


def form(x: Any, leaves: list[Any]) -> Any:
    """Return the part of an image's key that one argument gives: its tree, shapes and dtypes. Its
    arrays are appended to `leaves`. Raises NotAnArray."""
    kind = type(x)
    if kind is np.ndarray:
        leaves.append(x)
        return x.dtype, x.shape
    if kind in _NUMBERS:
        if kind is int and not _fits(x):
            raise NotAnArray
        leaves.append(x)
        return kind
    if x is None:
        return None
    if kind is dict:
        return dict, *((key, form(item, leaves)) for key, item in x.items())
    if kind is list or kind is tuple:
        return kind, *(form(item, leaves) for item in x)
    inside = held(x)
    if inside is not None:
        return kind, *((key, form(item, leaves)) for key, item in inside)
    if isinstance(x, Spec):
        return dtypes.numpy_dtype(element_type(x.dtype)), _shape(x)
    array = _array_of(x)
    if array is None:
        raise NotAnArray
    leaves.append(array)
    return array.dtype, array.shape, isinstance(x, np.generic)


def _fits(x: int) -> bool:
    return -(2**63) <= x < 2**63


def _array_of(x: Any) -> Any:
    """Return x as an array if it is one (NumPy's, an output of a run) or has `__array__`; else
    None. An np.matrix is none: its products are others."""
    if isinstance(x, Local | np.matrix) or not hasattr(x, "__array__"):
        return None
    if isinstance(x, Distributed | np.ndarray | np.generic):
        return x
    return dtypes.as_numpy(x)


def leaves_of(x: Any, name: str, layout: Any, leaves: list[Leaf], taken: set[str]) -> Any:
    """Return the tree x with each array replaced by a Leaf, and append these to `leaves`. Names in
    `taken` are not used again."""
    inside = None if x is None else held(x)
    if inside is not None:
        parts = []
        for key, item in inside:
            path = below(name, key)
            parts.append(leaves_of(item, path, _layout_below(layout, key, path), leaves, taken))
        return rebuilt(x, parts)
    if x is None:
        return None
    unique = name
    while unique in taken or not unique.isprintable():
        unique = ascii(unique).strip("'") + "_"
    taken.add(unique)
    leaf = _leaf(x, name, unique, layout)
    leaves.append(leaf)
    return leaf


def _shape(x: Spec) -> tuple[int, ...]:
    return tuple(x.shape) if isinstance(x.shape, tuple | list) else (x.shape,)


def _leaf(x: Any, path: str, name: str, layout: Any) -> Leaf:
    if type(x) in _NUMBERS:
        if type(x) is int and not _fits(x):
            raise InputError(f"argument {path} is an int that does not fit int64",
                             expected="an int from -2**63 to 2**63 - 1", found=str(x)[:40],
                             remedy="np.uint64(x), a float, or static_argnames=")
        weak = type(x) is not bool
        return Leaf(name, _NUMBERS[type(x)], (), None, weak, True)
    if isinstance(x, Spec):
        return Leaf(name, element_type(x.dtype), _shape(x), x.layout if layout is None else layout)
    array = _array_of(x)
    if array is None:
        raise _refused(path, x)
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is None:
        raise InputError(f"argument {path} is an array of {array.dtype}", found=str(array.dtype),
                         expected="an array of " + ", ".join(dtypes.BY_NAME),
                         remedy="x.astype(np.float64), or another of these"
                         if array.dtype.kind == "O" else "")
    return Leaf(name, dtype, tuple(array.shape), layout, False, isinstance(x, np.generic))


def _refused(path: str, x: Any) -> InputError:
    kind = type(x).__name__
    remedy = f"static_argnames={path.partition('.')[0]!r}, where it is known while building"
    if isinstance(x, Local):
        remedy = "f.image(…) of the whole array's spmd.spec, and image.run(comm=comm, …) with parts"
    if isinstance(x, np.matrix):
        remedy = "np.asarray(x), whose x * x is by elements and whose x @ x is the product"
    return InputError(f"argument {path} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}",
                      expected="an array, a number, or a dict, list, tuple or dataclass of them",
                      found=f"{x!r}"[:80], remedy=remedy)


def _layout_below(layout: Any, key: Any, path: str) -> Any:
    """Return the layouts of the part under a key; a single layout is for all parts."""
    if is_layout(layout):
        return layout
    inside = {str(k): v for k, v in held(layout) or ()}
    return inside.get(str(key))


def layouts_of(layout: Any, parameters: list[inspect.Parameter]) -> dict[str, Any]:
    if layout is None or layout == "auto":
        return {}
    known = [p.name for p in parameters]
    if not isinstance(layout, Mapping):
        raise UsageError("layout= of spmd.jit names arguments", found=repr(layout),
                         expected=f'layout={{"{known[0] if known else "x"}": ("r", None)}}')
    open_ended = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in layout:
        if name not in known and not open_ended:
            raise UsageError(f"layout= names {name!r}, which is no argument of the function",
                             expected=", ".join(known) or "no arguments", found=repr(layout))
    return dict(layout)


# ---- names and static values


def parameters_of(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _by_position(parameters: list[inspect.Parameter]) -> list[str]:
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def name_of(parameters: list[inspect.Parameter], number: int) -> str:
    """Return the name of the argument at a position: that of its parameter, or args.0 …"""
    names = _by_position(parameters)
    if number < len(names):
        return names[number]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    return f"{rest}.{number - len(names)}"


def static_arguments(
    parameters: list[inspect.Parameter], argnums: Any, argnames: Any
) -> tuple[frozenset[int], frozenset[str]]:
    """Return the positions and the names of the static arguments. An argument that has both is in
    both, however the user named it."""
    order = _by_position(parameters)
    numbers = [] if argnums is None else [argnums] if isinstance(argnums, int) else list(argnums)
    names = [] if argnames is None else [argnames] if isinstance(argnames, str) else list(argnames)
    more = any(p.kind is p.VAR_POSITIONAL for p in parameters) or not parameters
    for k in numbers:
        if not isinstance(k, int) or (not more and not -len(order) <= k < len(order)):
            raise UsageError(f"static_argnums has {k!r}, which is no argument's position",
                             expected=f"0 to {len(order) - 1}: {', '.join(order)}" if order else
                             "a function with arguments by position", found=repr(argnums))
    numbers = [k + len(order) if k < 0 else k for k in numbers]
    known = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters) or not parameters
    for name in names:
        if not isinstance(name, str) or (name not in known and not open_ended):
            raise UsageError(f"static_argnames has {name!r}, which is no argument of the function",
                             expected=", ".join(known) or "no arguments", found=repr(argnames))
    numbers += [order.index(name) for name in names if name in order]
    names += [order[k] for k in numbers if k < len(order)]
    return frozenset(numbers), frozenset(names)


class _Same:
    """A key that equals only that of the same object."""

    def __init__(self, x: Any) -> None:
        self.id = id(x)

    def __hash__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.id == self.id

    def __repr__(self) -> str:
        return "self"


def static_key(x: Any, is_self: bool) -> Any:
    return _Same(x) if is_self else _exact(x)


def _exact(x: Any) -> Any:
    """Return a key that distinguishes 1 from True and 0.0 from -0.0, in tuples too."""
    kind = type(x)
    if kind is tuple:
        return kind, *map(_exact, x)
    return (kind, repr(x)) if kind is float or kind is complex else (kind, x)


def check_hash(name: str, x: Any) -> None:
    try:
        hash(x)
    except TypeError:
        raise UsageError(
            f"the static argument {name} has no hash", expected="a number, a text, a tuple of "
            "such, or another value that hash() takes", found=f"{type(x).__name__}: {x!r}"[:80],
            remedy="a tuple instead of a list; an array is no static argument",
        ) from None


def check_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError, as Python does, for arguments that the function does not take."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{getattr(function, '__name__', 'function')}() {error}") from None


def key_text(key: Any) -> str:
    """Return a key as text without addresses, so that processes can compare theirs."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(key))
