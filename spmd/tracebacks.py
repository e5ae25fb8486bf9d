"""Mistakes of a caller end in its own line: the frames of spmd are left out of their traceback.

In: a function that Python users call. Out: the same one, whose SpmdErrors have no frames of ours
but one. Always holds: SPMD_DEBUG=1, and a defect of spmd, show all of them.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback

from codegen.errors import InternalError, SpmdError
from codegen.places import is_user_file
from codegen.suggest import meant_keyword
from spmd import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


BY_NAME = "give it by name, as in run(ranks=4) and build(program, n=100)"


def plainly(function: F) -> F:
    """Leave the frames of spmd out of the tracebacks of a function's errors; use it as a decorator.
    An interactive shell shows not even this frame: see `rendered`."""
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SpmdError as error:
            if report.debugging() or isinstance(error, InternalError):
                raise
            raise error.with_traceback(None) from None  # SPMD_DEBUG=1 shows the frames of spmd
        except TypeError as error:
            if error.__traceback__ and not error.__traceback__.tb_next:  # of this very call
                known = inspect.signature(function).parameters
                error.add_note(meant_keyword(error, known) or BY_NAME)
            raise

    return call  # type: ignore[return-value]


def cells(text: str) -> str:
    """Return text whose places in a notebook are called as Jupyter does: `Cell In[3], line 2`."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    files = getattr(getattr(shell, "compile", None), "_filename_map", {})
    known = {file.rpartition("/")[2]: number for file, number in files.items()}

    def named(match: re.Match[str]) -> str:
        number = known.get(match[1])
        many = "lines" if "-" in match[2] else "line"
        return f"Cell In[{number}], {many} {match[2]}" if number is not None else match[0]

    return re.sub(r"(?:/[^\s:]*/)?(\w+\.py):(\d+(?:-\d+)?)", named, text)


def rendered(error: SpmdError) -> list[str]:
    """Return the lines that IPython shows instead of a traceback: the user's own lines, and the
    message.

    SPMD_DEBUG=1, and a defect of spmd, show everything.
    """
    if report.debugging() or error.exit_code == InternalError.exit_code:
        return "".join(traceback.format_exception(error)).splitlines()
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if not is_user_file(frame.filename):
            continue
        where = cells(f"{frame.filename}:{frame.lineno}")
        inside = "" if frame.name == "<module>" else f", in {frame.name}"
        lines += [f"{where}{inside}:", f"    {frame.line}"]
    return [*lines, "", *cells(f"{type(error).__name__}: {error}").split("\n")]


SpmdError._render_traceback_ = rendered  # type: ignore[attr-defined]  # IPython looks for the name
