"""Annotations of functions and values for derivatives: remat, checkpoint names, constants.

They have the names that jax gives them.
Always holds: where nothing is differentiated the functions and values are as they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen import ops
from codegen.errors import UsageError
from codegen.ir.graph import Op, Value
from codegen.places import user_place
from codegen.trace.array import Array, as_array, is_traced, wrap
from codegen.trace.context import Context
from codegen.trace.control.conversion import as_called
from codegen.trace.number import Number
from codegen.trace.numpy.derived import defined
from codegen.trace.state import fill, flatten

_PRODUCTS = (ops.MatMul, ops.Convolve)


@dataclass(frozen=True)
class Policy:
    """The values of a function that are kept for its backward pass: all (`every`), products, or
    those with these names; with `but`, all that have none of these names."""

    every: bool = False
    products: bool = False
    names: tuple[str, ...] = ()
    but: tuple[str, ...] | None = None

    def saved(self, recorded: Sequence[Op]) -> list[Value]:
        """Return the values, made by the recorded ops, that the policy keeps; raise UsageError if
        no op makes a value of one of its names."""
        defs = {op.result: op for op in recorded if len(op.results) == 1}
        named: dict[Value, str] = {}
        for op in recorded:
            if isinstance(op.kind, ops.Named):
                named[_reshaped_value(op.result, defs)] = op.kind.label
        if missing := set(self.names) - set(named.values()):
            raise UsageError(
                f"a policy keeps {_quoted(missing)}, and the function names no such value",
                place=user_place(), expected="names that spmd.checkpoint_name gives in the "
                "function itself, outside of its loops and branches",
                found=_quoted(named.values()) or "no names",
            )
        return [v for v, op in defs.items() if self.keeps(op, named.get(v))]

    def keeps(self, op: Op, name: str | None) -> bool:
        kind = op.kind
        if name is not None and name in self.names:
            return True
        if self.but is not None:
            return _takes_time(op) and name not in self.but
        if self.products and isinstance(kind, _PRODUCTS):
            return True
        return self.every and _takes_time(op)


def _takes_time(op: Op) -> bool:
    """Return whether an op computes: it is no view, constant, loop or branch."""
    return bool(op.operands) and not op.kind.is_view and not op.regions


def _reshaped_value(value: Value, defs: dict[Value, Op]) -> Value:
    """Return the value that `value` is a reshape of, as far as the ops in `defs` make it."""
    while (op := defs.get(value)) is not None and isinstance(op.kind, ops.Reshape):
        if op.operands[0] not in defs:
            break
        value = op.operands[0]
    return value


def _quoted(names: Any) -> str:
    return ", ".join(f'"{name}"' for name in sorted(set(names)))


class checkpoint_policies:
    """These policies of spmd.remat say what a gradient keeps, as jax.checkpoint_policies:

    - `nothing_saveable`: only its arguments; all else is computed again.
    - `everything_saveable`: all that it computes and that the backward pass reads.
    - `dots_saveable`, `checkpoint_dots`: products of matrices, and convolutions.
    - `save_only_these_names(*names)`: what `spmd.checkpoint_name` has named so.
    - `save_anything_except_these_names(*names)`: all but that.

    Example::

        @spmd.program
        def layers():
            x = spmd.input("x", (4,), np.float64, layout=("x",), default=lambda i: i)
            only = spmd.checkpoint_policies.save_only_these_names("root")
            f = spmd.remat(lambda x: spmd.checkpoint_name(np.sqrt(x + 1), "root") ** 3, policy=only)
            return spmd.grad(lambda x: np.sum(f(x)))(x)

        print(spmd.build(layers).run(ranks=2).round(2))    # [1.5  2.12 2.6  3.  ]
    """

    nothing_saveable = Policy()
    everything_saveable = Policy(every=True)
    dots_saveable = checkpoint_dots = Policy(products=True)

    @staticmethod
    def save_only_these_names(*names: str) -> Policy:
        return Policy(names=names)

    @staticmethod
    def save_anything_except_these_names(*names: str) -> Policy:
        return Policy(but=names)


def remat(f: Callable[..., Any], *, policy: Policy | None = None) -> Callable[..., Any]:
    """Return f, of which a gradient keeps only the arguments, and computes the rest again.

    As jax.checkpoint.

    - policy: what is kept of it besides, one of `spmd.checkpoint_policies`. Where a loop calls f,
      these values are kept for each iteration, beside those that it begins with.

    UsageError where f writes into an array from around it, or policy is none of ours.

    Example::

        @spmd.program
        def layers():
            x = spmd.input("x", (4,), np.float64, layout=("x",), default=lambda i: i)
            layer = spmd.remat(lambda x: (x + 1) ** 2)
            return spmd.grad(lambda x: np.sum(layer(layer(x))))(x)

        print(spmd.build(layers).run(ranks=2))    # [  8.  40. 120. 272.]
    """

    if policy is not None and not isinstance(policy, Policy):
        raise UsageError("spmd.remat: policy is none", place=user_place(),
                         expected="one of spmd.checkpoint_policies, or None",
                         found=getattr(policy, "__name__", None) or repr(policy))
    kept = policy or checkpoint_policies.nothing_saveable

    def call(*args: Any, **kwargs: Any) -> Any:
        context = Context.current()
        if context is None:
            return f(*args, **kwargs)
        if not context.recordings:
            return as_called(f)(*args, **kwargs)
        tree, leaves = flatten(args)
        leaves = [marked(context, x, ops.Reshape) if isinstance(x, Number) else x for x in leaves]

        def run(*arrays: Any) -> Any:
            return as_called(f)(*fill(tree, iter(arrays), fresh=True), **kwargs)

        return defined(context, run, None, leaves, {}, kept.saved)

    functools.update_wrapper(call, f)
    return call


def checkpoint_name(x: Any, name: str) -> Any:
    """Return x with a name, by which a policy of spmd.remat keeps it: an array, or a tree.

    Example: see spmd.checkpoint_policies.
    """
    context = Context.current()
    if context is None or not context.recordings:
        return x
    tree, leaves = flatten(x)

    def named(shape: Any) -> ops.Named:
        return ops.Named(shape, name)

    return fill(tree, iter([marked(context, leaf, named) for leaf in leaves]), fresh=True)


def stop_gradient(x: Any) -> Any:
    """Return x as a constant for derivatives: an array, or a tree of arrays.

    Example::

        @spmd.program
        def halves():
            x = spmd.input("x", (4,), np.float64, layout=("x",), default=lambda i: i)
            return spmd.grad(lambda x: np.sum(x * spmd.stop_gradient(x)))(x)

        print(spmd.build(halves).run(ranks=2))    # [0. 1. 2. 3.]
    """
    context = Context.current()
    if context is None:
        return x
    tree, leaves = flatten(x)
    return fill(tree, iter([marked(context, leaf, ops.Constant) for leaf in leaves]), fresh=True)


def marked(context: Context, leaf: Any, kind: Any) -> Any:
    """Return the leaf as the result of an op of this kind, a value that nothing else reads."""
    if not (is_traced(leaf) or isinstance(leaf, (Array, np.ndarray, float, complex))):
        return leaf
    array = as_array(leaf)
    value = array.read()
    return wrap(context, context.emit_one(kind(value.type.shape), value), array.weak, array.scalar)
