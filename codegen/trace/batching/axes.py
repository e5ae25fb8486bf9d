"""in_axes and out_axes of spmd.vmap: which dim of each array counts members.

Always holds: a message says which array it is about, and what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from codegen.errors import ShapeError, UsageError
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.state import Tree, flatten

Axis = int | None


def spread(axes: Any, tree: Tree, parameter: str, where: str = "") -> Iterator[Axis]:
    """Yield one axis for each leaf of a tree. `axes` is what a user wrote: one axis for the whole
    tree, or a nest of axes for its parts. `where` is the path of this part, for messages."""
    if _is_axis(axes):
        yield from (axes for _ in tree.paths())
        return
    axes_tree = flatten(axes)[0] if isinstance(axes, (tuple, list, dict)) else None
    if axes_tree is None and tree.kind == "object":
        axes_tree = Tree(tree.kind, axes, *_parts(axes))
    if axes_tree is None:
        raise UsageError(f"{parameter} has no dim in it{where and f', for {where}'}",
                         place=user_place(), expected="integers or None, or a nest of them",
                         found=f"{axes!r}, a {type(axes).__name__}")
    if axes_tree.keys != tree.keys or (axes_tree.kind == "dict") != (tree.kind == "dict"):
        expected = ", ".join(map(str, tree.keys)) or "no parts"
        raise UsageError(f"{parameter} has another structure than {where or 'what it is of'}",
                         place=user_place(), expected=f"one entry for each of {expected}"
                         if tree.keys else "an integer or None for an array",
                         found=repr(axes), remedy=f"{parameter}=0 is for all of them")
    for key, part, child in zip(tree.keys, _items(axes), tree.children):
        step = f".{key}" if tree.kind == "object" else f"[{key!r}]"
        yield from spread(part, child, parameter, where + step)


def _parts(axes: Any) -> tuple[tuple[Any, ...], tuple[Tree, ...]]:
    held = vars(axes) if hasattr(axes, "__dict__") else {}
    return tuple(held), ()


def _items(axes: Any) -> list[Any]:
    if isinstance(axes, (tuple, list)):
        return list(axes)
    return list((axes if isinstance(axes, dict) else vars(axes)).values())


def _is_axis(x: Any) -> bool:
    return x is None or (hasattr(x, "__index__") and not isinstance(x, bool))


def axes_of_arguments(axes: Any, args: Sequence[Any], names: Sequence[str]) -> list[list[Axis]]:
    """Return a list for each argument, with one axis for each of its leaves."""
    if _is_axis(axes):
        axes = (axes,) * len(args)
    if not isinstance(axes, (tuple, list)):
        raise UsageError("in_axes of spmd.vmap is neither a dim nor a tuple", place=user_place(),
                         expected="in_axes=0, or a tuple of one entry for each argument",
                         found=f"{axes!r}, a {type(axes).__name__}")
    if len(axes) != len(args):
        raise UsageError("in_axes of spmd.vmap has not one entry for each argument",
                         place=user_place(), expected=f"{len(args)}: {', '.join(names)}",
                         found=f"{len(axes)}: {axes!r}",
                         remedy="None for an argument that all members share")
    return [list(spread(entry, flatten(arg)[0], "in_axes", name))
            for entry, arg, name in zip(axes, args, names)]


def names_of(f: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first `count` arguments by position, for messages."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    star = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "argument ")
    rest = (f"{star}[{k}]" if star != "argument " else f"argument {k}"
            for k in range(count - len(named)))
    return [*named[:count], *rest]


def in_range(axis: int, ndim: int, name: str, parameter: str = "in_axes") -> int:
    """Return `axis` counted from 0, also where it counts from the end. Raises UsageError where the
    array has no such dim."""
    if -ndim <= axis < ndim:
        return axis % ndim
    has = "no dim" if not ndim else f"{ndim} dims" if ndim > 1 else "1 dim"
    raise UsageError(f"{parameter}: {name} has no dim {axis}", place=user_place(),
                     expected=f"{-ndim} to {ndim - 1}" if ndim else "an array with dims",
                     found=f"{name} has {has}",
                     remedy="" if parameter == "out_axes" else
                     f"None in in_axes for {name}, if all members share it")


def one_extent(extents: Sequence[tuple[str, int, Expr]], size: Any) -> Expr:
    """Return the number of members. `extents` has (name of an array, its mapped dim, the extent);
    `size` is axis_size=. Raises ShapeError where they differ."""
    if not extents and size is None:
        raise UsageError("spmd.vmap has nothing to map over", place=user_place(),
                         expected="a dim of one argument at least",
                         found="in_axes is None for all of them",
                         remedy="in_axes=0 for one of them, or axis_size=n")
    counts = [*extents] if size is None else [*extents, ("axis_size", -1, expr.as_expr(size))]
    name, dim, n = counts[0]
    for other, other_dim, m in counts[1:]:
        if not expr.equal(n, m):
            here = f"{name} has {n} along dim {dim}" if dim >= 0 else f"axis_size is {n}"
            there = (f"{other} has {m}" + ("" if other_dim == dim else f" along dim {other_dim}")
                     if other_dim >= 0 else f"axis_size is {m}")
            raise ShapeError(f"in_axes: {here}, {there}", place=user_place(),
                             expected="as many members in each array that is mapped",
                             found=", ".join(f"{e} in {who}" for who, _, e in counts),
                             remedy="in_axes=None for what all members share; another dim for "
                             "what has its members there")
    return n
