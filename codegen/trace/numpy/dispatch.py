"""NumPy's dispatch: what runs where NumPy, a method of Array or spmd.numpy is called.

Always holds: a NumPy function that has no row is refused with its name and the nearest alternative.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache, partial
from inspect import signature
from typing import Any

import numpy as np

from codegen.errors import ShapeError, UnsupportedError
from codegen.trace import array, library_calls
from codegen.trace.array import Array, is_traced, unsupported
from codegen.trace.context import Context, refuse_constant_write
from codegen.trace.numpy import (
    elementwise,
    fourier,
    polynomials,
    sized,
    special,
    ufunc_methods,
)
from codegen.trace.numpy.function_table import Function, of_numpy_name, table
from codegen.trace.numpy.masks import Chosen
from codegen.trace.numpy.refused import CLASSES, RANDOM, REMEDIES, SHAPES_OF_DATA


@cache
def _by_function() -> dict[Any, Function]:
    """Return our functions by NumPy's function objects."""
    return {
        theirs: ours for name, ours in table().items()
        if (theirs := of_numpy_name(name)) is not None
    }


def by_name(name: str) -> Function:
    """Return our function for NumPy's of this name, or one that refuses it."""
    ours = table().get(name)
    return ours if ours is not None else _refuse(name)


def _refuse(name: str) -> Function:
    def call(*_: Any, **__: Any) -> Any:
        if name in SHAPES_OF_DATA:
            raise UnsupportedError(
                f"np.{name} gives an array whose shape depends on data",
                expected="arrays whose shapes are known while building",
                found="elements that only the run knows", remedy=REMEDIES[name])
        raise unsupported(f"np.{name}", REMEDIES.get(name, _NEW))

    return call


def ours_of(function: Any) -> Function | None:
    """Return our function for NumPy's own; None if there is none."""
    try:
        return _by_function().get(function)
    except TypeError:  # what is called need not be hashable
        return None


def method(name: str, x: Array, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the ndarray method of this name."""
    unbound = getattr(np.ndarray, name)
    if library_calls.may_run(unbound, (x, *args), kwargs):
        return library_calls.called(unbound, table().get(name), (x, *args), kwargs)
    if name == "copy" and not args:  # row by row, where np.copy keeps the order that x has
        kwargs = {"order": "C", **kwargs}
    return _run(name, by_name(name), (x, *args), kwargs)


@cache
def _named() -> dict[int, str]:
    """Return the names of NumPy's functions, dotted in a submodule, by their ids."""
    plain = (n for n in numpy_names() if not n.startswith(("ndarray.", "ufunc.")))
    return {id(of_numpy_name(n)): n for n in plain}


def _name_of(function: Any) -> str:
    return _named().get(id(function), getattr(function, "__name__", str(function)))


def call_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run our function in the place of NumPy's that meets an Array: this is
    Array.__array_function__."""
    if any(isinstance(x, Chosen) for x in args):
        return NotImplemented
    if library_calls.may_run(function, args, kwargs):
        return library_calls.called(function, ours_of(function), args, kwargs)
    ours = _by_function().get(function)
    if ours is None:
        ours = _refuse(_name_of(function))
    args = (*args[:1], *library_calls.extents_known(args[1:]))
    kwargs = {k: v if k == "out" else library_calls.extents_known(v) for k, v in kwargs.items()}
    if kwargs.get("like") is not None:
        kwargs = {k: v for k, v in kwargs.items() if k != "like"}
    if getattr(function, "__name__", "") not in _OF_SEQUENCES:
        args = tuple(map(_one, args))
        kwargs = {k: _one(v) for k, v in kwargs.items()}
    return _run(_name_of(function), ours, args, kwargs)


def _run(name: str, ours: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run our function; raise an error where NumPy's has arguments that ours has not."""
    kwargs = {k: v for k, v in kwargs.items() if v is not np._NoValue}
    try:
        return ours(*args, **kwargs)
    except TypeError:
        try:
            signature(ours).bind(*args, **kwargs)
        except TypeError as error:
            raise unsupported(f"np.{name} with these arguments ({error})",
                              "the other arguments, and functions before or after it") from None
        raise


# Functions of several arrays in a list; elsewhere, a list of arrays stands for one.
_OF_SEQUENCES = frozenset(
    "append block broadcast_arrays choose column_stack concatenate dstack einsum gradient "
    "histogram2d histogramdd hstack ix_ lexsort meshgrid multi_dot piecewise ravel_multi_index "
    "select stack vstack".split()
)


def _one(x: Any) -> Any:
    """Return one traced array for a list or tuple that holds traced arrays; else x itself."""
    return array.as_array(x) if isinstance(x, (list, tuple)) and _has_array(x) else x


def _has_array(x: Any) -> bool:
    return any(_has_array(i) if isinstance(i, (list, tuple)) else isinstance(i, Array) for i in x)


# ---- ufuncs ----------------------------------------------------------------------------------

def call_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a ufunc, or its reduce, accumulate, outer or at, on Arrays: this is
    Array.__array_ufunc__."""
    if any(isinstance(x, Chosen) for x in inputs):
        return NotImplemented
    function = ufunc if method == "__call__" else getattr(ufunc, method)
    if library_calls.may_run(function, inputs, kwargs):
        return library_calls.called(function, None, inputs, kwargs)
    if method == "__call__":
        return _call(ufunc, inputs, kwargs)
    if isinstance(kwargs.get("out"), tuple):
        kwargs = {**kwargs, "out": kwargs["out"][0]}
    return _run(f"{ufunc.__name__}.{method}", partial(getattr(ufunc_methods, method), ufunc),
                inputs, kwargs)


_IGNORED = ("casting", "order", "subok")


def _call(ufunc: np.ufunc, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    options = {k: v for k, v in kwargs.items() if k not in _IGNORED}
    if ufunc.signature == "(n),(n)->()" and "axis" in options:
        axis, move = options.pop("axis"), table()["moveaxis"]
        inputs = tuple(move(x, axis, -1) for x in inputs)
    if unknown := options.keys() - {"out", "where", "dtype"}:
        raise unsupported(f"np.{ufunc.__name__} with {sorted(unknown)[0]}=",
                          "np.swapaxes before and after it, or x.astype(t)")
    out: Any = options.pop("out", None)
    out = out[0] if isinstance(out, tuple) and len(out) == 1 else out
    if out is not None and not isinstance(out, (Array, tuple)):
        refuse_constant_write(library_calls.text_of(out))
    return elementwise.apply(ufunc, *inputs, out=out, **options)


# ---- functions that NumPy cannot dispatch ----------------------------------------------------

# Their arguments are extents, numbers or lists, so NumPy would ask those for Python integers.
_UNDISPATCHED = (
    np.zeros, np.ones, np.empty, np.full, np.arange, np.eye, np.identity, np.linspace, np.array,
    np.asarray, np.ascontiguousarray, np.asfortranarray, np.asanyarray, np.require,
    np.asarray_chkfinite, np.from_dlpack, np.lib.stride_tricks.as_strided, np.nested_iters,
    np.asmatrix, np.bmat, np.fft.fftfreq, np.fft.rfftfreq, np.empty_like,
)


def aware(function: Any) -> Function | None:
    """Return what a converted call runs instead of `function`; None if the function needs no
    other."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, (np.random.RandomState, np.random.Generator)):
        return _of_random(function)
    return _aware().get(id(function)) or elsewhere(function)


def elsewhere(function: Any) -> Function | None:
    """Return what runs instead of a function of NumPy's or of another library; None for all
    others."""
    if isinstance(getattr(function, "__self__", None), Array):
        return None
    if library_calls.is_numpys(function):
        return _of_numpy(function)
    if not library_calls.is_librarys(function):
        return None
    return library_calls.library(function, special.ours_of(function) or fourier.ours_of(function))


def _of_numpy(function: Any) -> Function:
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    text = f"{module}.{name}".replace(".core", "")
    known_only = isinstance(getattr(function, "__self__", function), type) or ".ma." in text
    remedy = next((r for start, r in CLASSES.items() if text.startswith(start)), "")
    function = getattr(function, "_implementation", function) if ".polynomial" in text else function
    is_of_polynomials = text.startswith("numpy.polynomial") and not known_only and (
        isinstance(function, types.FunctionType) or not name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if library_calls.may_run(function, args, kwargs):
            return library_calls.called(function, ours_of(function), args, kwargs)
        if known_only and remedy and library_calls.is_unknown(args, kwargs):
            raise unsupported(text.replace("numpy", "np", 1), remedy)
        if is_of_polynomials:
            return polynomials.of_library(function)(*args, **kwargs)
        lists = [x for x in (*args, *kwargs.values()) if isinstance(x, (list, tuple))]
        unknown = library_calls.is_unknown(lists)
        return (directly(function) if unknown else function)(*args, **kwargs)

    return call


@cache
def _dispatched() -> frozenset[int]:
    """Return NumPy's functions that hand arrays over, but not lists of them: by id."""
    return frozenset(
        id(f) for n in _named().values() if hasattr(f := of_numpy_name(n), "_implementation")
    )


def directly(function: Any) -> Function:
    """Return NumPy's function, for lists or tuples that hold arrays of the program: NumPy hands
    over arrays, but not lists of them."""
    owner = getattr(function, "__self__", None)
    if isinstance(function, np.ufunc) or isinstance(owner, np.ufunc):
        ufunc, name = (owner, function.__name__) if owner is not None else (function, "__call__")
        return lambda *args, **options: call_ufunc(ufunc, name, args, options)
    if id(function) in _dispatched():
        return lambda *args, **options: call_function(function, args, options)
    return function  # type: ignore[no-any-return]


def _of_random(function: Any) -> Function:
    """Return NumPy's random function, which refuses arrays of the program: it would go through
    their elements while building."""
    name = function.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        if library_calls.is_unknown(args, kwargs):
            raise unsupported(f"np.random's {name} of an array of the program", RANDOM.get(
                name, "spmd.random.permutation(seed, n), then x[order]"))
        return library_calls.library(function)(*args, **kwargs)

    return call


@cache
def _aware() -> dict[int, Function]:
    """Return the replacements by the id of what they replace: what is called need not be
    hashable."""
    return {id(f): _aware_of(f) for f in _UNDISPATCHED}


def _aware_of(function: Function) -> Function:
    ours = by_name(_name_of(function))

    def call(*args: Any, **kwargs: Any) -> Any:
        if library_calls.is_unknown(args, kwargs):
            return ours(*args, **kwargs)
        result = library_calls.created(function, ours, args, kwargs)
        if function is np.empty and isinstance(result, Array):
            result.made_empty = True  # an output where a kernel takes it by name
        return result

    return call


# ---- what there is -----------------------------------------------------------------------------

_NEW = "another of NumPy's functions: spmd does not know this one yet"
_PARTS = ("linalg", "fft", "emath", "lib.stride_tricks")  # of numpy; others are not about arrays


def numpy_names() -> Iterator[str]:
    """Yield the names of NumPy's functions, of the attributes of its arrays, and of the methods of
    its ufuncs."""
    for part in ("", *_PARTS):
        module = of_numpy_name(part) if part else np
        for name in sorted(vars(module)):
            member = getattr(module, name)
            if callable(member) and not name.startswith("_") and not isinstance(member, type):
                yield f"{part}.{name}" if part else name
    yield from (f"ndarray.{n}" for n in dir(np.ndarray) if not n.startswith("_"))
    yield from (f"ufunc.{n}" for n in ("accumulate", "at", "outer", "reduce", "reduceat"))


# ---- spmd.numpy ------------------------------------------------------------------------------

ALIASES = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "bitwise_invert": "invert", "pow": "power",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
}


def attribute(name: str) -> Any:
    """Return a name of the namespace spmd.numpy. Raises AttributeError."""
    if name == "linalg":
        return types.SimpleNamespace(
            **{k.removeprefix("linalg."): v for k, v in table().items() if k.startswith("linalg.")}
        )
    ours, plain = table().get(name), getattr(np, ALIASES.get(name, name), None)
    if name in sized.FUNCTIONS:
        return _sized(name, plain, ours or _refuse(name))
    if ours is not None:
        return _in_programs(ours, plain)
    if isinstance(plain, np.ufunc):
        return _ufunc(plain)
    if isinstance(plain, type) or isinstance(plain, (float, np.dtype)) or name in (
        "newaxis", "finfo", "iinfo", "can_cast", "broadcast_shapes", "isdtype", "dtype",
    ):
        return plain
    if plain is not None:
        return _refuse(name)
    raise AttributeError(f"spmd.numpy has no {name!r}")


def _in_programs(ours: Function, plain: Any) -> Function:
    """Return ours while a program is captured; NumPy's own in an eager run, and elsewhere."""

    def call(*args: Any, **kwargs: Any) -> Any:
        elsewhere = Context.current() is None and plain is not None
        return (plain if elsewhere else ours)(*args, **kwargs)

    call.__name__, call.__doc__ = getattr(plain, "__name__", ""), getattr(plain, "__doc__", "")
    call.__wrapped__ = ours  # type: ignore[attr-defined]  # its arguments are those of the call
    return call


def _sized(name: str, plain: Any, ours: Function) -> Function:
    """Return the function with a keyword size=; without it, it is the function of programs."""

    def call(*args: Any, size: Any = None, **options: Any) -> Any:
        if size is None:
            return _in_programs(ours, plain)(*args, **options)
        if not isinstance(size, (int, np.integer)) or size < 0:
            raise ShapeError(f"spmd.numpy.{name}: size says how many elements there is room for",
                             expected="an integer known while building, 0 or more",
                             found=f"size={size!r}", remedy="size=x.size, always enough")
        return sized.FUNCTIONS[name](*args, size=int(size), **options)

    call.__name__ = name
    call.__doc__ = f"{plain.__doc__}\n\nspmd: {sized.__doc__}"
    return call


def _ufunc(ufunc: np.ufunc) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(is_traced(x) or isinstance(x, (list, tuple)) for x in args):
            return _call(ufunc, args, kwargs)
        return ufunc(*args, **kwargs)

    call.__name__, call.__doc__ = ufunc.__name__, ufunc.__doc__
    return call


@cache
def namespace() -> types.ModuleType:
    """Return spmd.numpy's twin inside the compiler, for __array_namespace__."""
    module = types.ModuleType("spmd.numpy", "NumPy's functions on arrays of a program.")
    module.__getattr__ = attribute  # type: ignore[method-assign]
    return module
