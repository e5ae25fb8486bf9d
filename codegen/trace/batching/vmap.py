"""spmd.vmap: a function of one member, for all members of a batch at once.

Always holds: the function is captured once, of one member; what it does becomes ops on all of them.
In an eager run it is called for each member: that is what it means.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.errors import UsageError
from codegen.ir.graph import Value
from codegen.mesh import LayoutEntry
from codegen.ops import Transpose
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, as_value, wrap
from codegen.trace.batching.axes import (
    Axis,
    axes_of_arguments,
    in_range,
    names_of,
    one_extent,
    spread,
)
from codegen.trace.batching.batch import Batch, mapped
from codegen.trace.context import Context, eager_current
from codegen.trace.control.conversion import as_called
from codegen.trace.control.outside import Outside
from codegen.trace.control.regions import Mark
from codegen.trace.derive.eagerly import eagerly
from codegen.trace.number import Number, expr_of
from codegen.trace.on_numpy import ARRAY, on_numpy
from codegen.trace.state import Tree, fill, flatten, leaf_type
from codegen.user.absent import Absent

_ARRAYS = (Array, Number, Absent, np.ndarray, np.generic, bool, int, float, complex)


def vmap(
    f: Callable[..., Any] | None = None, in_axes: Any = 0, out_axes: Any = 0, *,
    axis_size: int | None = None,
) -> Any:
    """Return a function of all members of a batch, made of a function of one member: as jax.vmap.

    - in_axes: which dim of each argument counts members: an integer (-1 is the last dim), None for
      an argument that all members share, or a tuple of these, one for each argument. An argument
      that is a nest of arrays has one entry for all of them, or a nest of entries. Arguments by
      name are mapped along dim 0.
    - out_axes: which dim of each result counts members, likewise. None: the result is the same for
      all members, and is returned once.
    - axis_size: how many members there are, where no argument says it.

    f is written for one member and captured once; what it does is done for all members at once, and
    ranks share them where the mapped dim is split. Each member has its own course through loops and
    branches: a loop makes turns until all members have left it, and those that have keep what they
    have; of a branch both sides are computed and selected from. `spmd.random` draws from its seed:
    members with one seed draw the same numbers, so map over seeds (or streams).

    ShapeError where arrays have different numbers of members; UsageError for a dim that is not
    there, and where f writes into an array from around it.

    Example::

        @spmd.program
        def distances():
            x = spmd.input("x", (4, 2), np.float64, layout=("x", None), default=lambda i, j: i + j)
            apart = lambda a, b: np.sqrt(np.sum((a - b) ** 2))
            return spmd.vmap(apart, in_axes=(0, None))(x, x[0])

        print(spmd.build(distances).run(ranks=2).round(2))    # [0.   1.41 2.83 4.24]
    """
    if f is None:
        return functools.partial(vmap, in_axes=in_axes, out_axes=out_axes, axis_size=axis_size)
    if not callable(f):
        raise UsageError("spmd.vmap is given no function", place=user_place(),
                         expected="spmd.vmap(f), and then a call of that with all members",
                         found=type(f).__name__, remedy="spmd.vmap(lambda x: x @ w)(xs)")
    function = f

    def call(*args: Any, **kwargs: Any) -> Any:
        context = Context.current()
        if context is not None:
            return _Call(function, in_axes, args, kwargs, axis_size).traced(context, out_axes)
        runtime = eager_current()
        if runtime is None:
            return on_numpy(call, args, kwargs)
        batch = _Call(function, in_axes, args, kwargs, axis_size)
        if batch.n == 0:  # nobody knows what a member would give
            return eagerly(runtime, lambda *a: call(*a, **kwargs), args)
        return batch.eager(runtime, out_axes)

    functools.update_wrapper(call, function)
    return call


@dataclass
class _Leaf:
    """A leaf of an argument. axis: the dim that counts members; None: all share it."""

    content: Any
    axis: Axis
    name: str


class _Call:
    """The arguments of a call, and which dims of them count members."""

    def __init__(
        self, f: Callable[..., Any], in_axes: Any, args: Sequence[Any], kwargs: dict[str, Any],
        axis_size: int | None,
    ) -> None:
        self.f = f
        names = [*names_of(f, len(args)), *kwargs]
        axes = axes_of_arguments(in_axes, args, names[: len(args)])
        arguments = [*args, *kwargs.values()]
        self.keywords = tuple(kwargs)
        self.trees: list[Tree] = []
        self.leaves: list[_Leaf] = []
        for k, (arg, name) in enumerate(zip(arguments, names, strict=True)):
            tree, leaves = flatten(arg)
            mine = axes[k] if k < len(args) else [0] * len(leaves)
            self.trees.append(tree)
            self.leaves += [self._leaf(leaf, axis, name + path)
                            for leaf, axis, path in zip(leaves, mine, tree.paths(), strict=True)]
        extents = [(leaf.name, leaf.axis, expr.as_expr(expr_of(leaf.content.shape[leaf.axis]) or 0))
                   for leaf in self.leaves if leaf.axis is not None]
        self.n: Expr = one_extent(extents, axis_size)

    @staticmethod
    def _leaf(content: Any, axis: Axis, name: str) -> _Leaf:
        if axis is None or content is None:
            return _Leaf(content, None, name)
        if not isinstance(content, _ARRAYS):
            raise UsageError(f"in_axes: {name} is no array", place=user_place(),
                             expected="an array, of which a dim counts members",
                             found=type(content).__name__,
                             remedy=f"None in in_axes for {name}, which all members share")
        return _Leaf(content, in_range(int(axis), np.ndim(content), name), name)

    def called(self, f: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        """Call the function with these leaves in fresh containers, and return its result."""
        filled = iter(leaves)
        arguments = [fill(tree, filled, fresh=True) for tree in self.trees]
        count = len(arguments) - len(self.keywords)
        return f(*arguments[:count], **dict(zip(self.keywords, arguments[count:])))

    # ---- in a program --------------------------------------------------------------------------

    def traced(self, context: Context, out_axes: Any) -> Any:
        own = [leaf for leaf in self.leaves if leaf.axis is not None]
        arrays = [as_array(leaf.content) for leaf in own]
        stacked = [_first(context, a.read(), leaf.axis) for a, leaf in zip(arrays, own)]
        kept: list[Any] = []

        def member(values: Sequence[Value]) -> list[Value]:
            before, mark = context.next_serial(), Mark.of(context)
            outside = Outside("member", [(getattr(self.f, "__name__", "the function"), self.f)])
            context.bodies.append(outside)
            with context.watching_writes() as log:
                context.members += 1
                try:
                    filled = True  # a cache: then the function is called once more
                    while filled:
                        context.blocks[-1].forget()
                        wrapped = iter([wrap(context, v, a.weak) for v, a in zip(values, arrays)])
                        returned = self.called(as_called(self.f), [
                            leaf.content if leaf.axis is None else next(wrapped)
                            for leaf in self.leaves])
                        filled = outside.check()
                finally:
                    context.members -= 1
                    context.bodies.remove(outside)
                tree, leaves = flatten(returned)
                kept.extend([tree, [x if leaf_type(x) is None else ARRAY for x in leaves]])
                results = [as_value(context, x) for x in leaves if leaf_type(x) is not None]
                types = (leaf_type(x) for x in leaves)
                kept.append([t.weak for t in types if t is not None])
            if any(s.serial < before for s in log):
                raise UsageError("a function under spmd.vmap writes into an array from around it",
                                 place=user_place(), expected="a function that returns what it "
                                 "makes", remedy="return it; or write behind the call")
            mark.forget_later(context, "function under spmd.vmap", user_place(),
                              "return it from that function")
            return results

        entry = self._entry(stacked)
        mapped_results = mapped(context, self.n, entry, [(v, True) for v in stacked], member)
        tree, others, weak = kept
        return self._returned(context, out_axes, tree, others, list(zip(mapped_results, weak)),
                              entry)

    @staticmethod
    def _entry(stacked: Sequence[Value]) -> LayoutEntry:
        """Return the mesh axes that split the members: those of the first array that is split
        along its dim of members."""
        return next((v.type.layout[0] for v in stacked if v.type.layout and v.type.layout[0]), ())

    def _returned(
        self, context: Context, out_axes: Any, tree: Tree, others: Sequence[Any],
        results: Sequence[tuple[tuple[Value, bool], bool]], entry: LayoutEntry,
    ) -> Any:
        axes = list(spread(out_axes, tree, "out_axes"))
        batch, remaining, out = Batch(context, self.n, entry, {}), iter(results), []
        for other, axis, path in zip(others, axes, tree.paths(), strict=True):
            if other is not ARRAY:
                out.append(other)
                continue
            (value, own), weak = next(remaining)
            if axis is not None:
                value = value if own else batch.spread(value)
                to = in_range(int(axis), value.type.ndim, f"result{path}", "out_axes")
                value = batch.moved(value, 0, to)
            elif own:
                raise _differs(path)
            out.append(wrap(context, value, weak))
        return fill(tree, iter(out), fresh=True)

    # ---- in an eager run -----------------------------------------------------------------------

    def eager(self, runtime: Any, out_axes: Any) -> Any:
        """Call the function for each member and stack the results."""
        own = {id(leaf): _members(leaf) for leaf in self.leaves if leaf.axis is not None}
        every = []
        for k in range(self.n.value):
            leaves = [own[id(leaf)][k] if leaf.axis is not None else leaf.content
                      for leaf in self.leaves]
            every.append(flatten(self.called(self.f, leaves)))
        tree, first = every[0]
        layouts = [x.layout for x in (leaf.content for leaf in self.leaves if leaf.axis == 0)
                   if getattr(x, "layout", None)]
        entry = layouts[0][0] if layouts and isinstance(layouts[0], tuple) else None
        axes, out = list(spread(out_axes, tree, "out_axes")), []
        for j, (axis, path) in enumerate(zip(axes, tree.paths(), strict=True)):
            rows = [leaves[j] for _, leaves in every]
            if leaf_type(first[j]) is None and not isinstance(first[j], Absent):
                out.append(first[j])
            elif axis is None:
                if any(not np.array_equal(rows[0], row) for row in rows[1:]):
                    raise _differs(path)
                out.append(rows[0])
            else:
                to = in_range(int(axis), np.ndim(rows[0]) + 1, f"result{path}", "out_axes")
                array, layout = np.stack(rows, to), [None] * np.ndim(rows[0])
                layout.insert(to, entry)
                out.append(runtime.eager_array(array, tuple(layout)))
        return fill(tree, iter(out), fresh=True)


def _members(leaf: _Leaf) -> Any:
    """Return a copy of an array whose dim 0 counts members; a member may write into its part."""
    assert leaf.axis is not None
    content: Any = leaf.content
    if not isinstance(content, Absent):
        content = np.array(content, subok=True)
    return np.moveaxis(content, leaf.axis, 0)


def _first(context: Context, value: Value, dim: Axis) -> Value:
    """Return a value with one of its dims moved to the front."""
    if not dim:
        return value
    order = (dim, *(d for d in range(value.type.ndim) if d != dim))
    return context.emit_one(Transpose(order), value)


def _differs(path: str) -> UsageError:
    return UsageError(f"out_axes is None for result{path}, of which each member has its own",
                      place=user_place(), expected="a dim that counts members",
                      found="a result that follows from what is mapped",
                      remedy="out_axes=0; None is for what all members share")


