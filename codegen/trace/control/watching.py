"""What a function can read, watched: whether any of it is another than when the watch began.

Goes in: functions and values. Comes out: WatchedReads, which are asked again and again. Always
holds: they see what functions of the user's reach by name, and call nothing of the user's. What
cannot be seen so (a file that their code reads, an attribute under a computed name of a foreign
object) counts as unchanged. A look compares what each name means, and the bytes of each array.
"""

from __future__ import annotations

import builtins
import functools
import operator
import os
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from codegen.places import codes_in, module_of
from codegen.trace.control import reads

_MISSING = object()
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, slice, range)
# Names by which code reads attributes that it does not name.
_ANY = frozenset("getattr hasattr vars __dict__ attrgetter __getattr__ __getattribute__".split())
_ENVIRONMENT = frozenset(("environ", "getenv"))
_MOST_OBJECTS = 200_000
_COPIED_BYTES = 1 << 16  # of an array, that are compared as one piece of bytes


class WatchedReads:
    """A watch over what some roots can read: it keeps what they could read when it began."""

    def __init__(self, *roots: Any) -> None:
        self._names: list[tuple[Any, str, Any]] = []  # a namespace, a name, what it meant
        self._cells: list[tuple[types.CellType, Any]] = []
        self._functions: list[tuple[types.FunctionType, tuple[Any, ...]]] = []
        self._sequences: list[tuple[Any, tuple[Any, ...]]] = []
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._sets: list[tuple[Any, Any]] = []
        self._files: list[tuple[str, Any]] = []  # of kernels in C
        self._arrays: list[tuple[np.ndarray, np.ndarray | bytes, Any]] = []
        self._seen: dict[int, Any] = {}  # by id; the values keep the ids from being used again
        # Namespaces of objects, classes and modules; of an object, what its classes have too.
        self._holders: list[tuple[Any, frozenset[str]]] = []
        self._read: set[str] = set()  # names of attributes, in any code that was met
        self._said: set[str] = set()  # texts in it that may name one: hasattr(x, "name")
        self._work = list(roots)
        done: set[tuple[int, str]] = set()
        self._visit_all()
        while pairs := [(space, name) for space, behind in self._holders
                        for name in self._attributes(space, behind)
                        if (id(space), name) not in done]:
            for space, name in pairs:
                done.add((id(space), name))
                self._name(space, name)
            self._visit_all()
        if self._read & _ENVIRONMENT:
            self._visit(os.environ._data)  # type: ignore[attr-defined]
        # Where code reads attributes by text: the names of each namespace, and what may hide them.
        self._spaces = [(space, frozenset(space), behind) for space, behind in self._holders
                        ] if self._read & _ANY else []
        self._seen = {}
        self._holders = []

    # ---- what there is to watch

    def _attributes(self, space: Any, behind: frozenset[str]) -> Iterable[str]:
        """Return the names whose values are watched in a namespace: those that code may read."""
        if self._read & _ANY:
            return [*space]
        return [*(name for name in space if name in self._read), *(behind & self._read)]

    def _visit_all(self) -> None:
        while self._work:
            if len(self._seen) > _MOST_OBJECTS:
                self._work = []
                return
            self._visit(self._work.pop())

    def _name(self, space: Any, name: str) -> Any:
        value = space.get(name, _MISSING)
        self._names.append((space, name, value))
        self._work.append(value)
        return value

    def _visit(self, x: Any) -> None:
        if x is _MISSING or isinstance(x, _PLAIN) or id(x) in self._seen:
            return
        self._seen[id(x)] = x
        if isinstance(x, types.FunctionType):
            self._function(x)
        elif isinstance(x, np.ndarray):
            if isinstance(x, np.ma.MaskedArray):
                self._work.append(np.ma.getmask(x))
                x = np.asarray(x)  # tobytes() of a masked array writes into it
            if not x.dtype.hasobject:
                self._arrays.append((x, _bytes(x), (x.shape, x.strides, x.dtype)))
        elif isinstance(x, types.MethodType):
            self._work += [x.__func__, x.__self__]
        elif isinstance(x, functools.partial):
            self._work += [x.func, x.args, x.keywords]
        elif isinstance(x, staticmethod | classmethod):
            self._work.append(x.__func__)
        elif isinstance(x, property):
            self._work += [x.fget, x.fset, x.fdel]
        elif isinstance(x, types.ModuleType):
            if reads.is_users_module(x):
                self._holders.append((vars(x), frozenset()))
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, dict):
            self._dicts.append((x, dict(x)))
            self._work += [*x, *x.values()]
        elif isinstance(x, list | tuple):
            if not isinstance(x, tuple):
                self._sequences.append((x, tuple(x)))
            self._work += x
        elif isinstance(x, set):
            self._sets.append((x, set(x)))
        else:
            self._instance(x)

    def _function(self, f: types.FunctionType) -> None:
        self._functions.append((f, (f.__code__, f.__defaults__, f.__kwdefaults__)))
        self._work += [f.__defaults__, f.__kwdefaults__, *vars(f).values()]
        for cell in f.__closure__ or ():
            value = _held(cell)
            self._cells.append((cell, value))
            self._work.append(value)
        if reads.is_known(f.__globals__.get("__name__", "")):
            return  # its globals are the same in any run
        for code in (f.__code__, *codes_in(f.__code__)):
            self._read.update(code.co_names)
            self._said.update(x for x in code.co_consts if type(x) is str and x.isidentifier())
        for name, chain in reads.uses_of(f.__code__):
            if name not in f.__globals__ and hasattr(builtins, name):
                self._names.append((f.__globals__, name, _MISSING))
                continue
            value = self._name(f.__globals__, name)
            for attribute in chain:
                if not isinstance(value, types.ModuleType) or not reads.is_users_module(value):
                    break
                value = self._name(vars(value), attribute)

    def _class(self, x: type) -> None:
        if not reads.is_users_class(x):
            return
        self._holders.append((vars(x), frozenset(name for c in x.__mro__ for name in vars(c))))
        self._work += x.__bases__

    def _instance(self, x: Any) -> None:
        module = module_of(type(x))
        if hasattr(type(x), "read_parts") and module.startswith(("codegen.", "spmd.")):
            self._work += x.read_parts()
            files = x.read_files() if hasattr(x, "read_files") else ()
            self._files += [(path, _state(path)) for path in files]
            return
        if module.partition(".")[0] == "numba" and hasattr(x, "py_func"):
            self._work.append(x.py_func)
            return
        if not reads.is_users_class(type(x)):
            return
        self._work.append(type(x))
        try:
            own = object.__getattribute__(x, "__dict__")
            self._holders.append((own, frozenset(name for c in type(x).__mro__ for name in vars(c))
                                  if type(own) is dict else frozenset()))
        except AttributeError:
            pass
        if (slots := _Slots(x)).slots:
            self._seen[id(slots)] = slots  # its id stands for it
            self._holders.append((slots, frozenset()))

    # ---- whether it is the same

    def changed(self) -> bool:
        """Return whether the roots could now read something that differs from then."""
        for space, name, was in self._names:
            now = space.get(name, _MISSING)
            if now is not was and not _equal(now, was):
                return True
        for space, names, behind in self._spaces:
            other = names ^ {*space}  # names that came or went
            if not (other.isdisjoint(self._said) and other.isdisjoint(behind)):
                return True
        for cell, was in self._cells:
            now = _held(cell)
            if now is not was and not _equal(now, was):
                return True
        for f, parts in self._functions:
            if (f.__code__ is not parts[0] or f.__defaults__ is not parts[1]
                    or f.__kwdefaults__ is not parts[2]):
                return True
        return (
            any(not _same_items(now, was) for now, was in self._sequences)
            or any(len(now) != len(was) or not _same_items(now, was)
                   or not _same_items(now.values(), was.values()) for now, was in self._dicts)
            or any(now != was for now, was in self._sets)
            or any(_state(path) != was for path, was in self._files)
            or any((x.shape, x.strides, x.dtype) != form or not _same_bytes(x, was)
                   for x, was, form in self._arrays)
        )


def _state(path: str) -> tuple[int, int] | None:
    """Return what tells a file from what it was; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class _Slots:
    """The attributes of an object that __slots__ hold, as a namespace."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.slots = {name: slot for c in type(x).__mro__ for name, slot in vars(c).items()
                      if isinstance(slot, types.MemberDescriptorType)}

    def __iter__(self) -> Any:
        return iter(self.slots)

    def get(self, name: str, default: Any) -> Any:
        try:
            return self.slots[name].__get__(self.x, type(self.x))
        except (AttributeError, KeyError):
            return default


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _equal(now: Any, was: Any) -> bool:
    """Return whether two objects are equal plain values, such as numbers or texts."""
    if type(now) is not type(was) or not isinstance(now, _PLAIN):
        return isinstance(now, types.MethodType) and isinstance(was, types.MethodType) and (
            now.__func__ is was.__func__ and now.__self__ is was.__self__)
    return repr(now) == repr(was)  # -0.0 is not 0.0, and a NaN is a NaN


def _same_items(now: Any, was: Any) -> bool:
    if len(now) != len(was):
        return False
    return all(map(operator.is_, now, was)) or all(
        a is b or _equal(a, b) for a, b in zip(now, was, strict=True))


def _bytes(x: np.ndarray) -> np.ndarray | bytes:
    return x.tobytes() if x.nbytes <= _COPIED_BYTES else _words(x.copy())


def _words(x: np.ndarray) -> np.ndarray:
    """Return the bytes of an array as integers."""
    flat = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return flat.view(np.uint64) if flat.size % 8 == 0 else flat


def _same_bytes(x: np.ndarray, was: np.ndarray | bytes) -> bool:
    if isinstance(was, bytes):
        return x.tobytes() == was
    return bool((_words(x) == was).all())
