"""Trees of arrays, by the names of jax.tree.

Dicts, lists, tuples, named tuples and dataclasses, in each other; a leaf that is None stays None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codegen.trace.control.conversion import as_called
from spmd.optim.transformation import leaves_of, map_trees

__all__ = ["leaves", "map"]


def map(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Return the structure of the first tree, with f(leaf, …) of the leaves of all of them in it.

    UsageError where the trees differ in structure; dicts may differ in the order of their keys.

    Example::

        @spmd.program
        def halves():
            w = {"w": np.ones((2, 3)), "b": [np.ones(3), None]}
            matrices = spmd.tree.map(lambda x: x.ndim > 1, w)    # as masks of spmd.optim
            return spmd.tree.map(lambda x, m: x / 2 if m else x, w, matrices)["w"][0]

        print(spmd.build(halves).run(ranks=2))    # [0.5 0.5 0.5]
    """
    return map_trees(as_called(f), tree, *rest)


def leaves(tree: Any) -> list[Any]:
    """Return all arrays of a tree in a list; those that are None are left out.

    Example::

        @spmd.program
        def count():
            w = {"w": np.ones((2, 3)), "b": [np.ones(3), None]}
            return np.zeros(sum(x.size for x in spmd.tree.leaves(w)))

        print(spmd.build(count).run(ranks=2).shape)    # (9,)
    """
    return leaves_of(tree)
