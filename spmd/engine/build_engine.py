"""Describes the extension `spmd.engine._engine` to cffi.

Goes in: csrc/engine.h, whose marked section is the declarations, and csrc/*.c. Comes out:
ffibuilder, which setup.py names.
Always holds: nothing of the engine's interface is written down a second time.
"""

import re
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parents[2]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow"]

# The wrappers that cffi generates are not ours to keep free of warnings.
PREAMBLE = """
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wcast-function-type"
#include "engine.h"
"""


def declarations() -> str:
    header = (ROOT / "csrc" / "engine.h").read_text()
    section = re.search(r"/\* <cdef> \*/(.*)/\* </cdef> \*/", header, re.DOTALL)
    if section is None:
        raise RuntimeError("csrc/engine.h has lost its cdef markers")
    return section.group(1)


ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "spmd.engine._engine",
    PREAMBLE,
    sources=sorted(f"csrc/{path.name}" for path in (ROOT / "csrc").glob("*.c")),
    include_dirs=["csrc"],
    extra_compile_args=["-std=c11", "-O2", *WARNINGS],
    libraries=["pthread", "dl"],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
