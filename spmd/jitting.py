"""spmd.jit: a function of arrays, built for the arguments that it is called with.

In: a function, and how it runs. Out: a callable of the same arguments, which returns NumPy arrays.
Always holds: equal shapes, dtypes, trees and static values are built once, unless what the function
reads besides its arguments has changed; arguments are never changed.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from codegen import dtypes
from codegen.check_names import checks_of
from codegen.errors import InputError, LayoutWarning, SpmdError, UsageError
from codegen.trace.context import Context
from codegen.trace.control import reads
from codegen.trace.control.conversion import convert
from codegen.trace.control.watching import Watch
from codegen.trace.jitted import Jitted, Leaf, Static, check_function, is_plain
from codegen.user import eager_runs
from codegen.user.layout_trees import is_layout
from codegen.user.named import below, held
from codegen.user.spec import Spec
from spmd import source
from spmd.cache import Cache
from spmd.distributed import Distributed, Local
from spmd.image import Image
from spmd.launch import loader
from spmd.launch.attendance import Attendance
from spmd.launch.options import TIME_LIMIT, Options
from spmd.launch.processes import Processes, disagreement
from spmd.mistakes import cells, plainly
from spmd.opened import Opened

MOST_OPEN = 16  # images of one function that stay loaded; those that were called longest ago close

# Python's numbers among the arguments, and the element type of each.
_NUMBERS: dict[type, dtypes.DType] = {
    bool: dtypes.BOOL, int: dtypes.INT64, float: dtypes.FLOAT64, complex: dtypes.COMPLEX128,
}


@overload
def jit(function: Callable[..., Any], **how: Any) -> Jit: ...


@overload
def jit(**how: Any) -> Callable[[Callable[..., Any]], Jit]: ...


@plainly
def jit(
    function: Callable[..., Any] | None = None, *, ranks: int | None = None, mesh: Any = ("r",),
    layout: Mapping[str, Any] | None = None, comm: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None, keep: Any = (), check: Any = False,
    threads: int | None = None, algorithm: str = "auto", barrier: str = "auto",
    transport: str = "auto", time_limit: float = TIME_LIMIT, target: str = "native",
    cache: bool = True,
) -> Any:
    """A function that is compiled when it is called: `f = spmd.jit(fn, ranks=4)`, or a decorator,
    `@spmd.jit` and `@spmd.jit(ranks=4)`.

    A call takes arrays, numbers, and dicts, lists, tuples and dataclasses of them, as arguments by
    position or by name, and returns NumPy arrays in the containers that the function returns. None
    is an empty container. Arguments are never changed: a function that writes into one writes into
    a copy.

    - ranks, comm, threads, keep, check, …: as in Image.open. Unless given, one rank.
    - mesh: names of mesh axes, or a dict that fixes sizes, as in spmd.program.
    - layout: by the name of an argument how its dims are split over the mesh, `{"x": ("r", None)}`,
      or a tree of such for a tree; the compiler chooses that of all others.
    - static_argnums, static_argnames: arguments that are Python values while the function is built,
      such as extents. Each value is built; it must have a hash.
    - target, cache: as in spmd.build.

    A function is built once for each set of shapes, dtypes, trees and static values. A Python
    number is a run-time number that adapts to the array that it meets: another one builds nothing.
    What the function reads besides its arguments, such as a global array, is a constant; where that
    has changed since, the next call builds again. In a program, or in another jit, a call runs the
    function as a part of it.

    `f.image(*args)` gives the image for such arguments, `f.clear_cache()` frees all of them.

    Raises InputError for an argument that is no array or number, UsageError for a static value
    without a hash; what spmd.build and a run raise.

    Example::

        @spmd.jit(ranks=4)
        def centred(x, scale=1.0):
            return {"u": (x - np.mean(x)) * scale}

        print(centred(np.arange(4.0), scale=2.0)["u"])    # [-3. -1.  1.  3.]
    """
    how = {name: value for name, value in locals().items() if name != "function"}
    if function is None:
        return lambda f: Jit(f, how)
    return Jit(function, how)


class _Entry:
    """What one set of shapes has been built to. names: of the inputs, in the order of the leaves."""

    def __init__(self, program: Jitted, names: list[str], data: bytes, watch: Watch,
                 digest: str | None) -> None:
        self.names, self.data, self.watch, self.digest = names, data, watch, digest
        self.checked = loader.check(data)
        self.template: Any = None
        returns = self.checked.manifest["returns"]
        self.plain = is_plain(returns)
        if not self.plain:
            if program.template is None:  # the image was built before
                program.graph({})
            self.template = program.template
        self.finish = (lambda out: out) if self.plain else program.finish
        self.job: Opened | None = None


class Jit:
    """A function under spmd.jit."""

    def __init__(self, function: Callable[..., Any], how: dict[str, Any]) -> None:
        check_function(function)
        functools.update_wrapper(self, function)
        self._function = function
        run = {name: how[name] for name in ("ranks", "comm", "threads", "keep", "algorithm",
                                            "barrier", "transport", "time_limit")}
        self._run, self._mesh = run, how["mesh"]
        self._target, self._cache, self._checks = how["target"], how["cache"], checks_of(how["check"])
        self._parameters = _parameters(function)
        self._numbers, self._names = _static(
            self._parameters, how["static_argnums"], how["static_argnames"])
        self._layout = _layouts(how["layout"], self._parameters)
        self._lock, self._owner = threading.RLock(), os.getpid()
        self._entries: dict[Any, _Entry] = {}
        self._open: OrderedDict[Any, Opened] = OrderedDict()
        self._processes: Processes | None = None
        # Jobs of several processes close together, or not at all: never when one of them collects.
        if run["comm"] is None:
            weakref.finalize(self, _close_all, self._open, self._lock).atexit = False

    def read_parts(self) -> tuple[Any, ...]:
        """What a capture that calls it depends on: see reads.py."""
        return (self._function,)

    def __repr__(self) -> str:
        return f"<spmd.jit of {getattr(self._function, '__qualname__', self._function)!s}>"

    def __get__(self, obj: Any, cls: type | None = None) -> Any:
        return self if obj is None else Bound(self, obj)

    @plainly
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns, as NumPy arrays."""
        if Context.current() is not None:
            return convert(self._function)(*args, **kwargs)
        if eager_runs.runtime() is not None:
            return self._function(*args, **kwargs)
        return self._called(args, kwargs)

    @plainly
    def image(self, *args: Any, **kwargs: Any) -> Image:
        """The image for such arguments: arrays, or spmd.spec(shape, dtype) in their place. Its
        inputs are named after the arguments, `x`, `params.w`.

        Example::

            half = spmd.jit(lambda x: x / 2)
            print(half.image(spmd.spec((4,), np.float64)).run(ranks=2, x=np.ones(4)))
            # [0.5 0.5 0.5 0.5]
        """
        return self._image(args, kwargs)

    lower = image

    @plainly
    def clear_cache(self) -> None:
        """Forgets all images and frees their memory. With comm=, every process must call it."""
        with self._lock:
            self._entries.clear()
            _close_all(self._open, self._lock)

    # ---- a call

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool = False) -> Any:
        if os.getpid() != self._owner:
            self._begin_again()
        with self._lock:
            key, leaves = self._key(args, kwargs, bound)
            entry = self._entry(key, args, kwargs, bound)
            job = self._open.get(key)
            if job is None:
                job = self._opened(key, entry)
            elif len(self._open) > 1:
                self._open.move_to_end(key)
            return entry.finish(job(**dict(zip(entry.names, leaves, strict=True))))

    def _begin_again(self) -> None:
        """In a forked child: threads and memory of open images are not there."""
        self._owner, self._lock = os.getpid(), threading.RLock()
        self._open = OrderedDict()

    def _image(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool = False) -> Image:
        with self._lock:
            key, _ = self._key(args, kwargs, bound)
            entry = self._entry(key, args, kwargs, bound)

            def again(check: Any = ()) -> Image:
                program, _ = self._program(args, kwargs, bound)
                return Image(loader.check(self._data(program, checks_of(check))))

            return Image(entry.checked, again)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool
             ) -> tuple[Any, list[Any]]:
        """What an image is built for, and the arrays among the arguments, in order."""
        leaves: list[Any] = []
        try:
            key = tuple(
                _static_key(x, bound and not k) if self._is_static(k, bound) else _form(x, leaves)
                for k, x in enumerate(args)
            ), tuple(
                (name, _static_key(x, False) if name in self._names else _form(x, leaves))
                for name, x in (sorted(kwargs.items()) if len(kwargs) > 1 else kwargs.items())
            )
            hash(key)
        except (_Refused, TypeError) as error:
            self._program(args, kwargs, bound)  # says which of them it is
            raise error
        return key, leaves

    def _is_static(self, number: int, bound: bool) -> bool:
        return number in self._numbers or (bound and not number)

    def _entry(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool) -> _Entry:
        """The image for a key, built where there is none, or where what it reads has changed."""
        entry = self._entries.get(key)
        changed = entry is None or entry.watch.changed()
        if self._run["comm"] is not None:
            changed = self._agreed(key, changed)
        if not changed:
            assert entry is not None
            return entry
        program, leaves = self._program(args, kwargs, bound)
        watch = Watch(program.function, *(x for _, x in program.reached({})))
        if entry is not None:
            digest = reads.digest(program)
            if digest is not None and digest == entry.digest and self._run["comm"] is None:
                entry.watch = watch
                return entry
            if (job := self._open.pop(key, None)) is not None:
                job.close()
        digest = reads.digest(program)
        if self._processes is None:
            data = self._data(program, self._checks)
        else:
            data = self._processes.from_first(lambda: self._data(program, self._checks))
        for text in source.warnings_of(data, loops=False):
            warnings.warn(cells(text), LayoutWarning, stacklevel=5)
        made = _Entry(program, [leaf.name for leaf in leaves], data, watch, digest)
        if bound:
            self._forget_with(args[0], key)
        self._entries[key] = made
        return made

    def _data(self, program: Jitted, checks: tuple[str, ...]) -> bytes:
        store = None if self._cache else Cache("")
        return source.build_program(program, {}, self._target, store, checks)

    def _forget_with(self, obj: Any, key: Any) -> None:
        """An object whose method was built takes the images with it."""
        entries, opened = self._entries, self._open

        def forget() -> None:
            entries.pop(key, None)
            if (job := opened.pop(key, None)) is not None:
                job.close()

        try:
            weakref.finalize(obj, forget).atexit = False
        except TypeError:
            pass  # it stays, as the class does

    def _agreed(self, key: Any, changed: bool) -> bool:
        """Whether any process has to build; all of them must be called alike."""
        if self._processes is None:
            comm, limit = self._run["comm"], self._run["time_limit"]
            if not hasattr(comm, "Get_rank"):
                raise UsageError(f"comm={comm!r} is not a communicator", found=type(comm).__name__,
                                 expected="comm=MPI.COMM_WORLD, of mpi4py")
            self._processes = Processes(comm)
            if self._processes.count > 1:
                self._processes.waiting = Attendance(self._processes, limit)
        text = _key_text(key)
        everyones = self._processes.all_gather((text, changed))
        odd = [k for k, (theirs, _) in enumerate(everyones) if theirs != everyones[0][0]]
        if odd:
            self._processes.refuse(disagreement(
                f"{self!r} is called with other arguments", "process", odd,
                expected=f"{everyones[0][0]} (process 0)",
                found=f"{everyones[odd[0]][0]} (process {odd[0]})",
                remedy="the same shapes, dtypes and static values in every process",
            ))
        return any(theirs for _, theirs in everyones)

    def _opened(self, key: Any, entry: _Entry) -> Opened:
        while len(self._open) >= MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        job = self._open[key] = Opened(entry.checked, Options(**self._run))
        return job

    # ---- the program of a call

    def _program(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool
                 ) -> tuple[Jitted, list[Leaf]]:
        """The function with leaves in the place of arrays, and these. Raises InputError."""
        _check_arguments(self._function, args, kwargs)
        leaves: list[Leaf] = []
        taken: set[str] = {"self"}
        given = []
        for k, x in enumerate(args):
            name = _name_of(self._parameters, k)
            given.append(Static(x) if self._is_static(k, bound) else
                         _leaves(x, name, self._layout.get(name), leaves, taken))
            if self._is_static(k, bound) and not (bound and not k):
                _check_hash(name, x)
        named = {}
        for name, x in sorted(kwargs.items()):
            if name in self._names:
                _check_hash(name, x)
                named[name] = Static(x)
            else:
                named[name] = _leaves(x, name, self._layout.get(name), leaves, taken)
        return Jitted(self._function, tuple(given), named, self._mesh), leaves


class Bound:
    """A method under spmd.jit, of one object, which is a static argument."""

    def __init__(self, jitted: Jit, obj: Any) -> None:
        self._jitted, self.__self__ = jitted, obj
        functools.update_wrapper(self, jitted)

    @plainly
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the method returns, as NumPy arrays."""
        if Context.current() is not None or eager_runs.runtime() is not None:
            return self._jitted(self.__self__, *args, **kwargs)
        return self._jitted._called((self.__self__, *args), kwargs, bound=True)

    @plainly
    def image(self, *args: Any, **kwargs: Any) -> Image:
        """The image for such arguments."""
        return self._jitted._image((self.__self__, *args), kwargs, bound=True)

    lower = image

    def clear_cache(self) -> None:
        """Forgets the images of all objects."""
        self._jitted.clear_cache()


def _close_all(jobs: OrderedDict[Any, Opened], lock: Any) -> None:
    with lock:
        while jobs:
            jobs.popitem()[1].close()


# ---- what the arguments are


class _Refused(Exception):
    """An argument that is no array."""


def _form(x: Any, leaves: list[Any]) -> Any:
    """What of an argument an image is built for; its arrays go to `leaves`."""
    kind = type(x)
    if kind is np.ndarray:
        leaves.append(x)
        return x.dtype, x.shape
    if kind in _NUMBERS:
        leaves.append(x)
        return kind
    if x is None:
        return None
    if kind is dict:
        return dict, *((key, _form(item, leaves)) for key, item in x.items())
    if kind is list or kind is tuple:
        return kind, *(_form(item, leaves) for item in x)
    inside = held(x)
    if inside is not None:
        return kind, *((key, _form(item, leaves)) for key, item in inside)
    if isinstance(x, Spec):
        return np.dtype(dtypes.numpy_dtype(source_type(x.dtype))), tuple(x.shape)
    array = _array_of(x)
    if array is None:
        raise _Refused
    leaves.append(array)
    return array.dtype, array.shape, isinstance(x, np.generic)


def source_type(dtype: Any) -> dtypes.DType:
    found = dtypes.from_numpy(dtype)
    if found is None:
        raise _Refused
    return found


def _array_of(x: Any) -> Any:
    """What can stand for an array: a NumPy array or number, an output of a run, or what NumPy makes
    an array of numbers of; None for all else."""
    if isinstance(x, Distributed | np.ndarray | np.generic):
        return x
    if isinstance(x, Local) or not hasattr(x, "__array__"):
        return None
    return dtypes.as_numpy(x)


def _leaves(x: Any, name: str, layout: Any, leaves: list[Leaf], taken: set[str]) -> Any:
    """The same tree with a Leaf in the place of each array, and these in `leaves`, in order."""
    inside = None if x is None else held(x)
    if inside is not None:
        parts = []
        for key, item in inside:
            path = below(name, key)
            parts.append(_leaves(item, path, _layout_below(layout, key, path), leaves, taken))
        return _rebuilt(x, parts)
    if x is None:
        return None
    unique = name
    while unique in taken or not unique.isprintable():
        unique = ascii(unique).strip("'") + "_"
    taken.add(unique)
    leaf = _leaf(x, name, unique, layout)
    leaves.append(leaf)
    return leaf


def _rebuilt(tree: Any, parts: list[Any]) -> Any:
    from codegen.user.named import rebuilt

    return rebuilt(tree, parts)


def _leaf(x: Any, path: str, name: str, layout: Any) -> Leaf:
    if type(x) in _NUMBERS:
        if type(x) is int and not -(2**63) <= x < 2**63:
            raise InputError(f"argument {path} is an int of {x.bit_length()} bits",
                             expected="an int of at most 64 bits", found=str(x)[:40],
                             remedy="an array of another dtype, or static_argnames=")
        weak = type(x) is not bool
        return Leaf(name, _NUMBERS[type(x)], (), None, weak, True)
    if isinstance(x, Spec):
        found = dtypes.from_numpy(x.dtype)
        assert found is not None  # spmd.spec has asked
        shape = tuple(x.shape) if isinstance(x.shape, tuple | list) else (x.shape,)
        return Leaf(name, found, shape, x.layout if layout is None else layout)
    array = _array_of(x)
    if array is None:
        raise _refused(path, x)
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is None:
        raise InputError(f"argument {path} is an array of {array.dtype}", found=str(array.dtype),
                         expected="an array of " + ", ".join(dtypes.BY_NAME),
                         remedy="x.astype(np.float64), or another of these"
                         if array.dtype.kind == "O" else "")
    return Leaf(name, dtype, tuple(array.shape), layout, False, isinstance(x, np.generic))


def _refused(path: str, x: Any) -> InputError:
    kind = type(x).__name__
    remedy = f"static_argnames={path.partition('.')[0]!r}, where it is known while building"
    if isinstance(x, Local):
        remedy = "f.image(…) of the whole array's spmd.spec, and image.run(comm=comm, …) with parts"
    return InputError(f"argument {path} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}",
                      expected="an array, a number, or a dict, list, tuple or dataclass of them",
                      found=f"{x!r}"[:80], remedy=remedy)


def _layout_below(layout: Any, key: Any, path: str) -> Any:
    """The layout of what a tree of layouts has under a key; one layout is that of all leaves."""
    if is_layout(layout):
        return layout
    inside = {str(k): v for k, v in held(layout) or ()}
    return inside.get(str(key))


def _layouts(layout: Any, parameters: list[inspect.Parameter]) -> dict[str, Any]:
    if layout is None or layout == "auto":
        return {}
    known = [p.name for p in parameters]
    if not isinstance(layout, Mapping):
        raise UsageError("layout= of spmd.jit names arguments", found=repr(layout),
                         expected=f'layout={{"{known[0] if known else "x"}": ("r", None)}}')
    open_ended = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in layout:
        if name not in known and not open_ended:
            raise UsageError(f"layout= names {name!r}, which is no argument of the function",
                             expected=", ".join(known) or "no arguments", found=repr(layout))
    return dict(layout)


# ---- names and static values


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _by_position(parameters: list[inspect.Parameter]) -> list[str]:
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _name_of(parameters: list[inspect.Parameter], number: int) -> str:
    """What the argument at a position is called."""
    names = _by_position(parameters)
    if number < len(names):
        return names[number]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    return f"{rest}.{number - len(names)}"


def _static(
    parameters: list[inspect.Parameter], argnums: Any, argnames: Any
) -> tuple[frozenset[int], frozenset[str]]:
    """The static arguments, by position and by name; where one is given, the other follows."""
    order = _by_position(parameters)
    numbers = [] if argnums is None else [argnums] if isinstance(argnums, int) else list(argnums)
    names = [] if argnames is None else [argnames] if isinstance(argnames, str) else list(argnames)
    more = any(p.kind is p.VAR_POSITIONAL for p in parameters) or not parameters
    for k in numbers:
        if not isinstance(k, int) or (not more and not -len(order) <= k < len(order)):
            raise UsageError(f"static_argnums has {k!r}, which is no argument's position",
                             expected=f"0 to {len(order) - 1}: {', '.join(order)}" if order else
                             "a function with arguments by position", found=repr(argnums))
    numbers = [k + len(order) if k < 0 else k for k in numbers]
    known = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters) or not parameters
    for name in names:
        if not isinstance(name, str) or (name not in known and not open_ended):
            raise UsageError(f"static_argnames has {name!r}, which is no argument of the function",
                             expected=", ".join(known) or "no arguments", found=repr(argnames))
    numbers += [order.index(name) for name in names if name in order]
    names += [order[k] for k in numbers if k < len(order)]
    return frozenset(numbers), frozenset(names)


class _Same:
    """A key for one object, whatever it equals."""

    def __init__(self, x: Any) -> None:
        self.id = id(x)

    def __hash__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.id == self.id

    def __repr__(self) -> str:
        return "self"


def _static_key(x: Any, is_self: bool) -> Any:
    return _Same(x) if is_self else (type(x), x)


def _check_hash(name: str, x: Any) -> None:
    try:
        hash(x)
    except TypeError:
        raise UsageError(
            f"the static argument {name} has no hash", expected="a number, a text, a tuple of "
            "such, or another value that hash() takes", found=f"{type(x).__name__}: {x!r}"[:80],
            remedy="a tuple instead of a list; an array is no static argument",
        ) from None


def _check_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError, as Python does, for arguments that the function does not take."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{getattr(function, '__name__', 'function')}() {error}") from None


def _key_text(key: Any) -> str:
    return repr(key)


assert SpmdError
