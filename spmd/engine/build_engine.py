"""Describes the extension `spmd.engine._engine` to cffi.

Goes in: csrc/engine.h and csrc/bench/measure.h, whose marked sections are the declarations, and the
C files beside them. Comes out: ffibuilder, which setup.py names.
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
#include "bench/measure.h"
"""


def declarations() -> str:
    sections = []
    for name in ("engine.h", "bench/measure.h"):
        header = (ROOT / "csrc" / name).read_text()
        section = re.search(r"/\* <cdef> \*/(.*)/\* </cdef> \*/", header, re.DOTALL)
        if section is None:
            raise RuntimeError(f"csrc/{name} has lost its cdef markers")
        sections.append(section.group(1))
    return "".join(sections)


ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "spmd.engine._engine",
    PREAMBLE,
    sources=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.c")),
    include_dirs=["csrc"],
    # What images are compiled with too, so that random numbers have the same bits.
    extra_compile_args="-std=c11 -O2 -ffp-contract=off -fwrapv -fno-math-errno -fno-trapping-math "
                       "-fopenmp-simd".split() + WARNINGS,
    libraries=["pthread", "dl", "m"],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
