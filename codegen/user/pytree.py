"""Pytrees: nested tuples, named tuples, lists and dicts, with arrays as leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(tree: Any) -> Iterator[Any]:
    """Return the leaves of a tree of tuples, lists and dicts one by one, in their order."""
    if isinstance(tree, (tuple, list)):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from leaves(item)
    else:
        yield tree


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of tuples, lists and dicts with function(leaf) in place of each leaf; None
    stays."""
    if tree is None:
        return None
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tree(function, item) for item in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_tree(function, item) for item in tree)
    if isinstance(tree, dict):
        return {key: map_tree(function, item) for key, item in tree.items()}
    return function(tree)
