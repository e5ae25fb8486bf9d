"""Calls that give another value in each turn, build or process: they are refused or made to last.

Random generators, iterators, clocks, addresses, hashes, orders of sets; and calls by which Python
containers are changed, which are noted. In: what the user's code is about to call. Out: what it
calls instead, or an error. Always holds: outside of a capture nobody asks here.
"""

from __future__ import annotations

import collections
import datetime
import enum
import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from codegen.errors import UnsupportedError
from codegen.places import user_place
from codegen.trace.array import Array
from codegen.trace.context import Context
from codegen.trace.control.outside import GENERATORS, is_iterator
from codegen.trace.control.sharing import refuse_twin
from codegen.trace.number import no_text
from codegen.trace.numpy.refused import RANDOM
from codegen.trace.traced_text import is_unknown

_CHANGEABLE = (list, dict, set, collections.deque, bytearray)
_CHANGING = frozenset(
    "append appendleft extend extendleft insert remove pop popleft popitem clear sort reverse add "
    "discard update setdefault rotate difference_update intersection_update "
    "symmetric_difference_update __setitem__ __delitem__".split()
)
_SEEDED = (
    np.random.default_rng, np.random.RandomState, np.random.PCG64, np.random.MT19937,
    np.random.Philox, np.random.SFC64, np.random.PCG64DXSM, np.random.SeedSequence, random.Random,
)
_CLOCKS = (
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic,
    time.monotonic_ns, time.process_time, time.process_time_ns, time.thread_time,
    time.thread_time_ns, time.clock_gettime, time.clock_gettime_ns, os.times, os.getloadavg,
)
_CALENDAR = (time.localtime, time.gmtime, time.ctime, time.asctime, time.strftime)  # else: of now
_ENTROPY = (os.urandom, uuid.uuid1, uuid.uuid4)
_TODAY = ("now", "utcnow", "today")


def watched(context: Context, function: Any) -> Any:
    """Return the function itself, or one that checks its arguments first. Raises
    UnsupportedError."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, GENERATORS):
        return _of_generator(context, function, owner)
    if isinstance(owner, _CHANGEABLE):
        if name in _CHANGING:
            changed(context, owner)
        if isinstance(owner, set) and name == "pop":
            return _popped(owner)
        return iterating(function) if name == "extend" else function
    if isinstance(owner, str) and name == "join":
        return iterating(function)
    if owner is dict and name == "fromkeys":
        return lambda keys, *value: dict.fromkeys(ordered(keys), *value)
    if is_iterator(owner):
        refuse_outside(owner)
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in _TODAY:
        raise _frozen(f"{owner.__name__}.{name}()", _CLOCK)
    module = getattr(function, "__module__", "")
    if module == "logging":
        return _logging(function)
    if f"{module}.{name}" in _PASSING:
        raise _frozen(*_PASSING[f"{module}.{name}"])
    if module == "secrets":
        raise _frozen(f"{name}()", _SEED)
    if function is np.random.seed:
        return _of_generator(context, function, np.random.mtrand._rand)
    instead = _INSTEAD.get(id(function))
    return function if instead is None else instead(function)


def _logging(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of logging, which is called while building: of values that are known
    then."""

    def log(*args: Any, **options: Any) -> Any:
        if is_unknown((args, options)):
            raise no_text("a line of a log, which is written while building")
        return function(*args, **options)

    return log


def changed(context: Context, thing: Any) -> None:
    """Notes where the user's code changes a thing, or a variable by its name."""
    if context.twins:
        refuse_twin(context, thing, user_place())
    for body in context.bodies:
        body.refuse_unseen(thing, user_place())
    if not isinstance(thing, Array):
        context.changed_at[thing if isinstance(thing, str) else id(thing)] = user_place()


def _noted(function: Any) -> Any:
    """Return setattr or delattr, made to note what it changes."""
    def call(thing: Any, *args: Any) -> Any:
        if (context := Context.current()) is not None:
            changed(context, thing)
        return function(thing, *args)

    return call


def refuse_outside(thing: Any, method: str = "") -> None:
    """Raises UnsupportedError for a generator or an iterator from outside of what is captured, and
    for an iterator of a loop that the run may end early."""
    context = Context.current()
    if context is None:
        return
    refuse_left_early(thing)
    for body in reversed(context.bodies):
        if thing in body and not (body.kind == "program" and id(thing) in context.seeded):
            raise body.drawn(thing, user_place(), RANDOM.get(method, ""))


def refuse_left_early(iterator: Any) -> None:
    """Raises UnsupportedError for an iterator of a loop that the run may end early."""
    context = Context.current()
    if context is not None and any(x is iterator for x in context.left_early):
        raise UnsupportedError(
            "an iterator is used again after a loop that the run may end early",
            expected="an iterator whose next item is known while building",
            found="a break or return in that loop, under a test that only the run knows",
            remedy="a list instead of an iterator, and the number of items that the loop took")


def _next(iterator: Any, *default: Any) -> Any:
    if is_iterator(iterator):
        refuse_outside(iterator)
    return next(iterator, *default)


def _of_generator(context: Context, function: Any, generator: Any) -> Any:
    """Return a method of a random generator. One that gets a seed in the program is the program's
    own."""
    if isinstance(generator, random.SystemRandom):
        raise _frozen("random.SystemRandom", _SEED)
    if function.__name__ == "seed":
        seeding = _with_seed(function)
        context.seeded.add(id(generator))
        return seeding
    refuse_outside(generator, function.__name__)
    return function


def _with_seed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if all(x is None for x in (*args, *kwargs.values())):
            raise _frozen(f"{function.__name__}() without a seed", _SEED)
        return function(*args, **kwargs)

    return call


_CLOCK = "call it outside of the program; `python -m spmd run --profile` says what takes how long"
_NUMBER = "spmd.index() in a shard_map, a rank's number while the image runs"
_HOST = "a parameter of the program, spmd build --set …; or spmd.scalar, run --set …"
_SEED = "a seed: rng = np.random.default_rng(0); or spmd.random, whose seed may come at launch"


def _frozen(name: str, remedy: str) -> UnsupportedError:
    varies = "on every machine" if remedy is _HOST else "in every build"
    return UnsupportedError(
        f"{name} gives another value {varies}",
        expected="values that stay the same: they become constants of the image",
        found=f"{name}, which runs while building, not when the image runs", remedy=remedy,
    )


# By module and name, so that these modules need not be imported: how it is written, and a way out.
_TYPED = "a parameter of the program, spmd build --set name=VALUE, or a scalar, run --set"
_PASSING = {
    "builtins.input": ("input()", _TYPED),
    "posix.getpid": ("os.getpid()", _NUMBER),
    "posix.getppid": ("os.getppid()", _NUMBER),
    "_thread.get_ident": ("threading.get_ident()", _NUMBER),
    "_thread.get_native_id": ("threading.get_native_id()", _NUMBER),
    "_socket.gethostname": ("socket.gethostname()", _HOST),
    "socket.getfqdn": ("socket.getfqdn()", _HOST),
    "platform.node": ("platform.node()", _HOST),
    "posix.uname": ("os.uname()", _HOST),
    "uuid.getnode": ("uuid.getnode()", _HOST),
}


def _of_calendar(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return time.localtime or its kin, checked: of a time that is given, or, with one argument
    less, of now."""
    needed = 2 if function is time.strftime else 1

    def call(*args: Any) -> Any:
        if len(args) < needed or args[-1] is None:
            raise _frozen(f"time.{function.__name__}()", _CLOCK)
        return function(*args)

    return call


def _date(*args: Any) -> Any:
    if args and args[0] in ("now", "today"):
        raise _frozen(f'np.datetime64("{args[0]}")', _CLOCK)
    return np.datetime64(*args)


def _of_clock(function: Callable[..., Any]) -> NoReturn:
    module = "os" if function in (os.times, os.getloadavg) else "time"
    raise _frozen(f"{module}.{function.__name__}()", _CLOCK)


def _of_entropy(function: Callable[..., Any]) -> NoReturn:
    raise _frozen(f"{function.__name__}()", _SEED)


# By id, since what is called need not be hashable: what stands for a function, or refuses it.
_INSTEAD: dict[int, Callable[[Any], Any]] = {
    id(next): lambda _: _next,
    id(np.datetime64): lambda _: _date,
    **{id(f): _noted for f in (setattr, delattr, object.__setattr__, object.__delattr__)},
    **{id(f): _of_clock for f in _CLOCKS},
    **{id(f): _of_entropy for f in _ENTROPY},
    **{id(f): _of_calendar for f in _CALENDAR},
    **{id(f): _with_seed for f in _SEEDED},
}


# ---- what another Python process would have otherwise: addresses, hashes of text, orders of sets -

_LASTING = (bool, int, float, complex, np.number, np.bool_)  # hashed alike by every process
_PLAIN = (*_LASTING, str, bytes, type(None), enum.Enum, type, np.dtype)  # with a text of their own


class Passing(int):
    """An int that no image may keep. origin: where it comes from."""

    origin: str

    def _refuse(self, *_: Any) -> NoReturn:
        raise UnsupportedError(
            f"{self.origin} gives another value in every build",
            expected="values that stay the same: they become constants of the image",
            found=f"{self.origin}, which is good for keys of a dict and for == only",
            remedy="zlib.crc32(text.encode()) is the same everywhere"
            if self.origin == "hash()" else "a number of your own, such as a position in a list",
        )

    __hash__ = int.__hash__


for _name in (
    "add sub mul truediv floordiv mod divmod pow lshift rshift and or xor radd rsub rmul rtruediv "
    "rfloordiv rmod rdivmod rpow rlshift rrshift rand ror rxor neg pos abs invert lt le gt ge "
    "int float index bool round trunc floor ceil array"
).split():
    setattr(Passing, f"__{_name}__", Passing._refuse)


def _passing(value: int, origin: str) -> Passing:
    passing = Passing(value)
    passing.origin = origin
    return passing


def identity(x: Any) -> int:
    """Return id(x), marked as an int that no image may keep."""
    return _passing(id(x), "id()")


def hashed(x: Any) -> int:
    """Return hash(x), marked as an int that no image may keep unless it is the same in every
    process."""
    return hash(x) if _is_lasting(x) else _passing(hash(x), "hash()")


def _is_lasting(x: Any) -> bool:
    if type(x) in (tuple, frozenset):
        return all(map(_is_lasting, x))
    return isinstance(x, _LASTING)


def ordered(x: Any) -> Any:
    """Return x as code iterates over it. A set whose order differs between processes is sorted by
    types and texts; raise UnsupportedError where its elements have no text of their own, and for an
    iterator of which the run may have left items."""
    refuse_left_early(x)
    if type(x) not in (set, frozenset) or len(x) < 2 or all(map(_is_lasting, x)):
        return x
    if not all(map(_has_text, x)):
        raise UnsupportedError(
            "the order of this set is another one in every build",
            expected="an order that stays the same: it goes into the image",
            found=f"a set of {type(next(e for e in x if not _has_text(e))).__name__}",
            remedy="sorted(s, key=…), a list, or dict.fromkeys(…), which keeps its order",
        )
    return sorted(x, key=_text)


def _has_text(x: Any) -> bool:
    if type(x) in (tuple, frozenset):
        return all(map(_has_text, x))
    return isinstance(x, _PLAIN)


def _text(x: Any) -> Any:
    if isinstance(x, (tuple, frozenset)):
        return type(x).__name__, str(sorted(map(_text, x)) if isinstance(x, frozenset)
                                     else list(map(_text, x)))
    return type(x).__name__, repr(x)


def _popped(owner: set[Any]) -> Callable[[], Any]:
    """Return owner.pop, of a set: its first element in that order."""

    def pop() -> Any:
        for x in ordered(owner):
            owner.remove(x)
            return x
        return owner.pop()

    return pop


def iterating(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Python's that goes through its arguments."""

    def through(*args: Any, **kwargs: Any) -> Any:
        return plain(*map(ordered, args), **kwargs)

    return through
