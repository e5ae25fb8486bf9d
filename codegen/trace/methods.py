"""The operators and methods of Array, which are NumPy's functions: it gets them at registration.

array.py is below NumPy's functions, which are made of arrays; this file is above them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.errors import DtypeError, ShapeError, UnsupportedError
from codegen.trace.array import Array, unsupported
from codegen.trace.numpy import dispatch, index, mathematics
from codegen.trace.numpy.operators import operate
from codegen.trace.numpy.refused import ATTRIBUTES, REMEDIES
from codegen.trace.ranks import mapping


def _binary(ufunc: str) -> Any:
    def forward(self: Array, other: object) -> Any:
        return operate(getattr(np, ufunc), self, other)

    def reflected(self: Array, other: object) -> Any:
        return operate(getattr(np, ufunc), other, self)

    def in_place(self: Array, other: object) -> Any:
        if self.scalar:
            return operate(getattr(np, ufunc), self, other)
        return operate(getattr(np, ufunc), self, other, out=self)

    return forward, reflected, in_place


def _unary(ufunc: str) -> Any:
    def forward(self: Array) -> Any:
        return operate(getattr(np, ufunc), self)

    return forward


def _method(name: str) -> Any:
    """Return the ndarray method that is the NumPy function of this name with the array first."""

    def call(self: Array, *args: Any, **kwargs: Any) -> Any:
        return dispatch.method(name, self, args, kwargs)

    call.__name__ = name
    return call


class ArrayMethods:
    """Array gets its operators and methods from this class; `self` is an Array."""

    @property
    def T(self: Any) -> Any:
        return self.transpose()

    @property
    def mT(self: Any) -> Any:
        return self.swapaxes(-1, -2)

    @property
    def real(self: Any) -> Any:
        return dispatch.by_name("real")(self)

    @real.setter
    def real(self: Any, value: Any) -> None:
        if value is not self.real or self.type.dtype.kind == "c":  # x.real += v of real x
            self.real[...] = value

    @property
    def imag(self: Any) -> Any:
        return dispatch.by_name("imag")(self)

    @imag.setter
    def imag(self: Any, value: Any) -> None:
        if self.type.dtype.kind != "c":
            raise DtypeError("an array of real numbers has no imaginary part to set",
                             expected="an array of complex numbers", found=str(self.dtype),
                             remedy="x = x.astype(np.complex128) makes one")
        self.imag[...] = value

    @property
    def flat(self: Any) -> Any:
        shown = self.ravel()
        if shown.storage is not self.storage:
            raise unsupported("ndarray.flat of such a view", "x.ravel() has its elements, copied")
        return shown

    @property
    def at(self: Any) -> Any:
        return index.At(self)

    def __array_namespace__(self: Any, api_version: str | None = None) -> Any:
        return dispatch.namespace()

    __add__, __radd__, __iadd__ = _binary("add")
    __sub__, __rsub__, __isub__ = _binary("subtract")
    __mul__, __rmul__, __imul__ = _binary("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _binary("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary("floor_divide")
    __mod__, __rmod__, __imod__ = _binary("remainder")
    __pow__, __rpow__, __ipow__ = _binary("power")
    __and__, __rand__, __iand__ = _binary("bitwise_and")
    __or__, __ror__, __ior__ = _binary("bitwise_or")
    __xor__, __rxor__, __ixor__ = _binary("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _binary("left_shift")
    __rshift__, __rrshift__, __irshift__ = _binary("right_shift")
    __lt__, _, _ = _binary("less")
    __le__, _, _ = _binary("less_equal")
    __gt__, _, _ = _binary("greater")
    __ge__, _, _ = _binary("greater_equal")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul")
    __neg__ = _unary("negative")
    __abs__ = _unary("absolute")
    __invert__ = _unary("invert")

    __pos__ = _unary("positive")

    def __eq__(self: Any, other: object) -> Any:
        return self._equal(other, np.equal)

    def __ne__(self: Any, other: object) -> Any:
        return self._equal(other, np.not_equal)

    def _equal(self: Any, other: object, ufunc: np.ufunc) -> Any:
        if other is None or isinstance(other, (str, bytes)):
            if not self.ndim:
                return NotImplemented
            other = np.nan  # which equals no number either
        return operate(ufunc, self, other)

    def __round__(self: Any, digits: Any = None) -> Any:
        return mathematics.rounded(self, digits)

    def __divmod__(self: Any, other: object) -> Any:
        return self // other, self % other

    def __rdivmod__(self: Any, other: object) -> Any:
        return other // self, other % self

    sum, prod, mean, var, std = map(_method, ("sum", "prod", "mean", "var", "std"))
    min, max, argmin, argmax = map(_method, ("min", "max", "argmin", "argmax"))
    any, all, cumsum, cumprod = map(_method, ("any", "all", "cumsum", "cumprod"))
    dot, trace, put, choose, copy = map(_method, ("dot", "trace", "put", "choose", "copy"))
    clip, round, take, repeat, conj = map(_method, ("clip", "round", "take", "repeat", "conj"))
    ravel, squeeze, swapaxes, diagonal = map(_method, ("ravel", "squeeze", "swapaxes", "diagonal"))
    argsort, astype, conjugate, nonzero = map(_method, ("argsort", "astype", "conj", "nonzero"))
    searchsorted, argpartition = map(_method, ("searchsorted", "argpartition"))

    def compress(self: Any, condition: Any, axis: Any = None, out: Any = None) -> Any:
        return dispatch.by_name("compress")(condition, self, axis, out)

    def partition(self: Any, kth: Any, axis: int = -1, **_: Any) -> None:
        self[...] = dispatch.by_name("partition")(self, kth, axis)

    def reshape(self: Any, *shape: Any, order: str = "C") -> Any:
        wanted = shape[0] if len(shape) == 1 else shape
        return dispatch.call_function(np.reshape, (self, wanted), {"order": order})

    def transpose(self: Any, *axes: Any) -> Any:
        perm = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return dispatch.call_function(np.transpose, (self, perm), {})

    def flatten(self: Any, order: str = "C") -> Any:
        return self.ravel(order=order).copy()

    def sort(self: Any, axis: int = -1, kind: str | None = None) -> None:
        self[...] = dispatch.call_function(np.sort, (self, axis, kind), {})

    def item(self: Any, *position: Any) -> Any:
        """Return the one element, or that at an index, which promotes as a Python number does."""
        if self.is_known:
            return self.frozen().item(*position)
        if not position and not all(n == 1 for n in self.extents):
            raise ShapeError("item() of an array with several elements",
                             expected="an array of one element, or an index", found=str(self.type),
                             remedy="say which: x[0], x.item(0), x.sum()")
        position = position[0] if len(position) == 1 else position or (0,) * self.ndim
        element = self[position] if isinstance(position, tuple) else self.ravel()[position]
        wide = {"i": np.int64, "u": np.int64, "f": np.float64, "c": np.complex128}
        number = element.astype(wide.get(element.dtype.kind, np.bool_))
        number.weak = number.dtype != np.bool_
        return number

    def view(self: Any, *dtype: Any) -> Any:
        if dtype and not (self.is_known or dtype == (np.ndarray,)):
            raise unsupported("x.view(t), the bytes of the elements as another type,",
                              REMEDIES["ndarray.view"])
        return self.frozen().view(*dtype) if dtype and self.is_known else self[...]

    def fill(self: Any, value: object) -> None:
        self[...] = value

    def relayout(self: Any, layout: object) -> Any:
        """Return a new array with the same elements, laid out otherwise."""
        return mapping.relayout(self, layout, asked=True)

    def __getitem__(self: Any, key: object) -> Any:
        return index.get(self, key)

    def __setitem__(self: Any, key: object, value: object) -> None:
        index.set_(self, key, value)

    def __array_ufunc__(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return dispatch.call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return dispatch.call_function(function, args, kwargs)

    @staticmethod
    def of_list(x: Any) -> Any:
        """Return an array of a list that holds arrays."""
        return dispatch.by_name("array")(x)


class ChosenMethods:
    """Chosen, the type of x[mask], gets its operators and methods from this class; `self` is a
    Chosen."""

    def __array_function__(self: Any, function: Any, types: Any, args: Any, options: Any) -> Any:
        return self.computed(function.__name__, dispatch.by_name, args, options)


class _Empty:
    """A class without anything: its names are those that every class has."""


def give(cls: type, methods: type) -> None:
    """Put the methods of one class into another."""
    for name, method in vars(methods).items():
        if name not in vars(_Empty) and method is not None:  # None: __hash__, as __eq__ is there
            setattr(cls, name, method)


def refuse_setting(cls: type) -> None:
    """Let each of ATTRIBUTES raise UnsupportedError where it is set, with what to write instead."""
    for name, remedy in ATTRIBUTES.items():
        setattr(cls, name, getattr(cls, name).setter(_refusal(name, remedy)))


def _refusal(name: str, remedy: str) -> Callable[[Any, Any], None]:
    def refuse(self: Any, value: Any) -> None:
        raise UnsupportedError(f"x.{name} of an array of a program cannot be set",
                               expected="an array stays what it is; another one takes its name",
                               found=f"x.{name} = …", remedy=remedy)

    return refuse
