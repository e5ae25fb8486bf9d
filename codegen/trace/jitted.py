"""A plain function of arrays as a program, whose inputs are the function's arguments: for spmd.jit.

Goes in: the function, and its arguments with a Leaf in the place of each array or number. Comes
out: a Program without parameters. Always holds: what the caller keeps is never changed; what the
function returns is rebuilt from the tree that its latest capture returned.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

from codegen.dtypes import DType
from codegen.errors import Place, UsageError
from codegen.places import is_user_file, program_files, user_place
from codegen.trace.context import Context
from codegen.trace.declare import array_input, number_input
from codegen.trace.program import Program, make_mesh
from codegen.user.named import held, rebuilt

WHEN_BUILT = ("name the argument that decides it in static_argnames=, as in "
              'spmd.jit(f, static_argnames="n"): it is then a Python number, and each one is built')


class Leaf:
    """One array or number among the arguments of a call.

    weak: a number of Python's, which adapts to the array that it meets. scalar: a number, not an
    array of shape ().
    """

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...], layout: Any = None,
                 weak: bool = False, scalar: bool = False) -> None:
        self.name, self.dtype, self.shape, self.layout = name, dtype, shape, layout
        self.weak, self.scalar = weak, scalar

    def read_parts(self) -> tuple[Any, ...]:
        """Return what a capture of the function depends on: see reads.py."""
        return (self.name, self.dtype.name, self.shape, repr(self.layout), self.weak, self.scalar)


class Static:
    """An argument that the function gets as it is, while it is built."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def read_parts(self) -> tuple[Any, ...]:
        return (self.value,)


class Jitted(Program):
    """A function with the arguments of one call. template: the containers of what it returns, once
    it has been captured."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                 mesh: Any) -> None:
        self.args, self.kwargs = args, kwargs
        self.template: Any = None
        self.function = function
        self.mesh = make_mesh(mesh)
        self.sync, self.rules = "least", {}
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function
        written = written_by_user(function)
        code = getattr(written, "__code__", None)
        name = getattr(function, "__name__", "") or getattr(written, "__name__", "")
        self.name = name if name.isidentifier() else "function"
        here = user_place()
        self.file = code.co_filename if code else here.file if here else ""
        if code and is_user_file(self.file):
            program_files.add(self.file)
        self.place = (Place(code.co_filename, code.co_firstlineno, 0, -1, self.name) if code
                      else here or Place("?", 1))

    def read_parts(self) -> tuple[Any, ...]:
        return *super().read_parts(), self.args, self.kwargs, "jit"

    @property
    def parameters(self) -> dict[str, Any]:
        return {}

    def bind(self, arguments: Any) -> dict[str, Any]:
        return {}

    def reached(self, values: dict[str, Any]) -> Iterable[tuple[str, Any]]:
        """Return the static arguments, `self` among them."""
        code = getattr(written_by_user(self.function), "__code__", None)
        names = code.co_varnames[: code.co_argcount] if code else ()
        first = [(names[k] if k < len(names) else f"argument {k}", x)
                 for k, x in enumerate(self.args)]
        return [(name, x.value) for name, x in [*first, *self.kwargs.items()]
                if isinstance(x, Static)]

    def called(self, context: Context, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        context.when_built = WHEN_BUILT
        args, kwargs = _declared((self.args, self.kwargs))
        returned = function(*args, **kwargs)
        self.template = _template(returned)
        return _stand_in(returned)


def written_by_user(function: Any) -> Any:
    """Return the user's function inside a partial, a method or a transform such as spmd.grad;
    `function` itself if there is none."""
    for _ in range(100):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, types.FunctionType):
            if is_user_file(function.__code__.co_filename):
                return function
            cells = [c.cell_contents for c in function.__closure__ or () if _is_full(c)]
            inner = [x for x in cells if isinstance(x, types.FunctionType | types.MethodType
                                                    | functools.partial)]
            if not inner:
                return function
            function = inner[0]
        else:
            method = getattr(type(function), "__call__", None)  # noqa: B004
            if not isinstance(method, types.FunctionType):
                return function
            wrapped = getattr(function, "__wrapped__", None)
            function = method if wrapped is None else wrapped
    return function


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def check_function(function: Any) -> None:
    """Raise UsageError for a function that spmd.jit cannot build."""
    kind = ""
    if isinstance(function, Program):
        kind = f"the program {function.name}, which spmd.build takes"
    elif isinstance(function, type):
        kind = f"the class {function.__name__}"
    elif not callable(function):
        kind = f"{type(function).__name__}: {function!r}"[:80]
    else:
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if flags & (0x20 | 0x80 | 0x100 | 0x200):  # CO_GENERATOR, coroutines, async generators
            kind = "a function with yield or async"
    if kind:
        raise UsageError("spmd.jit takes a function of arrays", place=user_place(),
                         expected="spmd.jit(f, ranks=4), or @spmd.jit above it", found=kind)


def _declared(tree: Any) -> Any:
    """Return the arguments as the function gets them: inputs for arrays, and the static values."""
    if isinstance(tree, Static):
        return tree.value
    if isinstance(tree, Leaf):
        if tree.scalar:
            return number_input(tree.name, tree.dtype, tree.weak)
        return array_input(tree.name, tree.shape, tree.dtype, tree.layout)
    inside = held(tree)
    return tree if inside is None else rebuilt(tree, [_declared(x) for _, x in inside])


# ---- what a function returns -----------------------------------------------------------------


class _Fields(tuple[Any, ...]):
    """A container for what a manifest cannot describe, such as None: outputs treat it as a named
    tuple with the name of its class."""

    _fields: tuple[str, ...] = ()


def _stand_in(x: Any) -> Any:
    """Return a nest that a program may return: None becomes an empty container, and keys of dicts
    become text."""
    if x is None:
        return type("None", (_Fields,), {})()
    inside = held(x)
    if inside is None:
        return x
    items = [_stand_in(item) for _, item in inside]
    if isinstance(x, dict) and not all(isinstance(key, str) for key in x):
        fields = tuple(str(key) for key in x)
        return type("dict", (_Fields,), {"_fields": fields})(items)
    return rebuilt(x, items)


_LEAF = object()


def _template(x: Any) -> Any:
    if x is None:
        return None
    inside = held(x)
    return _LEAF if inside is None else rebuilt(x, [_template(item) for _, item in inside])


def finished(template: Any, outputs: Any) -> Any:
    """Return the outputs of an image in the containers that the function returned. `template` is
    that of a captured Jitted."""
    if template is _LEAF:
        return outputs
    inside = held(template)
    if inside is None:
        return None
    items = outputs.values() if isinstance(outputs, dict) else outputs
    pairs = zip(inside, items, strict=True)
    return rebuilt(template, [finished(below, item) for (_, below), item in pairs])


def is_plain(returns: Any) -> bool:
    """Return whether the function returned only dicts, lists and tuples, as the image does."""
    if not isinstance(returns, list):
        return True
    kind, *inner = returns
    return kind != "named" and all(
        is_plain(x[1] if kind == "dict" else x) for x in inner)
