"""Derivatives in eager runs: the derivative alone is captured as a program and interpreted.

A derivative of a rank's arrays is captured with the shard_map around it.
Always holds: what is differentiated runs once more as plain NumPy, whose value is what is returned;
what it prints while it is captured is not printed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen.errors import UnsupportedError
from codegen.places import user_place
from codegen.trace import known
from codegen.trace.derive.snapshots import Copies, sharing
from codegen.trace.numpy.creation import asarray
from codegen.trace.state import Tree, fill, flatten
from codegen.trace.storage import Storage
from codegen.user.absent import absent, meeting


class OnlyCaptured(Exception):
    """Raised to end one rank's part of a shard_map that can only be captured as a whole."""


def mapped(runtime: Any, f: Callable[..., Any], eager: Callable[[], Any],
           traced: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Return what a shard_map of f gives in an eager run. traced: the same in a program."""
    try:
        return eager()
    except OnlyCaptured:
        if runtime.shards.view_of(f, 0) is f:
            return eagerly(runtime, traced, args)
    raise UnsupportedError("a derivative inside a shard_map, in an eager run, of a function that "
                           "reads global arrays from around it", place=user_place(),
                           expected="all of them as arguments of the function",
                           remedy="f(u, w) instead of f(u), where w stands outside")


class _Structure:
    """The structure of the derivative that is captured."""

    tree: Tree
    holds: list[bool]  # of each leaf, whether it is an array: None has no derivative


class Held:
    """A function and its arguments, copied as they are now: no later change reaches them."""

    def __init__(self, f: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> None:
        copies = Copies(_copy)
        with meeting() as met:
            self.parts = copies.of((f, tuple(args), dict(kwargs or {})))
        self.needs = tuple(sorted(met))  # inputs that are not given
        self.shared = sharing(copies.arrays)

    def eagerly(
        self, runtime: Any, derivative: Callable[..., Any], item: int | None = None
    ) -> Any:
        """Return derivative(f, args, kwargs), as `eagerly` does. The function runs on copies made
        in the program, so it may change what it reaches, as it may in an image."""

        def captured() -> Any:
            copies = Copies(_in_program)
            parts = copies.of(self.parts)
            shared = [copies.of(x).storage for x in self.shared]
            before = [(storage, *_version(storage)) for storage in shared]
            derivatives = derivative(*parts)
            for storage, content, version in before:
                if storage.content is not content or _version(storage)[1] != version:
                    raise _writes_shared()
            return derivatives

        result = eagerly(runtime, captured, (), item)
        return without(result, self.needs)


def without(result: Any, needs: Sequence[str]) -> Any:
    """Return the tree, with stand-ins for its arrays if `needs` names inputs that are not given."""
    if not needs:
        return result
    tree, leaves = flatten(result)
    absent_leaves = [x if x is None else absent(x, tuple(needs)) for x in leaves]
    return fill(tree, iter(absent_leaves), fresh=True)


def own_args(args: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    """Return the arguments of a run as plain NumPy: those that are differentiated are copies, as in
    an image, so what the function writes into them is its own."""
    numbered = {k % max(len(args), 1) for k in numbers}
    out = list(args)
    for k in numbered.intersection(range(len(args))):
        tree, leaves = flatten(args[k])
        out[k] = fill(tree, iter([_copy(x) if isinstance(x, np.ndarray) else x for x in leaves]),
                      fresh=True)
    return out


def eagerly(
    runtime: Any, derivative: Callable[..., Any], args: Sequence[Any], item: int | None = None
) -> Any:
    """Return derivative(*args), or one item of it, by a program that is captured and run with all
    arrays known."""
    if runtime.index_ is not None:
        raise OnlyCaptured
    kept = _Structure()

    needs: set[str] = set()

    def captured() -> Any:
        with meeting() as met:
            result = derivative(*Copies(_in_program).of(tuple(args)))
        needs.update(met)
        tree, leaves = flatten(result if item is None else result[item])
        kept.tree, kept.holds = tree, [leaf is not None for leaf in leaves]
        return {f"part{k}": asarray(leaf) for k, leaf in enumerate(leaves) if leaf is not None}

    arrays = iter(runtime.captured(captured))
    parts = [next(arrays) if holds else None for holds in kept.holds]
    return without(fill(kept.tree, iter(parts), fresh=True), sorted(needs))


def _version(storage: Storage) -> tuple[Any, int]:
    """Return the content; and the number of writes by Python into it, where it is known."""
    return storage.content, getattr(storage.content, "version", 0)


def _writes_shared() -> UnsupportedError:
    return UnsupportedError(
        "a function that is differentiated, in an eager run, writes into memory that it reaches "
        "through two arrays", place=user_place(), expected="one array for that memory",
        found="an array and a view of it, both from around the function",
        remedy="make the view in the function, or write into a copy")


def _copy(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x.copy()


def _in_program(x: np.ndarray[Any, Any]) -> Any:
    """Return an array of an eager run as one of a program, in the layout that it has there."""
    layout = getattr(x, "layout", None)
    return known.known_array(np.array(x)) if layout is None else asarray(x, layout=layout)
