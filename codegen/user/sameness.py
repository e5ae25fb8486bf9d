"""What a declaration says, in a form that compares: two of one name must say the same.

Always holds: a form is taken at the declaration, so that what the user changes later, a loop
variable in a closure or an array, does not change it.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.errors import Place, ProgramError

RUNTIME = "__spmd__"  # in converted code, the name of what the tracer adds: it says nothing
Said = dict[str, tuple[str, Any]]  # by part of a declaration: its text, and a form that compares
Around = tuple[int, ...]  # ids of what holds the thing, so that circles end


@dataclass(frozen=True, eq=False)
class _Itself:
    """A thing that is equal to itself only; held, so that its id is not used again."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


def check_same(
    name: str, role: str, first: tuple[Place | None, Said], now: tuple[Place | None, Said]
) -> None:
    """Raises ProgramError for a second declaration; the first one, met again, is none: a body
    may be captured several times. first, now: where each stands, and what it says."""
    (before, then), (place, said) = first, now
    if before != place:
        raise declared_twice(name, role, before, place)
    for part, (text, form) in said.items():
        if form != then[part][1]:
            raise ProgramError(
                f'"{name}" is declared twice, with another {part}', place=place,
                expected=f"{part} {then[part][0]}, as the first time", found=f"{part} {text}",
                remedy=f"another name for each {role}, or keep the result of the first declaration",
            )


def declared_twice(name: str, role: str, before: Place | None, place: Place | None) -> ProgramError:
    return ProgramError(
        f'"{name}" is declared twice', place=place, expected=f"one name per {role}",
        found=f'another "{name}"', also=(("declared before at", before),) if before else (),
        remedy="choose another name, or keep the result of the first declaration",
    )


def text_and_form(x: Any, simpler: Callable[[Any], Any]) -> tuple[str, Any]:
    """Return the text that a message shows for a default, and a form that compares. simpler:
    returns what stands in this form for an array or number of the program, and other things as they
    are."""
    code = getattr(x, "__code__", None)
    if code is None:
        return repr(x)[:60], _form(x, (), simpler)
    held = []
    for name, cell in zip(code.co_freevars, x.__closure__ or ()):
        with contextlib.suppress(ValueError):
            if name == RUNTIME:
                continue
            held.append(f"{name} = {cell.cell_contents!r}"[:40])
    text = f"{code.co_name} of line {code.co_firstlineno}"
    return text + (f", where {', '.join(held)}" if held else ""), _form(x, (), simpler)


def _form(x: Any, around: Around, simpler: Callable[[Any], Any]) -> Any:
    """Return numbers and arrays by value, functions by their code and what they close over, objects
    by their attributes."""
    x = simpler(x)
    if x is None or isinstance(x, (bool, int, float, complex, str, bytes, np.generic)):
        return type(x).__name__, repr(x)  # nan is itself, 0.0 is not -0.0
    if isinstance(x, np.ndarray) and x.dtype != object:
        return "array", x.dtype.str, x.shape, x.tobytes()
    if id(x) in around:
        return "around", around.index(id(x))
    inner = functools.partial(_form, around=(*around, id(x)), simpler=simpler)
    if isinstance(x, (list, tuple)):
        return type(x).__name__, tuple(inner(e) for e in x)
    if isinstance(x, dict):
        return "dict", tuple((inner(k), inner(v)) for k, v in x.items())
    if isinstance(x, functools.partial):
        return "partial", inner((x.func, x.args, x.keywords))
    if isinstance(x, types.MethodType):
        return "method", inner((x.__func__, x.__self__))
    if isinstance(x, types.FunctionType):
        cells = [_held(cell, inner) for cell in x.__closure__ or ()]
        defaults = inner((x.__defaults__, x.__kwdefaults__))
        return "function", content(x.__code__), _globals(x, inner), defaults, tuple(cells)
    if isinstance(getattr(x, "__dict__", None), dict) and not isinstance(
        x, (type, types.ModuleType)
    ):
        return _Itself(type(x)), inner(vars(x))
    return _Itself(x)


def _held(cell: types.CellType, inner: Callable[[Any], Any]) -> Any:
    try:
        return inner(cell.cell_contents)
    except ValueError:  # nothing yet
        return None


def _globals(function: types.FunctionType, inner: Callable[[Any], Any]) -> Any:
    """Return the numbers and arrays of the module that it may read."""
    plain = (bool, int, float, complex, np.generic, np.ndarray)
    names = function.__globals__
    used = [n for n in function.__code__.co_names if isinstance(names.get(n), plain)]
    return tuple((n, inner(names[n])) for n in used)


def content(code: types.CodeType, placed: bool = False) -> tuple[Any, ...]:
    """Return what a function's code does, wherever in a file it stands; placed: and where that
    is."""
    constants = [
        content(c, placed) if isinstance(c, types.CodeType)
        else (type(c), sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c))
        for c in code.co_consts  # as texts: 0.0 is not -0.0
    ]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    behaviour = code.co_code, constants, names, counts
    if not placed:
        return behaviour
    where = code.co_filename, code.co_firstlineno, code.co_qualname, code.co_linetable
    return *behaviour, *where, code.co_flags, code.co_exceptiontable
