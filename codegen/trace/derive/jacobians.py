"""Matrices of derivatives: jacobian (jacrev), jacfwd, hessian, as jax has them.

A Jacobian is a way back, or forward, mapped by spmd.vmap over the unit vectors of results, or of
arguments. Always holds: what is differentiated runs once for all unit vectors of a result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from codegen.errors import UsageError
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array
from codegen.trace.batching.vmap import vmap
from codegen.trace.context import eager_current
from codegen.trace.control.conversion import as_called
from codegen.trace.derive.arguments import (
    check_function,
    check_numbers,
    float_of,
    numbers_of,
    pair_of,
)
from codegen.trace.derive.derivatives import jvp, vjp
from codegen.trace.derive.eagerly import Held
from codegen.trace.number import number
from codegen.trace.numpy.creation import eye, zeros
from codegen.trace.on_numpy import is_outside, on_numpy
from codegen.trace.state import fill, flatten, leaf_type


def jacobian(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
) -> Callable[..., Any]:
    """Return a function that gives all derivatives of f's results by its arguments, found from the
    results back: as jax.jacobian, which is jax.jacrev.

    - f returns an array of real floats, or any nest of them; with has_aux, a pair of that and
      anything else, which is handed on: `jacobian, aux`.
    - argnums: which arguments it is differentiated by: a number, or several.

    What comes back has the structure of f's result, and in the place of each array of shape s the
    structure of the argument (a tuple of them for several argnums), with an array of shape
    s + t for each array of shape t. If the first dim of a result is split, so is that of its
    Jacobian.

    Use it where f has fewer results than arguments; `jacfwd` where it has more. UsageError where a
    result is no real float.

    Example::

        @spmd.program
        def squares():
            x = spmd.input("x", (3,), np.float64, default=lambda i: i)
            return spmd.jacobian(lambda x: x**2)(x)

        rows = spmd.build(squares).run(ranks=2).tolist()
        print(rows)    # [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0]]
    """
    def back(f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        numbers, kept = _numbers("spmd.jacobian", argnums, args), list[Any]()

        def loss(*arrays: Any) -> Any:
            returned = as_called(f)(*_with(args, numbers, arrays), **kwargs)
            if has_aux:
                returned, aux = pair_of(returned)
                kept.append(aux)
            return returned

        value, way = vjp(loss, *_primals("spmd.jacobian", numbers, args))
        tree, leaves = flatten(value)
        leaves = [_real(leaf, path) for leaf, path in zip(leaves, tree.paths())]
        parts = []
        for k, leaf in enumerate(leaves):
            def of_unit(unit: Any, k: int = k) -> Any:
                unit_cotangents = [unit if j == k else zeros(x.shape, x.dtype)
                                   for j, x in enumerate(leaves)]
                return way(fill(tree, iter(unit_cotangents), fresh=True))

            found_tree, rows = flatten(vmap(of_unit)(_units(leaf)))
            rows = [x if x is None else x.reshape((*leaf.shape, *x.shape[1:])) for x in rows]
            parts.append(_single(fill(found_tree, iter(rows), fresh=True), argnums))
        jacobians = fill(tree, iter(parts), fresh=True)
        return (jacobians, kept[-1]) if has_aux else jacobians

    return _transform("spmd.jacobian", f, back, argnums)


jacrev = jacobian


def jacfwd(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return the same function as `jacobian`, computed by forward-mode derivatives: as jax.jacfwd.

    f runs once for each array that it is differentiated by; nothing is kept for a way back.

    Example::

        @spmd.program
        def powers():
            x = spmd.input("x", (), np.float64, default=lambda: 2.0)
            return spmd.jacfwd(lambda x: x ** np.arange(4))(x)

        print(spmd.build(powers).run(ranks=2))    # [ 0.  1.  4. 12.]
    """
    def forward(f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        numbers = _numbers("spmd.jacfwd", argnums, args)
        primals = _primals("spmd.jacfwd", numbers, args)
        in_tree, leaves = flatten(primals)

        def of_primals(*arrays: Any) -> Any:
            return as_called(f)(*_with(args, numbers, arrays), **kwargs)

        parts: list[Any] = []
        out_tree = None
        for k, leaf in enumerate(leaves):
            if leaf is None:
                parts.append(None)
                continue

            def along_unit(unit: Any, k: int = k) -> Any:
                unit_tangents = [x if x is None else unit if j == k else zeros(x.shape, x.dtype)
                         for j, x in enumerate(leaves)]
                tangents = fill(in_tree, iter(unit_tangents), fresh=True)
                value, change = jvp(of_primals, primals, tangents)
                tree, results = flatten(value)
                for x, path in zip(results, tree.paths(), strict=True):
                    _real(x, path)
                return change

            out_tree, columns = flatten(vmap(along_unit, out_axes=-1)(_units(leaf)))
            parts.append([x.reshape((*x.shape[:-1], *leaf.shape)) for x in columns])
        if out_tree is None:
            raise UsageError("spmd.jacfwd: there is nothing to differentiate by",
                             place=user_place(), expected="an array of floats", found="None")
        jacobians = []
        for j, _ in enumerate(out_tree.paths()):
            entries = [p if p is None else p[j] for p in parts]
            jacobians.append(_single(fill(in_tree, iter(entries), fresh=True), argnums))
        return fill(out_tree, iter(jacobians), fresh=True)

    return _transform("spmd.jacfwd", f, forward, argnums)


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a function that gives all second derivatives of f's result: `jacfwd(jacobian(f))`, as
    jax.hessian.

    f returns a real float, or arrays of them. For one of shape () and an argument of shape t the
    result has the shape t + t; for nests it is a nest of nests.

    `jvp(grad(f), (x,), (v,))[1]` gives its product with a vector, and never makes the matrix.

    Example::

        @spmd.program
        def cubes():
            x = spmd.input("x", (2,), np.float64, default=lambda i: i + 1)
            return spmd.hessian(lambda x: np.sum(x**3) + x[0] * x[1])(x)

        print(spmd.build(cubes).run(ranks=2).tolist())    # [[6.0, 1.0], [1.0, 12.0]]
    """
    check_function("spmd.hessian", f)
    return jacfwd(jacobian(f, argnums), argnums)


def _transform(
    function: str, f: Callable[..., Any], in_program: Callable[..., Any], argnums: Any
) -> Callable[..., Any]:
    """Return the function that users call: in a program, in an eager run, or outside of both."""
    check_function(function, f)
    numbers_of(function, argnums)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_outside():
            return on_numpy(call, args, kwargs)
        runtime = eager_current()
        if runtime is not None:
            return Held(f, args, kwargs).eagerly(runtime, in_program)
        return in_program(f, args, kwargs)

    functools.update_wrapper(call, f, ("__name__", "__doc__"), ())
    return call


def _numbers(function: str, argnums: Any, args: Sequence[Any]) -> tuple[int, ...]:
    numbers = numbers_of(function, argnums)
    check_numbers(function, numbers, args)
    return numbers


def _primals(function: str, numbers: Sequence[int], args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments that a function is differentiated by, their leaves as arrays of
    floats."""
    primals = []
    for k in numbers:
        tree, leaves = flatten(args[k])
        paths = [f"{k % len(args)}{path}" for path in tree.paths()]
        primals.append(fill(tree, iter([x if x is None else float_of(x, function, path)
                                     for x, path in zip(leaves, paths, strict=True)]), fresh=True))
    return tuple(primals)


def _with(args: Sequence[Any], numbers: Sequence[int], replacements: Sequence[Any]) -> list[Any]:
    """Return the arguments with those at `numbers` replaced."""
    out = list(args)
    for k, x in zip(numbers, replacements, strict=True):
        out[k] = x
    return out


def _single(entries: Any, argnums: Any) -> Any:
    """Return the only entry if argnums is one number, else the tuple of all entries."""
    return entries if isinstance(argnums, (tuple, list)) else entries[0]


def _real(leaf: Any, path: str) -> Array:
    """Return a result as an array of real floats. Raise UsageError for any other."""
    array = None if leaf_type(leaf) is None else as_array(leaf)
    if array is None or array.type.dtype.kind != "f":
        raise UsageError(f"a Jacobian is that of real floats, and result{path} is none",
                         place=user_place(), expected="a function that returns arrays of floats",
                         found=type(leaf).__name__ if array is None else str(array.type),
                         remedy="z.real and z.imag of complex results; counts and truth values "
                         "have no derivative")
    return array


def _units(x: Array) -> Any:
    """Return the unit vectors of an array's shape, stacked along a new dim 0, which is split as the
    first dim of the array."""
    size = number(expr.product(x.extents))
    layout = x.type.layout
    entry = layout[0] if layout and not x.context.rank_view else ()
    units = eye(size, dtype=x.dtype, layout=(entry, None) if entry else None)
    return units.reshape((size, *x.shape))
