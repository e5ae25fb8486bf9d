"""Copies of functions with what they can reach: variables, lists, dicts, the user's objects,
arrays.

Always holds: an object has one copy, so what was shared is shared. What a module
names stays itself.
"""

from __future__ import annotations

import copy
import enum
import functools
import types
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen.trace.array import Array, Number
from codegen.trace.control.outside import GENERATORS
from codegen.user.objects import attributes, is_carried, put_attributes

_ITSELF = (Array, Number, type, enum.Enum, types.ModuleType, np.generic, str, bytes, int, float,
           complex, type(None))


class Copies:
    """Copy objects with all that they can reach, each once. array: how a NumPy array is copied."""

    def __init__(self, array: Callable[[np.ndarray[Any, Any]], Any]) -> None:
        self._array = array
        self._copies: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no id is used again
        self._named: set[int] = set()  # ids of what the functions' modules name
        self.arrays: list[tuple[np.ndarray[Any, Any], Any]] = []  # with their copies

    def of(self, x: Any) -> Any:
        """Return the copy of x; x itself where nothing in it can change."""
        if isinstance(x, _ITSELF) or id(x) in self._named:
            return x
        if id(x) not in self._copies:
            self._kept.append(x)
            copied = self._copied(x)
            self._copies[id(x)] = copied
        return self._copies[id(x)]

    def _copied(self, x: Any) -> Any:
        own = getattr(type(x), "with_copies", None)  # what this package wraps others in
        if isinstance(x, np.ndarray) and own is None:
            self.arrays.append((x, self._array(x)))
            return self.arrays[-1][1]
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if isinstance(x, types.MethodType):
            return types.MethodType(self.of(x.__func__), self.of(x.__self__))
        if isinstance(x, functools.partial):
            return functools.partial(self.of(x.func), *map(self.of, x.args),
                                     **{k: self.of(v) for k, v in x.keywords.items()})
        if isinstance(x, tuple):
            items = [self.of(item) for item in x]
            if all(a is b for a, b in zip(items, x)):
                return x
            return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
        if isinstance(x, GENERATORS):
            return copy.deepcopy(x)
        if isinstance(x, (list, dict, deque, set)) or is_carried(x):
            return self._filled(x)
        return x if own is None else own(x, self.of)

    def _filled(self, x: Any) -> Any:
        """Return a copy of a container or an object, with copies of its content. It may contain
        itself. Returns x where its class forbids copies."""
        try:
            new = copy.copy(x)
        except Exception:  # whatever its class says: it is not to be copied
            return x
        if new is x:
            return x
        self._copies[id(x)] = new
        if isinstance(x, (list, deque)):
            new.clear()
            new.extend(self.of(item) for item in x)
        elif isinstance(x, dict):
            for key, value in x.items():
                new[key] = self.of(value)
        if is_carried(x):
            held = attributes(x) or {}
            put_attributes(new, {name: self.of(value) for name, value in held.items()})
        return new

    def _function(self, f: types.FunctionType) -> Any:
        self._named.update(map(id, f.__globals__.values()))
        if not (f.__closure__ or f.__defaults__ or f.__kwdefaults__):
            return f
        cells = [self._cell(cell) for cell in f.__closure__ or ()]
        new = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__,
                                 tuple(cells))
        self._copies[id(f)] = new
        new.__qualname__, new.__doc__, new.__module__ = f.__qualname__, f.__doc__, f.__module__
        new.__defaults__, new.__kwdefaults__ = self.of(f.__defaults__), self.of(f.__kwdefaults__)
        new.__dict__.update((name, self.of(value)) for name, value in vars(f).items())
        for cell, mine in zip(f.__closure__ or (), cells):
            try:
                held = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            mine.cell_contents = self.of(held)
        return new

    def _cell(self, cell: types.CellType) -> types.CellType:
        """Return the copy of a closure's variable. It is filled later: functions may share it, and
        it may hold one of them."""
        if id(cell) not in self._copies:
            self._kept.append(cell)
            self._copies[id(cell)] = types.CellType()
        new: types.CellType = self._copies[id(cell)]
        return new


def sharing(arrays: Sequence[tuple[np.ndarray[Any, Any], Any]]) -> list[Any]:
    """Return the copies of those arrays that share memory with another one of them."""
    bases: dict[int, list[tuple[np.ndarray[Any, Any], Any]]] = {}
    for x, copied in arrays:
        base = x
        while isinstance(base.base, np.ndarray):
            base = base.base
        bases.setdefault(id(base), []).append((x, copied))
    return [copied for group in bases.values() for x, copied in group
            if any(np.may_share_memory(x, y) for y, _ in group if y is not x)]
