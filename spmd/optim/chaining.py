"""Transformations one after the other, and decay of weights."""

from __future__ import annotations

from typing import Any

from spmd import UsageError
from spmd.extend import user_place
from spmd.optim.some_leaves import empty, masked
from spmd.optim.transformation import (
    CountState,
    EmptyState,
    GradientTransformation,
    counter,
    map_trees,
    needs_params,
    safe_increment,
    transformation,
    value_at,
)


def identity() -> GradientTransformation:
    """Leave updates as they are."""
    return GradientTransformation(empty, lambda updates, state, params=None: (updates, state))


def chain(*args: GradientTransformation) -> GradientTransformation:
    """Apply transformations one after the other; the state is the tuple of theirs.

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
        if not isinstance(state, tuple) or len(state) != len(args):
            raise UsageError(
                "tx.update needs the state of the step before", place=user_place(),
                expected="what tx.init(params) gave, or the last tx.update(grads, state, params)",
                found=f"state={type(state).__name__ if state is not None else None}",
                remedy="updates, state = tx.update(grads, state, params)")
        after = []
        for tx, s in zip(args, state, strict=True):
            updates, new = tx.update(updates, s, params)
            after.append(new)
        return updates, tuple(after)

    return GradientTransformation(init, update)


def named_chain(*args: tuple[str, GradientTransformation]) -> GradientTransformation:
    """Chain pairs of a name and a transformation, as `chain` does: the state is a dict by these
    names."""
    names = [name for name, _ in args]
    if len(set(names)) < len(names):
        raise UsageError("named_chain: one name is given twice", place=user_place(),
                         expected="names that differ", found=", ".join(names))
    chained = chain(*[tx for _, tx in args])

    def init(params: Any) -> Any:
        return dict(zip(names, chained.init(params), strict=True))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        result, after = chained.update(updates, tuple(state[name] for name in names), params)
        return result, dict(zip(names, after, strict=True))

    return GradientTransformation(init, update)


def add_decayed_weights(weight_decay: Any = 0.0, mask: Any = None) -> GradientTransformation:
    """Add the parameters, times a factor, to updates.

    - weight_decay: a number, or a schedule: a function of the number of steps so far.
    - mask: which leaves, as in `masked`; all by default.
    """

    def init(params: Any) -> Any:
        return CountState(counter()) if callable(weight_decay) else EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        needs_params(params, "add_decayed_weights")
        scheduled = callable(weight_decay)
        factor = value_at(weight_decay, state.count) if scheduled else weight_decay
        new = CountState(safe_increment(state.count)) if scheduled else state
        return map_trees(lambda u, p: u + factor * p, updates, params), new

    decayed = transformation(init, update)
    return decayed if mask is None else masked(decayed, mask)
