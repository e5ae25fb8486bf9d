"""A class that is a program as plain Python on NumPy arrays: what an open image of it is held to.

In: the class, then inputs and scalars of one entry, by name. Out: what its method returns, as
copies. Always holds: state keeps shapes and dtypes; a call that fails leaves it as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import InputError, Place, SpmdError
from codegen.oracle import eager
from codegen.oracle.local import local
from codegen.oracle.saved_items import EndedCall, SavedItems, Takers, both
from codegen.oracle.streams import EagerStream
from codegen.user import named, state_paths, state_rules
from codegen.user.absent import needs_of
from codegen.user.casts import inexact
from codegen.user.entry_methods import (
    called_whole,
    no_entry,
    not_given,
    place_of_method,
)
from codegen.user.numbers import owner_of
from codegen.user.series import nothing_saved
from codegen.user.state_paths import Contents, Leaves, leaves_by_path, placed

_GRADE = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}  # of dtypes, by their kinds
_PYTHON = {"b": bool, "i": int, "f": float, "c": complex}


@dataclass(frozen=True)
class Kind:
    """The kind of an array or a number as state. weak: it promotes as a Python number does."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    weak: bool = False

    @property
    def said(self) -> tuple[str, tuple[int, ...]]:
        return self.dtype.name, self.shape


class _OtherNumber(Exception):
    """Raised where an entry makes a number one of another kind: it is of that kind from the
    beginning."""

    def __init__(self, path: str, kind: Kind) -> None:
        super().__init__(path)
        self.path, self.kind = path, kind


class EagerEntry:
    """An entry of the class: call it with its inputs and scalars by name."""

    def __init__(self, entity: EagerEntity, name: str) -> None:
        self._entity, self._name = entity, name

    def __call__(self, **arguments: Any) -> Any:
        """Run the method once. Returns copies of what it returns.

        Raises what the build of an image or a call of it would raise; state then is as it was.
        """
        return self._entity._enter(self._name, arguments)

    def start(self, **arguments: Any) -> EndedCall:
        """Run the method once, to its end. `.result()` of what comes back returns or raises what
        the call did, as where an open image has started it."""
        return EndedCall(lambda: self(**arguments))

    def stream(self, **arguments: Any) -> SavedItems:
        """Run the method once, to its end, and return what it saved by spmd.save, to iterate over
        as over the stream of an open image."""
        return self._entity._stream(self._name, arguments)

    def __repr__(self) -> str:
        return f"<entry {self._name}>"


class EagerEntity:
    """An object of a class that is a program, as its eager() returns it: each entry is a method, as
    of an open image.

    Example::

        @spmd.program(mesh=("r",))
        class Counter:
            def __init__(self, n: int = 3):
                self.total = np.zeros(n)

            @spmd.entry
            def add(self):
                self.total = self.total + spmd.input("x", (3,), np.float64)
                return np.sum(self.total)

        counter = Counter.eager()
        counter.add(x=np.ones(3))
        print(counter.add(x=np.ones(3)))    # 6.0
    """

    def __init__(
        self, name: str, methods: Mapping[str, Callable[..., Any]], place: Place,
        make: Callable[[], Any], world: Callable[[Mapping[str, Any]], eager.World],
        states: Callable[[], Collection[str]], needed: Collection[str] = (),
    ) -> None:
        """Make the object and note its state. methods: the entries. make: makes the object, as
        `__init__` does. world: what an eager run of these inputs knows. states: the paths of what
        is state in an image. needed: names of states that have to be given first."""
        self._name, self._methods, self._place = name, dict(methods), place
        self._world, self._states, self._needed = world, states, list(needed)
        self._feeds: dict[str, EagerStream] = {}
        self._shared: dict[str, str] = {}  # paths of arrays that may be one, by each other
        self._written: set[str] = set()  # paths of arrays that are written in place
        self._first = world({})
        self._object = self._first.runs(make)
        leaves = leaves_by_path(self._object)
        paths: dict[str, str] = {}
        for path, (its_name, x) in leaves.items():
            if isinstance(x, np.ndarray) and paths.setdefault(its_name, path) != path:
                raise state_rules.two_of_one_name(paths[its_name], path, its_name, place)
        self._note_shared(leaves)
        self._values = {path: _copied(x, getattr(x, "layout", None))
                        for path, (_, x) in leaves.items() if _kind(x) is not None}
        self._names = {path: its_name for path, (its_name, _) in leaves.items()}
        self._layouts = {path: getattr(x, "layout", None) for path, x in self._values.items()}
        self._contents = Contents(self._object)
        self.entries = {entry: EagerEntry(self, entry) for entry in methods}

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__.get("entries", {})
        if name in entries:
            return entries[name]
        if name.startswith("_") or not entries:
            raise AttributeError(name)
        raise no_entry(self._name, name, entries)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.entries]

    def __repr__(self) -> str:
        return f"<{self._name} as plain Python, with the entries {', '.join(self.entries)}>"

    def __call__(self, **arguments: Any) -> Any:
        """Raise MissingError, since a class is asked for one of its entries."""
        raise called_whole(self._name, self.entries)

    def __enter__(self) -> EagerEntity:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing, since there is no job to end."""

    # ---- calls -----------------------------------------------------------------------------------

    def _stream(self, name: str, arguments: Mapping[str, Any]) -> SavedItems:
        saves = next(e.saves for e in self._first.graph().entries if e.name == name)
        if not saves:
            raise nothing_saved(name)
        return SavedItems(saves, lambda takers: self._enter(name, arguments, takers))

    def _enter(
        self, name: str, arguments: Mapping[str, Any], takers: Callable[[], Takers] | None = None
    ) -> Any:
        if self._needed:
            raise not_given(self._name, self._needed)
        while True:
            try:
                return self._once(name, arguments, takers)
            except _OtherNumber as other:
                self._values[other.path] = _as(other.kind, self._values[other.path])

    def _once(
        self, name: str, arguments: Mapping[str, Any], takers: Callable[[], Takers] | None
    ) -> Any:
        method = self._methods[name]
        world = self._world(arguments)
        if takers is not None:
            world.frames = both(world.frames, takers())
        if "feed" not in arguments:
            world.feeds = self._feeds
        for stream in world.feeds.values():
            stream.world = world
        placed(self._object, {p: _copied(x, self._layouts[p]) for p, x in self._values.items()})
        shared, written = dict(self._shared), set(self._written)
        try:
            before = leaves_by_path(self._object)
            returned = world.runs(lambda: method(self._object), self._place_of(name))
            after = leaves_by_path(self._object)
            values = self._rebound(name, before, after)
            outputs = world.returned(returned)
        except BaseException:
            self._shared, self._written = shared, written
            raise
        finally:
            self._contents.put_back()
        self._values.update(values)
        self._feeds = world.feeds
        return outputs

    def _place_of(self, name: str) -> Place:
        return place_of_method(name, self._methods[name])

    def _rebound(self, entry: str, before: Leaves, after: Leaves) -> dict[str, Any]:
        """Return the new values of the state. Raises ProgramError, CarryError for what no image
        does."""
        self._note_shared(after)
        values: dict[str, Any] = {}
        for path in dict.fromkeys([*after, *before]):
            try:
                if path not in before:
                    raise state_rules.not_state(path, before)
                if path not in after:
                    raise state_rules.lost(path, entry)
                old, x = before[path][1], after[path][1]
                if path in self._values:
                    values[path] = self._new_value(entry, path, old, x)
                elif not _same(x, old):
                    raise state_rules.fixed(path, entry, repr(old), repr(x))
            except SpmdError as error:
                error.place = error.place or state_rules.place_of_binding(
                    self._methods[entry], path, self._place_of(entry))
                raise
        return values

    def _new_value(self, entry: str, path: str, old: Any, x: Any) -> Any:
        value = self._values[path]
        if needs_of(x):  # it stays, as an input is not given
            return value
        was, now = _kind(value), _kind(x)
        assert was is not None
        if isinstance(old, np.ndarray) and old.tobytes() != value.tobytes():
            self._written.add(path)
        if path in self._written and path in self._shared:
            raise state_rules.shared(path, self._shared[path], None)
        if now is None and isinstance(value, np.ndarray):
            raise state_rules.not_an_array(path, entry, state_rules.type_text(*was.said), repr(x))
        if now is None:
            raise state_rules.fixed(path, entry, repr(old), repr(x))
        agreed = _joined(was, now)
        if agreed is not None and was.weak and agreed != was:
            raise _OtherNumber(path, agreed)
        if agreed is None or agreed.dtype != was.dtype:
            raise state_rules.changed(path, entry, was.said, now.said)
        if isinstance(value, np.ndarray):
            return _copied(np.asarray(x, was.dtype), self._layouts[path])
        return _as(was, x)

    def _note_shared(self, leaves: Leaves) -> None:
        owner: dict[int, str] = {}
        for path, (_, x) in leaves.items():
            if isinstance(x, np.ndarray) and id(owner_of(x)) not in self._first.reachable():
                first = owner.setdefault(id(owner_of(x)), path)
                if first != path:
                    self._shared[path], self._shared[first] = first, path

    # ---- state -----------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state by name, such as `w.in`: copies. A number is state if an entry binds it
        anew, which the compiler says."""
        return {self._names[path]: np.array(self._values[path]) for path in self._states()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, as an open image does: .safetensors, or .npz."""
        state_paths.files().write(os.fspath(path), self.state())

    def load(self, state: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        """Replace the state by a file that `save` of this or of an open image wrote, or by arrays
        by name, or trees of them.

        Raises InputError, and nothing has changed, where one is missing, unknown, or of another
        shape, and where its dtype would lose something.
        """
        paths = {self._names[path]: path for path in self._states()}
        kinds = {name: _kind(self._values[path]) for name, path in paths.items()}
        wanted = {name: kind.said for name, kind in kinds.items() if kind}
        if isinstance(state, (str, os.PathLike)):
            arrays = state_paths.files().read(os.fspath(state), wanted, self._name)
        else:
            arrays = self._fitting(named.spread(state, paths, "state"), wanted)
        self._needed = []
        for name, path in paths.items():
            value, array = self._values[path], arrays[name]
            self._values[path] = (_copied(array, self._layouts[path])
                                  if isinstance(value, np.ndarray) else _as(kinds[name], array))

    def _fitting(
        self, values: Mapping[str, Any], wanted: Mapping[str, tuple[str, tuple[int, ...]]]
    ) -> dict[str, Any]:
        """Return the arrays in the dtypes of the state."""
        arrays = {}
        for name, x in values.items():
            array = dtypes.as_numpy(x)
            if name not in wanted:
                raise InputError(f"{self._name} has no state {name}", found=name,
                                 expected=named.listed(wanted) or "no state")
            dtype = np.dtype(wanted[name][0])
            if array.shape != wanted[name][1] or not np.can_cast(array.dtype, dtype) or inexact(
                    array, dtype) is not None:
                raise InputError(f"state {name} has another shape or dtype",
                                 expected=state_rules.type_text(*wanted[name]),
                                 found=state_rules.type_text(array.dtype.name, array.shape))
            arrays[name] = array.astype(dtype)
        if left := [name for name in wanted if name not in values]:
            raise InputError(f"state {left[0]} is not given", expected=named.listed(wanted),
                             found=named.listed(values) or "nothing")
        return arrays


def _kind(x: Any) -> Kind | None:
    """Return the kind of an array or a number; None of anything else."""
    if isinstance(x, (np.ndarray, np.generic)):
        return None if dtypes.from_numpy(x.dtype) is None else Kind(x.dtype, x.shape)
    for kind in (bool, int, float, complex):
        if isinstance(x, kind):
            return Kind(np.dtype(np.int64 if kind is int else kind), weak=True)
    return None


def _joined(a: Kind, b: Kind) -> Kind | None:
    """Return one kind for both: a weak one adapts to the other; None where they do not agree."""
    if a.shape != b.shape:
        return None
    if a.dtype == b.dtype:
        return Kind(a.dtype, a.shape, a.weak and b.weak)
    if not (a.weak or b.weak) or np.dtype(bool) in (a.dtype, b.dtype):
        return None
    strong, weak = (b, a) if a.weak else (a, b)
    if strong.weak:
        return max(strong, weak, key=lambda k: _GRADE[k.dtype.kind])
    return None if _GRADE[weak.dtype.kind] > _GRADE[strong.dtype.kind] else strong


def _as(kind: Kind | None, x: Any) -> Any:
    """Return a number of this kind."""
    assert kind is not None
    array = np.asarray(x).astype(kind.dtype)
    return _PYTHON[kind.dtype.kind](array.item()) if kind.weak else array[()]


def _copied(x: Any, layout: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    copy = local(np.array(x))
    copy.layout = layout
    return copy


def _same(a: Any, b: Any) -> bool:
    """Return whether two leaves that are no arrays are one thing, or equal texts."""
    return a is b or (type(a) is type(b) and isinstance(a, (str, bytes)) and a == b)
