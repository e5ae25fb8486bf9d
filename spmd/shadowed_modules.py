"""Files of a user that hide modules of Python, or of a package, by their names.

In: an exception that nobody expected. Out: the error that names such a file, where there is one.
Always holds: importing this imports nothing that such a file may hide in `python -m spmd`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from codegen.errors import EnvironmentFault
from codegen.places import is_user_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def shadowing_error(error: BaseException) -> EnvironmentFault | None:
    """Return the error to show in the place of one that nobody expected: which file stands before a
    module; None if none does."""
    for cause in reversed(list(_chain(error))):
        for file in _files_of(cause):
            if name := _hides(file):
                text = str(getattr(cause, "message", cause)).partition("\n")[0]
                culprit = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
                return EnvironmentFault(
                    f"{culprit} hides the module {name}, which spmd or a package that it uses "
                    "needs",
                    expected=f"the module of {_installed(name, file)}",
                    found=f"{type(cause).__name__}: {text}",
                    remedy=f"rename {culprit}; Python takes the first of a name on its path",
                )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and those that it came of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _files_of(error: BaseException) -> Iterator[str]:
    """Yield the files that an exception passed through, and those of modules that its text
    names."""
    if isinstance(error, SyntaxError) and error.filename:
        yield error.filename
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame.f_code.co_filename
        step = step.tb_next
    words = "".join(c if c.isalnum() or c == "_" else " " for c in str(error)).split()
    for name in words:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str):
            yield file


def _hides(file: str) -> str:
    """Return the name of the installed module that a user's file stands before on the path, or
    ""."""
    if not is_user_file(os.path.abspath(file)):
        return ""
    name = os.path.splitext(os.path.basename(file))[0]
    name = os.path.basename(os.path.dirname(file)) if name == "__init__" else name
    return name if name.isidentifier() and _installed(name, file) else ""


def _installed(name: str, file: str) -> str:
    """Return the file of the module that Python would find without the folder that this one is
    in."""
    folder = os.path.dirname(os.path.abspath(file))
    if os.path.basename(file) == "__init__.py":
        folder = os.path.dirname(folder)
    path = [os.path.abspath(entry) for entry in sys.path]
    if folder not in path:
        return ""
    spec = PathFinder.find_spec(name, [entry for entry in path if entry != folder])
    origin = spec.origin if spec is not None else None
    return origin if origin and not is_user_file(origin) else ""
