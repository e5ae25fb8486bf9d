"""Elementary functions of floats: within their bounds, vectorised, the same bits at any place.

The reference is C's long double, which has eleven bits more; the bounds are those of figures.md.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from codegen.emit.image import lane_lines
from codegen.functions import FUNCTIONS
from codegen.image import link, target
from tests.conftest import PATIENCE

CSRC = Path(__file__).resolve().parents[2] / "csrc"
NAMES = sorted(n for n, row in FUNCTIONS.items() if n == "hypot" or (row.header and row.header_for))
# Units in the last place, of float32 and float64.
BOUNDS = {
    "exp": (1, 1), "exp2": (1.25, 1.25), "expm1": (1.5, 1.5), "sinh": (2.5, 2.5),
    "cosh": (1.5, 1.5), "tanh": (2.5, 2.5), "log": (1, 1), "log2": (1, 1), "log10": (1, 1),
    "log1p": (1.5, 1.5), "sin": (1.6, 1), "cos": (1.6, 1), "tan": (3.5, 2.5), "asin": (2.5, 2.5),
    "acos": (1.5, 1.5), "atan": (2, 2), "atan2": (2, 2), "pow": (0.55, 1), "cbrt": (1, 1),
    "asinh": (2, 2), "acosh": (2.25, 2.25), "atanh": (2.25, 2.25), "hypot": (0.51, 1.25),
}
BASE = "x86-64" if target.native().startswith("x86") else target.native()
TYPES = {"float32": ("float", "f32"), "float64": ("double", "f64")}
FUSED = "out[i] = spmd_sin_f64(a[i]) * b[i] + spmd_log_f64(b[i]) + spmd_pow_f64(a[i], 2.5);"

# Exact ones, of a[i] and of b[i] as an integer.
PARTS = {"ldexp": "spmd_ldexp_{}(a[i], (int64_t)b[i])", "mantissa": "spmd_mantissa_{}(a[i])",
         "exponent": "spmd_exponent_{}(a[i])"}


@pytest.fixture(scope="module")
def libraries(once: Callable[..., Path], users_cc: None) -> dict[str, ctypes.CDLL]:
    """By instruction set: a library of loops over all functions, under the flags of images."""
    headers = {"spmd_support.h", "spmd_special.h", *(FUNCTIONS[name].header for name in NAMES)}
    includes = "".join(f'#include "{h}"\n' for h in sorted(headers - {""}))
    source = ""
    start = "(const {0} *restrict a, const {0} *restrict b, {0} *restrict out, int64_t n)"
    loop = f"\nvoid {{1}}_{{2}}{start} {{{{ for (int64_t i = 0; i < n; i++) {{3}} }}}}"
    for name in NAMES:
        operands = "a[i], b[i]" if FUNCTIONS[name].arity == 2 else "a[i]"
        for c, ending in TYPES.values():
            call = f"(void)b, out[i] = spmd_{name}_{ending}({operands});"
            source += loop.format(c, name, ending, call)
    for name, call in PARTS.items():
        for c, ending in TYPES.values():
            source += loop.format(c, name, ending, f"(void)b, out[i] = {call.format(ending)};")
    source += loop.format("double", "fused", "f64", FUSED)
    source = "\n".join([includes, *lane_lines(source), source])

    says = [] if "clang" in link.trial(BASE) else ["-fopt-info-vec"]

    def build(level: str) -> ctypes.CDLL:
        def make(library: Path) -> None:
            file = library.with_name(f"elementary_{level}.c")
            file.write_text(source)
            command = [*link.compiler(), *link.FLAGS, "-fvisibility=default", *link.WARNINGS,
                       f"-march={level}", f"-I{CSRC}", "-shared", *says, str(file),
                       "-o", str(library), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
            assert done.returncode == 0, done.stderr
            library.with_name(f"elementary_{level}.txt").write_text(done.stdout + done.stderr)

        path = once(f"elementary_{level}.so", make)
        found = ctypes.CDLL(str(path))
        found.vectorised = path.with_name(f"elementary_{level}.txt").read_text()
        return found

    return {level: build(level) for level in dict.fromkeys((target.native(), BASE))}


def run(library: ctypes.CDLL, name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.empty_like(a)
    at = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, out)]
    getattr(library, f"{name}_{TYPES[a.dtype.name][1]}")(*at, ctypes.c_int64(len(a)))
    return out


def arguments(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """All magnitudes, the neighbourhood of 1, multiples of pi / 2, and what is special."""
    rng = np.random.default_rng(7)
    n, turns = 4000, np.arange(1, 1500) * (np.pi / 2)
    parts = [rng.uniform(-1, 1, n), rng.uniform(-9, 9, n), rng.uniform(-760, 760, n)]
    parts += [1 + rng.uniform(-1, 1, n) * 2.0 ** rng.uniform(-30, -1, n), turns, -turns * 1e4]
    parts += [rng.normal(size=n) * 10 ** rng.uniform(-35, 35, n), 2.0 ** np.arange(-149, 128)]
    parts += [np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-310, 1e22, -1e300])]
    with np.errstate(over="ignore"):
        a = np.concatenate(parts).astype(dtype)
    b = rng.permutation(a)
    if name == "pow":
        a, b = np.concatenate([a, np.abs(a), a]), np.concatenate([b, b / 4, np.rint(b) % 20 - 10])
    return a, b


def same(a: np.ndarray, b: np.ndarray) -> bool:
    bits = f"u{a.itemsize}"
    return bool(((a.view(bits) == b.view(bits)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_within_its_bound(libraries: dict[str, ctypes.CDLL], name: str, dtype: str) -> None:
    a, b = arguments(name, dtype)
    row = FUNCTIONS[name]
    got = [run(library, name, a, b) for library in libraries.values()]
    assert all(same(got[0], other) for other in got), "bits depend on the instruction set"
    operands = [x.astype(np.longdouble) for x in (a, b)[: row.arity]]
    exact = row.numpy(*operands)
    want = exact.astype(dtype)
    special = ~np.isfinite(want) | (want == 0) | ~np.isfinite(got[0])
    assert same(got[0][special], want[special]), "special values"
    usual = ~special
    unit = np.spacing(np.abs(want[usual])).astype(np.longdouble)
    apart = np.abs(got[0][usual].astype(np.longdouble) - exact[usual]) / unit
    worst = int(apart.argmax())
    bound = BOUNDS[name][dtype == "float64"]
    assert apart[worst] <= bound, (a[usual][worst], b[usual][worst], float(apart[worst]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_result_depends_on_the_value_alone(libraries: dict[str, ctypes.CDLL], name: str) -> None:
    """Elsewhere in an array, beside other neighbours, alone: vectors, their tails, rare lanes."""
    library = libraries[target.native()]
    for dtype in TYPES:
        a, b = arguments(name, dtype)
        whole = run(library, name, a, b)
        order = np.random.default_rng(3).permutation(len(a))
        assert same(run(library, name, a[order], b[order]), whole[order])
        for length in (1, 3, 7, 21):
            part = run(library, name, a[-length:].copy(), b[-length:].copy())
            assert same(part, whole[-length:])


def test_loops_vectorise(libraries: dict[str, ctypes.CDLL]) -> None:
    said = libraries[target.native()].vectorised
    if "x86-64-v" not in target.native() or not said:
        pytest.skip("what gcc says for x86-64 with SSE 4.2 or more")
    lines = {int(n) for n in re.findall(r"elementary_\S+?\.c:(\d+):\d+: .*loop vectorized", said)}
    alone = 0 if target.native() == "x86-64-v4" else 2  # int64 to floats: with AVX-512, of ldexp
    assert len(lines) == 2 * len(NAMES) + 2 * len(PARTS) + 1 - alone, said


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.filterwarnings("ignore")
def test_parts_of_floats_are_exact(libraries: dict[str, ctypes.CDLL], dtype: str) -> None:
    """Of all bits that there are, many of them subnormal; 0, infinity and NaN; far powers."""
    rng, bits = np.random.default_rng(11), f"u{np.dtype(dtype).itemsize}"
    any_bits = rng.integers(0, np.iinfo(bits).max, 20000, bits, endpoint=True)
    small = any_bits & ~np.array(np.inf, dtype).view(bits)
    a = np.concatenate([any_bits.view(dtype), small.view(dtype), arguments("exp", dtype)[0]])
    b = rng.integers(-2500, 2500, len(a)) // rng.choice([1, 8, 99], len(a))
    want = {"ldexp": np.ldexp(a, b), "mantissa": np.frexp(a)[0]}
    want["exponent"] = np.where(np.isfinite(a), np.frexp(a)[1], 0)
    for library in libraries.values():
        for name, exact in want.items():
            assert same(run(library, name, a, b.astype(dtype)), exact.astype(dtype)), name
