"""Array: what the user's function computes with while it is captured.

An Array is a view of a Storage. Reading emits the view, writing replaces the storage's value, so
two names of one array see each other's writes. Local arrays (one rank's part) take every operation;
global ones only travel to and from shard_map.
Always holds: a 0-d result of an operation is a NumPy scalar: immutable, `scalar` is True.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, NoReturn

import numpy as np

from codegen import dtypes, expr
from codegen.dtypes import DType
from codegen.errors import (
    DtypeError,
    MissingError,
    ProgramError,
    ShapeError,
    TracedValueError,
    UnsupportedError,
)
from codegen.expr import Expr
from codegen.ir import ArrayType, Shape, Value
from codegen.mesh import as_written
from codegen.ops import Relayout, Symbolic
from codegen.trace import known
from codegen.trace import view as views
from codegen.trace.constants import (
    cast_value,
    constant_value,
    default_dtype,
    element_type,
    full_value,
)
from codegen.trace.context import Context, Storage, refuse_constant, require_context, user_place
from codegen.trace.known import Known, refuse_constant_write
from codegen.trace.number import UNHASHED, Number, choose, maximum, minimum, number, where_asked
from codegen.trace.refused import REMEDIES

__all__ = ["Array", "Number", "as_array", "as_value", "cast_value", "choose", "element_type",
           "full_value", "is_traced", "maximum", "minimum", "number", "wrap"]  # fmt: skip


def wrap(
    context: Context, value: Value, weak: bool = False, scalar: bool | None = None
) -> Array:
    """A new array around a value. scalar: immutable, as NumPy's scalars; by default where 0-d."""
    is_scalar = not value.type.shape if scalar is None else scalar
    return Array(context, Storage(context, value), (), weak, is_scalar)


def is_traced(x: object) -> bool:
    """Whether x is known only at run time: an Array or a Number."""
    return isinstance(x, Number) or (isinstance(x, Array) and not x.is_known)


def _binary(ufunc: str) -> Any:
    def forward(self: Array, other: object) -> Any:
        from codegen.trace.elementwise import operate

        return operate(getattr(np, ufunc), self, other)

    def reflected(self: Array, other: object) -> Any:
        from codegen.trace.elementwise import operate

        return operate(getattr(np, ufunc), other, self)

    def in_place(self: Array, other: object) -> Any:
        from codegen.trace.elementwise import operate

        if self.scalar:
            return operate(getattr(np, ufunc), self, other)
        return operate(getattr(np, ufunc), self, other, out=self)

    return forward, reflected, in_place


def _unary(ufunc: str) -> Any:
    def forward(self: Array) -> Any:
        from codegen.trace.elementwise import operate

        return operate(getattr(np, ufunc), self)

    return forward


def _method(name: str) -> Any:
    """The ndarray method that is the NumPy function of this name with the array first."""

    def call(self: Array, *args: Any, **kwargs: Any) -> Any:
        from codegen.trace import dispatch

        return dispatch.method(name, self, args, kwargs)

    call.__name__ = name
    return call


def _asked(convert: Callable[..., Any], needed: str, remedy: str) -> Any:
    """A method of Python's that needs the elements while building."""

    def ask(self: Array, *args: Any, **kwargs: Any) -> Any:
        if self.is_known:
            return convert(known.plain(self), *args, **kwargs)
        self._unknown(needed, remedy)

    return ask


class Array:
    """An array of a program, for annotations: `def smooth(u: spmd.Array) -> spmd.Array`.

    It has the operators and methods of numpy.ndarray; its elements exist when an image runs.
    """

    __array_priority__ = 2000
    made_empty = False  # by spmd.like or spmd.empty: as a kernel's argument it is an output

    def __init__(
        self,
        context: Context,
        storage: Storage,
        view: views.View = (),
        weak: bool = False,  # promotes as a Python number does
        scalar: bool = False,
    ) -> None:
        self._context = context
        self.storage = storage
        self.seen = view
        self.weak = weak
        self.scalar = scalar

    # ---- content -----------------------------------------------------------------------------

    @property
    def context(self) -> Context:
        """The capture that it belongs to; of known content, the present one: it has survived."""
        if isinstance(self.storage.content, Known):
            return self.storage.content.context
        return self._context

    @property
    def held(self) -> Value:
        """The storage's value as seen here: in a shard_map, this rank's shard of a global one."""
        if isinstance(self.storage.content, Known):
            return self.storage.content.value()
        value: Value = self.storage.value
        home = self.storage.home
        if home is not None and not any(frame is home for frame in self.context.captured):
            raise ProgramError(
                "one rank's array is used outside the function it was made in",
                place=user_place(),
                expected="what a function given to spmd.shard_map returned",
                found=str(value.type),
                remedy="return it from that function, with out_layouts",
            )
        if value.type.layout is not None and self.context.rank_view:
            from codegen.trace.mapping import shard_of_captured

            return shard_of_captured(self.context, value)
        return value

    @property
    def type(self) -> ArrayType:
        t = self.base_type
        if not self.seen:
            return t
        shape = views.shape_of(self.seen, t.shape)
        return ArrayType(views.dtype_of(self.seen, t.dtype), shape)

    @property
    def base_type(self) -> ArrayType:
        content = self.storage.content
        return content.type if isinstance(content, Known) else self.held.type

    @property
    def extents(self) -> Shape:
        return self.type.shape

    @property
    def is_global(self) -> bool:
        return self.base_type.layout is not None

    @property
    def is_known(self) -> bool:
        """Whether the elements are known while building."""
        return isinstance(self.storage.content, Known) and views.is_static(self.seen)

    @property
    def known(self) -> np.ndarray[Any, Any] | None:
        """The elements where they are known while building, as a view of NumPy's."""
        return views.shown(self.storage.content.data, self.seen) if self.is_known else None

    def read(self) -> Value:
        """The value of the elements seen now; emits the view."""
        return views.get(self.context, self.held, self.seen)

    def write(self, value: Value) -> None:
        """Replace the elements seen; `value` has this array's shape and dtype."""
        if self.scalar:
            raise UnsupportedError(
                "this is a NumPy scalar, which is immutable",
                place=user_place(),
                found="an element that was read, or the 0-d result of an operation",
                remedy="bind the name again: x = y",
            )
        content = self.storage.content
        if isinstance(content, Known) and content.made_in is not self.context:
            refuse_constant_write("an array that was kept from another build")
        captured = self.context.captured
        if captured and self.storage.home is not captured[-1]:
            raise ProgramError(
                "a function given to shard_map writes into an array from outside of it",
                place=user_place(),
                expected="an array that it made, or an argument: these are the rank's own",
                found=str(self.base_type),
                remedy="pass the array as an argument, and return what is written",
            )
        new = views.put(self.context, self.held, self.seen, value)
        have = self.held.type
        if have.layout and new.type.layout != have.layout and not have.free:
            new = self.context.emit_one(Relayout(to=have.layout), new)
        self.storage.write(self.context, new)

    def viewed(self, step: views.Step) -> Array:
        """Another array that shows part of the same storage."""
        view = views.then(self.seen, step, self.extents)
        return Array(self.context, self.storage, view, self.weak)

    # ---- what ndarray has --------------------------------------------------------------------

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(number(e) for e in self.extents)

    @property
    def dtype(self) -> np.dtype[Any]:
        out: np.dtype[Any] = dtypes.numpy_dtype(self.type.dtype)
        return out

    @property
    def ndim(self) -> int:
        return len(self.extents)

    @property
    def size(self) -> Any:
        return number(expr.product(self.extents))

    @property
    def itemsize(self) -> int:
        return self.type.dtype.size

    @property
    def nbytes(self) -> Any:
        return self.size * self.itemsize

    @property
    def layout(self) -> Any:
        """As the user wrote it, of a global array; None for a local one."""
        layout = (self.read() if self.seen else self.held).type.layout
        return None if layout is None else as_written(layout)

    @property
    def T(self) -> Any:
        return self.transpose()

    @property
    def mT(self) -> Any:
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> Any:
        from codegen.trace import dispatch

        return dispatch.by_name("real")(self)

    @real.setter
    def real(self, value: Any) -> None:
        if value is not self.real or self.type.dtype.kind == "c":  # x.real += v of real x
            self.real[...] = value

    @property
    def imag(self) -> Any:
        from codegen.trace import dispatch

        return dispatch.by_name("imag")(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.type.dtype.kind != "c":
            raise DtypeError(
                "an array of real numbers has no imaginary part to set",
                place=user_place(),
                expected="an array of complex numbers",
                found=str(self.dtype),
                remedy="x = x.astype(np.complex128) makes one",
            )
        self.imag[...] = value

    @property
    def flat(self) -> Any:
        shown = self.ravel()
        if shown.storage is not self.storage:
            raise unsupported("ndarray.flat of such a view", "x.ravel() has its elements, copied")
        return shown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.is_known and hasattr(np.ndarray, name):
            return getattr(known.plain(self), name)
        near = [f"x.{n}" for n in get_close_matches(name, dir(type(self)), 1)]
        remedy = f"np.{name}(x) says what to use" if hasattr(np, name) else "".join(near)
        remedy = REMEDIES.get(f"ndarray.{name}", remedy)
        raise MissingError(
            f"an array of a program has no {name!r}",
            place=user_place(),
            expected="what NumPy's arrays have, but for their memory: it lies on all ranks",
            found=name,
            remedy=remedy,
        )

    @property
    def at(self) -> Any:
        from codegen.trace.index import At

        return At(self)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        from codegen.trace.dispatch import namespace

        return namespace()

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

    def __eq__(self, other: object) -> Any:
        return self._equal(other, np.equal)

    def __ne__(self, other: object) -> Any:
        return self._equal(other, np.not_equal)

    def _equal(self, other: object, ufunc: np.ufunc) -> Any:
        if other is None or isinstance(other, (str, bytes)):
            if not self.ndim:
                return NotImplemented
            other = np.nan  # which equals no number either
        from codegen.trace.elementwise import operate

        return operate(ufunc, self, other)

    def __round__(self, digits: Any = None) -> Any:
        from codegen.trace.mathematics import rounded

        return rounded(self, digits)

    def __divmod__(self, other: object) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> Any:
        return other // self, other % self

    sum, prod, mean, var, std = map(_method, ("sum", "prod", "mean", "var", "std"))
    min, max, argmin, argmax = map(_method, ("min", "max", "argmin", "argmax"))
    any, all, cumsum, cumprod = map(_method, ("any", "all", "cumsum", "cumprod"))
    dot, trace, put, choose, copy = map(_method, ("dot", "trace", "put", "choose", "copy"))
    clip, round, take, repeat, conj = map(_method, ("clip", "round", "take", "repeat", "conj"))
    ravel, squeeze, swapaxes, diagonal = map(_method, ("ravel", "squeeze", "swapaxes", "diagonal"))
    argsort, astype, conjugate, nonzero = map(_method, ("argsort", "astype", "conj", "nonzero"))
    searchsorted, argpartition = map(_method, ("searchsorted", "argpartition"))

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        from codegen.trace import dispatch

        return dispatch.by_name("compress")(condition, self, axis, out)

    def partition(self, kth: Any, axis: int = -1, **_: Any) -> None:
        from codegen.trace import dispatch

        self[...] = dispatch.by_name("partition")(self, kth, axis)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        from codegen.trace import dispatch

        wanted = shape[0] if len(shape) == 1 else shape
        return dispatch.call_function(np.reshape, (self, wanted), {"order": order})

    def transpose(self, *axes: Any) -> Any:
        from codegen.trace import dispatch

        perm = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return dispatch.call_function(np.transpose, (self, perm), {})

    def flatten(self, order: str = "C") -> Any:
        return self.ravel(order=order).copy()

    def sort(self, axis: int = -1, kind: str | None = None) -> None:
        from codegen.trace import dispatch

        self[...] = dispatch.call_function(np.sort, (self, axis), {})

    def fill(self, value: object) -> None:
        self[...] = value

    def relayout(self, layout: object) -> Array:
        """A new array with the same elements, laid out otherwise."""
        from codegen.trace.mapping import relayout

        return relayout(self, layout)

    def __getitem__(self, key: object) -> Any:
        from codegen.trace import index

        return index.get(self, key)

    def __setitem__(self, key: object, value: object) -> None:
        from codegen.trace import index

        index.set_(self, key, value)

    def __len__(self) -> int:
        if not self.extents:
            raise TypeError("len() of unsized object")
        return constant(self.extents[0], "len(x)", "x.shape[0] is the same as a number")

    def __iter__(self) -> Iterator[Any]:
        if not self.extents:
            raise TypeError("iteration over a 0-d array")
        remedy = "for k in spmd.range(x.shape[0]): row = x[k]"
        return (self[k] for k in range(constant(self.extents[0], "iterating an array", remedy)))

    def __repr__(self) -> str:
        return repr(self.known) if self.is_known else f"<spmd array {self.type}>"

    def __str__(self) -> str:
        return str(self.known) if self.is_known else repr(self)

    def __copy__(self, memo: Any = None) -> Array:
        return self.copy()  # type: ignore[no-any-return]

    __deepcopy__ = __copy__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from codegen.trace import dispatch

        return dispatch.call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from codegen.trace import dispatch

        return dispatch.call_function(function, args, kwargs)

    # ---- where Python needs a value while building -------------------------------------------

    __bool__ = _asked(bool, "a truth value", "if, while, and, or, not in the program's own source "
                      "are compiled (use .any() or .all() of an array); elsewhere np.where or "
                      "spmd.cond")  # fmt: skip
    __int__ = _asked(int, "a Python integer", "x.astype(np.int64) converts at run time")
    __index__ = _asked(operator.index, "a Python integer", "spmd.range for loops; subscripts take "
                       "the array itself; an extent must be known while building")  # fmt: skip
    __float__ = _asked(float, "a Python float", "use the 0-d array as it is, or "
                       "x.astype(np.float64)")  # fmt: skip
    __complex__ = _asked(complex, "a Python complex", "use the 0-d array as it is")
    __array__ = _asked(np.array, "a NumPy array", "NumPy functions take the array itself; np.stack "
                       "and np.concatenate make one of several")  # fmt: skip
    item = _asked(np.ndarray.item, "a Python number", "x[k] is the element as a 0-d array")
    tolist = _asked(np.ndarray.tolist, "a Python list", "return the array from the program")
    __hash__ = _asked(hash, "a known key of a dict or set", UNHASHED)
    tobytes = _asked(np.ndarray.tobytes, "bytes", "return the array from the program")
    __format__ = _asked(format, "text", 'spmd.print("... {}", value) prints it while the program '
                        "runs")  # fmt: skip

    def _unknown(self, needed: str, remedy: str) -> NoReturn:
        refuse_constant()
        raise TracedValueError(
            f"Python needs a value that only the run knows: an element of {self.type}",
            place=user_place(),
            expected=needed,
            found="an array of the program, which has values at run time" + where_asked(needed),
            remedy=remedy,
        )


known.ARRAYS = (Array,)


def constant(e: Expr, what: str, remedy: str) -> int:
    """A Python integer, or an error that teaches."""
    if e.is_const:
        return e.value
    raise TracedValueError(
        f"{what} needs a Python integer",
        place=user_place(),
        expected="an extent known while building",
        found=f"{e}, known at launch only",
        remedy=remedy,
    )


def unsupported(what: str, remedy: str = "") -> UnsupportedError:
    return UnsupportedError(f"{what} cannot be compiled", place=user_place(), remedy=remedy)


# ---- values ----------------------------------------------------------------------------------


def as_value(context: Context, x: Any, dtype: Any = None) -> Value:
    """The value of an Array, Number, Python number, list or NumPy array; cast to dtype if given."""
    wanted = None if dtype is None else element_type(dtype)
    if isinstance(x, Array):
        value = x.read()
    elif isinstance(x, Number):
        value = _number_value(context, x)
    elif isinstance(x, (bool, int, float, complex)):
        return full_value(context, x, wanted or default_dtype(x))
    else:
        value = constant_value(context, _numpy_array(x, wanted))
    return value if wanted is None else cast_value(context, value, wanted)


def _number_value(context: Context, x: Number) -> Value:
    if not x.truth:
        return views.index_value(context, x.expr)
    return context.remember(
        ("truth", x.expr), lambda: context.emit_one(Symbolic(value=x.expr, dtype=dtypes.BOOL))
    )


def _numpy_array(x: Any, wanted: DType | None) -> np.ndarray[Any, Any]:
    try:
        data: np.ndarray[Any, Any] = dtypes.as_numpy(x)
    except ValueError:
        raise ShapeError("the rows of this list differ in length", place=user_place(),
                         expected="lists of equal lengths", found=repr(x)[:60]) from None
    if wanted is not None and dtypes.from_numpy(data.dtype) != wanted:
        data = data.astype(dtypes.numpy_dtype(wanted))
    if data.dtype == object or dtypes.from_numpy(data.dtype) is None:
        raise DtypeError(
            f"{type(x).__name__} of {data.dtype} is not an array of numbers",
            place=user_place(),
            expected=", ".join(dtypes.BY_NAME),
            found=repr(x)[:60],
        )
    return data


def as_array(x: Any, dtype: Any = None) -> Array:
    """The same array, or a new one around anything that `as_value` takes."""
    if isinstance(x, Array):
        if dtype is None or element_type(dtype) == x.type.dtype:
            return x
        return wrap(x.context, as_value(x.context, x, dtype))
    context = require_context("an array operation")
    if isinstance(x, (list, tuple)) and any(is_traced(e) for e in _leaves(x)):
        from codegen.trace import dispatch

        x = dispatch.by_name("array")(x)
        return as_array(x, dtype)
    weak = dtype is None and isinstance(x, (Number, int, float, complex))
    weak = weak and not (isinstance(x, (bool, np.generic)) or getattr(x, "truth", False))
    return wrap(context, as_value(context, x, dtype), weak)


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, (list, tuple)):
        for e in x:
            yield from _leaves(e)
    else:
        yield x
