"""The hand-written images, compiled once for all tests of the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.harness import ENGINE, HERE, HOOKS, NUMBERS, Images, compile_c


@pytest.fixture(scope="session")
def numbers_object(once: Callable[..., Path]) -> str:
    """Return an object file of the parts of the engine that only compute."""
    flags = ("-O2", "-r", "-nostdlib", *NUMBERS)
    return str(once("numbers.o", lambda path: compile_c(path, *flags)))


@pytest.fixture(scope="session")
def engine_object(once: Callable[..., Path], numbers_object: str) -> str:
    """The engine as one object file, as it is optimised for users."""
    flags = ("-O2", "-r", "-nostdlib", *ENGINE, numbers_object)
    return str(once("engine.o", lambda path: compile_c(path, *flags)))


@pytest.fixture(scope="session")
def hooked_engine(once: Callable[..., Path], numbers_object: str) -> str:
    """The engine as one object file, with hooks.h in front of every file."""
    flags = ("-O1", "-r", "-nostdlib", *HOOKS, *ENGINE, numbers_object)
    return str(once("hooked_engine.o", lambda path: compile_c(path, *flags)))


@pytest.fixture(scope="session")
def images(once: Callable[..., Path]) -> Images:
    files = (str(HERE / f"{name}.c") for name in ("images", "near", "fed"))
    flags = ("-O2", "-shared", "-fPIC", *files)
    return Images(once("images.so", lambda path: compile_c(path, *flags)))
