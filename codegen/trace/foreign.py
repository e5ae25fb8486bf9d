"""Calls of NumPy's functions, and of other libraries', in converted code.

Where all arguments are known they run now: new arrays are arrays of the program, known while
building, and other libraries get the NumPy arrays themselves. Else NumPy's dispatch comes to ours.
Always holds: an array from outside the program is a constant, and nothing writes into it.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import TracedValueError
from codegen.places import is_library_file, user_frame
from codegen.trace import integer_tables, known
from codegen.trace.array import Array, as_array, is_traced
from codegen.trace.context import Context, refuse_constant_write
from codegen.trace.numpy.elementwise import sparse
from codegen.trace.numpy.joining import Joiner
from codegen.user import pytree
from codegen.user.numbers import element_type, rounded

Function = Callable[..., Any]

_DRAWING = frozenset("matplotlib seaborn plotly bokeh pyvista".split())

# NumPy's functions and methods that write into their first argument.
_WRITERS = ("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask")
_WRITING_METHODS = ("byteswap", "fill", "partition", "put", "resize", "setfield", "sort")
# What these make is a formula of the image, not data, until it is written.
_FORMULAS = (np.zeros, np.ones, np.empty, np.full, np.eye, np.identity)


def is_unknown(*trees: Any) -> bool:
    """Return whether something in these is known at run time only."""
    return any(map(is_traced, pytree.leaves(trees)))


def target(x: Any, text: str) -> Any:
    """Return x, into which a statement writes; raise an error if it is a constant."""
    if _is_constant(x) and Context.current() is not None:
        refuse_constant_write(text, ", ".join(getattr(x.base, "dtype", x.dtype).names or ()))
    return x


def fresh(x: Any) -> Any:
    """Return the result of an operator; a new NumPy array becomes an array of the program."""
    return known.known_array(x) if type(x) is np.ndarray and x.base is None else x


class _Indexed:
    """A constant that is subscripted, perhaps by what only the run knows."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __getitem__(self, key: Any) -> Any:
        if (formula := integer_tables.in_formula(self.data, key)) is not None:
            return formula
        slices = [x for x in pytree.leaves(key) if isinstance(x, slice)]
        if is_unknown(key, [(s.start, s.stop, s.step) for s in slices]):
            return as_array(self.data)[key]
        return fresh(self.data[known.plain(key)])


class _Row:
    """A list or a tuple that is subscripted, perhaps by what only the run knows."""

    def __init__(self, items: list[Any] | tuple[Any, ...]) -> None:
        self.items = items

    def __getitem__(self, key: Any) -> Any:
        if not is_traced(key):
            return self.items[key]
        kind = type(self.items).__name__
        if all(isinstance(x, (bool, int)) for x in self.items):
            if (formula := integer_tables.in_formula(self.items, key)) is not None:
                return formula
            element = as_array(np.array(self.items, np.int64))[key]
            element.weak = True  # it promotes as Python's integers do
            return element
        raise TracedValueError(
            f"a {kind} is subscripted by a value that only the run knows",
            expected=f"an array: Python takes an element of a {kind} while building",
            found=f"a {kind} of {len(self.items)}",
            remedy="np.array(…)[i] of a list of numbers, np.stack(…)[i] of one of arrays; in a "
            "loop of Python's range, i is known",
        )


def indexed(x: Any) -> Any:
    """Wrap x for a subscript that reads it, if NumPy cannot hand its key over: constants, lists,
    np.r_ and np.c_; return other values as they are."""
    if type(x) in (list, tuple) and Context.current() is not None:
        return _Row(x)
    if (x is np.r_ or x is np.c_) and Context.current() is not None:
        return Joiner(x)
    return _Indexed(x) if _is_constant(x) and Context.current() is not None else x


def _is_constant(x: Any) -> bool:
    return type(x) is np.ndarray and dtypes.from_numpy(x.dtype) is not None


# ---- NumPy ---------------------------------------------------------------------------------------


def called(
    function: Any, ours: Function | None, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Run a function, ufunc or method of NumPy's whose arguments are all known."""
    written = _written(function, args, kwargs)
    for x in written:
        if _is_constant(x):
            refuse_constant_write(text_of(x))
    into = [x for x in written if isinstance(x, Array)]
    return known.evaluate(function, ours, args, kwargs, into)


def may_run(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether NumPy may run a call now: all is known, and what it writes may be written."""
    if is_unknown(args, kwargs):
        return False
    if isinstance(function, np.ufunc) and any(map(known.is_huge, args)):
        return False
    return all(known.writable(x) for x in _written(function, args, kwargs) if isinstance(x, Array))


def _written(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arrays that a call writes into."""
    out = kwargs.get("out")
    written = list(out) if isinstance(out, tuple) else [out]
    if isinstance(function, np.ufunc):
        written += args[function.nin :]
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if args and (name in _WRITERS or (name == "at" and isinstance(owner, np.ufunc))):
        written.append(args[0])
    if name in _WRITING_METHODS and isinstance(owner, np.ndarray):
        written.append(owner)
    if args and name in _WRITING_METHODS and function is getattr(np.ndarray, name):
        written.append(args[0])
    return [x for x in written if isinstance(x, (Array, np.ndarray))]


def text_of(x: Any) -> str:
    """Return the variable of the user's that holds an array."""
    frame = user_frame()
    scopes = (frame.f_locals, frame.f_globals) if frame else ()
    return next((n for scope in scopes for n, v in scope.items() if v is x), "this")


def created(function: Function, ours: Function, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run np.zeros, np.arange, np.array … for arguments that are known."""
    context = Context.current()
    if context is not None and function in (np.full, np.full_like):
        _check_fill(function, args, kwargs)
    if context is not None and function in (np.empty, np.empty_like):  # which may hold anything:
        function = np.zeros if function is np.empty else np.zeros_like  # the same in every build
    if context is None or function not in _FORMULAS or not _is_simple(args, kwargs):
        return known.evaluate(function, ours, args, kwargs)
    make: Callable[[], Any] = lambda: function(*args, **kwargs)  # noqa: E731
    if function in (np.eye, np.identity):
        array = like = make()
        make = lambda: array  # noqa: E731
    else:  # nobody may ever ask for their elements
        rest = args[2:] if function is np.full else args[1:]
        dtype = kwargs.get("dtype", rest[0] if rest else None)
        if dtype is None and function is np.full:
            dtype = np.asarray(args[1]).dtype
        like = np.broadcast_to(np.empty((), dtype), args[0])
    element = dtypes.from_numpy(like.dtype)
    if element is None:
        return make()
    return known.lazy_array(
        context, like.shape, element, make, lambda: ours(*args, **kwargs).read())


def _check_fill(function: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises DtypeError for a NaN, or another number, that the integers asked for do not have:
    NumPy makes another number of it, and only warns."""
    arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    value, dtype = arguments["fill_value"], arguments.get("dtype")
    if dtype is None and function is np.full_like:
        dtype = getattr(arguments["a"], "dtype", None)
    if dtype is not None and isinstance(value, (int, float, np.integer, np.floating)):
        rounded(value, element_type(dtype))


def _is_simple(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether the arguments are numbers, element types, and a shape of integers."""

    def is_number(x: Any) -> bool:
        return isinstance(x, (bool, int, float, complex, np.generic))

    shape_is_simple = bool(args) and (
        is_number(args[0]) or (isinstance(args[0], tuple) and all(map(is_number, args[0])))
    )
    others = (*args[1:], *kwargs.values())
    return (
        shape_is_simple
        and set(kwargs) <= {"dtype", "k"}
        and all(x is None or is_number(x) or isinstance(x, (type, str, np.dtype)) for x in others)
    )


def extents_known(x: Any) -> Any:
    """Return x with NumPy's arrays in place of known integers, which may stand for extents or
    indices."""
    if isinstance(x, (tuple, list)):
        return type(x)(map(extents_known, x)) if any(map(known.is_known, x)) else x
    return known.plain(x) if known.is_known(x) and x.dtype.kind in "iub" else x


# ---- what a call in converted code runs ----------------------------------------------------------


def is_numpys(function: Any) -> bool:
    """Return whether it is a function, ufunc or method of NumPy's."""
    owner = getattr(function, "__self__", None)
    return type(owner) is np.ndarray or isinstance(owner, np.ufunc) or "numpy" in _roots(function)


def is_librarys(function: Any) -> bool:
    """Return whether it comes from an installed library."""
    return any(map(_is_library, _roots(function)))


def _roots(function: Any) -> set[str]:
    owner = getattr(function, "__self__", None)
    return {_root(x) for x in (function, type(function), type(owner))}


def _root(x: Any) -> str:
    module = getattr(x, "__module__", None)
    return module.split(".")[0] if isinstance(module, str) else ""


@cache
def _is_library(name: str) -> bool:
    if name in ("", "builtins", "__main__", "codegen", "spmd") or name in sys.stdlib_module_names:
        return False
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return isinstance(module, types.ModuleType) and file is not None and is_library_file(file)


def library(function: Function, ours: Function | None = None) -> Function:
    """Return a function of another library, which is called with NumPy's arrays. ours: of
    others."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_unknown(args, kwargs):
            return ours(*args, **kwargs) if ours else _tried(function, args, kwargs)
        positional, options = known.plain(args, True), known.plain(kwargs, True)
        leaves = pytree.leaves((positional, options, _arrays_of(function)))
        held = {id(known.root(x)) for x in leaves if isinstance(x, np.ndarray)}
        return known.taken(function(*positional, **options), held)

    return call


def _tried(function: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a library's function with arrays of the program: it works where all that it does is
    NumPy's."""
    try:
        return function(*args, **kwargs)
    except TracedValueError as error:
        if error.expected.startswith(("a NumPy array", "a Python ")):
            name = getattr(function, "__qualname__", type(function).__name__)
            root = _root(function) or _root(type(function))
            error.remedy = (f"{name} of {root} asks for the elements while building: write what it "
                            "computes with NumPy's functions, or with @spmd.kernel")
            if root in _DRAWING:
                error.remedy = (f"{name} of {root} draws while building: return the array, and "
                                "draw what the image gives: u = image.run(ranks=4)")
            if isinstance(getattr(function, "__self__", None), _sparse_class()):
                raise sparse() from None
        raise


def _sparse_class() -> tuple[type, ...]:
    """Return the classes of scipy's sparse matrices, if somebody has imported them."""
    module = sys.modules.get("scipy.sparse")
    return () if module is None else (module.spmatrix, module.sparray)


def _arrays_of(function: Any) -> list[Any]:
    """Return the arrays that an object holds whose method is called: its results may be these."""
    return list(getattr(getattr(function, "__self__", None), "__dict__", {}).values())
