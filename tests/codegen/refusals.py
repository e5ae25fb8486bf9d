"""A program of one array, and what is said where such a program is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import spmd
from codegen.errors import ProgramError
from codegen.trace.program import Program


def program(f: Callable[..., Any]) -> Program:
    def whole():
        x = spmd.input("x", (6,), layout=("r",), default=lambda i: i * 1.0)
        return f(x)

    made: Program = spmd.program(whole, mesh=("r",))
    return made


def check_refused(f: Callable[..., Any], said: list[str], file: str) -> None:
    """Assert that a program is refused with such a message, at a line that is marked `# here`."""
    with pytest.raises(ProgramError) as caught:
        program(f).capture()
    text = str(caught.value)
    assert all(part in text for part in said), text
    assert text.startswith(file) and "# here" in text.split("\n")[1], text
