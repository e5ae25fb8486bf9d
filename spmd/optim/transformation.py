"""What a transformation of gradients is, and what all of them do with trees of arrays.

Always holds: a leaf that is None stays None, and nothing is computed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np

import spmd
from spmd import UsageError
from spmd.extend import converted, filled, flatten, is_half, user_place

Schedule = Callable[[Any], Any]


class GradientTransformation(NamedTuple):
    """A pair of functions that makes updates of gradients.

    - init: `init(params)` gives the state before the first step.
    - update: `update(updates, state, params)` gives the new updates and the next state. params may
      be left out where nothing asks for them.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]


def transformation(init: Callable[..., Any], update: Callable[..., Any]
                   ) -> GradientTransformation:
    """Return the pair, with an update that gets gradients and parameters of half types as float32.

    So nothing is rounded between the transformations of a chain, and updates are float32 too:
    apply_updates rounds once, to the type of the parameters.
    """
    def wide(updates: Any, state: Any, params: Any = None) -> Any:
        return update(widened(updates), state, params if params is None else widened(params))

    return GradientTransformation(init, wide)


class EmptyState(NamedTuple):
    """The state of a transformation that remembers nothing."""


class CountState(NamedTuple):
    """The number of steps so far."""

    count: Any


def map_trees(f: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """Return the structure of the first tree, with f(leaf, ...) of the leaves of all of them."""
    return map_to(1, lambda *leaves: (f(*leaves),), first, *rest)[0]


def map_to(n: int, f: Callable[..., Sequence[Any]], first: Any, *rest: Any) -> list[Any]:
    """Return n trees like the first one, of the n values that f gives for each leaf. UsageError
    where the trees differ in structure."""
    tree, leaves = flatten(first)
    columns = [leaves]
    for other in rest:
        other_tree, others = flatten(other)
        mine, theirs = list(tree.paths()), list(other_tree.paths())
        if set(mine) != set(theirs):
            raise UsageError(
                "two trees of arrays differ: updates, state and parameters have one structure",
                place=user_place(), expected=f"leaves at {_shown(mine)}",
                found=f"leaves at {_shown(theirs)}",
                remedy="the gradient of all that init(params) got, and its state")
        by_path = dict(zip(theirs, others, strict=True))  # dicts may have another order
        columns.append([by_path[path] for path in mine])
    rows = [None if row[0] is None else f(*row) for row in zip(*columns)]
    return [filled(tree, [None if m is None else m[k] for m in rows]) for k in range(n)]


def _shown(paths: Sequence[str]) -> str:
    return ", ".join(p or "the tree itself" for p in paths) or "nothing"


def leaves_of(tree: Any) -> list[Any]:
    return [x for x in flatten(tree)[1] if x is not None]


def in_type(x: Any, dtype: Any) -> Any:
    """Return a number or an array in an element type; Python's numbers adapt anyway."""
    return x.astype(dtype) if hasattr(x, "astype") else x


def in_types(x: Any) -> Callable[[Any], Any]:
    """Return a function that gives a number in an element type: made once, however many leaves have
    it."""
    return cache(lambda dtype: in_type(x, dtype))


def wide_type(x: Any) -> Any:
    """Return the element type of an array; float32 in the place of half types."""
    return np.dtype(np.float32) if is_half(x) else x.dtype


def widened(tree: Any) -> Any:
    """Return a tree of arrays with those of half types as float32."""
    return map_trees(lambda x: in_type(x, np.float32) if is_half(x) else x, tree)


def squared(x: Any) -> Any:
    """Return |x|², a float of complex numbers too."""
    return x.real * x.real + x.imag * x.imag if x.dtype.kind == "c" else x * x


def counter() -> Any:
    return np.zeros((), np.int32)


def safe_increment(count: Any) -> Any:
    """Return count + 1. At the greatest int32 it stays, instead of becoming negative."""
    return np.minimum(count, np.int32(2**31 - 2)) + np.int32(1)


def value_at(x: Any, count: Any) -> Any:
    """Return x if it is a number, else the value of the schedule x at step `count`."""
    return converted(x)(count) if callable(x) else x


def needs_params(params: Any, transformation: str) -> None:
    if params is None:
        raise UsageError(f"{transformation} needs the parameters", place=user_place(),
                         expected="tx.update(grads, state, params)", found="params=None")


def either(condition: Any, f: Callable[[], Any], g: Callable[[], Any]) -> Any:
    """Return f() where the condition holds, else g(); a branch of the program where only the run
    knows."""
    if isinstance(condition, (bool, np.bool_, np.ndarray)):
        return f() if condition else g()
    return spmd.cond(condition, f, g)


def apply_updates(params: Any, updates: Any) -> Any:
    """Return parameters plus updates, in the element types of the parameters."""
    return map_trees(lambda p, u: p if u is None else in_type(p + u, _dtype_of(p)), params, updates)


def _dtype_of(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else np.result_type(x)


# What sums up a number for each leaf, where the tree is a part of all updates: a function of the
# tree, of the number for a leaf, and of whether the sum over the part alone is no answer.
sums_of_parts: ContextVar[Callable[[Any, Callable[[Any], Any], bool], Any] | None] = ContextVar(
    "sums", default=None)


def global_norm(updates: Any) -> Any:
    """Return the square root of the sum of the squares of all elements of all arrays in a tree;
    float32 where these are of half types.

    Arrays that the same axes split are added up first: one exchange for each set of axes.
    """
    leaves = leaves_of(widened(updates))
    elsewhere = sums_of_parts.get()
    if elsewhere is not None:
        return np.sqrt(elsewhere(updates, lambda x: np.sum(squared(widened(x))), True))
    parts: dict[frozenset[Any], Any] = {}
    for x in leaves:
        axes, square = _axes(x), np.sum(squared(x))
        parts[axes] = parts[axes] + square if axes in parts else square
    return np.sqrt(reduce(lambda a, b: a + b, parts.values())) if parts else 0.0


def _axes(x: Any) -> frozenset[Any]:
    """Return the axes that split an array, as far as its layout is known by now."""
    dims = (d if isinstance(d, tuple) else (d,) for d in getattr(x, "layout", None) or ())
    return frozenset(axis for dim in dims for axis in dim if axis is not None)
