"""NumPy arrays with what the language adds: `.at`, `.layout`, `.relayout`, and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from codegen.trace.tree import map_tree


class EagerArray(np.ndarray[Any, Any]):
    """An ndarray that also has the language's own attributes."""

    layout: Any = None
    made_empty = False  # by spmd.like or spmd.empty: an output where a kernel takes it by name

    @property
    def at(self) -> At:
        return At(self)

    def relayout(self, layout: Any) -> EagerArray:
        out = self.copy()
        out.layout = layout
        return out

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions as they are, with results that have the language's attributes too."""
        result = super().__array_function__(function, types, args, kwargs)
        return map_tree(_dressed, result)

    def __array_finalize__(self, other: Any) -> None:
        if other is not None and other.shape == self.shape:
            self.layout = getattr(other, "layout", None)


def _dressed(x: Any) -> Any:
    return local(x) if type(x) is np.ndarray else x


def local(x: Any) -> EagerArray:
    """The same memory as an EagerArray."""
    return np.asarray(x).view(EagerArray)


def received(x: np.ndarray[Any, Any]) -> Any:
    """The result of an operation: a NumPy scalar where it is 0-d."""
    return local(x) if x.ndim else x[()]


def whole(x: Any) -> np.ndarray[Any, Any]:
    """A plain array for the caller."""
    return np.array(x)


class At:
    """x.at[k].add(v): x with something done at k, as a new array."""

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

    def _apply(self, ufunc: Any, value: Any) -> EagerArray:
        out = self.x.copy()
        ufunc.at(out, self.key, np.asarray(value).astype(out.dtype))
        return out

    def add(self, value: Any) -> EagerArray:
        return self._apply(np.add, value)

    def multiply(self, value: Any) -> EagerArray:
        return self._apply(np.multiply, value)

    mul = multiply

    def min(self, value: Any) -> EagerArray:
        return self._apply(np.minimum, value)

    def max(self, value: Any) -> EagerArray:
        return self._apply(np.maximum, value)


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
