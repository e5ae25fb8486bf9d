"""Whose a file is, where in it a traceback stands, what a code object holds.

In: file names, code objects, tracebacks. Out: Places, names, whether a file is its user's.
Always holds: importing it costs next to nothing; ranks ask it when one of them does not come.
"""

from __future__ import annotations

import os
import sys
from functools import cache

from codegen.errors import Place, SpmdError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, TracebackType

# Files with a function decorated with @spmd.program: a user's, wherever they are installed.
program_files: set[str] = set()

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(HERE, folder, "") for folder in ("codegen", "spmd"))
_STANDARD = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
_positions: dict[int, tuple[CodeType, tuple[tuple[int | None, ...], ...]]] = {}  # of code, by id


def is_user_file(filename: str) -> bool:
    """Return whether a file belongs to the user: not ours, not installed, not the standard
    library's."""
    if filename.startswith("<"):
        return filename.startswith(("<ipython", "<stdin"))
    return not is_library_file(filename)


def is_library_file(filename: str) -> bool:
    """Return whether a file is ours, an installed package's or the standard library's."""
    return filename not in program_files and _in_library(filename)


def is_ours(filename: str) -> bool:
    """Return whether a file is the compiler's or the runtime's."""
    return filename.startswith(_OURS)


@cache
def _in_library(filename: str) -> bool:
    command = os.path.basename(filename) == "spmd"  # the script that pip makes of our entry point
    compiled = filename.endswith((".pyx", ".pxd"))  # Cython's, of a module without source here
    return command or compiled or filename.startswith(("<frozen", _STANDARD, *_OURS)) or any(
        part in filename for part in _INSTALLED
    )


def place_in(code: CodeType, offset: int, fallback_line: int) -> Place:
    """Return the position of the instruction at a byte offset of a code object."""
    if id(code) not in _positions:  # equal code may stand in two files
        _positions[id(code)] = code, tuple(code.co_positions())
    line, end_line, column, end = _positions[id(code)][1][offset // 2]
    if line is None or end_line != line:
        end = None
    return Place(
        code.co_filename, line or fallback_line, column or 0, -1 if end is None else end,
        code.co_name,
    )


def last(traceback: TracebackType | None) -> TracebackType | None:
    """Return the innermost step of a traceback: where the exception was raised."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def place_at(traceback: TracebackType) -> Place:
    """Return the place of one step of a traceback."""
    return place_in(traceback.tb_frame.f_code, traceback.tb_lasti, traceback.tb_lineno)


def put_place(error: SpmdError) -> None:
    """Give an error that has no place the innermost place in the user's code that it came
    through."""
    place, step = None, error.__traceback__
    while step is not None:
        if is_user_file(step.tb_frame.f_code.co_filename):
            place = step
        step = step.tb_next
    error.stand_at(user_place() if place is None else place_at(place))


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects inside one, at any depth."""
    for inner in code.co_consts:
        if isinstance(inner, type(code)):
            yield inner
            yield from codes_in(inner)


@cache
def names_in(code: CodeType) -> tuple[str, ...]:
    """Return the global names and attributes that a function and those inside it use."""
    names = (name for c in (code, *codes_in(code)) for name in c.co_names)
    return tuple(dict.fromkeys(names))


def module_of(kind: type) -> str:
    """Return the name of the module that a class is of; "" where it has none, as classes of
    messages that a library makes."""
    return kind.__module__ or ""


def user_frame() -> FrameType | None:
    """Return the innermost frame that runs the user's own source."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_place() -> Place | None:
    """Return where the user's source calls: file, line and columns of the innermost expression that
    runs. Errors take it as place=. None where no code of the user's runs."""
    frame = user_frame()
    if frame is None:
        return None
    return place_in(frame.f_code, frame.f_lasti, frame.f_lineno)
