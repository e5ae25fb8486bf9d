"""spmd.jit: a function of arrays, built for the arguments that it is called with.

In: a function, and how it runs. Out: a callable of the same arguments, which returns NumPy arrays.
Always holds: equal shapes, dtypes, trees and static values are built once, unless what the function
reads besides its arguments has changed; arguments are never changed.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from codegen.checks.names import checks_of
from codegen.errors import LayoutWarning
from codegen.trace.context import Context
from codegen.trace.control import reads
from codegen.trace.control.conversion import as_called
from codegen.trace.control.watching import WatchedReads
from codegen.trace.jitted import Jitted, Leaf, Static, check_function, finished, is_plain
from codegen.user import eager_runs
from spmd import source
from spmd.cache import Cache
from spmd.image import Image
from spmd.jit_arguments import (
    NotAnArray,
    check_arguments,
    check_hash,
    form,
    key_text,
    layouts_of,
    leaves_of,
    name_of,
    parameters_of,
    static_arguments,
    static_key,
)
from spmd.launch import loader
from spmd.launch.options import TIME_LIMIT, Options
from spmd.launch.processes import Processes, disagreement
from spmd.opened import Opened
from spmd.opening import group_of
from spmd.tracebacks import cells, plainly

MOST_OPEN = 16  # images of one function that stay loaded; those that were called longest ago close


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
    """Return a function that is compiled when it is called: `f = spmd.jit(fn, ranks=4)`, or a
    decorator, `@spmd.jit` and `@spmd.jit(ranks=4)`.

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
    has changed since, the next call builds again, except for files, which are read when it is
    built. In a program, or in another jit, a call runs the function as a part of it.

    It is pickled by its name, or as its function; images are built again where it arrives.

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
    """The image for one key. names: its inputs, in the order of leaves."""

    def __init__(self, program: Jitted, names: list[str], data: bytes, watch: WatchedReads,
                 digest: str | None) -> None:
        self.names, self.watch, self.digest = names, watch, digest
        self.checked = loader.check(data)
        self.finish: Callable[[Any], Any] | None = None
        if not is_plain(self.checked.manifest["returns"]):
            if program.template is None:  # the image was built before
                program.graph({})
            self.finish = functools.partial(finished, program.template)


class _Jobs:
    """The images of one function that are loaded, by key; the latest one is the last."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start without any images. Called again in a forked child, which has neither the threads
        of open images nor their memory."""
        self.owner, self.lock = os.getpid(), threading.RLock()
        self.open: OrderedDict[Any, Opened] = OrderedDict()

    def close(self, key: Any) -> None:
        if (job := self.open.pop(key, None)) is not None:
            job.close()

    def close_all(self) -> None:
        if self.owner == os.getpid():
            with self.lock:
                while self.open:
                    self.open.popitem()[1].close()


class Jit:
    """A function under spmd.jit."""

    def __init__(self, function: Callable[..., Any], how: dict[str, Any]) -> None:
        check_function(function)
        functools.update_wrapper(self, function)
        self._function, self._how = function, how
        run = {name: how[name] for name in ("ranks", "comm", "threads", "keep", "algorithm",
                                            "barrier", "transport", "time_limit")}
        self._run, self._mesh = run, how["mesh"]
        self._target, self._cache = how["target"], how["cache"]
        self._checks = checks_of(how["check"])
        self._parameters = parameters_of(function)
        self._numbers, self._names = static_arguments(
            self._parameters, how["static_argnums"], how["static_argnames"])
        self._layout = layouts_of(how["layout"], self._parameters)
        self._entries: dict[Any, _Entry] = {}
        self._jobs = _Jobs()
        self._processes: Processes | None = None
        # Jobs of several processes close together, or not at all: never when one of them collects.
        if run["comm"] is None:
            weakref.finalize(self, self._jobs.close_all).atexit = False

    def read_parts(self) -> tuple[Any, ...]:
        """Return what a capture depends on that calls this function: see reads.py."""
        return (self._function,)

    def __repr__(self) -> str:
        return f"<spmd.jit of {getattr(self._function, '__qualname__', self._function)!s}>"

    def __reduce__(self) -> Any:
        """Return how it is pickled: as functions are, by its name; where nothing is called so, as
        its function. Images stay where they are."""
        target: Any = sys.modules.get(self.__module__)
        name: str = getattr(self, "__qualname__", "")
        for part in name.split("."):
            target = getattr(target, part, None)
        return name if target is self else (Jit, (self._function, self._how))

    def __get__(self, obj: Any, cls: type | None = None) -> Any:
        return self if obj is None else JitMethod(self, obj)

    @plainly
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, and return its results as NumPy arrays."""
        if Context.current() is not None:
            return as_called(self._function)(*args, **kwargs)
        if eager_runs.runtime() is not None:
            return self._function(*args, **kwargs)
        return self._called(args, kwargs)

    @plainly
    def image(self, *args: Any, **kwargs: Any) -> Image:
        """Return the image for such arguments: arrays, or spmd.spec(shape, dtype) in their place.
        Its inputs are named after the arguments, `x`, `params.w`.

        Example::

            image = spmd.jit(lambda x: x / 2).image(spmd.spec((4,), np.float64))
            print(image.run(ranks=2, x=np.ones(4)))    # [0.5 0.5 0.5 0.5]
        """
        return self._image(args, kwargs)

    lower = image

    @plainly
    def clear_cache(self) -> None:
        """Forget all images and free their memory. With comm=, every process must call it."""
        with self._jobs.lock:
            self._entries.clear()
            self._jobs.close_all()

    # ---- a call

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool = False) -> Any:
        jobs = self._jobs
        if os.getpid() != jobs.owner:
            jobs.begin()
        with jobs.lock:
            key, leaves, entry = self._entry(args, kwargs, bound)
            job = jobs.open.get(key)
            if job is None:
                job = self._opened(key, entry)
            elif len(jobs.open) > 1:
                jobs.open.move_to_end(key)
            returned = job(**dict(zip(entry.names, leaves, strict=True)))
            return returned if entry.finish is None else entry.finish(returned)

    def _image(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool = False) -> Image:
        with self._jobs.lock:
            _, _, entry = self._entry(args, kwargs, bound)

            def again(check: Any = ()) -> Image:
                program, _ = self._program(args, kwargs, bound)
                return Image(loader.check(self._data(program, checks_of(check))))

            return Image(entry.checked, again)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool
             ) -> tuple[Any, list[Any]]:
        """Return the key of the image for these arguments, and the arrays among them, in order."""
        leaves: list[Any] = []
        try:
            key = tuple(
                static_key(x, bound and not k) if self._is_static(k, bound) else form(x, leaves)
                for k, x in enumerate(args)
            ), tuple(
                (name, static_key(x, False) if name in self._names else form(x, leaves))
                for name, x in (sorted(kwargs.items()) if len(kwargs) > 1 else kwargs.items())
            )
            hash(key)
        except (NotAnArray, TypeError) as error:
            self._program(args, kwargs, bound)  # says which of them it is
            raise error
        return key, leaves

    def _is_static(self, number: int, bound: bool) -> bool:
        return number in self._numbers or (bound and not number)

    def _entry(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool
               ) -> tuple[Any, list[Any], _Entry]:
        """Return key, arrays and image of a call. Builds the image if there is none, or if what the
        function reads has changed."""

        def look() -> tuple[Any, list[Any], bool]:
            key, leaves = self._key(args, kwargs, bound)
            entry = self._entries.get(key)
            return key, leaves, entry is None or entry.watch.changed()

        key, leaves, changed = look() if self._run["comm"] is None else self._agreed(look)
        if not changed:
            return key, leaves, self._entries[key]
        program, inputs = self._program(args, kwargs, bound)
        watch = WatchedReads(program.function, *(x for _, x in program.reached({})))
        digest, before = reads.digest(program), self._entries.get(key)
        if before is not None:
            if digest is not None and digest == before.digest and self._processes is None:
                before.watch = watch  # another object of the same content
                return key, leaves, before
            self._jobs.close(key)
        elif bound:
            self._forget_with(args[0], key)
        data = self._data(program, self._checks)
        for text in source.warnings_of(data, loops=False):
            warnings.warn(cells(text), LayoutWarning, stacklevel=5)
        built = self._entries[key] = _Entry(program, [x.name for x in inputs], data, watch, digest)
        return key, leaves, built

    def _data(self, program: Jitted, checks: tuple[str, ...]) -> bytes:
        store = None if self._cache else Cache("")

        def build() -> bytes:
            return source.build_program(program, {}, self._target, store, checks)

        return build() if self._processes is None else self._processes.run_in_first(build)

    def _forget_with(self, obj: Any, key: Any) -> None:
        """Free the image of an object's method when the object is collected."""
        entries, jobs = self._entries, self._jobs

        def forget() -> None:
            entries.pop(key, None)
            if os.getpid() == jobs.owner:
                jobs.close(key)

        try:
            weakref.finalize(obj, forget).atexit = False
        except TypeError:
            pass  # of __slots__ without __weakref__: they stay

    def _agreed(self, look: Callable[[], tuple[Any, list[Any], bool]]) -> tuple[Any, Any, bool]:
        """Return what `look` returns, after checking that all processes called with equal keys. The
        image counts as changed if it does so in one process."""
        if self._processes is None:
            self._processes = group_of(self._run["comm"], self._run["time_limit"])
        mine: list[Any] = []

        def step() -> tuple[str, bool]:
            mine.extend(look())
            return key_text(mine[0]), mine[2]

        everyones = self._processes.run_and_gather(step)
        odd = [k for k, (theirs, _) in enumerate(everyones) if theirs != everyones[0][0]]
        if odd:
            self._processes.refuse(disagreement(
                f"{self!r} is called with other arguments", "process", odd,
                expected=f"{everyones[0][0]} (process 0)",
                found=f"{everyones[odd[0]][0]} (process {odd[0]})",
                remedy="the same shapes, dtypes and static values in every process",
            ))
        return mine[0], mine[1], any(changed for _, changed in everyones)

    def _opened(self, key: Any, entry: _Entry) -> Opened:
        opened = self._jobs.open
        while len(opened) >= MOST_OPEN:
            opened.popitem(last=False)[1].close()
        job = opened[key] = Opened(entry.checked, Options(**self._run))
        return job

    # ---- the program of a call

    def _program(self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bool
                 ) -> tuple[Jitted, list[Leaf]]:
        """Return the program of a call, and a Leaf for each array. Raises InputError."""
        check_arguments(self._function, args, kwargs)
        leaves: list[Leaf] = []
        taken: set[str] = {"self"}
        positional = []
        for k, x in enumerate(args):
            name = name_of(self._parameters, k)
            positional.append(Static(x) if self._is_static(k, bound) else
                              leaves_of(x, name, self._layout.get(name), leaves, taken))
            if self._is_static(k, bound) and not (bound and not k):
                check_hash(name, x)
        named = {}
        for name, x in sorted(kwargs.items()):
            if name in self._names:
                check_hash(name, x)
                named[name] = Static(x)
            else:
                named[name] = leaves_of(x, name, self._layout.get(name), leaves, taken)
        return Jitted(self._function, tuple(positional), named, self._mesh), leaves


class JitMethod:
    """A method under spmd.jit, of one object, which is a static argument."""

    def __init__(self, jitted: Jit, obj: Any) -> None:
        self._jitted, self.__self__ = jitted, obj
        functools.update_wrapper(self, jitted)

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__name__)  # type: ignore[attr-defined]

    @plainly
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method, and return its results as NumPy arrays."""
        if Context.current() is not None or eager_runs.runtime() is not None:
            return self._jitted(self.__self__, *args, **kwargs)
        return self._jitted._called((self.__self__, *args), kwargs, bound=True)

    @plainly
    def image(self, *args: Any, **kwargs: Any) -> Image:
        """Return the image for such arguments."""
        return self._jitted._image((self.__self__, *args), kwargs, bound=True)

    lower = image

    def clear_cache(self) -> None:
        """Forget the images of all objects."""
        self._jitted.clear_cache()
