"""Random per-rank programs: NumPy, the Graph, the Program and the real image say the same.

Exact for integers, bools and element-wise float arithmetic; else within a tolerance. The default
run is short and always the same; `make random` searches on (SPMD_RANDOM_SIZE: statements each).
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings

from codegen.checks.check_graph import check
from codegen.layouts.partition import partition
from codegen.oracle import interpret
from tests.programs.generate import Program
from tests.programs.whole import programs

pytestmark = pytest.mark.usefixtures("users_cc")
SIZE = int(os.environ.get("SPMD_RANDOM_SIZE", "22"))
EXAMPLES = settings().max_examples * 3 // 5
RTOL = {"float16": 2e-2, "float32": 2e-3, "float64": 1e-7, "complex64": 2e-3, "complex128": 1e-7}
_numbers = itertools.count()


def load(program: Program, folder: Path) -> Any:
    """The program object of a module written to a file of its own (its source must be readable)."""
    name = f"random_program_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_text(program.text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module.random_program


def agree(name: str, exact: bool, expected: np.ndarray, found: np.ndarray, what: str) -> None:
    assert found.dtype == expected.dtype, f"{what}: {name} is {found.dtype}, not {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: {name} has {found.shape}, not {expected.shape}"
    floats = expected.dtype.kind in "fc"
    if exact or not floats:
        same = (found == expected) | ((found != found) & (expected != expected))
    else:
        r = RTOL[expected.dtype.name]
        same = np.isclose(found, expected, rtol=r, atol=8 * r, equal_nan=True)
    if not same.all():
        at = tuple(int(k) for k in np.argwhere(~same)[0])
        raise AssertionError(
            f"{what}: {name}{list(at)} is {found[at]!r}, NumPy says {expected[at]!r}"
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def compare(program: Program, folder: Path, image: bool = True) -> None:
    """Every level for every mesh of the program. Raises AssertionError at the first difference."""
    source = load(program, folder)
    graph = check(source.capture())
    levels = {"Graph": graph, "Program": check(partition(graph))}
    built = build(source) if image else None
    inputs = {i.name: i.data(program.seed + k) for k, i in enumerate(program.inputs)}
    for sizes in program.sizes:
        expected = source.eager(mesh=sizes, **inputs, **program.scalars)
        found = {
            level: interpret.run(module, sizes, inputs, program.scalars)
            for level, module in levels.items()
        }
        if built is not None:
            ranks = int(np.prod(list(sizes.values())))
            found["image"] = built.run(ranks=ranks, mesh=sizes, **inputs, **program.scalars)
        for level, out in found.items():
            for name, exact in program.outputs:
                agree(name, exact, expected[name], out[name], f"{level} at {sizes}")


def build(source: Any) -> Any:
    """The real image; None while there is no compiler."""
    if importlib.util.find_spec("codegen.compile") is None:
        return None
    import spmd

    return spmd.build(source)


@pytest.mark.slow
@given(programs(SIZE))
@settings(print_blob=False, max_examples=EXAMPLES)
def test_random_programs_agree(folder: Path, program: Program) -> None:
    note(repr(program))
    compare(program, folder)
