"""Check what users pass to derivatives: functions, arguments, losses, tangents, cotangents.

Always holds: a message says which argument it is about, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen.errors import UsageError
from codegen.ir.graph import Value
from codegen.places import user_place
from codegen.trace.array import Array, as_array, as_value
from codegen.trace.context import Context
from codegen.trace.derive.reverse import differentiable
from codegen.trace.number import Number
from codegen.trace.state import Tree, flatten


def check_function(function: str, f: Any) -> None:
    """Raise UsageError unless f can be called. function: the name of ours that it is given to."""
    if not callable(f):
        raise UsageError(f"{function} is given no function", place=user_place(),
                         expected=f"{function}(f), and then a call of that with the arguments of f",
                         found=_kind(f), remedy="spmd.grad(lambda x: np.sum(x**2))(x)")


def numbers_of(function: str, argnums: Any) -> tuple[int, ...]:
    """Return which arguments a function is differentiated by."""
    several = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
    if not all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) for k in several):
        raise UsageError(f"{function}: argnums are no numbers of arguments", place=user_place(),
                         expected="argnums=0, or argnums=(0, 2)", found=_kind(argnums),
                         remedy=f"{function}(f, argnums=…)(arguments of f)")
    return tuple(map(int, several))


def check_numbers(function: str, numbers: Sequence[int], args: Sequence[Any]) -> None:
    """Raise UsageError unless the numbers are different and each names one of the arguments."""
    if len({k % max(len(args), 1) for k in numbers}) < len(numbers):
        raise UsageError(f"{function}: argnums name an argument twice", place=user_place(),
                         expected="different ones", found=str(tuple(numbers)))
    for k in numbers:
        if not args:
            raise UsageError(f"{function}: no argument stands by position", place=user_place(),
                             expected=f"argument {k}, by which it is differentiated, in its place",
                             found="arguments by name only", remedy="f(x) instead of f(x=x)")
        if not -len(args) <= k < len(args):
            raise UsageError(f"{function}: argnums {k} of {len(args)} arguments",
                             place=user_place(), expected=f"0 to {len(args) - 1}", found=str(k))


def float_of(leaf: Any, function: str, path: str) -> Array:
    """Return a leaf of an argument as an array of floats. path: where it stands, for messages."""
    if isinstance(leaf, (Array, Number, np.ndarray, np.generic, int, float, complex)):
        array = as_array(leaf)
        if differentiable(array.type):
            return array
        description, remedy = f"{array.type}", "x.astype(np.float64), or other argnums"
    else:
        description, remedy = _kind(leaf), "other argnums"
    if "[" in path or "." in path:
        remedy = "f(weights, options): what is no float stands in another argument, or around f"
    raise UsageError(f"{function}: argument {path} is no float, and f is differentiated by it",
                     place=user_place(), expected="arrays of floats, or nests of them",
                     found=description, remedy=remedy)


def scalar_of(context: Context, value: Any) -> Value:
    """Return the float that a gradient is taken of; raise UsageError if it is another type, or no
    scalar."""
    if isinstance(value, (Array, Number, float, int, np.generic)):
        out = as_value(context, value)
        if not out.type.shape and out.type.dtype.kind == "f":
            return out
        description = str(out.type)
        if out.type.shape:
            remedy = "np.sum(…) or np.mean(…) of it; spmd.vjp for several results"
        elif out.type.dtype.kind == "c":
            remedy = "z.real of it, or np.abs(z)"
        else:
            remedy = "a loss that is made of floats: counts and truth values have no derivative"
    else:
        description = _kind(value)
        remedy = "a return in the function" if value is None else \
            "has_aux=True where it returns a loss and something else; spmd.vjp for several results"
    raise UsageError("a gradient is that of one float", place=user_place(),
                     expected="a function that returns a float, an array of shape ()",
                     found=description, remedy=remedy)


def _kind(x: Any) -> str:
    """Return how a message describes an object: its value, or its type."""
    if isinstance(x, Array):
        return str(x.type)
    if isinstance(x, (str, int, float)):
        return f"{x!r}, a {type(x).__name__}"
    if isinstance(x, (tuple, list)):
        return f"a {type(x).__name__} of {len(x)}"
    return "None" if x is None else f"a {type(x).__name__}"


def check_pairs(function: str, primals: Any, tangents: Any) -> None:
    """Raise UsageError unless `primals` and `tangents` are tuples with one item for each argument
    of f."""
    for name, items in (("primals", primals), ("tangents", tangents)):
        if not isinstance(items, (tuple, list)):
            raise UsageError(f"{function}: the {name} are no tuple", place=user_place(),
                             expected=f"{function}(f, (x,), (v,)): one of each for each argument "
                             "of f",
                             found=_kind(items))
    if len(primals) != len(tangents):
        raise UsageError(f"{function}: as many tangents as primals", place=user_place(),
                         expected=f"{len(primals)} tangents", found=f"{len(tangents)}",
                         remedy="np.zeros_like(x) for an argument that does not change")


def paired(
    context: Context, role: str, tree: Tree, values: Sequence[Value | None], arrays: Any
) -> list[tuple[Value, Value]]:
    """Return pairs of a value and the array that the user gives for it in the same structure;
    values that are None are left out. role: "tangents" or "cotangents", for messages."""
    given_tree, leaves = flatten(arrays)
    if not given_tree.like(tree):
        raise UsageError(f"the {role} have another structure than what they are of",
                         place=user_place(), expected=shown(tree), found=shown(given_tree))
    pairs = [(v, as_value(context, g, v.type.dtype))
             for v, g in zip(values, leaves, strict=True) if v is not None]
    for v, g in pairs:
        if v.type.shape != g.type.shape:
            raise UsageError(f"one of the {role} has another shape than what it is of",
                             place=user_place(), expected=str(v.type), found=str(g.type))
    return pairs


def cotangents_of(f: Any, tree: Tree, args: Sequence[Any], returned: Any) -> list[Any]:
    """Return the cotangents that bwd returned, for each leaf of the arguments; raise UsageError
    where their structure differs."""
    name = getattr(f, "__name__", "f")
    if not isinstance(returned, tuple) or len(returned) != len(args):
        raise UsageError(f"bwd of {name} returns no cotangent for each argument",
                         place=user_place(), expected=f"a tuple of {len(args)}",
                         found=f"{len(returned)}" if isinstance(returned, tuple) else
                         type(returned).__name__)
    leaves: list[Any] = []
    for x, g in zip(args, returned):
        mine = flatten(x)
        theirs = (mine[0], [None] * len(mine[1])) if g is None else flatten(g)
        if not mine[0].like(theirs[0]):
            raise UsageError(f"bwd of {name} returns another structure than its argument has",
                             place=user_place(), expected=shown(mine[0]), found=shown(theirs[0]))
        leaves += theirs[1]
    return leaves


def pair_of(returned: Any, origin: str = "has_aux=True") -> tuple[Any, Any]:
    """Return a function's result, which is to be a pair; raise UsageError if it is none. origin:
    what asks for the pair."""
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    second = "what bwd needs" if origin == "fwd" else "aux"
    raise UsageError(f"{origin}: the function returns no pair", place=user_place(),
                     expected=f"return value, {second}", found=type(returned).__name__)


def shown(tree: Tree) -> str:
    return ", ".join(tree.paths()) or "nothing"
