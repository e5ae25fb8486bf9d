"""What a misspelt keyword argument means, from the line of the user's that calls with it.

In: the TypeError that Python raised for a call, with its traceback. Out: a remedy for the error's
`try` line, or "". Always holds: no code of the user's runs; names are looked up in modules, classes
and the variables of the frame that made the call.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Iterable
from typing import Any

from codegen.places import is_user_file, place_at
from codegen.suggest import meant_keyword, unexpected_keyword

# NumPy's functions that take keywords by **kwargs, with what these may be.
KEYWORDS = {
    "einsum": "out optimize dtype order casting",
    "pad": "stat_length constant_values end_values reflect_type",
    "sum": "keepdims initial where", "prod": "keepdims initial where",
    "max": "keepdims initial where", "min": "keepdims initial where",
    "mean": "keepdims where", "std": "keepdims where mean correction",
    "var": "keepdims where mean correction", "all": "keepdims where", "any": "keepdims where",
    "reduce": "keepdims initial where", "argmax": "keepdims", "argmin": "keepdims",
}


def keyword_remedy(error: TypeError) -> str | None:
    """Return what the misspelt keyword of a call of the user's probably means, "" if nothing is
    like it; None if the error is about another thing."""
    if not (word := unexpected_keyword(error)):
        return None
    step, user = error.__traceback__, None
    while step is not None:
        if is_user_file(step.tb_frame.f_code.co_filename):
            user = step
        step = step.tb_next
    if user is None:
        return None
    place = place_at(user)
    calls = [c for c in _calls(place.file, place.line) if any(k.arg == word for k in c.keywords)]
    if not calls:
        return None
    known = [n for c in calls for n in keywords_of(_value(c.func, user.tb_frame))]
    return meant_keyword(error, known)


def keywords_of(function: Any) -> list[str]:
    """Return the names of the arguments that a function takes by keyword, as far as is known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return names + KEYWORDS.get(getattr(function, "__name__", ""), "").split()


def takes_any_keyword(function: Any) -> bool:
    """Return whether a function takes keywords by **kwargs, as far as is known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind == p.VAR_KEYWORD for p in parameters)


def _calls(file: str, line: int) -> Iterable[ast.Call]:
    """Return the calls of a file that a line is part of."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)
            and node.lineno <= line <= (node.end_lineno or line)]


def _value(node: ast.expr, frame: types.FrameType) -> Any:
    """Return what an expression of names and attributes stands for in a frame; None if that is not
    known. A method is that of the class."""
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
            if node.id in names:
                return names[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        if owner is None:
            return None
        plain = isinstance(owner, (types.ModuleType, type))
        return getattr(owner if plain else type(owner), node.attr, None)
    if isinstance(node, ast.Call):
        result_type = _value(node.func, frame)
        return result_type if isinstance(result_type, type) else None
    return None
