"""Named dims, which stand in shapes instead of integers: layout rules speak of them by name.

A Dim is an integer. A BoundedDim has an extent that only a run knows, from the inputs it is given:
what it is here, in a capture or in an eager run, those say who are under way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import index
from typing import Any, cast

import numpy as np

from codegen.errors import UsageError
from codegen.places import user_place
from codegen.user import eager_runs

# What a capture that is under way makes of a BoundedDim, of its name and its bound; None where
# there is none. Put here by codegen.trace.registration.
SYMBOLIC: list[Callable[[str, int], Any]] = []
_FIXED: ContextVar[Callable[[BoundedDim], int] | None] = ContextVar("extents", default=None)


@contextmanager
def fixed(extent_of: Callable[[BoundedDim], int]) -> Iterator[None]:
    """Let these be the extents in captures too, while it is open: of what an eager run captures."""
    token = _FIXED.set(extent_of)
    try:
        yield
    finally:
        _FIXED.reset(token)


class Dim(int):
    """An extent with a name, of which a program's layout rules speak: `spmd.Dim("batch", 64)`.

    It stands in a shape instead of the integer.

    With at_most instead of the extent, `spmd.Dim("batch", at_most=256)`, the extent is known only
    when a run begins: a run may give fewer elements along the dim, also none, and all inputs whose
    shapes have the dim must give equally many. What the program computes, it computes of these
    alone; where a run gives no such input, there are at_most. Memory is laid out for at_most once,
    so that runs of one job with other numbers of elements load nothing. In the program the dim, and
    `x.shape[0]`, is a number that only the run knows.

    UsageError for a name that is no text, or an extent that is no integer.

    Example::

        @spmd.program(mesh=("r",), layout={"batch": "r"})
        def mean():
            x = spmd.input("x", (spmd.Dim("batch", at_most=8), 2), np.float64)
            return np.mean(x, axis=0)

        image = spmd.build(mean)
        with image.open(ranks=2) as job:
            print(job(x=np.ones((3, 2))), job(x=np.zeros((8, 2))))    # [1. 1.] [0. 0.]
    """

    name: str

    def __new__(cls, name: str, extent: int | None = None, *, at_most: int | None = None) -> Dim:
        bound = extent if at_most is None else at_most
        if not isinstance(name, str) or (extent is None) == (at_most is None) or _count(bound) < 0:
            said = repr(extent) if at_most is None else f"{extent!r}, at_most={at_most!r}"
            raise UsageError("a named dim has a name and an extent", place=user_place(),
                             expected='spmd.Dim("batch", 64), or spmd.Dim("batch", at_most=64)',
                             found=f"Dim({name!r}, {said})")
        if at_most is not None:
            return cast("Dim", bounded(name, _count(at_most)))
        self = super().__new__(cls, _count(bound))
        self.name = name
        return self

    def __repr__(self) -> str:
        return f'Dim("{self.name}", {int(self)})'


def _count(extent: Any) -> int:
    """Return an extent as a user gives it; -1 for what is none."""
    try:
        return int(extent)
    except (TypeError, ValueError):
        return -1


def bounded(name: str, at_most: int) -> Any:
    """Return a dim of at most so many elements, in a capture as its number."""
    dim = BoundedDim(name, at_most)
    symbolic = dim.symbolic()
    return dim if symbolic is None else symbolic


def _forwarded(function: Callable[..., Any], reflected: bool = False) -> Any:
    def call(self: BoundedDim, other: Any) -> Any:
        mine = self.extent()
        return function(other, mine) if reflected else function(mine, other)

    return call


class BoundedDim:
    """A named dim of at most so many elements. As a number it is its extent in the capture, or the
    eager run, that is under way."""

    def __init__(self, name: str, at_most: int) -> None:
        self.name, self.at_most = name, at_most

    def __repr__(self) -> str:
        return f'Dim("{self.name}", at_most={self.at_most})'

    def symbolic(self) -> Any:
        """Return its extent as a symbolic number of the capture that is under way; None outside of
        any."""
        if _FIXED.get() is not None:
            return None
        symbols = (look(self.name, self.at_most) for look in SYMBOLIC)
        return next((x for x in symbols if x is not None), None)

    def extent(self) -> Any:
        """Return the extent of the dim in this capture or eager run. Raises UsageError outside of
        programs."""
        if (symbolic := self.symbolic()) is not None:
            return symbolic
        if (known := _FIXED.get()) is not None:
            return known(self)
        if (runtime := eager_runs.runtime()) is not None:
            return runtime.extent_of(self)
        raise UsageError(f"the extent of {self!r} is known only when a run begins",
                         place=user_place(), expected="its use in a program",
                         found="a use outside of any", remedy=f"{self.at_most}, the most it can be")

    def __index__(self) -> int:
        return index(self.extent())

    def __int__(self) -> int:
        return int(self.extent())

    def __float__(self) -> float:
        return float(self.extent())

    def __bool__(self) -> bool:
        return bool(self.extent())

    def __format__(self, spec: str) -> str:
        return format(self.extent(), spec)

    def __hash__(self) -> int:
        return hash((self.name, self.at_most))

    __add__, __radd__ = _forwarded(operator.add), _forwarded(operator.add, True)
    __sub__, __rsub__ = _forwarded(operator.sub), _forwarded(operator.sub, True)
    __mul__, __rmul__ = _forwarded(operator.mul), _forwarded(operator.mul, True)
    __floordiv__ = _forwarded(operator.floordiv)
    __rfloordiv__ = _forwarded(operator.floordiv, True)
    __truediv__, __rtruediv__ = _forwarded(operator.truediv), _forwarded(operator.truediv, True)
    __mod__, __rmod__ = _forwarded(operator.mod), _forwarded(operator.mod, True)
    __pow__, __rpow__ = _forwarded(operator.pow), _forwarded(operator.pow, True)
    __lt__, __le__ = _forwarded(operator.lt), _forwarded(operator.le)
    __gt__, __ge__ = _forwarded(operator.gt), _forwarded(operator.ge)

    def __eq__(self, other: object) -> Any:
        if self.symbolic() is None and eager_runs.runtime() is None:
            return isinstance(other, BoundedDim) and repr(self) == repr(other)
        return self.extent() == other

    def __ne__(self, other: object) -> Any:
        same = self == other
        return not same if isinstance(same, bool) else self.extent() != other

    def __neg__(self) -> Any:
        return -self.extent()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*map(extent_of, inputs), **options)

    def __array__(self, *args: Any, **options: Any) -> Any:
        return np.asarray(self.extent(), *args)


def extent_of(x: Any) -> Any:
    """Return the extent of a BoundedDim here; anything else as it is."""
    return x.extent() if isinstance(x, BoundedDim) else x
