"""What a declaration says, in a form that compares: two of one name must say the same.

Always holds: a form is taken at the declaration, so that what the user changes later, a loop
variable in a closure or an array, does not change it.
"""

from __future__ import annotations

import contextlib
import functools
import types
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.trace import known, rewrite
from codegen.trace.array import Array, Number
from codegen.trace.source import content


@dataclass(frozen=True, eq=False)
class _Itself:
    """A thing that is equal to itself only; held, so that its id is not used again."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


def text_and_form(x: Any) -> tuple[str, Any]:
    """What a message calls a default, and what compares."""
    code = getattr(x, "__code__", None)
    if code is None:
        return repr(x)[:60], form(x)
    held = []
    for name, cell in zip(code.co_freevars, x.__closure__ or ()):
        with contextlib.suppress(ValueError):
            if name == rewrite.RUNTIME:
                continue
            held.append(f"{name} = {cell.cell_contents!r}"[:40])
    text = f"{code.co_name} of line {code.co_firstlineno}"
    return text + (f", where {', '.join(held)}" if held else ""), form(x)


def form(x: Any, around: tuple[int, ...] = ()) -> Any:
    """Of a default: numbers and arrays by value, functions by their code and what they close over.

    Arrays of the program and counters of loops are new in each capture of a body: they compare by
    type. Other objects compare by their attributes.
    """
    x = known.plain(x)
    if x is None or isinstance(x, (bool, int, float, complex, str, bytes, np.generic)):
        return type(x).__name__, repr(x)  # nan is itself, 0.0 is not -0.0
    if isinstance(x, np.ndarray) and x.dtype != object:
        return "array", x.dtype.str, x.shape, x.tobytes()
    if isinstance(x, Number):
        passing = any(s.kind == "counter" for s in x.expr.symbols())
        return "number", "" if passing else str(x.expr)
    if isinstance(x, Array):
        return "array of the program", str(x.type)
    if id(x) in around:
        return "around", around.index(id(x))
    inner = (*around, id(x))
    if isinstance(x, (list, tuple)):
        return type(x).__name__, tuple(form(e, inner) for e in x)
    if isinstance(x, dict):
        return "dict", tuple((form(k, inner), form(v, inner)) for k, v in x.items())
    if isinstance(x, functools.partial):
        return "partial", form((x.func, x.args, x.keywords), inner)
    if isinstance(x, types.MethodType):
        return "method", form((x.__func__, x.__self__), inner)
    if isinstance(x, types.FunctionType):
        cells = [_held(cell, inner) for cell in x.__closure__ or ()]
        defaults = form((x.__defaults__, x.__kwdefaults__), inner)
        return "function", content(x.__code__), _globals(x), defaults, tuple(cells)
    if isinstance(getattr(x, "__dict__", None), dict) and not isinstance(
        x, (type, types.ModuleType)
    ):
        return _Itself(type(x)), form(vars(x), inner)
    return _Itself(x)


def _held(cell: types.CellType, around: tuple[int, ...]) -> Any:
    try:
        return form(cell.cell_contents, around)
    except ValueError:  # nothing yet
        return None


def _globals(function: types.FunctionType) -> Any:
    """The numbers and arrays of the module that it may read."""
    plain = (bool, int, float, complex, np.generic, np.ndarray)
    names = function.__globals__
    used = [n for n in function.__code__.co_names if isinstance(names.get(n), plain)]
    return tuple((n, form(names[n])) for n in used)
