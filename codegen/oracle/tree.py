"""Tuples, lists and dicts of arrays: what may be passed wherever one array may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """Left to right, dicts in insertion order; None is no leaf."""
    if isinstance(tree, dict):
        return [leaf for v in tree.values() for leaf in leaves(v)]
    if isinstance(tree, (tuple, list)):
        return [leaf for v in tree for leaf in leaves(v)]
    return [] if tree is None else [tree]


def map_tree(f: Callable[[Any], Any], tree: Any) -> Any:
    """The same structure with f of every leaf, in the order of `leaves`."""
    if isinstance(tree, dict):
        return {k: map_tree(f, v) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [map_tree(f, v) for v in tree]
        if hasattr(tree, "_fields"):  # a named tuple
            return type(tree)(*parts)
        return tuple(parts) if isinstance(tree, tuple) else parts
    return None if tree is None else f(tree)


def zip_trees(f: Callable[[list[Any]], Any], trees: Sequence[Any]) -> Any:
    """The structure of the first tree with f of the list of corresponding leaves."""
    columns = iter(zip(*(leaves(t) for t in trees), strict=True))
    return map_tree(lambda _: f(list(next(columns))), trees[0])
