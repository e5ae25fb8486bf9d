"""The eager run of this thread, if one is under way: spmd functions call its methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_RUNTIME: ContextVar[Any] = ContextVar("the eager runtime of this thread", default=None)


@contextmanager
def running_eagerly(runtime: Any) -> Iterator[None]:
    """Let this thread's calls of spmd functions go to the runtime's methods within the context."""
    token = _RUNTIME.set(runtime)
    try:
        yield
    finally:
        _RUNTIME.reset(token)


def runtime() -> Any:
    """Return the eager runtime of this thread, or None."""
    return _RUNTIME.get()
