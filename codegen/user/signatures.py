"""Whether a function can be called with given arguments, asked before it is called."""

from __future__ import annotations

import inspect
from typing import Any

from codegen.errors import ProgramError
from codegen.suggest import meant, meant_keyword


def check_call(function: Any, role: str, /, *args: Any, expected: str = "", **kwargs: Any) -> None:
    """Raises ProgramError where a function cannot be called with these arguments."""
    remedy = ""
    problem = "" if callable(function) else f"{type(function).__name__}: {function!r}"[:80]
    try:
        signature = inspect.signature(function) if not problem else None
    except (ValueError, TypeError):  # of a builtin
        return
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
            return
        except TypeError as error:
            problem, remedy = str(error), meant_keyword(error, signature.parameters)
            remedy = remedy or next(filter(None, (
                meant(k, signature.parameters, "{}=…") for k in kwargs
                if k not in signature.parameters)), "")
        expected = expected or f"{role}{_plain(signature)}"
    raise ProgramError(f"{role} cannot be called like this", expected=expected, found=problem,
                       remedy=remedy)


def _plain(signature: inspect.Signature) -> str:
    """Return the parameters without their types."""
    empty = inspect.Parameter.empty
    bare = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=empty))
