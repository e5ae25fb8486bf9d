"""What can be seen in a kernel's source: which parameters it may write, which it fills for sure.

Goes in: a Python function. Comes out: facts that hold for every call; where the source is not to be
had or not understood, the careful answer: it may write all, it fills none.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import types
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

# Attributes and methods of an array that leave it alone.
_READS = frozenset(
    "shape size ndim dtype itemsize nbytes strides sum prod min max mean std var any all argmin "
    "argmax copy astype real imag".split()
)
# Functions that write into an argument, or hand out a view of it.
_WRITES = frozenset(
    "copyto put place putmask fill_diagonal shuffle asarray ascontiguousarray asfortranarray ravel "
    "reshape transpose atleast_1d atleast_2d atleast_3d nditer expand_dims broadcast_to split "
    "array_split diag swapaxes squeeze flip flipud fliplr rot90 real imag".split()
)


class Reading:
    """A reading of a kernel's source. function: a kernel's. find: gives the tree of one, or None.
    Answers are kept: helpers that are defined anew want a new Reading."""

    def __init__(
        self, function: Callable[..., Any], find: Callable[[Any], ast.AST | None]
    ) -> None:
        self.function, self.find = function, find
        self._writes: dict[tuple[str, int], bool] = {}

    @cached_property
    def tree(self) -> ast.FunctionDef | None:
        tree = self.find(self.function)
        return tree if isinstance(tree, ast.FunctionDef) else None

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        assert self.tree is not None
        return {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    def writes(self, name: str, ndim: int) -> bool:
        """Return whether it may write into an array of so many dims that this parameter is."""
        key = (name, ndim)
        if key not in self._writes:
            self._writes[key] = False  # until a use says otherwise: functions may call themselves
            self._writes[key] = self.tree is None or any(
                not self._only_read(use, ndim) for use in self._uses(self.tree, name)
            )
        return self._writes[key]

    def fills(self, name: str, ndim: int) -> bool:
        """Return whether it surely writes every element of an output of so many dims."""
        if self.tree is None or any(
            isinstance(n, (ast.Return, ast.Raise, ast.FunctionDef, ast.Lambda, ast.Try))
            for n in ast.walk(self.tree) if n is not self.tree
        ):
            return False
        alone = all(self._only_set(use) for use in self._uses(self.tree, name))
        return alone and _fills(self.tree.body, name, ndim, {})

    def _only_set(self, use: ast.Name) -> bool:
        """Return whether the elements of an output are not read here."""
        up = self.parents[use]
        if isinstance(up, ast.Attribute):
            return up.attr in ("shape", "size", "ndim", "dtype")
        if isinstance(up, ast.Call):
            return isinstance(up.func, ast.Name) and up.func.id == "len"
        return (isinstance(up, ast.Subscript) and up.value is use
                and isinstance(self.parents[up], ast.Assign)
                and isinstance(up.ctx, ast.Store))

    # ---- reading only ----------------------------------------------------------------------------

    @staticmethod
    def _uses(tree: ast.AST, name: str) -> Iterator[ast.Name]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == name:
                yield node

    def _only_read(self, use: ast.AST, ndim: int) -> bool:
        """Return whether nothing is written through an expression that is an array, or part of
        one."""
        up = self.parents[use]
        if isinstance(getattr(use, "ctx", None), (ast.Store, ast.Del)):
            return False
        if isinstance(up, ast.Attribute):
            return isinstance(up.ctx, ast.Load) and up.attr in _READS
        if isinstance(up, ast.Subscript) and up.value is use:
            left = _dims_left(up.slice, ndim)
            if not isinstance(up.ctx, ast.Load):
                return False
            return left == 0 or self._only_read(up, ndim if left is None else left)
        if isinstance(up, (ast.BinOp, ast.UnaryOp, ast.Compare)):
            return True
        if isinstance(up, ast.AugAssign):
            return up.value is use
        if isinstance(up, ast.Assign):  # y[...] = x: the elements; y = x: another name
            return all(isinstance(t, ast.Subscript) for t in up.targets)
        if isinstance(up, ast.Call):
            return use in up.args and self._called(up, up.args.index(use), ndim)
        return isinstance(up, ast.For) and up.iter is use and ndim == 1

    def _called(self, call: ast.Call, number: int, ndim: int) -> bool:
        """Return whether a function leaves its argument alone."""
        if call.keywords:
            return False
        if isinstance(call.func, ast.Attribute):
            return call.func.attr not in _WRITES and isinstance(call.func.value, ast.Name)
        if not isinstance(call.func, ast.Name):
            return False
        callee = self._named(call.func.id)
        if isinstance(callee, types.FunctionType):
            parameters = list(inspect.signature(callee).parameters)
            inner = self if callee is self.function else Reading(callee, self.find)
            return number < len(parameters) and callee is not self.function and not inner.writes(
                parameters[number], ndim
            )
        return callee in (len, min, max, sum, abs, float, int, bool, range, enumerate, zip)

    def _named(self, name: str) -> Any:
        closure = inspect.getclosurevars(self.function).nonlocals
        scope = {**vars(builtins), **self.function.__globals__, **closure}
        return scope.get(name)


def _dims_left(index: ast.expr, ndim: int) -> int | None:
    """Return how many dims a subscript leaves; None where that is not seen."""
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    if any(isinstance(i, ast.Starred) or (isinstance(i, ast.Constant) and i.value in (None, ...))
           for i in items):
        return None
    kept = sum(isinstance(i, ast.Slice) for i in items)
    return ndim - len(items) + kept


# ---- filling -------------------------------------------------------------------------------------


def _fills(body: list[ast.stmt], name: str, ndim: int, loops: dict[str, int]) -> bool:
    """Return whether these statements, whatever happens, write every element that the loops around
    them come to. loops: counters, and the dim that each goes through."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            if any(_everywhere(t, name, ndim, loops) for t in statement.targets):
                return True
            for target in statement.targets:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        loops = {k: d for k, d in loops.items() if k != node.id}
        elif isinstance(statement, ast.For):
            inner = dict(loops)
            if isinstance(statement.target, ast.Name):
                dim = _range_over(statement.iter, name, ndim)
                inner.pop(statement.target.id, None)
                if dim is not None:
                    inner[statement.target.id] = dim
            assigned = {n.id for s in statement.body for n in ast.walk(s)
                        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            inner = {k: d for k, d in inner.items() if k not in assigned}
            whole = isinstance(statement.target, ast.Name) and statement.target.id in inner
            if whole and not _leaves(statement) and _fills(statement.body, name, ndim, inner):
                return True
            loops = {k: d for k, d in loops.items() if k not in assigned}
        elif isinstance(statement, ast.If):
            arms = (statement.body, statement.orelse)
            if all(_fills(arm, name, ndim, loops) for arm in arms):
                return True
        if isinstance(statement, (ast.While, ast.If, ast.AugAssign, ast.With)):
            assigned = {n.id for n in ast.walk(statement)
                        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            loops = {k: d for k, d in loops.items() if k not in assigned}
    return False


def _leaves(loop: ast.For) -> bool:
    """Return whether some turn may end before the body does: by a break or a continue of this
    loop."""
    todo: list[ast.AST] = list(loop.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Break, ast.Continue)):
            return True
        if not isinstance(node, (ast.For, ast.While)):
            todo += ast.iter_child_nodes(node)
        else:
            todo += node.orelse
    return bool(loop.orelse)


def _everywhere(target: ast.expr, name: str, ndim: int, loops: dict[str, int]) -> bool:
    """Return whether it is out[i, j] with counters that go through these dims, or out[:]; of an
    output of single elements, out[0]."""
    if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
            and target.value.id == name):
        return False
    index = target.slice
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    if ndim == 0:
        return len(items) == 1 and isinstance(items[0], ast.Constant) and items[0].value == 0
    if len(items) > ndim:
        return False
    for d, item in enumerate(items):
        if isinstance(item, ast.Slice):
            if item.lower or item.upper or item.step:
                return False
        elif not (isinstance(item, ast.Name) and loops.get(item.id) == d):
            return False
    return True


def _range_over(e: ast.expr, name: str, ndim: int) -> int | None:
    """Return d of range(out.shape[d]) or range(len(out))."""
    if not (isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id in (
        "range", "prange") and len(e.args) == 1):
        return None
    n = e.args[0]
    if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "len":
        same = len(n.args) == 1 and isinstance(n.args[0], ast.Name) and n.args[0].id == name
        return 0 if same else None
    if not (isinstance(n, ast.Subscript) and isinstance(n.value, ast.Attribute)
            and n.value.attr == "shape" and isinstance(n.value.value, ast.Name)
            and n.value.value.id == name and isinstance(n.slice, ast.Constant)):
        return None
    d = n.slice.value
    return d % ndim if isinstance(d, int) and -ndim <= d < ndim else None
