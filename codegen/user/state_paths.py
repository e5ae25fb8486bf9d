"""The arrays that an object holds, by path: those of a class that is a program, as self.w["in"].

In: an object. Out: its leaves, in the order in which attributes, keys and items stand. Always
holds: lists, dicts and objects keep their identity when arrays are put into them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from codegen.user.named import below
from codegen.user.objects import attributes, is_carried, put_attributes, put_items

Leaves = dict[str, tuple[str, Any]]  # by path: a name, such as w.in, and the leaf
_files: list[Callable[[], Any]] = []


def give_files(module: Callable[[], Any]) -> None:
    """Register the module of the runtime that reads and writes files of states."""
    _files[:] = [module]


def files() -> Any:
    """Return the module that reads and writes files of states."""
    return _files[0]()


def leaves_by_path(x: Any) -> Leaves:
    """Return the leaves by path, each with its name. What is reached twice stands where it was met
    first."""
    return dict(_leaves(x, "self", "", set()))


def _leaves(x: Any, path: str, name: str, seen: set[int]) -> Iterator[tuple[str, tuple[str, Any]]]:
    inside = _inside(x)
    if inside is None:
        yield path, (name, x)
        return
    if not isinstance(x, tuple):
        if id(x) in seen:
            return
        seen.add(id(x))
    for step, key, item in inside:
        yield from _leaves(item, path + step, below(name, key), seen)


def placed(x: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the same containers with these arrays at their paths; values that properties have
    cached are dropped."""
    return _placed(x, arrays, "self", set())


def _placed(x: Any, arrays: Mapping[str, Any], path: str, seen: set[int]) -> Any:
    inside = _inside(x)
    if inside is None:
        return arrays.get(path, x)
    if not isinstance(x, tuple):
        if id(x) in seen:
            return x
        seen.add(id(x))
    items = [_placed(item, arrays, path + step, seen) for step, _, item in inside]
    if isinstance(x, tuple):
        if all(a is b for a, b in zip(items, x, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
    if isinstance(x, list):
        x[:] = items
    elif isinstance(x, dict):
        put_items(x, dict(zip(x, items, strict=True)))
    else:
        put_attributes(x, dict(zip((key for _, key, _ in inside), items, strict=True)))
    return x


def _inside(x: Any) -> list[tuple[str, str, Any]] | None:
    """Return the items of a container or an object: for each, how it is reached, its part of the
    name, and the item. None for anything else."""
    if isinstance(x, tuple):
        fields = getattr(x, "_fields", None)
        if fields:
            return [(f".{f}", f, item) for f, item in zip(fields, x, strict=True)]
        return [(f"[{k}]", str(k), item) for k, item in enumerate(x)]
    if isinstance(x, list):
        return [(f"[{k}]", str(k), item) for k, item in enumerate(x)]
    if isinstance(x, dict):
        return [(f"[{_quoted(k)}]", str(k), item) for k, item in x.items()]
    if is_carried(x):
        return [(f".{k}", k, item) for k, item in (attributes(x) or {}).items()
                if not isinstance(getattr(type(x), k, None), functools.cached_property)]
    return None


def _quoted(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


class Contents:
    """A copy of the items of all lists, dicts and objects in an object, to restore them later."""

    def __init__(self, x: Any) -> None:
        self._held: dict[int, tuple[Any, Any]] = {}
        work = [x]
        while work:
            thing = work.pop()
            inside = _inside(thing)
            if inside is None or id(thing) in self._held:
                continue
            if isinstance(thing, list):
                self._held[id(thing)] = thing, list(thing)
            elif isinstance(thing, dict):
                self._held[id(thing)] = thing, dict(thing)
            elif not isinstance(thing, tuple):
                self._held[id(thing)] = thing, {key: item for _, key, item in inside}
            work += [item for _, _, item in inside]

    def put_back(self) -> None:
        """Restore the items of every list, dict and object."""
        for thing, held in self._held.values():
            if isinstance(thing, list):
                thing[:] = held
            elif isinstance(thing, dict):
                put_items(thing, held)
            else:
                put_attributes(thing, held)
