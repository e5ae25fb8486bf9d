"""Entries of a class that is a program: methods under @spmd.entry.

Read by the tracer, and by eager runs of the class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from codegen.errors import InputError, MissingError, Place, UsageError
from codegen.places import user_place
from codegen.suggest import meant
from codegen.user.named import some

_MARK = "__spmd_entry__"
_TAKEN = (  # by open images
    "arrays", "close", "distributed", "entries", "follow", "keep", "load", "processes", "profile",
    "save", "start", "state", "stream",
)


def entry(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method an entry of its class, which is a program; use it as a decorator.

    An entry declares its inputs by spmd.input, reads the arrays that `__init__` bound to
    attributes, binds them anew or writes into them, and returns outputs, or nothing. Other methods
    are helpers.
    UsageError for a method with parameters that have no default, and for what is no function.

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
    if not inspect.isfunction(method):
        raise UsageError("@spmd.entry stands above a method", place=user_place(),
                         expected="def infer(self): … in a class under @spmd.program",
                         found=type(method).__name__)
    setattr(method, _MARK, True)
    return method


def entries_of(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the entries of a class by name, those of its bases first. Raise UsageError for a class
    without any, and for an entry that takes arguments."""
    methods: dict[str, Callable[..., Any]] = {}
    for base in reversed(cls.__mro__):
        for name, method in vars(base).items():
            if getattr(method, _MARK, False):
                methods[name] = method
            else:
                methods.pop(name, None)  # a class below it has a method that is none
    if not methods:
        raise UsageError(f"the class {cls.__name__} has no entry", place=user_place(),
                         expected="@spmd.entry above the methods that an image can be asked for",
                         found=", ".join(n for n, m in vars(cls).items() if inspect.isfunction(m))
                         or "no methods")
    for name, method in methods.items():
        place = place_of_method(name, method)
        if name in _TAKEN:
            raise UsageError(f"an open image has a method {name} of its own: no entry is called so",
                             place=place, expected="another name", found=name,
                             remedy=f"def {name}_entry(self): …")
        parameters = list(inspect.signature(method).parameters.values())
        needed = [p.name for p in parameters[1:] if p.default is p.empty]
        if not parameters or needed:
            raise UsageError(
                f"the entry {name} of {cls.__name__} takes arguments",
                place=place,
                expected=f"def {name}(self):", found=", ".join(needed) or "no self",
                remedy='x = spmd.input("x", shape, dtype) in it, for an array that a call gives')
    return methods


def place_of_method(name: str, method: Callable[..., Any]) -> Place:
    """Return where a method stands: its first line."""
    code = inspect.unwrap(method).__code__
    return Place(code.co_filename, code.co_firstlineno, 0, -1, name)


def no_entry(program: str, name: str, entries: Collection[str]) -> MissingError:
    """Return the error of a call by a name that no entry of the program has."""
    return MissingError(f'{program} has no entry "{name}"; it has {", ".join(sorted(entries))}',
                        remedy=meant(name, list(entries), "{}(…)"))


def called_whole(program: str, entries: Collection[str]) -> MissingError:
    """Return the error of a call of an open image itself where only its entries can be called."""
    return MissingError(f"{program} has entries, and the call names none of them", found="job(…)",
                        expected=" or ".join(f"job.{name}(…)" for name in sorted(entries)))


def not_given(program: str, names: Collection[str]) -> InputError:
    """Return the error of a call before the states of these names, which have no default, have been
    given."""
    return InputError(f"{program} has no state yet: no default says what {some(names)} begins with",
                      expected="a state that is given before the first call", found="a call",
                      remedy="open(state={…}), or job.load({…}); or default= in its spmd.input")
