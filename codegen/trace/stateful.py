"""Calls that give another value each time: random generators, iterators, clocks; where Python
containers are changed.

Goes in: what the user's code is about to call. Comes out: what it calls instead, or an error with
the line. Always holds: outside of a capture nobody asks here.
"""

from __future__ import annotations

import collections
import datetime
import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.errors import UnsupportedError
from codegen.trace.array import Array
from codegen.trace.context import Context, user_place
from codegen.trace.outside import GENERATORS, is_iterator
from codegen.trace.sharing import refuse_twin

_CHANGEABLE = (list, dict, set, collections.deque, bytearray)
_CHANGING = frozenset(
    "append appendleft extend extendleft insert remove pop popleft popitem clear sort reverse add "
    "discard update setdefault rotate difference_update intersection_update "
    "symmetric_difference_update __setitem__ __delitem__".split()
)
_SEEDED = (
    np.random.default_rng, np.random.RandomState, np.random.PCG64, np.random.MT19937,
    np.random.Philox, np.random.SFC64, np.random.PCG64DXSM, np.random.SeedSequence, random.Random,
)  # fmt: skip
_CLOCKS = (
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic,
    time.monotonic_ns, time.process_time, time.process_time_ns,
)  # fmt: skip
_ENTROPY = (os.urandom, uuid.uuid1, uuid.uuid4)
_TODAY = ("now", "utcnow", "today")


def watched(context: Context, function: Any) -> Any:
    """The function; one that looks at its arguments first; or UnsupportedError."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, GENERATORS):
        return _of_generator(context, function, owner)
    if isinstance(owner, _CHANGEABLE):
        if function.__name__ in _CHANGING:
            changed(context, owner)
        return function
    if function is next:
        return _next
    if is_iterator(owner):
        refuse_outside(owner)
    if any(function is f for f in _CLOCKS):
        raise _frozen(f"time.{function.__name__}()", _CLOCK)
    if isinstance(owner, type) and issubclass(owner, datetime.date) and (
        function.__name__ in _TODAY
    ):
        raise _frozen(f"{owner.__name__}.{function.__name__}()", _CLOCK)
    if any(function is f for f in _ENTROPY) or getattr(function, "__module__", "") == "secrets":
        raise _frozen(f"{function.__name__}()", _SEED)
    if function is np.random.seed:
        return _of_generator(context, function, np.random.mtrand._rand)
    return _with_seed(function) if any(function is f for f in _SEEDED) else function


def changed(context: Context, thing: Any) -> None:
    """The user's code changes a thing, or the variable of a name: where, for who finds it."""
    if context.twins:
        refuse_twin(context, thing, user_place())
    if not isinstance(thing, Array):
        context.changed_at[thing if isinstance(thing, str) else id(thing)] = user_place()


def refuse_outside(thing: Any) -> None:
    """Raises UnsupportedError for a generator or an iterator from outside of what is captured."""
    context = Context.current()
    if context is None:
        return
    for body in reversed(context.bodies):
        if thing in body and not (body.what == "program" and id(thing) in context.seeded):
            raise body.drawn(thing, user_place())


def _next(iterator: Any, *default: Any) -> Any:
    if is_iterator(iterator):
        refuse_outside(iterator)
    return next(iterator, *default)


def _of_generator(context: Context, function: Any, generator: Any) -> Any:
    """A method of a random generator. One that gets a seed in the program is the program's own."""
    if isinstance(generator, random.SystemRandom):
        raise _frozen("random.SystemRandom", _SEED)
    if function.__name__ == "seed":
        seeding = _with_seed(function)
        context.seeded.add(id(generator))
        return seeding
    refuse_outside(generator)
    return function


def _with_seed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if all(x is None for x in (*args, *kwargs.values())):
            raise _frozen(f"{function.__name__}() without a seed", _SEED)
        return function(*args, **kwargs)

    return call


_CLOCK = "call it outside of the program; `python -m spmd run --profile` says what takes how long"
_SEED = "a seed: rng = np.random.default_rng(0); or spmd.random, whose seed may come at launch"


def _frozen(name: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} gives another value in every build", place=user_place(),
        expected="values that stay the same: they become constants of the image",
        found=f"{name}, which runs while building, not when the image runs", remedy=remedy,
    )  # fmt: skip
