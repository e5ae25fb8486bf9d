"""Side effects on Python state outside of a compiled body are refused: Python runs the body once.

Goes in: what the body can reach when it begins (variables, closures, globals of the user's
functions, attributes). Where any of it differs after the body, UnsupportedError is raised. Always
holds: the body may change what it makes itself, arrays of the program, and carried variables. """

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
class _Snapshot:
    """The state of an object when the body began. path: how the user's code reaches it. read:
    returns its items now. items: what it held, by key or attribute."""

    thing: Any
    path: str
    read: Callable[[], dict[Any, Any] | None]
    items: dict[Any, Any]


class OuterState:
    """Everything that a body can reach when it begins. kind: loop, branch, shard_map, member or
    program.

    carried: ids of objects that the body may change; for a global, (id of the namespace, name).
    """

    def __init__(
        self, kind: str, roots: Iterable[tuple[str, Any]], carried: Iterable[Any] = ()
    ) -> None:
        self.kind = kind
        self.place = user_place()
        self._carried = set(carried)
        self._visited: dict[Any, Any] = {}  # by id; the values keep the ids from being used again
        self._seen: list[_Snapshot] = []
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
        while self._work or self._visit_packages():
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
        """Raise UnsupportedError if the body has stored into an object from outside whose state
        cannot be compared, such as an extension's object or threading.local."""
        unseen = thing in self and not isinstance(thing, (*_CONTAINERS, np.ndarray))
        unseen = unseen and not any(thing is m for m in self._modules)
        unseen = unseen and not is_the_compilers(type(thing))
        if unseen and self.kind != "program" and items_of(thing) is None:
            raise UnsupportedError(
                f"an attribute of a {type(thing).__name__} is changed in {_SCOPES[self.kind]}",
                place=place,
                expected=f"what stands outside of it stays as it is: {_RUNS[self.kind]}",
                found=f"a {type(thing).__name__}, whose attributes cannot be seen from outside",
                remedy="an object of a class of your own; or " + _REMEDIES[self.kind],
            )

    def holder(self, thing: Any, but: Iterable[str]) -> str:
        """Return the path by which an object that is not carried holds this one; "" if none does.
        but: variables to leave out."""
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
            self._seen.append(_Snapshot(thing, path, read, items))
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

    def _visit_packages(self) -> bool:
        """Visit the attributes of installed modules whose names occur in code that was reached;
        return whether one of them is new."""
        pairs = [(m, n) for m in self._modules for n in self._names
                 if n in vars(m) and (id(vars(m)), n) not in self._visited]
        for module, name in pairs:
            self._variable(Variable(vars(module), name), f"{module.__name__}.{name}")
        return bool(pairs)

    # ---- what has changed ------------------------------------------------------------------------

    def check(self, seeded: Collection[int] = ()) -> bool:
        """Return whether the body has to run once more, because it added keys to a dict or
        namespace: a cache is then full and does not change again. Raise UnsupportedError for other
        changes.

        seeded: ids of random generators that the body gave a seed.
        """
        filled = []
        for seen, now in self._changes():
            free = isinstance(seen.thing, GENERATORS) and id(seen.thing) in seeded
            if not free and not self._is_cache_fill(seen, now):
                raise self._change_error(seen, now)
            filled += [] if free else [(seen, now)]
        if self.kind == "program" or not filled:
            return False
        self._fills += 1
        if self._fills > _MOST_FILLS:
            raise self._change_error(*filled[0])
        for seen, now in filled:
            seen.items.update(now)
        return True

    def put_back(self) -> None:
        """Restore, after a failure, every object that would keep an array of the program alive."""
        for seen, now in self._changes():
            if self._holds_traced(_new_items(seen, now).values()):
                _restore(seen.thing, seen.items, now)

    def _changes(self) -> Iterator[tuple[_Snapshot, dict[Any, Any]]]:
        """Yield the things that have changed, each with what it holds now."""
        for seen in self._seen:
            now = seen.read() or {}
            if now.keys() != seen.items.keys() or not all(
                _is_unchanged(now[k], v) for k, v in seen.items.items()
            ):
                yield seen, now

    def _is_cache_fill(self, seen: _Snapshot, now: dict[Any, Any]) -> bool:
        """Return whether the change is only new keys in a dict or a namespace, as a cache makes. In
        a program, new attributes are allowed too, and values in place of None. An array of the
        program is never allowed."""
        thing, new = seen.thing, _new_items(seen, now)
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
        return OuterState(self.kind, [("", v) for v in values]).traced

    def _change_error(self, seen: _Snapshot, now: dict[Any, Any]) -> UnsupportedError:
        thing, path = seen.thing, seen.path
        context = Context.current()
        variable = isinstance(thing, Variable)
        where = context.changed_at.get(path if variable else id(thing)) if context else None
        if isinstance(thing, GENERATORS) or is_iterator(thing):
            return self.drawn_error(thing, where or self.place)
        shown = path
        if not variable and not isinstance(thing, (*_CONTAINERS, np.ndarray)):
            both = {**seen.items, **now}
            k = next(k for k in both if not _is_unchanged(now.get(k), seen.items.get(k)))
            shown = step(path, thing, k)
        remedy = _REMEDIES[self.kind]
        if self.kind == "branch" and isinstance(thing, dict):
            remedy += "; functools.cache for what a function has computed before"
        if isinstance(thing, np.ndarray):
            remedy = f"{path} = spmd.asarray({path}) before it makes an array of the program"
        shown_change = f"{shown}, {kind_of(thing)} from outside of it" if shown == path else shown
        if self.kind == "program" and self._holds_traced(_new_items(seen, now).values()):
            shown_change += ", which would keep an array of the program after the build"
        body = (("the body begins at", self.place),) if where and self.place else ()
        return UnsupportedError(
            f"{shown} is changed in {_SCOPES[self.kind]}", place=where or self.place,
            expected=f"what stands outside of it stays as it is: {_RUNS[self.kind]}",
            found=shown_change, remedy=remedy, also=body,
        )

    def drawn_error(self, thing: Any, place: Place | None, instead: str = "") -> UnsupportedError:
        """Return the error for a generator or an iterator, which gives a new value in each call.
        instead: the function of spmd.random that replaces a generator's method."""
        drawing = isinstance(thing, GENERATORS)
        if self.kind == "program":
            remedy = "; or ".join(filter(None, [instead, _DRAWN])) if drawing else (
                "a list of it, made outside")
        elif drawing:
            instead = instead or "spmd.random.uniform(seed, shape), or normal, randint, …"
            remedy = f"{instead}, with stream=i; or draw all of it before: noise = rng.random(n)"
        else:
            remedy = "an array that is read at the counter, x[i]; or the rows of spmd.scan"
        return UnsupportedError(f"{self.path(thing)} {_SAME_VALUE[self.kind]}", place=place,
                                expected=f"values that stay as they are: {_RUNS[self.kind]}",
                                found=f"{self.path(thing)}, {kind_of(thing)} from outside of it",
                                remedy=remedy)


_DRAWN = "rng = np.random.default_rng(0) in the program"
_SCOPES = {
    "loop": "a loop that is compiled",
    "branch": "a branch that is decided at run time",
    "recursion": "a function under spmd.recursive",
    "shard_map": "a function given to shard_map",
    "member": "a function under spmd.vmap",
    "program": "a program",
}
_SAME_VALUE = {
    "loop": "would give every iteration of a compiled loop the same value",
    "branch": "is asked for a value in a branch that is decided at run time",
    "recursion": "would give every call of the function the same value",
    "shard_map": "would give every rank the same value",
    "member": "would give every member the same value",
    "program": "would give another value in every build",
}
_RUNS = {
    "loop": "Python runs the body while building, not once per iteration",
    "branch": "Python runs both arms while building, whichever is taken later",
    "recursion": "Python runs the function while building, not once per call",
    "shard_map": "Python runs the function once, while building, not once per rank",
    "member": "Python runs the function once, for all members",
    "program": "Python runs the program while building, more than once",
}
_REMEDIES = {
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
    """A variable of an enclosing function, whose cell is `held`; or a global one, for which `held`
    is the namespace."""

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


def outer_state_of(kind: str, code: Code, entry: Variables) -> OuterState:
    """Return the state outside of a loop or a branch: all that it can reach but the variables that
    it carries."""
    names = code.names
    carried = [names.key(name) for name in code.bound]
    carried += [id(x) for held in entry.values() if held for x in held.tree.containers()]
    reached = [(n, names.get(n)) for n in (*code.bound, *code.touched)]
    return OuterState(kind, [*reached, *names.roots], carried)


# ---- what has changed --------------------------------------------------------------------------


def _is_unchanged(now: Any, before: Any) -> bool:
    if now is before:
        return True
    if isinstance(now, tuple) and type(now) is type(before) and len(now) == len(before):
        return all(_is_unchanged(a, b) for a, b in zip(now, before))
    return same(now, before)


def _new_items(seen: _Snapshot, now: dict[Any, Any]) -> dict[Any, Any]:
    """Return the items of an object that it did not hold when the body began."""
    before = seen.items
    return {k: v for k, v in now.items() if k not in before or not _is_unchanged(v, before[k])}


def _is_cached(thing: Any, key: Any) -> bool:
    return isinstance(key, str) and isinstance(
        getattr(type(thing), key, None), functools.cached_property
    )


def _restore(thing: Any, before: dict[Any, Any], now: dict[Any, Any]) -> None:
    """Restore the items of a variable, a container or an object."""
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
    """Return the items of an object by key, index or attribute; None if it has no state."""
    if isinstance(thing, np.ndarray) and thing.dtype.hasobject and thing.dtype.names is None:
        return dict(enumerate(islice(thing.flat, _COMPARED_ITEMS)))
    if isinstance(thing, np.ndarray):
        return {"data": _array_digest(thing)}
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
        return _iterator_position(thing)
    if isinstance(thing, BaseException):
        return {"args": thing.args, **(attributes(thing) or {})}
    items = None if origin(type(thing)) == FIXED else attributes(thing)
    return items or _extension_state(thing) or items


def _extension_state(thing: Any) -> dict[Any, Any] | None:
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


def _array_digest(array: np.ndarray[Any, Any]) -> Any:
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
        return _hashable(generator.get_state(legacy=False))
    return _hashable(getattr(generator, "bit_generator", generator).state)


def _hashable(state: Any) -> Any:
    if isinstance(state, dict):
        return tuple((k, _hashable(v)) for k, v in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _iterator_position(iterator: Any) -> dict[Any, Any]:
    """Return the position of an iterator, as far as Python shows it without taking an item."""
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
