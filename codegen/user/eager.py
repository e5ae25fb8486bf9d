"""Which eager run is under way in this thread: calls of spmd functions go to its methods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Eager(threading.local):
    """The eager runtime of this thread, if one runs."""

    runtime: Any = None


_EAGER = _Eager()


@contextmanager
def running_eagerly(runtime: Any) -> Iterator[None]:
    """While it is open, this thread's calls of spmd functions go to the runtime's methods."""
    before = _EAGER.runtime
    _EAGER.runtime = runtime
    try:
        yield
    finally:
        _EAGER.runtime = before


def runtime() -> Any:
    """The eager runtime of this thread, or None."""
    return _EAGER.runtime
