"""NumPy's functions on arrays of a program: the same set as `np.…` inside one, as a namespace."""

from __future__ import annotations

from typing import Any

from codegen.trace import namespace
from codegen.trace.numpy import dispatch


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return dispatch.attribute(name)


def __dir__() -> list[str]:
    return namespace.names()
