"""Derivatives in eager runs: the derivative alone is captured as a program and interpreted.

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
from codegen.user.tree import map_tree


class _Kept:
    """The structure of what is captured."""

    tree: Tree


def eagerly(
    runtime: Any, derivative: Callable[..., Any], args: Sequence[Any], item: int | None = None
) -> Any:
    """What derivative(*args) gives, or one item of it: of a program that knows all arrays."""
    if runtime.index_ is not None:
        raise UnsupportedError("a derivative inside a shard_map, in an eager run",
                               place=user_place(), expected="a function of global arrays",
                               found="a function of one rank's arrays",
                               remedy="build the program and run the image")
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
