"""NumPy arrays with what the language adds: `.at`, `.layout`, `.relayout`, and blocks."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from codegen.user.absent import Absent, Needs, is_all, needs_of, stand_in_of
from codegen.user.half_types import ADDING, adding, in_weak_type, widened
from codegen.user.pytree import leaves, map_tree


class EagerArray(np.ndarray[Any, Any]):
    """An ndarray that also has the language's own attributes."""

    layout: Any = None
    needs: Needs = ()  # inputs that are not given, and without which it is not there
    made_empty = False  # by spmd.like or spmd.empty: an output where a kernel takes it by name

    @property
    def at(self) -> At:
        return At(self)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))  # as in NumPy's own run of the program

    def __getitem__(self, key: Any) -> Any:
        if needs := needs_of(key):
            return Absent(self, needs)[key]
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write the value; a value that is not there makes this array one that is not there, under
        all its names."""
        if needs := needs_of((key, value)):
            self.withhold(needs)
        else:
            super().__setitem__(key, value)

    def withhold(self, needs: Needs) -> None:
        """Make this array, and those that it is a view of, arrays that are not there from here
        on."""
        x: Any = self
        while isinstance(x, EagerArray):
            x.__class__, x.needs = Withheld, needs
            x = x.base

    def relayout(self, layout: Any) -> EagerArray:
        out = self.copy()
        out.layout = layout
        return out

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run NumPy's functions as they are, with results that have the language's attributes too;
        half types are added in float64: NumPy adds the rows of float32 one after the other."""
        if Absent in types:
            return NotImplemented
        def call(*args: Any, **kwargs: Any) -> Any:
            return super(EagerArray, self).__array_function__(function, types, args, kwargs)

        if function in _ADDING:
            call = adding(call, np.float64, function)
        elif function is np.where:
            args = in_weak_type(args)
        return map_tree(_dressed, call(*args, **kwargs))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Absent) for x in (*inputs, *leaves(kwargs))):
            return NotImplemented
        call = getattr(ufunc, method)
        running = ufunc in (np.add, np.multiply) and method in _RUNNING
        if running or ufunc in _ADDING or ufunc.__name__ == "clip":  # that is none of bfloat16's
            call = adding(call, np.float64)
        out = kwargs.get("out")
        if out is not None and len(out) == 1:
            kwargs = {**kwargs, "out": out[0]}
        result = call(*map(_plain, in_weak_type(inputs)), **map_tree(_plain, kwargs))
        if out is not None:
            return out[0] if len(out) == 1 else out
        return map_tree(self._result, result)

    def _result(self, x: Any) -> Any:
        result = _dressed(x)
        if isinstance(result, EagerArray) and result.shape == self.shape:
            result.layout = self.layout
        return result

    def argsort(self, axis: Any = -1, kind: Any = None, order: Any = None, **_: Any) -> Any:
        """Sort stably, as in an image; np.argsort comes here."""
        np.empty(0).argsort(kind=kind, order=order)  # NumPy refuses what it does not know
        return super().argsort(axis, kind="stable")

    def __array_finalize__(self, other: Any) -> None:
        if other is not None and other.shape == self.shape:
            self.layout = getattr(other, "layout", None)


class Withheld(EagerArray):
    """An array into which something was written that is not there: it is not there either, until
    all of it is written again."""

    def __getattribute__(self, name: str) -> Any:
        """Return methods, and views by name, of what is not there."""
        if name in _OF_ELEMENTS:
            return getattr(self.hidden(), name)
        return super().__getattribute__(name)

    def with_copies(self, of: Any) -> Any:
        return self.hidden().with_copies(of)

    def hidden(self) -> Absent:
        return Absent(np.ndarray.view(self, EagerArray), self.needs)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = {"out": kwargs.pop("out")} if "out" in kwargs else {}
        return getattr(ufunc, method)(*map(_hidden, inputs), **map_tree(_hidden, kwargs), **out)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*map_tree(_hidden, args), **map_tree(_hidden, kwargs))

    def __array_finalize__(self, other: Any) -> None:
        super().__array_finalize__(other)
        self.needs = getattr(other, "needs", ())

    def __getitem__(self, key: Any) -> Any:
        return self.hidden()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if is_all(key) and not needs_of(value):
            self.__class__, self.needs = EagerArray, ()  # type: ignore[assignment]
            EagerArray.__setitem__(self, key, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.hidden())

    def __bool__(self) -> bool:
        raise self.hidden().refused("what follows from it decides which line runs next")

    def __int__(self) -> Any:
        return int(self.hidden())

    __float__ = __complex__ = __index__ = __int__

    def __repr__(self) -> str:
        return repr(self.hidden())

    __str__ = __repr__


def _hidden(x: Any) -> Any:
    return x.hidden() if isinstance(x, Withheld) else x


_OF_ELEMENTS = frozenset(
    name for name in dir(np.ndarray) if not name.startswith("_")
    and callable(getattr(np.ndarray, name))) | {"T", "mT", "real", "imag", "flat", "at", "relayout"}
_RUNNING = ("reduce", "accumulate")
_ADDING = frozenset(operator.attrgetter(name)(np) for name in ADDING)
for _name in "cumprod cumsum dot mean prod std sum trace var".split():
    setattr(EagerArray, _name, adding(getattr(np.ndarray, _name), np.float64))


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, EagerArray) else x


def _dressed(x: Any) -> Any:
    return local(x) if type(x) is np.ndarray else x


def local(x: Any) -> EagerArray:
    """Return an array as an EagerArray over the same memory; what is not there stays so."""
    if isinstance(x, Absent):
        return x  # type: ignore[return-value]
    return np.asarray(x).view(EagerArray)


def received(x: np.ndarray[Any, Any]) -> Any:
    """Return an EagerArray, or a NumPy scalar where it is 0-d, as NumPy's operations give them."""
    return local(x) if x.ndim else x[()]


def whole(x: Any) -> np.ndarray[Any, Any] | None:
    """Return a plain array for the caller; None for what is not there."""
    return None if needs_of(x) else np.array(stand_in_of(x))


def _at(ufunc: np.ufunc) -> Any:
    """Return a method of At."""

    def apply(self: At, value: Any) -> Any:
        if needs := needs_of((self.key, value)):
            return Absent(self.x.copy(), needs)
        out: Any = widened(self.x.copy())
        ufunc.at(out, self.key, np.asarray(value).astype(self.x.dtype))
        return local(out.astype(self.x.dtype))

    return apply


class At:
    """An array's attribute x.at, where x.at[k].add(v) is x with v added at k, as a new array."""

    def __init__(self, x: EagerArray, key: Any = None) -> None:
        self.x = x
        self.key = key

    def __getitem__(self, key: Any) -> At:
        return At(self.x, key)

    def get(self) -> Any:
        return self.x[self.key]

    def set(self, value: Any) -> EagerArray:
        out = self.x.copy()
        out[self.key] = value
        return out

    add, min, max = _at(np.add), _at(np.minimum), _at(np.maximum)
    mul = multiply = _at(np.multiply)


class Blocks:
    """n balanced pieces of a dim, as numpy.array_split cuts: each a view that can be written."""

    def __init__(self, x: Any, n: int, axis: int = 0) -> None:
        self.parts = np.array_split(x, int(n), axis)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, k: Any) -> Any:
        return self.parts[int(k)]

    def __setitem__(self, k: Any, value: Any) -> None:
        part = self.parts[int(k)]
        if value is not part:  # b[k] += v assigns the view to itself
            part[...] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)
