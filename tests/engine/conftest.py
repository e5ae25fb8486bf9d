"""The hand-written images, compiled once for all tests of the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.harness import HERE, Images, compile_c


@pytest.fixture(scope="session")
def images(once: Callable[..., Path]) -> Images:
    flags = ("-O2", "-shared", "-fPIC", str(HERE / "images.c"), str(HERE / "near.c"))
    return Images(once("images.so", lambda path: compile_c(path, *flags)))
