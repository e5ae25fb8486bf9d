"""Python state outside of a compiled body, which the body must leave as it is: it runs only once.

Goes in: what the body can reach when it begins (variables, closures, globals of the user's
functions, attributes). Where any of it is another after the body, the program is refused.
Always holds: what the body makes is free; so are arrays of the program, and what is carried.
"""

from __future__ import annotations

import array
import collections
import collections.abc
import contextvars
import functools
import random
import sys
import types
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from codegen.errors import Place, UnsupportedError
from codegen.places import names_in, user_frame, user_place
from codegen.trace.array import Array, Number, is_traced
from codegen.trace.context import Context
from codegen.trace.state import Code, Variables, same
from codegen.user.numbers import owner_of
from codegen.user.objects import (
    FIXED,
    STANDARD,
    USER,
    attributes,
    has_attributes,
    is_stateful,
    is_the_compilers,
    origin,
    put_attributes,
    raw_bytes,
    whose,
)

GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
_PLAIN = (
    int, float, complex, str, bytes, type(None), np.generic, np.dtype, Array, Number, slice, range,
    types.BuiltinFunctionType,
)
_CONTAINERS = (
    list, tuple, dict, set, frozenset, collections.deque, bytearray, array.array,
)
_COLLECTIONS = (
    collections.abc.MutableMapping, collections.abc.MutableSequence, collections.abc.MutableSet,
)
_LEN = "number of items"
_MOST_FILLS = 2  # passes of a body in which caches may be filled
_COMPARED_ITEMS = 10_000  # items of a container that are compared
_COMPARED_BYTES = 1 << 24  # bytes of an array that are compared; of a larger one, every so many


def is_iterator(x: Any) -> bool:
    """Return whether x gives each of its items once: a generator, a file, map, zip; no user's
    object."""
    return (
        hasattr(type(x), "__next__")
        and not isinstance(x, (Array, np.ndarray))
        and not has_attributes(type(x))
    )


@dataclass(frozen=True)
class _Seen:
    """A thing with state, as the body found it. path: how the user reaches it. items: what it held,
    by their steps."""

    thing: Any
    path: str
    read: Callable[[], dict[Any, Any] | None]
    items: dict[Any, Any]


class Outside:
    """Everything that a body can reach when it begins. what: loop, branch, shard_map, member or
    program.

    carried: ids of things that the body may change; of a global, (id of the namespace, name).
    """

    def __init__(
        self, kind: str, roots: Iterable[tuple[str, Any]], carried: Iterable[Any] = ()
    ) -> None:
        self.kind = kind
        self.place = user_place()
        self._carried = set(carried)
        self._visited: dict[Any, Any] = {}  # by id; the values keep the ids from being used again
        self._seen: list[_Seen] = []
        running = user_frame()
        self._names: dict[str, None] = dict.fromkeys(  # in code that was met, of attributes too
            names_in(running.f_code) if running else ())
        self._modules: list[types.ModuleType] = []  # of installed packages
        self._fills = 0  # how many times the body has given something new keys
        self._contents: set[int] = set()  # ids of what collections of the standard library keep in
        context = Context.current()
        self._stored_before = {} if context is None else dict(context.changed_at)
        self.traced = False  # whether an array or a number of a program can be reached
        self._work = collections.deque(roots)
        self._work += (("random", random._inst), ("np.random", np.random.mtrand._rand))
        while self._work or self._of_packages():
            while self._work:
                self._visit(*self._work.popleft())

    def __contains__(self, thing: Any) -> bool:
        return id(thing) in self._visited

    def owners(self) -> dict[int, Any]:
        """Return, by id, the objects that own the memory of all NumPy arrays in reach."""
        arrays = [x for x in self._visited.values() if isinstance(x, np.ndarray)]
        return {id(owner): owner for owner in map(owner_of, arrays)}

    def path(self, thing: Any) -> str:
        return next((s.path for s in self._seen if s.thing is thing), type(thing).__name__)

    def refuse_unseen(self, thing: Any, place: Place | None) -> None:
        """Raises UnsupportedError where the body has stored into a thing from outside of it whose
        state cannot be compared: an extension's object, threading.local."""
        unseen = thing in self and not isinstance(thing, (*_CONTAINERS, np.ndarray))
        unseen = unseen and not any(thing is m for m in self._modules)
        unseen = unseen and not is_the_compilers(type(thing))
        if unseen and self.kind != "program" and items_of(thing) is None:
            raise UnsupportedError(
                f"an attribute of a {type(thing).__name__} is changed in {_WORDS[self.kind]}",
                place=place,
                expected=f"what stands outside of it stays as it is: {_TURNS[self.kind]}",
                found=f"a {type(thing).__name__}, whose attributes cannot be seen from outside",
                remedy="an object of a class of your own; or " + _WAYS[self.kind],
            )

    def holder(self, thing: Any, but: Iterable[str]) -> str:
        """Return the path to a holder of a thing that is not carried. but: variables to leave
        out."""
        return next((
            step(s.path, s.thing, k) for s in self._seen if s.path not in but
            for k, v in s.items.items() if v is thing
        ), "")

    # ---- what can be reached ---------------------------------------------------------------------

    def _note(self, thing: Any, path: str, read: Callable[[], dict[Any, Any] | None]) -> None:
        items = read()
        if items is None:
            return
        if (thing.key if isinstance(thing, Variable) else id(thing)) not in self._carried:
            self._seen.append(_Seen(thing, path, read, items))
        self._work += [(step(path, thing, k), v) for k, v in items.items()]
        if id(thing) in self._contents or (
                isinstance(thing, _COLLECTIONS) and not isinstance(thing, _CONTAINERS)):
            self._contents.update(map(id, items.values()))

    def _visit(self, path: str, thing: Any) -> None:
        self.traced = self.traced or is_traced(thing)
        if isinstance(thing, _PLAIN) or id(thing) in self._visited:
            return
        self._visited[id(thing)] = thing
        if isinstance(thing, types.FunctionType):
            self._function(path, thing)
        elif isinstance(thing, types.MethodType):
            owner = path.rpartition(".")[0] or path
            self._work += ((owner, thing.__self__), (path, thing.__func__))
        elif called := _called_by(thing):
            self._work += [(path, x) for x in called]
            if isinstance(thing, functools.partial):
                self._contents.add(id(thing.keywords))
                self._work.append((f"{path}.keywords", thing.keywords))
        elif isinstance(thing, types.ModuleType) and is_stateful(getattr(thing, "__file__", None)):
            self._modules.append(thing)
        else:
            self._note(thing, path, lambda: items_of(thing))
            above = thing.__bases__ if isinstance(thing, type) else ()
            self._work += [(c.__name__, c) for c in (type(thing), *above) if has_attributes(c)]
            if isinstance(thing, _CONTAINERS) and attributes(thing) is not None:
                own = Attributes(thing)  # of a user's class
                self._note(own, path, own.read)

    def _function(self, path: str, function: types.FunctionType) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            if not name.startswith("__"):
                self._variable(Variable(cell, name))
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self._work += [(f"a default of {path}", x) for x in defaults]
        if "__wrapped__" in vars(function):
            self._work.append((path, vars(function)["__wrapped__"]))
        if whose(code.co_filename) == USER or is_stateful(code.co_filename):
            if vars(function):
                self._note(function, path, lambda: dict(vars(function)))
            for name in names_in(code):  # also those that it may set for the first time
                self._names[name] = None
                self._variable(Variable(function.__globals__, name))

    def _variable(self, variable: Variable, path: str = "") -> None:
        if variable.key not in self._visited:
            self._visited[variable.key] = variable.held
            self._note(variable, path or variable.name, variable.read)

    def _of_packages(self) -> bool:
        """Visits what code that was met may read of installed modules: what has one of the names in
        it. Whether there is something that was not visited before."""
        pairs = [(m, n) for m in self._modules for n in self._names
                 if n in vars(m) and (id(vars(m)), n) not in self._visited]
        for module, name in pairs:
            self._variable(Variable(vars(module), name), f"{module.__name__}.{name}")
        return bool(pairs)

    # ---- what has changed ------------------------------------------------------------------------

    def check(self, seeded: Collection[int] = ()) -> bool:
        """Return whether the body has to run once more, because it gave something new keys: only a
        cache stays as it is then. Raises UnsupportedError where something is not as it was.

        seeded: ids of random generators that the body gave a seed.
        """
        filled = []
        for seen, now in self._others():
            free = isinstance(seen.thing, GENERATORS) and id(seen.thing) in seeded
            if not free and not self._filled(seen, now):
                raise self._changed(seen, now)
            filled += [] if free else [(seen, now)]
        if self.kind == "program" or not filled:
            return False
        self._fills += 1
        if self._fills > _MOST_FILLS:
            raise self._changed(*filled[0])
        for seen, now in filled:
            seen.items.update(now)
        return True

    def put_back(self) -> None:
        """Restore, after a failure, every thing that would keep an array of the program alive."""
        for seen, now in self._others():
            if self._holds_traced(_new(seen, now).values()):
                _restore(seen.thing, seen.items, now)

    def _others(self) -> Iterator[tuple[_Seen, dict[Any, Any]]]:
        """Yield the things that have changed, each with what it holds now."""
        for seen in self._seen:
            now = seen.read() or {}
            if now.keys() != seen.items.keys() or not all(
                _alike(now[k], v) for k, v in seen.items.items()
            ):
                yield seen, now

    def _filled(self, seen: _Seen, now: dict[Any, Any]) -> bool:
        """Return whether a dict or a namespace got new keys, as a cache does. In a program an
        attribute may be new too, and what was None. No array of the program is kept."""
        thing, new = seen.thing, _new(seen, now)
        if self.kind == "branch" and (id(thing) in self._contents or self._stored(thing)):
            return False
        if self.kind == "program":
            may = not isinstance(thing, (set, frozenset))
            may = may and all(seen.items.get(k) is None for k in new)
        else:
            cached = isinstance(thing, (dict, type, types.ModuleType, types.FunctionType))
            may = not new.keys() & seen.items.keys()
            cached = cached or origin(type(thing)) == STANDARD  # it computes what it needs later
            may = may and (cached or all(_is_cached(thing, k) for k in new))
        return may and seen.items.keys() <= now.keys() and not self._holds_traced(new.values())

    def _stored(self, thing: Any) -> bool:
        """Return whether the user's own code has stored into a thing since the body began."""
        context = Context.current()
        place = context.changed_at.get(id(thing)) if context else None
        return place is not None and place is not self._stored_before.get(id(thing))

    def _holds_traced(self, values: Iterable[Any]) -> bool:
        return Outside(self.kind, [("", v) for v in values]).traced

    def _changed(self, seen: _Seen, now: dict[Any, Any]) -> UnsupportedError:
        thing, path = seen.thing, seen.path
        context = Context.current()
        variable = isinstance(thing, Variable)
        where = context.changed_at.get(path if variable else id(thing)) if context else None
        if isinstance(thing, GENERATORS) or is_iterator(thing):
            return self.drawn(thing, where or self.place)
        shown = path
        if not variable and not isinstance(thing, (*_CONTAINERS, np.ndarray)):
            both = {**seen.items, **now}
            k = next(k for k in both if not _alike(now.get(k), seen.items.get(k)))
            shown = step(path, thing, k)
        remedy = _WAYS[self.kind]
        if self.kind == "branch" and isinstance(thing, dict):
            remedy += "; functools.cache for what a function has computed before"
        if isinstance(thing, np.ndarray):
            remedy = f"{path} = spmd.asarray({path}) before it makes an array of the program"
        shown_change = f"{shown}, {kind_of(thing)} from outside of it" if shown == path else shown
        if self.kind == "program" and self._holds_traced(_new(seen, now).values()):
            shown_change += ", which would keep an array of the program after the build"
        body = (("the body begins at", self.place),) if where and self.place else ()
        return UnsupportedError(
            f"{shown} is changed in {_WORDS[self.kind]}", place=where or self.place,
            expected=f"what stands outside of it stays as it is: {_TURNS[self.kind]}",
            found=shown_change, remedy=remedy, also=body,
        )

    def drawn(self, thing: Any, place: Place | None, instead: str = "") -> UnsupportedError:
        """Return the error for a thing that gives another value each time that it is asked: a
        generator, an iterator. instead: what of spmd.random stands for a generator's method."""
        drawing = isinstance(thing, GENERATORS)
        if self.kind == "program":
            remedy = "; or ".join(filter(None, [instead, _DRAWN])) if drawing else (
                "a list of it, made outside")
        elif drawing:
            instead = instead or "spmd.random.uniform(seed, shape), or normal, randint, …"
            remedy = f"{instead}, with stream=i; or draw all of it before: noise = rng.random(n)"
        else:
            remedy = "an array that is read at the counter, x[i]; or the rows of spmd.scan"
        return UnsupportedError(f"{self.path(thing)} {_ONCE[self.kind]}", place=place,
                                expected=f"values that stay as they are: {_TURNS[self.kind]}",
                                found=f"{self.path(thing)}, {kind_of(thing)} from outside of it",
                                remedy=remedy)


_DRAWN = "rng = np.random.default_rng(0) in the program"
_WORDS = {
    "loop": "a loop that is compiled",
    "branch": "a branch that is decided at run time",
    "recursion": "a function under spmd.recursive",
    "shard_map": "a function given to shard_map",
    "member": "a function under spmd.vmap",
    "program": "a program",
}
_ONCE = {
    "loop": "would give every iteration of a compiled loop the same value",
    "branch": "is asked for a value in a branch that is decided at run time",
    "recursion": "would give every call of the function the same value",
    "shard_map": "would give every rank the same value",
    "member": "would give every member the same value",
    "program": "would give another value in every build",
}
_TURNS = {
    "loop": "Python runs the body while building, not once per iteration",
    "branch": "Python runs both arms while building, whichever is taken later",
    "recursion": "Python runs the function while building, not once per call",
    "shard_map": "Python runs the function once, while building, not once per rank",
    "member": "Python runs the function once, for all members",
    "program": "Python runs the program while building, more than once",
}
_WAYS = {
    "loop": "an array that the loop carries (n = n + 1, out[i] = …), the ys of spmd.scan, or "
    "Python's own range, which unrolls",
    "branch": "rebind a variable of this function in both arms",
    "recursion": "take it as an argument and return it, or write into an array: count[0] += 1",
    "shard_map": "return it, with its place in out_layouts",
    "member": "return it from that function",
    "program": "keep it in a variable of the program, and return it: return x, total",
}


# ---- where variables are -----------------------------------------------------------------------


class Variable:
    """A variable of a function around (held is its cell), or a global one (held: all of them)."""

    def __init__(self, held: types.CellType | dict[str, Any], name: str) -> None:
        self.held, self.name = held, name
        self.key = (id(held), name) if isinstance(held, dict) else id(held)

    def read(self) -> dict[Any, Any]:
        if isinstance(self.held, dict):
            return {"": self.held[self.name]} if self.name in self.held else {}
        try:
            return {"": self.held.cell_contents}
        except ValueError:
            return {}

    def restore(self, before: dict[Any, Any]) -> None:
        if isinstance(self.held, dict):
            self.held.pop(self.name, None)
            self.held.update((self.name, value) for value in before.values())
            return
        del self.held.cell_contents
        for value in before.values():
            self.held.cell_contents = value


class Attributes:
    """Read and restore the attributes of a list, a dict or the like whose class has some."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def read(self) -> dict[Any, Any]:
        return attributes(self.thing) or {}

    def restore(self, before: dict[Any, Any]) -> None:
        put_attributes(self.thing, before)


def step(path: str, thing: Any, key: Any) -> str:
    """Return the text of a path to what a thing holds under a key."""
    if isinstance(thing, Variable):
        return path
    if isinstance(thing, (list, tuple, dict, collections.deque)):
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if isinstance(key, str) and not is_iterator(thing) else path


def of_piece(kind: str, code: Code, entry: Variables) -> Outside:
    """Return the outside of a loop or a branch: what it can reach beside the variables that it
    carries."""
    names = code.names
    carried = [names.key(name) for name in code.bound]
    carried += [id(x) for held in entry.values() if held for x in held.tree.containers()]
    reached = [(n, names.get(n)) for n in (*code.bound, *code.touched)]
    return Outside(kind, [*reached, *names.roots], carried)


# ---- what has changed --------------------------------------------------------------------------


def _alike(now: Any, before: Any) -> bool:
    if now is before:
        return True
    if isinstance(now, tuple) and type(now) is type(before) and len(now) == len(before):
        return all(_alike(a, b) for a, b in zip(now, before))
    return same(now, before)


def _new(seen: _Seen, now: dict[Any, Any]) -> dict[Any, Any]:
    """Return the entries of a thing that it did not hold when the body began."""
    return {k: v for k, v in now.items() if k not in seen.items or not _alike(v, seen.items[k])}


def _is_cached(thing: Any, key: Any) -> bool:
    return isinstance(key, str) and isinstance(
        getattr(type(thing), key, None), functools.cached_property
    )


def _restore(thing: Any, before: dict[Any, Any], now: dict[Any, Any]) -> None:
    """Gives a variable, a container or an object back what it held."""
    if isinstance(thing, (Attributes, Variable)):
        thing.restore(before)
    elif isinstance(thing, (list, collections.deque)):
        if before[_LEN] <= _COMPARED_ITEMS:  # else it is not known what it held
            thing.clear()
            thing.extend(v for k, v in before.items() if k != _LEN)
    elif isinstance(thing, dict):
        for key in now.keys() - before.keys():
            dict.__delitem__(thing, key)
        for key, value in before.items():
            if now.get(key) is not value:
                dict.__setitem__(thing, key, value)
    elif isinstance(thing, set):
        thing.clear()
        thing.update(before.values())
    elif not is_iterator(thing):
        change = type.__setattr__ if isinstance(thing, type) else object.__setattr__
        remove = type.__delattr__ if isinstance(thing, type) else object.__delattr__
        for key in now.keys() - before.keys():
            remove(thing, key)
        for key, value in before.items():
            if now.get(key) is not value:
                change(thing, key, value)


# ---- things with state -------------------------------------------------------------------------


def items_of(thing: Any) -> dict[Any, Any] | None:
    """Return what a thing holds, by key, index or attribute; None if it has no state."""
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject and thing.dtype.names is None:
        return dict(enumerate(islice(thing.flat, _COMPARED_ITEMS)))
    if isinstance(thing, np.ndarray):
        return {"data": _print(thing)}
    if isinstance(thing, GENERATORS):
        return {"state": _state_of(thing)}
    if isinstance(thing, dict):
        return dict(islice(thing.items(), _COMPARED_ITEMS))
    if isinstance(thing, (set, frozenset)):
        return {id(x): x for x in thing}
    if isinstance(thing, (list, tuple, collections.deque)):
        return dict(enumerate(islice(thing, _COMPARED_ITEMS))) | {_LEN: len(thing)}
    if isinstance(thing, (bytearray, array.array)):
        return {"data": bytes(thing)}
    if isinstance(thing, type):
        return _public(vars(thing)) if has_attributes(thing) else None
    if isinstance(thing, types.ModuleType):
        file = getattr(thing, "__file__", None)
        ours = thing.__name__ == "__main__" or (
            whose(file) == USER if file is not None else
            thing.__name__.partition(".")[0] not in sys.stdlib_module_names)
        return _public(vars(thing)) if ours else None
    if is_iterator(thing):
        return _left_in(thing)
    if isinstance(thing, BaseException):
        return {"args": thing.args, **(attributes(thing) or {})}
    items = None if origin(type(thing)) == FIXED else attributes(thing)
    return items or _of_extension(thing) or items


def _of_extension(thing: Any) -> dict[Any, Any] | None:
    """Return the state of an object whose class is written in C: the value of a ContextVar, the
    size of a queue, the digest of a hash, the bytes of memory; None of any other."""
    if isinstance(thing, contextvars.ContextVar):
        return {0: thing.get(None)}
    if isinstance(thing, type) or is_the_compilers(type(thing)):
        return None
    for name in () if has_attributes(type(thing)) else ("qsize", "digest"):  # of queues, of hashes
        if callable(method := getattr(type(thing), name, None)):
            try:
                return {0: method(thing)}
            except TypeError:  # it has other arguments
                return None
    data = raw_bytes(thing)
    return None if data is None else {0: data}


def _public(names: Any) -> dict[Any, Any]:
    """Return data of a class or a module, and the classes and functions in it."""
    return {
        k: v for k, v in dict(names).items()
        if not isinstance(v, types.ModuleType)
        and (not k.startswith("__") or isinstance(v, types.FunctionType) or _called_by(v))
    }


def _called_by(thing: Any) -> list[Any]:
    """Return the functions that a descriptor, a partial or a cache calls, and the arguments it
    keeps."""
    if isinstance(thing, (functools.partial, functools.partialmethod)):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, (staticmethod, classmethod)):
        return [thing.__func__]
    if isinstance(thing, property):
        return [f for f in (thing.fget, thing.fset, thing.fdel) if f is not None]
    if isinstance(thing, (functools.cached_property, functools.singledispatchmethod)):
        return [thing.func]
    return [thing.__wrapped__] if isinstance(thing, functools._lru_cache_wrapper) else []


def _print(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.hasobject:
        return array.shape
    if array.nbytes > _COMPARED_BYTES:
        array = array.reshape(-1)[:: array.nbytes // _COMPARED_BYTES + 1]
    return array.shape, zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.SystemRandom):
        return 0
    if isinstance(generator, random.Random):
        return hash(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return _flat(generator.get_state(legacy=False))
    return _flat(getattr(generator, "bit_generator", generator).state)


def _flat(state: Any) -> Any:
    if isinstance(state, dict):
        return tuple((k, _flat(v)) for k, v in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _left_in(iterator: Any) -> dict[Any, Any]:
    """Return the position of an iterator, as far as it can be told without taking an item."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        if frame is None:
            return {"ended": True}
        return {"at": frame.f_lasti} | dict(frame.f_locals)
    try:
        if hasattr(iterator, "tell"):
            return {"at": iterator.tell()}
        _, arguments, *rest = iterator.__reduce__()
        return dict(enumerate(arguments)) | {"at": str(rest)}
    except (OSError, TypeError, ValueError):
        return {}


# ---- refusals ----------------------------------------------------------------------------------

def kind_of(thing: Any) -> str:
    if isinstance(thing, GENERATORS):
        return "a random generator"
    if is_iterator(thing):
        return "an iterator"
    if isinstance(thing, Variable):
        return "a global variable" if isinstance(thing.held, dict) else "a variable"
    return "a NumPy array" if isinstance(thing, np.ndarray) else f"a {type(thing).__name__}"
