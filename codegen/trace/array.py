"""Array: what the user's function computes with while it is captured.

An Array is a view of a Storage. Reading emits the view, writing replaces the storage's value, so
two names of one array see each other's writes. Local arrays (one rank's part) take every operation;
global ones only travel to and from shard_map.
Always holds: a 0-d result of an operation is a NumPy scalar: immutable, `scalar` is True.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from codegen import dtypes
from codegen.errors import MissingError, Place, ProgramError, TracedValueError, UnsupportedError
from codegen.ir.graph import ArrayType, Shape, Value
from codegen.mesh import Layout, Mesh, as_written, local_extent
from codegen.ops import Relayout, Symbolic
from codegen.places import is_user_file
from codegen.suggest import meant
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace import view as views
from codegen.trace.constants import array_value, cast_value, default_dtype, full_value
from codegen.trace.context import Context, refuse_constant, refuse_constant_write, require_context
from codegen.trace.number import UNHASHED, Number, choose, no_text, number, where_asked
from codegen.trace.numpy.refused import REMEDIES, SPARSE
from codegen.trace.storage import Known, Storage
from codegen.user.dims import BoundedDim, extent_of
from codegen.user.numbers import element_type

__all__ = ["Array", "Number", "as_array", "as_value", "cast_value", "choose", "element_type",
           "full_value", "is_traced", "number", "wrap"]


def wrap(context: Context, value: Value, weak: bool = False, scalar: bool | None = None) -> Array:
    """Return a new array around a value. scalar: immutable, as NumPy's scalars; by default where
    0-d."""
    is_scalar = not value.type.shape if scalar is None else scalar
    return Array(context, Storage(context, value), (), weak, is_scalar)


def is_traced(x: object) -> bool:
    """Return whether x is known only at run time: an array of a program that NumPy has not
    computed while building, a symbolic integer, or the extent of a bounded dim."""
    return isinstance(x, (Number, BoundedDim)) or (isinstance(x, Array) and not x.is_known)


def holds_traced(x: object) -> bool:
    """Return whether x, or something in it where it is a list or a tuple, is known only at run
    time."""
    return any(map(holds_traced, x)) if isinstance(x, (list, tuple)) else is_traced(x)


def _is_asked_by(package: str) -> bool:
    """Return whether a function of a package asks, before any of the user's does."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if str(frame.f_globals.get("__name__", "")).startswith(package):
            return True
        frame = frame.f_back
    return False


def _asked(convert: Callable[..., Any], needed: str, remedy: str) -> Any:
    """Return a special method that needs the elements while building, and refuses unknown ones."""

    def ask(self: Array, *args: Any, **kwargs: Any) -> Any:
        if self.is_known:
            return convert(self.frozen(), *args, **kwargs)
        self._unknown(needed, remedy)

    return ask


if TYPE_CHECKING:  # registration.py puts them into Array
    from codegen.trace.methods import ArrayMethods
else:
    ArrayMethods = object


class Array(ArrayMethods):
    """An array of a program, for annotations: `def smooth(u: spmd.Array) -> spmd.Array`.

    It has the operators and methods of numpy.ndarray; its elements exist when an image runs.
    """

    __array_priority__ = 2000
    home: Layout | None = None  # how it lies as an output, where that is said of it
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
        """The capture that the array belongs to; of known content, the one that runs now."""
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
            raise ProgramError("one rank's array is used outside the function it was made in",
                               expected="what a function given to spmd.shard_map returned",
                               found=str(value.type),
                               remedy="return it from that function, with out_layouts")
        if value.type.layout is not None and self.context.rank_view:
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

    def frozen(self) -> Any:
        """Return the elements of an array that is known, as a view that nobody can write
        through."""
        assert (known := self.known) is not None
        shown = known.view()
        shown.flags.writeable = False
        return shown

    def read(self) -> Value:
        """Return the value of the elements seen now; emits the view."""
        return views.get(self.context, self.held, self.seen)

    def write(self, value: Value) -> None:
        """Replace the elements seen; `value` has this array's shape and dtype."""
        if self.scalar:
            raise UnsupportedError(
                "this is a NumPy scalar, which is immutable",
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
        """Return another array that shows part of the same storage."""
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
        """The layout of a global array as the user writes it; None for a local one."""
        layout = (self.read() if self.seen else self.held).type.layout
        return None if layout is None else as_written(layout)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.is_known and hasattr(np.ndarray, name):
            return getattr(self.frozen(), name)
        near = meant(name, dir(type(self)), "x.{}")
        remedy = f"np.{name}(x, …)" if callable(getattr(np, name, None)) else near
        remedy = REMEDIES.get(f"ndarray.{name}", remedy)
        raise MissingError(
            f"an array of a program has no {name!r}",
            expected="what NumPy's arrays have, but for their memory: it lies on all ranks",
            found=name, remedy=remedy,
        )

    def __delitem__(self, key: Any) -> NoReturn:
        raise UnsupportedError("elements of an array cannot be deleted", found="del x[k]",
                               expected="an array keeps its shape, as NumPy's does",
                               remedy="np.delete(x, k), a new array; or a slice: x[1:]")

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
        if not self.is_known:
            self._unknown("text", "")
        return str(self.known)

    def __copy__(self, memo: Any = None) -> Array:
        return self.copy()  # type: ignore[no-any-return]

    __deepcopy__ = __copy__

    # ---- where Python needs a value while building -------------------------------------------

    __bool__ = _asked(bool, "a truth value", "if, while, and, or, not in the program's own source "
                      "are compiled (use .any() or .all() of an array); elsewhere np.where or "
                      "spmd.cond")
    __int__ = _asked(int, "a Python integer", "x.astype(np.int64) converts at run time")
    __index__ = _asked(operator.index, "a Python integer", "spmd.range for loops; subscripts take "
                       "the array itself; an extent must be known while building")
    __float__ = _asked(float, "a Python float", "use the 0-d array as it is, or "
                       "x.astype(np.float64)")
    __complex__ = _asked(complex, "a Python complex", "a + 1j * b of two parts; x.astype(complex)")
    __array__ = _asked(np.array, "a NumPy array", "NumPy functions take the array itself; np.stack "
                       "and np.concatenate make one of several")
    tolist = _asked(np.ndarray.tolist, "a Python list", "return the array from the program")
    __hash__ = _asked(hash, "a known key of a dict or set", UNHASHED)
    __reduce_ex__ = _asked(np.ndarray.__reduce_ex__, "bytes for pickle", "return the array from "
                           "the program")
    tobytes = _asked(np.ndarray.tobytes, "bytes", "return the array from the program")
    __format__ = _asked(format, "text", "")

    def _unknown(self, needed: str, remedy: str) -> NoReturn:
        refuse_constant()
        if _is_asked_by("scipy.sparse"):
            remedy = SPARSE
        if needed == "text":
            raise no_text(f"a text of {'the array' if self.ndim else 'a number,'} {self.type}")
        raise TracedValueError(
            f"Python needs a value that only the run knows: an element of {self.type}",
            expected=needed,
            found="an array of the program, which has values at run time" + where_asked(needed),
            remedy=remedy,
        )


def local_shape(mesh: Mesh, shape: Shape, layout: Layout) -> Shape:
    return tuple(local_extent(mesh, e, entry) for e, entry in zip(shape, layout))


def local_type(mesh: Mesh, t: ArrayType) -> ArrayType:
    assert t.layout is not None
    return ArrayType(t.dtype, local_shape(mesh, t.shape, t.layout))


def shard_of_captured(context: Context, value: Value) -> Value:
    """Return this rank's shard of a global value that the open shard_map met by closure."""
    if not context.captured and any(block.apart for block in context.blocks):
        raise not_given(value)
    if not context.captured:
        raise ProgramError(
            "the default of an input uses an array of the program",
            remedy="compute it from the global indices, constants and parameters",
        )
    captured = context.captured[-1]
    if value not in captured:
        captured[value] = Value(value.name, local_type(context.mesh, value.type))
    return captured[value]


def not_given(value: Value, place: Place | None = None) -> ProgramError:
    """Return the error of code that stands apart from a program, and reads a value of it."""
    return ProgramError(
        "the code of a stage uses an array of the program that it is not given", place=place,
        expected="a layer of (parameters, h), or an optimizer, that reads nothing else of the "
        "program but constants", found=str(value.type),
        remedy="that array among the parameters of the layer, or a part of x")


def constant(e: Expr, operation: str, remedy: str) -> int:
    """Return the value of a constant Expr. Raises TracedValueError for any other."""
    if e.is_const:
        return e.value
    raise TracedValueError(f"{operation} needs a Python integer",
                           expected="an extent known while building",
                           found=f"{e}, known at launch only", remedy=remedy)


def unsupported(operation: str, remedy: str = "") -> UnsupportedError:
    return UnsupportedError(f"{operation} cannot be compiled", remedy=remedy)


# ---- values ----------------------------------------------------------------------------------


def as_value(context: Context, x: Any, dtype: Any = None) -> Value:
    """Return the value of an Array, Number, Python number, list or NumPy array; cast to dtype if
    given."""
    wanted = None if dtype is None else element_type(dtype)
    x = extent_of(x)
    if isinstance(x, Array):
        value = x.read()
    elif isinstance(x, Number):
        value = _number_value(context, x)
    elif isinstance(x, (bool, int, float, complex)):
        return full_value(context, x, wanted or default_dtype(x))
    else:
        value = array_value(context, x, wanted)
    return value if wanted is None else cast_value(context, value, wanted)


def _number_value(context: Context, x: Number) -> Value:
    if not x.truth:
        return views.index_value(context, x.expr)
    return context.remember(
        ("truth", x.expr), lambda: context.emit_one(Symbolic(value=x.expr, dtype=dtypes.BOOL))
    )


def as_array(x: Any, dtype: Any = None) -> Array:
    """Return x as an array of the program: itself, or a new one of a number or an array of NumPy.

    dtype: the element type that it shall have; by default its own.
    """
    if isinstance(x, Array):
        if dtype is None or element_type(dtype) == x.type.dtype:
            return x
        return wrap(x.context, as_value(x.context, x, dtype))
    context = require_context("an array operation")
    if isinstance(x, (list, tuple)) and holds_traced(x):
        return as_array(Array.of_list(x), dtype)
    weak = dtype is None and isinstance(x, (Number, int, float, complex))
    weak = weak and not (isinstance(x, (bool, np.generic)) or getattr(x, "truth", False)
                         or getattr(x, "strong", False))
    return wrap(context, as_value(context, x, dtype), weak)
