"""Parameters of an optimizer as part of its state: a program reads and changes them as it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from codegen.errors import UsageError
from codegen.places import user_place
from spmd.optim.transformation import (
    GradientTransformation,
    counted,
    counter,
    in_type,
    leaves_of,
    value_at,
)


class InjectHyperparamsState(NamedTuple):
    """The number of steps, the parameters of the last one by name, the optimizer's state."""

    count: Any
    hyperparams: Any
    inner_state: Any


def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation], static_args: str | Iterable[str] = (),
    hyperparam_dtype: Any = None,
) -> Callable[..., GradientTransformation]:
    """The same optimizer, whose numbers are in `state.hyperparams`, 0-d arrays by name: those of
    schedules as they were in the last step, the others as the program sets them.

    - inner_factory: such as spmd.optim.adam.
    - static_args: names of numbers that stay as they are, as all that is no number does.
    - hyperparam_dtype: the element type; by default the widest float of the parameters.

    Example::

        @spmd.program
        def halved(steps: int = 3):
            w = np.ones(2)
            tx = spmd.optim.inject_hyperparams(spmd.optim.sgd)(learning_rate=0.5)
            state = tx.init(w)
            for _ in spmd.range(steps):
                updates, state = tx.update(np.ones(2), state, w)
                w = spmd.optim.apply_updates(w, updates)
                rate = state.hyperparams["learning_rate"] / 2
                state = state._replace(hyperparams={"learning_rate": rate})
            return w

        print(spmd.build(halved).run(ranks=2))    # [0.125 0.125]
    """
    static = {static_args} if isinstance(static_args, str) else set(static_args)
    signature = inspect.signature(inner_factory)
    if unknown := static - set(signature.parameters):
        raise UsageError("inject_hyperparams: static_args are no parameters of it",
                         place=user_place(), expected=", ".join(signature.parameters),
                         found=", ".join(sorted(unknown)))

    @wraps(inner_factory)
    def injected(*args: Any, **kwargs: Any) -> GradientTransformation:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = {k: v for k, v in bound.arguments.items() if k not in static}
        schedules = {k: v for k, v in given.items() if callable(v) and not isinstance(v, type)}
        numbers = {k: v for k, v in given.items() if _is_number(v)}

        def optimizer(values: dict[str, Any]) -> GradientTransformation:
            return inner_factory(**{**bound.arguments, **values})

        def init(params: Any) -> InjectHyperparamsState:
            values = _values(numbers, schedules, counter(), hyperparam_dtype or _widest(params))
            return InjectHyperparamsState(counter(), values, optimizer(values).init(params))

        def update(updates: Any, state: InjectHyperparamsState, params: Any = None) -> Any:
            set_to = {k: state.hyperparams[k] for k in numbers}
            dtype = hyperparam_dtype or _widest(updates)
            values = _values(set_to, schedules, state.count, dtype)
            found, new = optimizer(values).update(updates, state.inner_state, params)
            return found, InjectHyperparamsState(counted(state.count), values, new)

        return GradientTransformation(init, update)

    return injected


def _values(set_to: dict[str, Any], schedules: dict[str, Any], count: Any, dtype: Any
            ) -> dict[str, Any]:
    values = {**set_to, **{name: value_at(f, count) for name, f in schedules.items()}}
    return {name: in_type(x, dtype) if hasattr(x, "astype") else np.full((), x, dtype)
            for name, x in values.items()}


def _is_number(x: Any) -> bool:
    if isinstance(x, (bool, np.bool_)):
        return False
    return isinstance(x, (int, float, np.number)) or (hasattr(x, "astype") and np.ndim(x) == 0)


def _widest(tree: Any) -> Any:
    """The widest float of the leaves, so that a step keeps their element types."""
    return np.result_type(np.float16, *[x.real.dtype for x in leaves_of(tree)
                                        if x.dtype.kind in "fc"])
