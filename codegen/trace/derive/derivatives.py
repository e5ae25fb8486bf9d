"""Derivatives of functions, as jax has them: grad, value_and_grad, vjp, jvp; custom_vjp.

Always holds: what is differentiated runs once; its derivative is more ops of the same program, so
that partitioning, proofs and layouts are those of any program.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from codegen import ops
from codegen.errors import InternalError, UsageError
from codegen.graph.variance import NONE, Axes
from codegen.ir.graph import Op, Value
from codegen.places import user_place
from codegen.trace.array import Array, as_value, wrap
from codegen.trace.context import Context, eager_current, require_context
from codegen.trace.control.conversion import as_called, convert
from codegen.trace.control.regions import laid_as
from codegen.trace.derive import forward
from codegen.trace.derive.arguments import (
    check_function,
    check_numbers,
    check_pairs,
    cotangents_of,
    float_of,
    numbers_of,
    pair_of,
    paired,
    scalar_of,
)
from codegen.trace.derive.eagerly import Held, own_args, without
from codegen.trace.derive.marks import marked
from codegen.trace.derive.reverse import Reverse
from codegen.trace.derive.shares import Shares
from codegen.trace.numpy.derived import defined
from codegen.trace.on_numpy import copied, is_outside, on_numpy
from codegen.trace.ranks.varying import families
from codegen.trace.state import Tree, fill, flatten
from codegen.user.absent import needs_of, stand_ins

T = TypeVar("T")


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
) -> Callable[..., Any]:
    """Return a function that gives f's value and its gradient; call it as you call f.

    - f returns one float, an array of shape (); with has_aux, a pair of that and anything else,
      which is handed on: `(value, aux), gradient`.
    - argnums: which arguments it is differentiated by: a number, or several. Each is an array of
      floats or complex numbers, or any nest of tuples, lists, dicts and objects of them, and the
      gradient has its structure, with None where that has None. By a complex number it is that by
      the real part minus 1j times that by the imaginary part, as in JAX.

    UsageError where f returns something else, or where an argument is no float.

    Example::

        @spmd.program
        def squares():
            x = spmd.input("x", (4,), np.float64, layout=("x",), default=lambda i: i)
            return spmd.value_and_grad(lambda x: np.sum(x**2))(x)

        print(spmd.build(squares).run(ranks=2)[1])    # [0. 2. 4. 6.]
    """
    check_function("spmd.grad", f)
    numbers = numbers_of("spmd.grad", argnums)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_outside():
            return on_numpy(call, args, kwargs)
        runtime = eager_current()
        if runtime is not None:
            held = Held(f, args, kwargs)
            returned = f(*own_args(args, numbers), **kwargs)
            return returned, held.eagerly(
                runtime, lambda f, args, kwargs: grad(f, argnums, has_aux)(*args, **kwargs),
                0 if has_aux else None)
        context = require_context("spmd.grad")
        recording = _Recording(context, "spmd.grad", args, numbers)
        def loss(returned: Any) -> tuple[Any, list[Value]]:
            value, aux = pair_of(returned) if has_aux else (returned, None)
            return (value, aux), [scalar_of(context, value)]

        (value, aux), (out,) = recording.run(f, kwargs, loss)
        gradients = recording.back([(out, recording.reverse.full(1, out))])
        gradient = gradients[0] if isinstance(argnums, int) else tuple(gradients)
        return ((value, aux), gradient) if has_aux else (value, gradient)

    call.__name__ = getattr(f, "__name__", "f")
    call.__doc__ = getattr(f, "__doc__", None)
    return call


def grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False,
) -> Callable[..., Any]:
    """Return a function that gives the gradient of f: as value_and_grad, without the value.

    With has_aux it gives `gradient, aux`.

    Example::

        @spmd.program
        def squares():
            x = spmd.input("x", (4,), np.float64, layout=("x",), default=lambda i: i)
            return spmd.grad(lambda x: np.sum(x**2))(x)

        print(spmd.build(squares).run(ranks=2))    # [0. 2. 4. 6.]
    """
    both = value_and_grad(f, argnums, has_aux)

    def call(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    call.__name__ = getattr(f, "__name__", "f")
    return call


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return f's value, and a function that maps cotangents of it to those of the arguments.

    Cotangents are arrays in the structure of f's value; the function returns a tuple. Call it as
    often as you like, in loops and branches too: f is not computed again.

    Example::

        @spmd.program
        def tripled():
            x = spmd.input("x", (4,), np.float64, layout=("x",), default=lambda i: i)
            y, back = spmd.vjp(lambda x: 3 * x, x)
            return back(np.ones(4))[0]

        print(spmd.build(tripled).run(ranks=2))    # [3. 3. 3. 3.]
    """
    check_function("spmd.vjp", f)
    if is_outside():
        kept = copied(primals)
        return on_numpy(lambda *arrays: vjp(f, *arrays)[0], kept), lambda cotangents: on_numpy(
            lambda cotangents, *arrays: vjp(f, *arrays)[1](cotangents), (cotangents, *kept),
            aloud=False)
    runtime = eager_current()
    if runtime is not None:
        held = Held(f, primals)
        return f(*own_args(primals, range(len(primals)))), lambda cotangents: without(
            held.eagerly(runtime, lambda f, args, _: vjp(f, *args)[1](stand_ins(cotangents))),
            needs_of(cotangents))
    context = require_context("spmd.vjp")
    recording = _Recording(context, "spmd.vjp", primals, tuple(range(len(primals))))
    (returned, tree), outs = recording.run(f, {}, recording.leaves)

    def back(cotangents: Any) -> tuple[Any, ...]:
        pairs = paired(context, "cotangents", tree, outs, cotangents)
        return tuple(recording.back(pairs))

    return returned, back


def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """Return `f(*primals)`, and its derivative in the direction of the tangents.

    `tangents` has one entry for each primal, in the same structure.

    It goes forward with f and keeps nothing for it; where f exchanges in a shard_map, the way back
    is gone back. Of grad(f) it gives the product of the Hessian with a vector:
    `jvp(grad(f), (x,), (v,))[1]`.

    Example::

        @spmd.program
        def cubes():
            x = spmd.input("x", (4,), np.float64, layout=("x",), default=lambda i: i)
            return spmd.jvp(lambda x: x**3, (x,), (np.ones(4),))[1]

        print(spmd.build(cubes).run(ranks=2))    # [ 0.  3. 12. 27.]
    """
    check_function("spmd.jvp", f)
    check_pairs("spmd.jvp", primals, tangents)
    if is_outside():
        changed: tuple[Any, Any] = on_numpy(jvp, (f, primals, tangents))
        return changed
    runtime = eager_current()
    if runtime is not None:
        held = Held(f, primals)
        return f(*own_args(primals, range(len(primals)))), without(
            held.eagerly(runtime, lambda f, args, _: jvp(f, args, stand_ins(tangents))[1]),
            needs_of(tangents))
    context = require_context("spmd.jvp")
    recording = _Recording(context, "spmd.jvp", primals, tuple(range(len(primals))))
    (returned, tree), outs = recording.run(f, {}, recording.leaves)
    recorded = recording.recorded()
    changes = (_forward if forward.can(context, recorded) else _transpose_of_transpose)(
        context, recording, recorded, outs, tangents)
    out_tangents = [wrap(context, laid_as(context, c, v.type.layout))
                    for c, v in zip(changes, outs)]
    return returned, fill(tree, iter(out_tangents), fresh=True)


def _forward(
    context: Context, recording: _Recording, recorded: Sequence[Op], outs: Sequence[Value],
    tangents: Sequence[Any],
) -> list[Value]:
    """Return the tangents of the outs, by forward-mode derivatives of the recorded ops."""
    block, pairs, begins = recording.block, [], iter(recording.begins)
    del block.ops[len(block.ops) - len(recorded) :]
    later, block.memo = block.memo, {}  # ops are emitted again: no later value may be used again
    for (tree, leaves), tangent in zip(recording.trees, tangents, strict=True):
        values = [None if leaf is None else next(begins) for leaf in leaves]
        pairs += paired(context, "tangents", tree, values, tangent)
    context.differentiated = True
    through = forward.Forward(context, dict(pairs))
    through.through(recorded, outs)
    block.memo.update(later)
    return [through.of(v) for v in outs]


def _transpose_of_transpose(
    context: Context, recording: _Recording, recorded: Sequence[Op], outs: Sequence[Value],
    tangents: Sequence[Any],
) -> list[Value]:
    """Return the tangents of the outs, by transposing the reverse pass."""
    nothing = [wrap(context, recording.reverse.zeros(v.type), scalar=False) for v in outs]
    inner = _Recording(context, "spmd.jvp", [nothing], (0,))
    context.recordings += 1
    try:
        context.varying.update(_variance_of_cotangents(context, outs, inner.begins))
        gradients = recording.back(list(zip(outs, inner.begins)))
    finally:
        context.recordings -= 1
    pairs = []
    for back, tangent in zip(gradients, tangents, strict=True):
        mine, leaves = flatten(back)
        values = [None if leaf is None else leaf.read() for leaf in leaves]
        pairs += paired(context, "tangents", mine, values, tangent)
    (changes,) = inner.back(pairs, recording.begins)
    return [c.read() for c in changes]


def _variance_of_cotangents(
    context: Context, outs: Sequence[Value], begins: Sequence[Value]
) -> dict[Value, Axes]:
    """Return the axes over which cotangents vary that are not known yet: those of their values."""
    if not context.rank_view:
        return {}
    rank_families = families(context)
    return {b: rank_families.varies(v) for v, b in zip(outs, begins, strict=True)}


class custom_vjp:
    """A decorator for a function with a gradient that you write, as jax.custom_vjp.

    `f.defvjp(fwd, bwd)`: fwd takes f's arguments and returns a pair: what f returns, and what bwd
    needs. bwd takes what it needs and the cotangents of f's result, and returns a tuple of those of
    the arguments (None where there is none).

    Example::

        @spmd.custom_vjp
        def rounded(x):
            return np.round(x)

        rounded.defvjp(lambda x: (np.round(x), None), lambda _, g: (g,))

        @spmd.program
        def straight_through():
            x = spmd.input("x", (4,), np.float64, layout=("x",), default=lambda i: i / 2)
            return spmd.grad(lambda x: np.sum(rounded(x) ** 2))(x)

        print(spmd.build(straight_through).run(ranks=2))    # [0. 0. 2. 4.]
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.in_fwd = False
        functools.update_wrapper(self, f)

    def with_copies(self, copied: Callable[[Any], Any]) -> custom_vjp:
        """Return this function made of copies of f and fwd; bwd runs later, and reads what holds
        then."""
        new = copy.copy(self)
        new.f, new.fwd = copied(self.f), copied(self.fwd)
        return new

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        self.fwd, self.bwd = fwd, bwd

    def __call__(self, *args: Any) -> Any:
        context = Context.current()
        if context is None:
            return self.f(*args)
        if not context.recordings:
            return as_called(self.f)(*args)
        if self.fwd is None or self.bwd is None:
            raise UsageError(f"{self.f.__name__} has no way back yet", place=user_place(),
                             expected=f"{self.f.__name__}.defvjp(fwd, bwd) before it is "
                             "differentiated")
        tree, leaves = flatten(args)
        leaves = [marked(context, leaf, ops.Reshape) for leaf in leaves]  # no closure has these
        fwd, bwd = convert(self.fwd), convert(self.bwd)

        def forward(*arrays: Any) -> Any:
            before, self.in_fwd = self.in_fwd, True
            try:
                return pair_of(fwd(*fill(tree, iter(arrays), fresh=True)), "fwd")
            finally:
                self.in_fwd = before

        def back(inputs: Sequence[Any], outputs: Any, cotangents: Sequence[Any]) -> Sequence[Any]:
            out_tree, outs = flatten(outputs[0])
            parts = iter(cotangents)
            full = [next(parts) if isinstance(x, Array) else 0.0 for x in outs]
            full = [np.zeros_like(x) if g is None else g for x, g in zip(outs, full)]
            returned = bwd(outputs[1], fill(out_tree, iter(full), fresh=True))
            return cotangents_of(self.f, tree, args, returned)

        if not self.in_fwd:
            return defined(context, forward, back, leaves, {}, keeps=True)[0]

        def plain(*arrays: Any) -> Any:
            return as_called(self.f)(*fill(tree, iter(arrays), fresh=True))

        def recompute(
            inputs: Sequence[Any], outputs: Any, cotangents: Sequence[Any]
        ) -> Sequence[Any]:
            return back(inputs, forward(*inputs), cotangents)

        return defined(context, plain, recompute, leaves, {})


class _Recording:
    """A recording of the ops of f on arguments that are marked: it is differentiated by these."""

    def __init__(
        self, context: Context, function: str, args: Sequence[Any], numbers: Sequence[int]
    ) -> None:
        self.context, self.block = context, context.blocks[-1]
        self.args = list(args)
        self.trees: list[tuple[Tree, list[Array | None]]] = []
        check_numbers(function, numbers, args)
        for k in numbers:
            tree, leaves = flatten(args[k])
            named = [f"{k % len(args)}{path}" for path in tree.paths()]
            fresh = [leaf if leaf is None else marked(context, float_of(leaf, function, label),
                                                       ops.Reshape)
                     for leaf, label in zip(leaves, named, strict=True)]
            self.trees.append((tree, fresh))
            self.args[k] = fill(tree, iter(fresh), fresh=True)
        self.begins = [leaf.read() for _, leaves in self.trees for leaf in leaves
                       if leaf is not None]
        self.reverse = Reverse(context, self.begins)
        self.last = self.block.ops[-1] if self.block.ops else None  # before what is recorded
        self.views = context.rank_view, len(context.captured)
        self.ops: list[Op] | None = None  # what f recorded
        self.outs: set[Value] | None = None  # values where a reverse pass may start; None: all

    def run(
        self, f: Callable[..., Any], kwargs: dict[str, Any],
        read: Callable[[Any], tuple[T, list[Value]]],
    ) -> tuple[T, list[Value]]:
        """Call f, and return read(its result): a pair, whose second item is the values where a
        reverse pass may start. To read a view emits ops, so the recording ends after it."""
        self.context.recordings += 1
        try:
            result, outs = read(as_called(f)(*self.args, **kwargs))
            self.ops, self.outs = self.recorded(), set(outs)
            return result, outs
        finally:
            self.context.recordings -= 1

    def leaves(self, returned: Any) -> tuple[tuple[Any, Tree], list[Value]]:
        """Return the result with its structure, and the value of each of its leaves."""
        tree, leaves = flatten(returned)
        return (returned, tree), [as_value(self.context, leaf) for leaf in leaves]

    def recorded(self) -> list[Op]:
        if self.ops is not None:
            return self.ops
        every = self.block.ops  # loops in it may have been replaced
        return every[every.index(self.last) + 1 if self.last else 0 :]

    def back(self, outs: Sequence[tuple[Value, Value]], like: Sequence[Value] = ()) -> list[Any]:
        """Return the cotangents of the marked arguments, in their structure. outs: values and their
        cotangents. like: values that vary over ranks as these cotangents do, if the outs do not."""
        context = self.context
        if (self.block not in context.blocks
                or self.views != (context.rank_view, len(context.captured))):
            raise UsageError("a way back begins where it is not known what its function has done",
                             place=user_place(), found="a loop, a branch or a shard_map between "
                             "the two, in which the function was called, or a shard_map between",
                             expected="both in the same one, or the way back further inside")
        before, context.naming_for_good = context.naming_for_good, (
            context.naming_for_good or context.blocks[-1] is not self.block)
        try:
            return self._back(outs, like)
        finally:
            context.naming_for_good = before

    def _back(self, outs: Sequence[tuple[Value, Value]], like: Sequence[Value]) -> list[Any]:
        reverse, context = self.reverse, self.context
        context.differentiated = True
        reverse.cotangents.clear()
        reverse.emptied.clear()
        recorded = self.recorded()
        if self.outs is not None and not self.outs.issuperset(v for v, _ in outs):
            raise InternalError("a way back begins with a value that its recording has not seen")
        reverse.active, reverse.shares = set(self.begins), Shares.none(context.mesh)
        reverse.mark(recorded)
        begun = [v for v, _ in outs]
        reverse.shares = self._shares(recorded, begun, like or begun, [g for _, g in outs])
        reverse.mark(())  # drops what the cotangents of the outs do not reach
        for (v, g), x in zip(outs, like or begun, strict=True):
            if v in reverse.active:
                reverse.add(v, g, reverse.shares.varies(x) - reverse.shares.varies(v))
        reverse.pull(recorded)
        begins, gradients = iter(self.begins), []
        for tree, leaves in self.trees:
            parts = [self._gradient(x, begins) for x in leaves]
            gradients.append(fill(tree, iter(parts), fresh=True))
        return gradients

    def _gradient(self, leaf: Array | None, begins: Iterator[Value]) -> Array | None:
        if leaf is None:
            return None
        v = next(begins)
        return wrap(self.context, laid_as(self.context, self.reverse.all_of(v), v.type.layout),
                    leaf.weak)

    def _shares(
        self, recorded: Sequence[Op], outs: Sequence[Value], like: Sequence[Value],
        cotangents: Sequence[Value],
    ) -> Shares:
        """Return the plan of shares in a rank's view; elsewhere the one without shares."""
        reverse, context = self.reverse, self.context
        if not context.rank_view:
            return reverse.shares
        rank_families = families(context)
        for op in recorded:
            if op in context.replaced:  # by what has other values in it
                rank_families.op(op)
        begins: dict[Value, Axes] = {}
        for v, x, g in zip(outs, like, cotangents, strict=True):
            begins[v] = begins.get(v, NONE) | rank_families.varies(x)
            if more := rank_families.varies(g) - rank_families.varies(x):
                axes = ", ".join(sorted(more))
                raise UsageError(
                    f"a cotangent differs between the ranks along {axes}, and what it is of does "
                    "not", place=user_place(), expected=f"one cotangent on all ranks along {axes}",
                    found=str(g.type),
                    remedy=f'spmd.psum(…, "{sorted(more)[0]}") of it, if each rank has a part')
        return Shares.planned(rank_families, recorded, begins, self.begins, reverse.active)


