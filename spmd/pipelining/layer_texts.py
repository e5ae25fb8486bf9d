"""Layers and what they are called with, as text in messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codegen.errors import Place
from codegen.trace.array import Array
from codegen.trace.state import flatten


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a layer's function."""
    return str(getattr(function, "__name__", type(function).__name__))


def place_of_function(function: Callable[..., Any]) -> Place | None:
    """Return where a layer's function is written; None where nobody knows."""
    while not hasattr(function, "__code__") and hasattr(function, "func"):  # functools.partial
        function = function.func
    code = getattr(function, "__code__", None)
    return Place(code.co_filename, code.co_firstlineno) if code else None


def types_text(tree: Any) -> str:
    """Return the types of the leaves of a tree, as float64[4, 4] and float64[4]."""
    leaves = flatten(tree)[1]
    return ", ".join(_type_text(x) for x in leaves) or "nothing"


def _type_text(x: Any) -> str:
    if isinstance(x, Array):
        return str(x.type)
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return f"{x.dtype}[{', '.join(map(str, x.shape))}]"
    return repr(x)[:60]
