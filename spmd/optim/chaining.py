"""Transformations of others: one after the other, on some leaves only; and decay of weights."""

from __future__ import annotations

from typing import Any, NamedTuple

from codegen.trace.control.conversion import convert
from spmd.optim.transformation import (
    CountState,
    EmptyState,
    GradientTransformation,
    counted,
    counter,
    map_trees,
    needs_params,
    value_at,
)


class MaskedState(NamedTuple):
    """The state of what works on some leaves only."""

    inner_state: Any


def empty(_: Any) -> EmptyState:
    return EmptyState()


def identity() -> GradientTransformation:
    """Leaves updates as they are."""
    return GradientTransformation(empty, lambda updates, state, params=None: (updates, state))


def chain(*args: GradientTransformation) -> GradientTransformation:
    """Transformations one after the other; the state is the tuple of theirs.

    Example::

        @spmd.program
        def clipped():
            tx = spmd.optim.chain(spmd.optim.clip(0.5), spmd.optim.scale(-2.0))
            x = spmd.input("x", (3,), np.float64, layout=("x",), default=lambda i: i)
            return tx.update(x, tx.init(x))[0]

        print(spmd.build(clipped).run(ranks=2))    # [-0. -1. -1.]
    """

    def init(params: Any) -> Any:
        return tuple(tx.init(params) for tx in args)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        after = []
        for tx, s in zip(args, state, strict=True):
            updates, new = tx.update(updates, s, params)
            after.append(new)
        return updates, tuple(after)

    return GradientTransformation(init, update)


def masked(inner: GradientTransformation, mask: Any) -> GradientTransformation:
    """inner for the leaves where the mask is True; the others pass unchanged.

    - mask: a tree of Python's True and False in the structure of the parameters, or a function that
      makes it of them.
    """

    def chosen(tree: Any, other: bool = False) -> Any:
        truths = convert(mask)(tree) if callable(mask) else mask
        return map_trees(lambda x, m: x if bool(m) != other else None, tree, truths)

    def init(params: Any) -> MaskedState:
        return MaskedState(inner.init(chosen(params)))

    def update(updates: Any, state: MaskedState, params: Any = None) -> Any:
        found, new = inner.update(chosen(updates), state.inner_state,
                                  None if params is None else chosen(params))
        whole = map_trees(lambda u, f: u if f is None else f, updates, found)
        return whole, MaskedState(new)

    return GradientTransformation(init, update)


def add_decayed_weights(weight_decay: Any = 0.0, mask: Any = None) -> GradientTransformation:
    """Adds the parameters, times a factor.

    - weight_decay: a number, or a schedule: a function of the number of steps so far.
    - mask: which leaves, as in `masked`; all by default.
    """

    def init(params: Any) -> Any:
        return CountState(counter()) if callable(weight_decay) else EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        needs_params(params, "add_decayed_weights")
        scheduled = callable(weight_decay)
        factor = value_at(weight_decay, state.count) if scheduled else weight_decay
        new = CountState(counted(state.count)) if scheduled else state
        return map_trees(lambda u, p: u + factor * p, updates, params), new

    made = GradientTransformation(init, update)
    return made if mask is None else masked(made, mask)
