"""What a user's function can read, as a digest: equal ones mean that a capture would be equal.

Goes in: functions and values. Comes out: a digest of their code, of the texts of its files, and of
all that can be reached from them by name; None where something is met whose state cannot be seen.
Always holds: nothing of the user's is called; what is not understood is never guessed.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import linecache
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from codegen.places import codes_in, is_user_file, module_of
from codegen.user.objects import origin, whose
from codegen.user.sameness import content

# Modules of which nothing but the version can differ, and what of them reads the world outside.
_STANDARD = frozenset(
    "builtins math cmath operator functools itertools collections dataclasses enum typing types "
    "abc numbers fractions string contextlib copy bisect __future__ _operator _functools".split()
)
_SHIPPED = sys.stdlib_module_names  # with Python
_KNOWN = _STANDARD | frozenset("numpy ml_dtypes numba spmd codegen".split())
_OUTSIDE = frozenset(
    "numpy.random numpy.load numpy.loadtxt numpy.fromfile numpy.genfromtxt numpy.memmap "
    "numpy.fromregex numpy.DataSource numpy.lib.npyio numpy.lib.format numpy.lib._npyio_impl "
    "numpy._core.memmap numpy.get_printoptions numpy.geterr numba.objmode spmd.image spmd.source "
    "operator.attrgetter operator.methodcaller dataclasses.fields typing.get_type_hints "
    "builtins.getattr builtins.hasattr builtins.vars builtins.globals builtins.locals "
    "builtins.eval builtins.exec builtins.compile builtins.open builtins.input "
    "builtins.id builtins.dir builtins.hash builtins.__import__ builtins.breakpoint "
    "builtins.setattr builtins.delattr".split()
)
# Attributes by which code reads what is not reached by name.
_INSIDE = frozenset(
    "__dict__ __globals__ __closure__ __code__ __builtins__ __doc__ __annotations__ __file__ "
    "__dataclass_fields__ __subclasses__ __self__ f_globals f_locals f_back".split()
)
# Of a class: how Python made it, not what a function reads of it.
_MADE = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __annotations__ __annotate__ __annotate_func__ "
    "__annotations_cache__ __static_attributes__ __firstlineno__ __dataclass_fields__ "
    "__dataclass_params__ __match_args__ __abstractmethods__ _abc_impl __orig_bases__ "
    "__parameters__ __slots__ __hash__".split()
)
_PLAIN = (bool, int, str, bytes, float, complex, type(None), type(...), type(NotImplemented))
_BASES = (object, tuple, list, dict, int, str, float, complex, types.SimpleNamespace)
_MOST_OBJECTS = 200_000  # objects: a capture may be faster than looking at more of them

_Uses = list[tuple[str, tuple[str, ...]]]  # a global name and the attributes read of it at once
_codes: dict[int, tuple[types.CodeType, bytes, _Uses]] = {}


class _Unknown(Exception):
    """Something whose state cannot be seen."""


def digest(*roots: Any) -> str | None:
    """Return the digest of all that code can read from these; None where something cannot be
    seen."""
    try:
        return _Walk(roots).result()
    except (_Unknown, RecursionError):
        return None


class _Walk:
    """Every object is visited once, in an order that follows from what the objects are."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.hash = hashlib.sha256()
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []  # so that no id is used twice
        self.files: dict[str, None] = {}
        self.modules: dict[str, types.ModuleType] = {}  # in variables: what is read of them?
        self.names: dict[str, None] = {}  # of attributes, in any code that was met
        for root in roots:
            self.visit(root)

    def result(self) -> str:
        done: set[tuple[str, str]] = set()
        while pairs := [(m, n) for m in self.modules for n in self.names if (m, n) not in done]:
            for module, name in pairs:
                done.add((module, name))
                self.visit(self.attribute(self.modules[module], name))
        if self.names.keys() & _INSIDE:
            raise _Unknown
        for file in self.files:
            linecache.checkcache(file)
            self.put("file", file, is_user_file(file), whose(file))
            self.put("".join(linecache.getlines(file)))
        return self.hash.hexdigest()

    def put(self, *words: Any) -> None:
        """Add words with their lengths, so that no two sequences read the same."""
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
            self.hash.update(b"%d:" % len(data))
            self.hash.update(data)

    def visit(self, x: Any) -> None:
        kind = type(x)
        if kind in _PLAIN:
            self.put(kind.__name__, x if kind is bytes else repr(x))
        elif id(x) in self.seen:
            self.put("again", self.seen[id(x)])
        elif name := _known_name(x):
            self.put("known", name)
        else:
            if len(self.seen) == _MOST_OBJECTS:
                raise _Unknown
            self.seen[id(x)] = len(self.seen)
            self.kept.append(x)
            self.put(kind.__qualname__)
            for part in self.parts(x):
                self.visit(part)

    def parts(self, x: Any) -> Iterable[Any]:
        """Return the objects and words that an object consists of. Raises _Unknown."""
        kind = type(x)
        if isinstance(x, types.ModuleType):
            self.modules[_seen_through(x).__name__] = x
            return (x.__name__, whose(getattr(x, "__file__", None) or ""))
        if isinstance(x, type):
            return self.cls(x)
        if kind is np.ndarray or isinstance(x, np.generic):
            return self.array(np.asarray(x))
        if isinstance(x, types.FunctionType):
            return self.function(x)
        if module_of(kind).startswith(("codegen.", "spmd.")) and hasattr(kind, "read_parts"):
            return tuple(x.read_parts())  # a program, a kernel
        return _parts(x)

    def array(self, x: np.ndarray) -> Sequence[Any]:
        if x.dtype.hasobject:
            raise _Unknown
        self.put(repr(x.dtype), x.shape, x.tobytes())
        return ()

    def function(self, f: types.FunctionType) -> Iterator[Any]:
        yield from (f.__defaults__, f.__kwdefaults__, f.__dict__, *(f.__closure__ or ()))
        code, used = _code(f.__code__)
        self.put(code)
        name = f.__globals__.get("__name__", "")
        module = _root(name)
        if module and vars(sys.modules.get(name, module)) is f.__globals__:
            if not _is_known(name):
                raise _Unknown
            return  # of a known module, though no attribute of it: its globals are known too
        self.files[f.__code__.co_filename] = None
        for inner in (f.__code__, *codes_in(f.__code__)):
            self.names.update(dict.fromkeys(inner.co_names))
        for name, chain in used:
            yield name
            yield self.used(f.__globals__, name, chain)

    def used(self, namespace: dict[str, Any], name: str, chain: tuple[str, ...]) -> Any:
        """Return what a function reads under a global name, or through attributes of a module under
        that name."""
        if chain[:1] == (_IMPORT,):
            return _imported(name, namespace)
        value = namespace.get(name, getattr(builtins, name, _MISSING))
        for attribute in chain:
            if not isinstance(value, types.ModuleType):
                break
            value = self.attribute(_seen_through(value), attribute)
        return value

    def attribute(self, module: types.ModuleType, name: str) -> Any:
        self.put(module.__name__, name)
        if _root(module.__name__):
            if not _is_known(f"{module.__name__}.{name}"):
                raise _Unknown
            return getattr(module, name, _MISSING)  # some are made at their first use
        return vars(module).get(name, _MISSING)

    def cls(self, x: type) -> Iterator[Any]:
        if _root(module_of(x)) or module_of(x) in sys.stdlib_module_names:
            raise _Unknown  # known ones are not visited
        # another origin, and a capture treats its objects in another way
        yield from (x.__module__, x.__qualname__, origin(x), type(x), *x.__bases__)
        for key, value in vars(x).items():
            if key not in _MADE:
                yield key
                yield value


_MISSING = "nothing of this name"
_IMPORT = "import statement"


def _parts(x: Any) -> Iterable[Any]:
    kind = type(x)
    if isinstance(x, types.MethodType):
        return (x.__func__, x.__self__)
    if isinstance(x, types.BuiltinFunctionType) and type(x.__self__) in (*_PLAIN, type):
        return (x.__name__, x.__self__)
    if isinstance(x, types.MethodDescriptorType | types.WrapperDescriptorType):
        return (x.__name__, x.__objclass__) if x.__objclass__.__module__ == "builtins" else _no()
    if isinstance(x, types.MemberDescriptorType):  # of __slots__
        return (x.__name__,) if "__slots__" in vars(x.__objclass__) else _no()
    if isinstance(x, types.CellType):
        try:
            return (x.cell_contents,)
        except ValueError:
            return ("empty",)
    if isinstance(x, staticmethod | classmethod):
        return (x.__func__,)
    if isinstance(x, property):
        return (x.fget, x.fset, x.fdel)
    if kind is functools.partial:
        return (x.func, x.args, x.keywords)
    if kind is slice:
        return (x.start, x.stop, x.step)
    if kind is range:
        return (repr(x),)
    if kind is set or kind is frozenset:
        plain = all(type(i) in _PLAIN for i in x)
        return sorted(f"{type(i).__name__} {i!r}" for i in x) if plain else _no()
    if isinstance(x, np.dtype):
        return (repr(x), x.str)
    if kind.__module__ == "_collections" and kind.__name__ == "_tuplegetter":
        return (repr(x.__reduce__()[1]),)
    if module_of(kind).partition(".")[0] == "numba" and hasattr(x, "py_func"):
        if x.overloads:  # compiled with what it read then
            raise _Unknown
        return (x.py_func, repr(sorted(getattr(x, "targetoptions", {}).items())))
    return _instance(x)


def _no() -> Sequence[Any]:
    raise _Unknown


def _instance(x: Any) -> Iterator[Any]:
    """Yield the parts of an object whose class Python code defines: the class, the elements, the
    attributes."""
    kind = type(x)
    if not all(c in _BASES or not _root(module_of(c)) or _holds_nothing(c) for c in kind.__mro__):
        raise _Unknown
    yield kind
    if isinstance(x, dict):
        yield len(x)
        yield from (part for item in dict.items(x) for part in item)
    elif isinstance(x, list | tuple):
        yield len(x)
        yield from list.__iter__(x) if isinstance(x, list) else tuple.__iter__(x)
    else:
        plain = next((c for c in (int, float, complex, str) if isinstance(x, c)), None)
        yield plain.__repr__(x) if plain else ""
    try:
        attributes = object.__getattribute__(x, "__dict__")
    except AttributeError:
        attributes = {}
    yield from (part for item in attributes.items() for part in item)
    for c in kind.__mro__:
        for name, slot in vars(c).items():
            if isinstance(slot, types.MemberDescriptorType) and c not in _BASES:
                yield name
                try:
                    yield slot.__get__(x, kind)
                except AttributeError:
                    yield _MISSING


def _holds_nothing(c: type) -> bool:
    """Return whether a class stands in a known module and keeps no state of its own."""
    return c.__module__ in (
        "typing", "abc", "codegen.trace.ranks.layout_forms", "codegen.trace.user_operations"
    ) or (c.__module__ == "enum" and issubclass(c, enum.Enum))


def _root(module: str) -> types.ModuleType | None:
    """Return the known package that a module's name begins with, unless it is a file of the
    user's."""
    root = module.partition(".")[0]
    package = sys.modules.get(root) if root in _KNOWN else None
    if package is None or root not in _STANDARD:
        return package
    origin = getattr(package.__spec__, "origin", None) or ""
    return package if origin in ("built-in", "frozen") or origin.startswith(_standard()) else None


@functools.cache
def _standard() -> str:
    """Return the folder of Python's own library, which sysconfig makes anew each time it is
    asked."""
    return sysconfig.get_paths()["stdlib"]


def _is_known(name: str) -> bool:
    """Return whether a dotted name in a known module reads nothing from outside."""
    parts = name.split(".")
    return not any(".".join(parts[:k]) in _OUTSIDE for k in range(1, len(parts) + 1))


def _known_name(x: Any) -> str:
    """Return the name of a function or class of a known module; "" for all else. Raises
    _Unknown."""
    module, name = getattr(x, "__module__", None), getattr(x, "__qualname__", None)
    if isinstance(x, np.ufunc):
        module, name = "numpy", x.__name__
    if not isinstance(module, str) or not isinstance(name, str) or not _root(module):
        return ""
    target: Any = sys.modules.get(module)
    for part in name.split("."):  # functools.wraps gives a user's function another one's name
        target = getattr(target, part, None)
    if target is not x:
        return ""
    if not _is_known(f"{module}.{name}"):
        raise _Unknown
    return f"{module}.{name}"


def is_known(name: str) -> bool:
    """Return whether nothing but the version of a module of this name can differ."""
    return _root(name) is not None


def is_users_module(x: types.ModuleType) -> bool:
    """Return whether a module's attributes may be others in the next run."""
    return _root(x.__name__) is None and x.__name__.partition(".")[0] not in _SHIPPED


def is_users_class(x: type) -> bool:
    """Return whether a class is neither Python's nor of a known module."""
    return _root(module_of(x)) is None and module_of(x).partition(".")[0] not in _SHIPPED


def uses_of(code: types.CodeType) -> _Uses:
    """Return what a function, and the functions in it, read by global names: each name with its
    chain of attributes."""
    return _code(code)[1]


def _seen_through(x: types.ModuleType) -> types.ModuleType:
    """Return a module, if all that can be read of it can be seen. Raises _Unknown."""
    if _root(x.__name__):
        return x if _is_known(x.__name__) else _no()  # type: ignore[return-value]
    standard = x.__name__.partition(".")[0] in sys.stdlib_module_names
    return _no() if standard or "__getattr__" in vars(x) else x  # type: ignore[return-value]


def _imported(name: str, namespace: dict[str, Any]) -> Any:
    """Return the module that an import statement in a function yields, if it is imported
    already."""
    module = sys.modules.get(name.partition(".")[0])
    return _no() if module is None or namespace.get("__package__") else module


def _code(code: types.CodeType) -> tuple[bytes, _Uses]:
    """Return a digest of a function's code, and what it uses by global names."""
    if id(code) not in _codes:
        text = repr(content(code, placed=True)).encode("utf-8", "surrogatepass")
        used = [u for c in (code, *codes_in(code)) for u in _uses(c)]
        _codes[id(code)] = code, hashlib.sha256(text).digest(), list(dict.fromkeys(used))
    return _codes[id(code)][1:]


def _uses(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("EXTENDED_ARG", "CACHE")]
    for k, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            yield str(step.argval), (_IMPORT,)
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            end = k + 1
            while end < len(steps) and steps[end].opname in ("LOAD_ATTR", "LOAD_METHOD"):
                end += 1
            yield str(step.argval), tuple(str(s.argval) for s in steps[k + 1 : end])
