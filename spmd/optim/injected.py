"""Parameters of an optimizer as part of its state: a program reads and changes them as it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from spmd import UsageError
from spmd.extend import user_place
from spmd.optim.transformation import (
    GradientTransformation,
    counter,
    in_type,
    leaves_of,
    safe_increment,
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
    """Return the same optimizer, whose numbers are in `state.hyperparams`, 0-d arrays by name:
    those of schedules as they were in the last step, the others as the program sets them.

    - inner_factory: such as spmd.optim.adam.
    - static_args: names of numbers that stay as they are, as all that is no number does.
      Functions are schedules, unless their name has "mask" in it.
    - hyperparam_dtype: the element type; by default float32, or a wider one of the parameters.

    UsageError for static_args that are no parameters, and where state.hyperparams lacks one.

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
                state = state._replace(
                    hyperparams={**state.hyperparams, "learning_rate": rate})
            return w

        print(spmd.build(halved).run(ranks=2))    # [0.125 0.125]
    """
    signature = inspect.signature(inner_factory)
    static = _known(static_args, signature.parameters)

    @wraps(inner_factory)
    def injected(*args: Any, **kwargs: Any) -> GradientTransformation:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {k: v for k, v in bound.arguments.items() if k not in static}
        schedules = {k: v for k, v in arguments.items() if _is_schedule(k, v)}
        numbers = {k: v for k, v in arguments.items() if _is_number(v)}

        def optimizer(values: dict[str, Any]) -> GradientTransformation:
            return inner_factory(**{**bound.arguments, **values})

        def init(params: Any) -> InjectHyperparamsState:
            values = _values(numbers, schedules, counter(), hyperparam_dtype or _widest(params))
            return InjectHyperparamsState(counter(), values, optimizer(values).init(params))

        def update(updates: Any, state: InjectHyperparamsState, params: Any = None) -> Any:
            _check_complete(state.hyperparams, numbers)
            set_to = {k: state.hyperparams[k] for k in numbers}
            dtype = hyperparam_dtype or _widest(updates if params is None else params)
            values = _values(set_to, schedules, state.count, dtype)
            result, new = optimizer(values).update(updates, state.inner_state, params)
            return result, InjectHyperparamsState(safe_increment(state.count), values, new)

        return GradientTransformation(init, update)

    return injected


def _known(static_args: str | Iterable[str], parameters: Iterable[str]) -> set[str]:
    static = {static_args} if isinstance(static_args, str) else set(static_args)
    if unknown := static - set(parameters):
        raise UsageError("inject_hyperparams: static_args are no parameters of it",
                         place=user_place(), expected=", ".join(parameters),
                         found=", ".join(sorted(unknown)))
    return static


def _values(set_to: dict[str, Any], schedules: dict[str, Any], count: Any, dtype: Any
            ) -> dict[str, Any]:
    values = {**set_to, **{name: value_at(f, count) for name, f in schedules.items()}}
    return {name: in_type(x, dtype) if hasattr(x, "astype") else np.full((), x, dtype)
            for name, x in values.items()}


def _check_complete(hyperparams: Any, names: Any) -> None:
    if missing := [name for name in names if name not in hyperparams]:
        raise UsageError(
            f"inject_hyperparams: state.hyperparams lacks {', '.join(missing)}",
            place=user_place(), expected=", ".join(names), found=", ".join(hyperparams) or "none",
            remedy='{**state.hyperparams, "learning_rate": rate} keeps the others')


def _is_schedule(name: str, x: Any) -> bool:
    """Return whether an argument is a schedule: functions are, but for those that make a mask."""
    return callable(x) and not isinstance(x, type) and "mask" not in name


def _is_number(x: Any) -> bool:
    if isinstance(x, (bool, np.bool_)):
        return False
    return isinstance(x, (int, float, np.number)) or (hasattr(x, "astype") and np.ndim(x) == 0)


def _widest(tree: Any) -> Any:
    """Return the widest float of the leaves; float32 at least, as 0.999 is 1 in bfloat16."""
    return np.result_type(np.float32, *[x.real.dtype for x in leaves_of(tree)
                                        if x.dtype.kind in "fc"])
