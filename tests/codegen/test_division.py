"""Division of whole numbers by positive constants, compiled as images are, beside NumPy's."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from codegen.image import link, target
from tests.conftest import PATIENCE

KINDS = {f"i{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)}
BY = {kind: [c for c in (1, 7, 100, 641, 10**9 + 7, 2**63 - 1) if c <= np.iinfo(dtype).max]
      for kind, dtype in KINDS.items()}
LOOP = """void {f}_{kind}_{c}(const int{bits}_t *a, int{bits}_t *out, int64_t n)
{{
    for (int64_t i = 0; i < n; i++) out[i] = spmd_{f}_{kind}(a[i], {c});
}}
"""


@pytest.mark.parametrize("level", sorted({target.native(), "x86-64"}))
def test_division_by_positive_constants(level: str, tmp_path: Path) -> None:
    if "x86-64" not in target.native():
        pytest.skip("a machine of x86-64")
    file = tmp_path / "loops.c"
    loops = [LOOP.format(f=f, kind=kind, bits=kind[1:], c=c)
             for kind, constants in BY.items() for c in constants for f in ("floordiv", "mod")]
    file.write_text('#include "spmd_support.h"\n' + "".join(loops))
    command = [*link.compiler(), *link.FLAGS, "-fvisibility=default", *link.WARNINGS, "-shared",
               f"-march={level}", f"-I{link.include_dir()}", str(file), "-o", f"{file}.so", "-lm"]
    subprocess.run(command, check=True, timeout=5 * PATIENCE)
    library = ctypes.CDLL(f"{file}.so")
    for kind, dtype in KINDS.items():
        info = np.iinfo(dtype)
        any_number = np.random.default_rng(5).integers(info.min, info.max, 3000, dtype)
        a = np.array([*any_number, *range(-128, 128), info.min, info.min + 1, info.max], dtype)
        out = np.empty_like(a)
        for c in BY[kind]:
            for name, exact in (("floordiv", np.floor_divide), ("mod", np.remainder)):
                at = [ctypes.c_void_p(x.ctypes.data) for x in (a, out)]
                getattr(library, f"{name}_{kind}_{c}")(*at, ctypes.c_int64(len(a)))
                np.testing.assert_array_equal(out, exact(a, np.array(c, dtype)), f"{name} {c}")
