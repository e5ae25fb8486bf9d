"""Derivatives in eager runs: the derivative alone is captured as a program and interpreted; one
of a rank's arrays, with the shard_map that it stands in.

Always holds: what is differentiated runs once more as plain NumPy, whose value is what is returned;
what it prints while it is captured is not printed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen.errors import UnsupportedError
from codegen.places import user_place
from codegen.trace.numpy.creation import asarray
from codegen.trace.state import Tree, fill, flatten
from codegen.user.pytree import map_tree


class OnlyCaptured(Exception):
    """Ends one rank's part of a shard_map that can only be captured as a whole."""


def mapped(runtime: Any, f: Callable[..., Any], eager: Callable[[], Any],
           traced: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What a shard_map of f gives in an eager run. traced: the same in a program."""
    try:
        return eager()
    except OnlyCaptured:
        if runtime.shards.view_of(f, 0) is f:
            return eagerly(runtime, traced, args)
    raise UnsupportedError("a derivative inside a shard_map, in an eager run, of a function that "
                           "reads global arrays from around it", place=user_place(),
                           expected="all of them as arguments of the function",
                           remedy="f(u, w) instead of f(u), where w stands outside")


class _Kept:
    """The structure of what is captured."""

    tree: Tree


def eagerly(
    runtime: Any, derivative: Callable[..., Any], args: Sequence[Any], item: int | None = None
) -> Any:
    """What derivative(*args) gives, or one item of it: of a program that knows all arrays."""
    if runtime.index_ is not None:
        raise OnlyCaptured
    kept = _Kept()

    def captured() -> Any:
        made = derivative(*map_tree(_with_layout, tuple(args)))
        tree, leaves = flatten(made if item is None else made[item])
        kept.tree = tree
        return {f"part{k}": asarray(leaf) for k, leaf in enumerate(leaves)}

    arrays = runtime.captured(captured)
    return fill(kept.tree, iter(arrays), fresh=True)


def _with_layout(x: Any) -> Any:
    """An array of an eager run lies in a program as it is said to lie there."""
    if isinstance(x, np.ndarray):
        return asarray(x, layout=getattr(x, "layout", None))
    return x
