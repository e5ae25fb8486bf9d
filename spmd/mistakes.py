"""Mistakes of a caller end in its own line: the frames of spmd are left out of their traceback.

In: a function that Python users call. Out: the same one, whose SpmdErrors have no frames of ours
but one. Always holds: SPMD_DEBUG=1, and a defect of spmd, show all of them.
"""

from __future__ import annotations

from codegen.errors import InternalError, SpmdError
from spmd import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


def plainly(function: F) -> F:
    """A decorator. An interactive shell shows not even this frame: SpmdError._render_traceback_."""
    import functools

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SpmdError as error:
            if report.debugging() or isinstance(error, InternalError):
                raise
            raise error.with_traceback(None) from None  # SPMD_DEBUG=1 shows the frames of spmd

    return call  # type: ignore[return-value]
