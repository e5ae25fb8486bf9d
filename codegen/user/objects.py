"""Python objects as attributes: whose objects a capture looks into, and what they hold.

In: objects of any class, wherever it was loaded from. Out: their attributes, in `__dict__` and in
slots, read and put back without a call of the user's code. Always holds: only what is certain to
stay as it is (built-in types, NumPy's arrays, the compiler's own classes) is not looked into.
"""

from __future__ import annotations

import argparse
import enum
import os
import sys
import types
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from codegen.places import is_ours, is_user_file

_HEAP_TYPE = 1 << 9  # of a class's flags: a class statement made it, or an extension at run time
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)  # objects of anybody
# Installed packages that keep nothing which a program changes: to look at them takes long.
_STATELESS = frozenset("numpy scipy numba llvmlite ml_dtypes mpi4py cffi _pytest pytest".split())
_LOGS = "logging"  # what a log has written is no state of a program
_MOST_PARTS = 1000  # objects in an object of an installed package that is carried

USER, INSTALLED, STANDARD, FIXED = "user", "installed", "standard", "fixed"


def origin(cls: type) -> str:
    """Return whose a class is: USER, INSTALLED (a package's), STANDARD (the library's, or NumPy's)
    or FIXED, of whose objects no state is looked at."""
    if cls in _NAMESPACES:
        return USER
    if not cls.__flags__ & _HEAP_TYPE or issubclass(cls, (type, np.ndarray, np.generic)):
        return FIXED
    name = cls.__module__
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or name in ("builtins", "__main__"):  # from a file that nobody imported
        return USER
    root = name.partition(".")[0]
    if root == _LOGS:
        return FIXED
    file = getattr(module, "__file__", None)
    if file is None:
        return STANDARD if root in sys.stdlib_module_names else USER
    return whose(file)


def is_the_compilers(cls: type) -> bool:
    """Return whether a class is one of spmd's own, such as that of what spmd.blocks gives."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is not None and is_ours(file)


def whose(file: str) -> str:
    """Return whose a file is: USER, INSTALLED, STANDARD (NumPy's too) or FIXED (the compiler's)."""
    if is_user_file(file) or (file.startswith("<") and not file.startswith("<frozen")):
        return USER  # also what exec made
    if is_ours(file):
        return FIXED
    package = package_of(file)
    return INSTALLED if package not in ("", "numpy") else STANDARD


def package_of(file: str) -> str:
    """Return the installed package that a file belongs to, or ""."""
    installed = file.rpartition(f"-packages{os.sep}")[2] if "-packages" + os.sep in file else ""
    return installed.partition(os.sep)[0].partition(".")[0]


def is_stateful(file: str | None) -> bool:
    """Return whether variables in a file of an installed package may be a program's state."""
    return file is not None and whose(file) == INSTALLED and package_of(file) not in _STATELESS


def has_attributes(cls: type) -> bool:
    """Return whether a program may change attributes of the objects of a class: anybody's class
    that Python code defines, but for the standard library's."""
    return origin(cls) in (USER, INSTALLED)


def is_carried(x: object) -> bool:
    """Return whether a loop or a branch carries the attributes of an object, as it carries
    variables. It does not where an installed package's object holds very much: then a change of it
    is refused."""
    whose_it_is = origin(type(x))
    if isinstance(x, enum.Enum):  # there is one of each
        return False
    if whose_it_is == INSTALLED:
        return not hasattr(type(x), "__array__") and _is_small(x)
    return whose_it_is == USER and attributes(x) is not None and raw_bytes(x) is None


def raw_bytes(x: object) -> bytes | None:
    """Return the bytes of an object that is memory, as ctypes has them; None for any other."""
    try:
        with memoryview(x) as shown:  # type: ignore[arg-type]
            return bytes(shown)
    except (TypeError, BufferError, ValueError):
        return None


def attributes(x: object) -> dict[str, Any] | None:
    """Return what an object keeps in its `__dict__` and in its slots, by name; None if it has
    neither."""
    held: dict[str, Any] = {}
    names = slots(type(x))
    for name, slot in names.items():
        try:
            held[name] = slot.__get__(x, type(x))
        except AttributeError:
            continue  # nothing was put there yet
    own = own_dict(x)
    if own is None:
        return held if names else None
    return held | own


def put_attributes(x: object, held: Mapping[str, Any]) -> None:
    """Give an object these attributes and no others, past any `__setattr__` and property."""
    names = slots(type(x))
    for name, slot in names.items():
        if name in held:
            slot.__set__(x, held[name])
        else:
            try:
                slot.__delete__(x)
            except AttributeError:
                continue  # it was empty
    own = own_dict(x)
    if own is not None:
        own.clear()
        own.update((name, value) for name, value in held.items() if name not in names)


def put_items(x: dict[Any, Any], held: Mapping[Any, Any]) -> None:
    """Give a dict, of any class, these items and no others, past what its class makes of it: a
    Counter would count them."""
    base: Any = OrderedDict if isinstance(x, OrderedDict) else dict
    base.clear(x)
    for key, value in held.items():
        base.__setitem__(x, key, value)


def own_dict(x: object) -> dict[str, Any] | None:
    """Return the `__dict__` of an object, whatever its class makes of this name."""
    try:
        attributes = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return None
    return attributes if isinstance(attributes, dict) else None


def slots(cls: type) -> dict[str, Any]:
    """Return the descriptors of a class's slots, by the names that they have in it."""
    return {
        name: slot for c in cls.__mro__ if "__slots__" in vars(c)
        for name, slot in vars(c).items() if isinstance(slot, types.MemberDescriptorType)
    }


def _is_small(x: object) -> bool:
    """Return whether an object holds at most _MOST_PARTS things, counted once for each way."""
    left = _MOST_PARTS
    work: list[tuple[Any, frozenset[int]]] = [(x, frozenset())]
    while work and left:
        (thing, above), left = work.pop(), left - 1
        items: Any = ()
        if id(thing) in above:
            continue
        if isinstance(thing, (list, tuple)):
            items = thing
        elif isinstance(thing, dict):
            items = thing.values()
        elif has_attributes(type(thing)):
            items = (attributes(thing) or {}).values()
        work += [(y, above | {id(thing)}) for y in islice(items, left + 1)]
    return not work
