"""Loops and branches as functions: fori_loop, while_loop, cond, switch, scan, as in jax.lax.

Always holds: arguments are by value; what a function of the user returns has the structure, shapes
and dtypes of what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import ShapeError, UsageError
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, as_value, full_value, is_traced, wrap
from codegen.trace.context import Context, require_context
from codegen.trace.control.branches import captured_switch
from codegen.trace.control.captured_loops import Counter, Loop
from codegen.trace.control.conversion import checked_callback
from codegen.trace.control.ranges import spmd_range
from codegen.trace.control.regions import condition
from codegen.trace.control.turns import captured_for, passes
from codegen.trace.number import expr_of, number
from codegen.trace.state import Code, LeafType, Names, Tree, fill, flatten, leaf_type

_STATE = "init"  # the hidden variable that a loop carries; errors name it


def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """Repeat `state = body(i, state)` for i from lower to upper - 1, from init; return the state.

    state: an array, or any nest of tuples, lists and dicts of arrays; body returns one of the same
    structure, shapes and dtypes (CarryError otherwise). Bounds as of spmd.range.

    >>> fori_loop(0, 3, lambda i, s: s + i, x)
    [3.], [4.], [5.], [6.]
    """
    return changing_loop(lower, upper, body, init, "")


def changing_loop(
    lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any, changes: str,
) -> Any:
    """Return the state after a loop, as fori_loop does, whose first capture takes for granted how
    turns change the state. changes: as of Code: how each turn changes all of it."""
    require_context("spmd.fori_loop")
    body = checked_callback(body, "the body of spmd.fori_loop", "i", "state")
    names = _holding(init, body)
    code = Code(names, (_STATE,), changes=changes)
    for i in captured_for(spmd_range(lower, upper), code, "i"):
        names.put(_STATE, body(i, names.get(_STATE)))
    return names.get(_STATE)


def while_loop(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """Repeat `state = body(state)` while `cond(state)` holds, from init; return the state.

    state: as of fori_loop. cond returns a bool, or an array of shape ().

    >>> while_loop(lambda s: s[0] < 10, lambda s: 2 * s + 1, x)
    [15.], [15.], [11.], [15.]
    """
    context = require_context("spmd.while_loop")
    cond = checked_callback(cond, "the condition of spmd.while_loop", "state")
    body = checked_callback(body, "the body of spmd.while_loop", "state")
    names = _holding(init, cond, body)
    loop = Loop(context, Code(names, (_STATE,)))
    for _ in passes(loop, lambda: None):
        names.put(_STATE, body(names.get(_STATE)))
    counter = Counter(context, "pass", expr.const(0), None, expr.const(1))
    loop.finish(counter, lambda: cond(names.get(_STATE)))
    return names.get(_STATE)


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *args: Any) -> Any:
    """Return `true_fun(*args)` if pred holds, else `false_fun(*args)`; only that one runs.

    pred: a bool, a number or an array of shape (). Both functions return the same structure, shapes
    and dtypes (CarryError otherwise). On the index, ranks run different functions; an exchange
    inside is then refused, unless it is proved to match (MatchingError).

    >>> cond(axis_index("r") < 2, lambda a: a + 10, lambda a: -a, x)
    [10.], [11.], [-2.], [-3.]
    """
    require_context("spmd.cond")
    if not is_traced(pred):
        return _arms((true_fun if pred else false_fun,), args)[0]()
    return captured_switch(condition(pred, "cond"), _arms((false_fun, true_fun), args))


def switch(index: Any, branches: Sequence[Callable[..., Any]], *args: Any) -> Any:
    """Return `branches[index](*args)`; an index beyond the ends is clamped.

    index: an integer, a number or an integer array of shape (). All else as of cond.

    >>> switch(axis_index("r"), [lambda a: a, lambda a: a * 10, lambda a: a * 100], x)
    [0.], [10.], [200.], [300.]
    """
    context = require_context("spmd.switch")
    if not branches:
        raise UsageError("spmd.switch needs at least one branch")
    e = expr_of(index)
    if e is not None and e.is_const:
        return _arms(branches, args)[min(max(e.value, 0), len(branches) - 1)]()
    on: Any = e
    if e is None:
        array = as_array(index)
        if array.ndim or array.type.dtype.kind not in "biu":
            raise ShapeError("the index of spmd.switch must be an integer",
                             expected="an integer, a number or a 0-d integer array",
                             found=str(array.type))
        on = as_value(context, array, dtypes.INT64)
    elif len(branches) == 2:
        on = expr.ge(e, 1)
    if isinstance(on, expr.Expr) and on.is_const:
        return switch(on.value, branches, *args)
    return captured_switch(on, _arms(branches, args))


def scan(
    f: Callable[[Any, Any], Any], init: Any, xs: Any = None, length: Any = None,
    reverse: bool = False,
) -> Any:
    """Call `carry, y = f(carry, x)` for each row x of xs; return the last carry and all y, stacked.

    xs: arrays with the same number of rows, in any nest; or None, and `length` turns. reverse: from
    the last row to the first; a y stands where its row does. The carry keeps its structure, shapes
    and dtypes (CarryError otherwise). UsageError where f returns no pair.

    >>> scan(lambda total, row: (total + row, total), x[0], np.arange(4))[1]
    [0. 0. 1. 3.], [1. 1. 2. 4.], [2. 2. 3. 5.], [3. 3. 4. 6.]
    """
    context = require_context("spmd.scan")
    f = checked_callback(f, "the function of spmd.scan", "carry", "x")
    xs_tree, leaves = flatten(_by_value(xs))
    rows = [as_array(x) if isinstance(x, np.ndarray) else x for x in leaves]
    count = _length(rows, length)

    def row(k: Any) -> Any:
        return number(expr.as_expr(expr_of(count) or 0) - 1) - k if reverse else k

    def step(names: Names, k: Any) -> Any:
        position = row(k)
        elements = [None if r is None else _row(r, position) for r in rows]
        x = fill(xs_tree, iter(elements), fresh=True)
        pair = f(names.get(_STATE), x)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise UsageError("the function given to spmd.scan must return a pair",
                             expected="return carry, y", found=type(pair).__name__)
        names.put(_STATE, pair[0])
        return pair[1]

    ys_tree, types = _types_of_rows(context, _holding(init, f), count, step)
    stacks = [_stack(context, t, count) for t in types]
    names = _holding(init, f)
    for k in captured_for(spmd_range(count), Code(names, (_STATE,)), "k"):
        for stack, y in zip(stacks, flatten(step(names, k))[1]):
            if stack is not None:
                stack[row(k)] = y
    return names.get(_STATE), fill(ys_tree, iter(stacks), fresh=True)


def _row(x: Array, index: Any) -> Any:
    """Return a row of an array; zeros of the type that it would have where there is none."""
    if x.extents[0] != 0:
        return x[index]
    return wrap(x.context, full_value(x.context, 0, x.type.dtype, x.extents[1:]), scalar=False)


def _types_of_rows(
    context: Context, names: Names, count: Any, step: Callable[[Names, Any], Any]
) -> tuple[Tree, list[LeafType | None]]:
    """Return the structure and the types of f's result for one row, once the types of the carry are
    stable; the ops of this capture are dropped."""
    loop = Loop(context, Code(names, (_STATE,)))
    end = expr_of(count)
    counter = Counter(context, "k", expr.const(0), end, expr.const(1))
    result_types: tuple[Tree, list[LeafType | None]] | None = None
    for k in passes(loop, lambda: counter.value):
        tree, leaves = flatten(step(names, k))
        result_types = tree, [leaf_type(y) for y in leaves]
    assert result_types is not None
    loop.mark.restore_declared(context)
    return result_types


def _stack(context: Context, t: LeafType | None, count: Any) -> Array | None:
    if t is None:
        return None
    shape = (expr.as_expr(expr_of(count) or 0), *t.shape)
    return wrap(context, full_value(context, 0, t.dtype, shape), scalar=False)


def _length(rows: Sequence[Any], length: Any) -> Any:
    counts = [r.shape[0] for r in rows if r is not None]
    counts += [] if length is None else [length]
    if not counts:
        raise UsageError("spmd.scan needs xs or length=")
    for c in counts[1:]:
        if not expr.equal(expr_of(c) or 0, expr_of(counts[0]) or 0):
            raise ShapeError("spmd.scan: the arrays in xs have different numbers of rows",
                             expected=str(counts[0]), found=str(c))
    return counts[0]


def _holding(init: Any, *functions: Callable[..., Any]) -> Names:
    names = Names(lambda: ())
    names.hidden[_STATE] = _by_value(init)
    names.roots += [(getattr(f, "__name__", "a function"), f) for f in functions]
    return names


def _by_value(x: Any) -> Any:
    """Return a tree with arrays of its own in the place of each array."""
    tree, leaves = flatten(x)
    copies = [
        wrap(leaf.context, leaf.read(), leaf.weak, leaf.scalar) if isinstance(leaf, Array) else leaf
        for leaf in leaves
    ]
    return fill(tree, iter(copies), fresh=True)


def _arms(functions: Sequence[Callable[..., Any]], args: Sequence[Any]) -> list[Callable[[], Any]]:
    def arm(function: Callable[..., Any]) -> Callable[[], Any]:
        names = [f"argument {k}" for k in range(len(args))]
        called = checked_callback(function, "a branch", *names)
        return lambda: called(*map(_by_value, args))

    return [arm(f) for f in functions]
