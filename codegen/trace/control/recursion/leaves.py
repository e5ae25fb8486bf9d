"""What calls of a recursive function pass or return: trees whose leaves all calls have in common.

Always holds: a leaf is one thing in all calls, or a value of one type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.errors import CarryError, Place
from codegen.trace.array import Array, Number
from codegen.trace.state import LeafType, Tree, describe, fill, flatten, joined, leaf_type, same


@dataclass
class Leaves:
    """A tree; each of its leaves is a LeafType, or what all calls have in common."""

    tree: Tree
    leaves: list[Any]

    @property
    def types(self) -> list[LeafType]:
        return [x for x in self.leaves if isinstance(x, LeafType)]

    @property
    def names(self) -> list[str]:
        """Return the paths of those leaves that are values."""
        paths = self.tree.paths()
        return [path for path, x in zip(paths, self.leaves) if isinstance(x, LeafType)]

    def varying(self, leaves: Sequence[Any]) -> list[Any]:
        """Return those of a call's leaves that are values."""
        return [x for x, t in zip(leaves, self.leaves) if isinstance(t, LeafType)]

    def filled(self, arrays: Iterator[Any]) -> Any:
        """Return the tree with arrays in place of the types."""
        leaves = [next(arrays) if isinstance(x, LeafType) else x for x in self.leaves]
        return fill(self.tree, iter(leaves), fresh=True)

    def widen(
        self, tree: Tree, leaves: Sequence[Any], name_of: Callable[[str], str], place: Place | None
    ) -> bool:
        """Take in what one more call has; return whether that changes a leaf. name_of: how an
        error names a path. Raises CarryError where no type is right for both."""
        self._check_structure(tree, name_of, place)
        new = False
        for k, (path, have, x) in enumerate(zip(tree.paths(), self.leaves, leaves)):
            if not isinstance(have, LeafType) and same(have, x):
                continue
            a, b = have if isinstance(have, LeafType) else leaf_type(have), leaf_type(x)
            t = None if a is None or b is None else joined(a, b)
            if t is None:
                raise _changes(name_of(path), a or have, b or x, place)
            if not isinstance(have, LeafType) or t != have:
                self.leaves[k], new = t, True
        return new

    def _check_structure(
        self, tree: Tree, name_of: Callable[[str], str], place: Place | None
    ) -> None:
        if self.tree.like(tree):
            return
        path, a, b = "", self.tree, tree
        if a.kind == b.kind == "dict" and a.keys == b.keys:  # of arguments, for one
            path, a, b = next((f"[{k!r}]", c, d) for k, c, d in zip(a.keys, a.children, b.children)
                              if not c.like(d))
        raise CarryError(f"{name_of(path)} changes its structure", place=place,
                         expected=f"{_structure(a)} in all calls", found=_structure(b),
                         remedy="the same tuples, lists, dicts and other things in all calls")


def _changes(subject: str, expected: Any, found: Any, place: Place | None) -> CarryError:
    a, b = (str(x) if isinstance(x, LeafType) else describe(x) for x in (expected, found))
    return CarryError(
        f"{subject} changes its type", place=place, expected=f"{a} in all calls", found=b,
        remedy="one shape and dtype for all calls; without the decorator, Python unrolls a "
        "recursion whose end is known while building")


def with_types(x: Any, serial: int) -> Any:
    """Return an argument with types in place of what a body computes: that is another value in each
    call. serial: of the newest memory from before the recursion."""
    tree, leaves = flatten(x)
    own = [isinstance(x, Array) and x.storage.serial > serial for x in leaves]
    own = [o or (isinstance(x, Number) and any(s.kind == "counter" for s in x.expr.symbols()))
           for o, x in zip(own, leaves)]
    if not any(own):
        return x
    return fill(tree, iter([leaf_type(x) if o else x for o, x in zip(own, leaves)]), fresh=True)


def spelt(path: str) -> str:
    """Return the path of an argument as its function spells it: x, or params['w']."""
    first, _, rest = path.partition("]")
    return first[2:-1] + rest if first.startswith("['") else path


def _structure(tree: Tree) -> str:
    if tree.kind == "leaf":
        return describe(tree.value) if leaf_type(tree.value) is None else "an array or a number"
    return f"a {tree.kind} of {', '.join(map(_structure, tree.children)) or 'nothing'}"
