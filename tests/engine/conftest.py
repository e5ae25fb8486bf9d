"""The hand-written images, compiled once for all tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.harness import HERE, Images, compile_c


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    path: Path = tmp_path_factory.mktemp("engine") / "images.so"
    compile_c(path, "-O2", "-shared", "-fPIC", str(HERE / "images.c"))
    return Images(path)
