"""Every row of FUNCTIONS, compiled from its C template, against NumPy; casts, sort, text."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from codegen.dtypes import BY_NAME, DType
from codegen.emit.expressions import applied, single
from codegen.emit.image import lane_lines
from codegen.functions import FUNCTIONS, Function
from codegen.functions import SPECIAL as OF_SCIPY
from codegen.oracle.common import value_text
from tests.conftest import PATIENCE

CSRC = Path(__file__).resolve().parents[2] / "csrc"
FLAGS = (
    "-std=c11 -O3 -fPIC -shared -fvisibility=default -ffp-contract=off -fwrapv -fcx-fortran-rules "
    "-fno-math-errno -fno-trapping-math -Wall -Wextra -Wshadow -Werror"
).split()

SUFFIX = {
    "bool": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16", "uint32": "u32", "uint64": "u64", "float32": "f32", "float64": "f64",
    "complex64": "c64", "complex128": "c128",
}
TYPES = [BY_NAME[name] for name in SUFFIX]

# Within how many units in the last place of NumPy's result; all other functions: to the bit.
LIBM = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh " \
       "acosh atanh cbrt pow hypot atan2 logaddexp".split()
SPECIAL = [*OF_SCIPY.split(), "zeta"]
ULPS = 8


@pytest.fixture(scope="module")
def compiled(once: Callable[..., Path]) -> Callable[[str, str], ctypes.CDLL]:
    """compiled(name, source): a library, compiled under the flags that images are compiled with."""

    def build(name: str, source: str) -> ctypes.CDLL:
        def make(library: Path) -> None:
            file = library.with_name(f"{name}.c")
            file.write_text(source)
            command = ["cc", *FLAGS, f"-I{CSRC}", str(file), "-o", str(library), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
            assert done.returncode == 0, done.stderr

        return ctypes.CDLL(str(once(f"{name}.so", make)))

    return build


def loop_exists(fn: Function, dtype: DType) -> bool:
    """NumPy has a loop of this function for operands of this dtype that gives our result type."""
    if fn.arity == 3 or fn.name == "cast":  # no ufuncs; tested by the programs that use them
        return False
    if fn.result == "other":
        return dtype.size >= 4 and dtype.kind == ("f" if fn.name == "order_key" else "i")
    if not isinstance(fn.numpy, np.ufunc):
        return dtype.kind == ("f" if fn.header else "c")
    if fn.ufunc in SPECIAL and dtype.kind == "c":
        return False
    char = np.dtype(dtype.name).char
    result = np.dtype(fn.result_dtype(dtype).name).char
    return f"{char * fn.arity}->{result}" in fn.numpy.types


ROWS = [(fn, dtype) for fn in FUNCTIONS.values() for dtype in TYPES if loop_exists(fn, dtype)]


def c_loop(fn: Function, dtype: DType) -> str:
    result = fn.result_dtype(dtype)
    operands = (single("a[i]"), single("b[i]"))[: fn.arity]
    text = applied(fn.form(dtype), operands, SUFFIX[dtype.name])[0]
    return (
        f"void test_{fn.name}_{dtype}(const {dtype.c} *a, const {dtype.c} *b, "
        f"{result.c} *out, int64_t n)\n"
        "{\n    (void)a, (void)b;\n    for (int64_t i = 0; i < n; i++)\n"
        f"        out[i] = {text};\n}}\n"
    )


@pytest.fixture(scope="module")
def loops(compiled: Callable[..., ctypes.CDLL]) -> ctypes.CDLL:
    headers = sorted({"spmd_support.h", *(fn.header for fn, _ in ROWS)} - {""})
    loops = "".join(c_loop(fn, dtype) for fn, dtype in ROWS)
    lines = [*(f'#include "{h}"' for h in headers), *lane_lines(loops), loops]
    return compiled("loops", "\n".join(lines))


def address(x: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def edge_values(dtype: DType) -> np.ndarray:
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype.name)
        near = {info.min, info.min + 1, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 32, 63, 64, info.max}
        return np.array(sorted(v for v in near if info.min <= v <= info.max), dtype.name)
    real = "float32" if dtype.name in ("float32", "complex64") else "float64"
    tiny, big = np.finfo(real).tiny, np.finfo(real).max
    edge = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, 3, -7, 1e-3, tiny, -tiny / 4, big, -big]
    edge += [np.inf, -np.inf, np.nan]
    if dtype.kind == "f":
        return np.array(edge, dtype.name)
    few = [0.0, -0.0, 1, -1, 0.5, -2.5, 3, 1e-3, np.inf, -np.inf, np.nan]
    return np.array([complex(re, im) for re in few for im in few], dtype.name)


def operands(fn: Function, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of edge values, then random ones."""
    edge = edge_values(dtype)
    if fn.name == "floordiv" and dtype.kind == "i":  # NumPy's own result varies with its loop
        edge = edge[1:]
    a, b = (x.ravel() for x in np.meshgrid(edge, edge))
    rng = np.random.default_rng(3)
    n = 1000
    if dtype.kind in "biu":
        more = [rng.integers(0, 256, n * dtype.size, np.uint8).view(dtype.name) for _ in "ab"]
        if dtype.kind == "b":
            more = [rng.integers(0, 2, n).astype(bool) for _ in "ab"]
    elif dtype.kind == "f":
        more = [(rng.normal(size=n) * 10 ** rng.uniform(-3, 3, n)).astype(dtype.name) for _ in "ab"]
    else:
        parts = rng.normal(size=(4, n)) * 10 ** rng.uniform(-2, 2, (4, n))
        more = [(parts[k] + 1j * parts[k + 2]).astype(dtype.name) for k in (0, 1)]
    a, b = np.concatenate([a, more[0]]), np.concatenate([b, more[1]])
    if fn.name == "pow" and dtype.kind in "iu":
        b = b % 9
        b = b.astype(dtype.name)
    return a, b


def units_apart(got: np.ndarray, want: np.ndarray, scale: np.ndarray) -> np.ndarray:
    both = np.isnan(got) & np.isnan(want) | (got == want)
    with np.errstate(all="ignore"):
        apart = np.abs(got.astype(np.float64) - want) / np.spacing(np.abs(scale))
    return np.where(both, 0, np.where(np.isfinite(apart), apart, np.inf))


def assert_same_bits(got: np.ndarray, want: np.ndarray, *inputs: np.ndarray) -> None:
    """Equal bits, except that any NaN equals any other."""
    parts = (got.view(got.real.dtype), want.view(want.real.dtype))
    bits = [np.ascontiguousarray(p).view(f"u{p.itemsize}") for p in parts]
    same = bits[0] == bits[1]
    if got.dtype.kind in "fc":
        same |= np.isnan(parts[0]) & np.isnan(parts[1])
    same = same.reshape(len(got), -1).all(axis=1)
    wrong = np.flatnonzero(~same)[:6]
    shown = [(*(x[k] for x in inputs), got[k], want[k]) for k in wrong]
    assert same.all(), f"{(~same).sum()} differ, (operands, got, want): {shown}"


@pytest.mark.parametrize("fn, dtype", ROWS, ids=lambda x: x.name)
def test_function_equals_numpy(loops: ctypes.CDLL, fn: Function, dtype: DType) -> None:
    a, b = operands(fn, dtype)
    out = np.zeros(len(a), fn.result_dtype(dtype).name)
    call = getattr(loops, f"test_{fn.name}_{dtype}")
    call(address(a), address(b), address(out), ctypes.c_int64(len(a)))
    with np.errstate(all="ignore"):
        want = fn.numpy(*((a, b)[: fn.arity])).astype(out.dtype)
    if fn.name == "reciprocal" and dtype.kind in "iu":
        want[a == 0] = 0  # NumPy casts infinity, which is another value for each width
    if fn.name in SPECIAL:  # scipy's own differ in the last bits, and for huge and tiny arguments
        usual = (np.abs(a) < 80) & ~(np.abs(a) < 1e-30) | (a == 0) | ~np.isfinite(a)
        tolerance = 1e-12 if dtype.size == 8 else 1e-6
        usual &= (np.isfinite(a) & ~np.isnan(b)) | (fn.arity == 1)  # of zeta scipy gives anything
        np.testing.assert_allclose(out[usual], want[usual], rtol=tolerance, atol=tolerance / 100)
        return
    if fn.name in ("maximum", "minimum", "fmax", "fmin"):
        zero = (a == 0) & (b == 0)  # of 0.0 and -0.0 NumPy's loops give either
        out, want = out[~zero], want[~zero]
        assert_same_bits(out, want)
        return
    if fn.name in LIBM and dtype.kind in "f":
        apart = units_apart(out, want, want)
        worst = int(apart.argmax())
        assert apart[worst] <= ULPS, (a[worst], b[worst], out[worst], want[worst])
        assert (np.signbit(out) == np.signbit(want))[want == 0].all()
    elif dtype.kind == "c" and fn.name in (*LIBM, "sqrt", "abs", "sign", "mul", "square"):
        # NumPy multiplies with fused operations where the machine has them
        assert_complex_close(out, want, a, b)
    else:
        assert_same_bits(out, want, a, b)


def assert_complex_close(out: np.ndarray, want: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Parts relative to the size of the number; where infinities and NaNs meet, NumPy and C's own
    library agree on which parts are finite."""
    finite = np.isfinite(want) & np.isfinite(out) & np.isfinite(a) & np.isfinite(b)
    scale = np.abs(want[finite].astype(np.complex128)).astype(want.real.dtype)
    for part in ("real", "imag"):
        got, wanted = getattr(out, part)[finite], getattr(want, part)[finite]
        apart = units_apart(got, wanted, scale)
        if len(apart):
            worst = int(apart.argmax())
            ok = apart[worst] <= 64 or np.isinf(scale[worst])
            assert ok, (a[finite][worst], b[finite][worst], got[worst], wanted[worst])
    assert finite.sum() > 0.25 * len(out)


# ---- casts ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def casts(compiled: Callable[..., ctypes.CDLL]) -> ctypes.CDLL:
    out = ['#include "spmd_support.h"\n']
    for a in TYPES:
        for b in TYPES:
            to = "b" if b.name == "bool" else SUFFIX[b.name]
            out.append(
                f"void cast_{a}_{b}(const {a.c} *x, {b.c} *y, int64_t n) "
                f"{{ for (int64_t i = 0; i < n; i++) "
                f"y[i] = spmd_cast_{SUFFIX[a.name]}_{to}(x[i]); }}\n"
            )
    return compiled("casts", "".join(out))


@pytest.mark.parametrize("a", TYPES, ids=str)
@pytest.mark.parametrize("b", TYPES, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_cast_equals_numpy(casts: ctypes.CDLL, a: DType, b: DType) -> None:
    x = edge_values(a)
    if a.kind in "fc":
        far = [300.7, -300.2, 70000, -70000, 3e9, -3e9, 1e19, -1e19, 2**31, -(2**31), 2**63, 2**62]
        x = np.concatenate([x, np.array(far, a.name)])
    x = np.tile(x, 5)
    out = np.zeros(len(x), b.name)
    getattr(casts, f"cast_{a}_{b}")(address(x), address(out), ctypes.c_int64(len(x)))
    assert_same_bits(out, x.astype(b.name), x)


def test_cast_out_of_range_is_fixed(casts: ctypes.CDLL) -> None:
    """What C leaves undefined has one value on every machine."""
    x = np.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31) - 0.5, 2.0**80])
    out = np.zeros(len(x), np.int32)
    casts.cast_float64_int32(address(x), address(out), ctypes.c_int64(len(x)))
    least = -(2**31)
    assert out.tolist() == [least] * 6


# ---- float16 and bfloat16 ------------------------------------------------------------------------

HALF = """#include "spmd_support.h"
void load16(const spmd_float16 *x, float *y, int64_t n)
{ for (int64_t i = 0; i < n; i++) y[i] = spmd_float16_load(x[i]); }
void store16(const float *x, spmd_float16 *y, int64_t n)
{ for (int64_t i = 0; i < n; i++) y[i] = spmd_float16_store(x[i]); }
void store16d(const double *x, spmd_float16 *y, int64_t n)
{ for (int64_t i = 0; i < n; i++) y[i] = spmd_float16_store_f64(x[i]); }
void loadb(const spmd_bfloat16 *x, float *y, int64_t n)
{ for (int64_t i = 0; i < n; i++) y[i] = spmd_bfloat16_load(x[i]); }
void storeb(const float *x, spmd_bfloat16 *y, int64_t n)
{ for (int64_t i = 0; i < n; i++) y[i] = spmd_bfloat16_store(x[i]); }
"""


@pytest.fixture(scope="module")
def halves(compiled: Callable[..., ctypes.CDLL]) -> ctypes.CDLL:
    return compiled("halves", HALF)


@pytest.mark.parametrize("name, dtype", [("16", np.float16), ("b", ml_dtypes.bfloat16)])
def test_half_loads_every_value(halves: ctypes.CDLL, name: str, dtype: type) -> None:
    x = np.arange(65536, dtype=np.uint16)
    out = np.zeros(65536, np.float32)
    getattr(halves, f"load{name}")(address(x), address(out), ctypes.c_int64(65536))
    assert_same_bits(out, x.view(dtype).astype(np.float32))


def near_ties(dtype: type) -> np.ndarray:
    """Every half value, the midpoints between neighbours, and floats just beside both."""
    x = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
    x = x[np.isfinite(x)]
    ordered = np.unique(x)
    middle = (ordered[1:].astype(np.float64) + ordered[:-1]) / 2
    base = np.concatenate([x, middle.astype(np.float32), [np.float32(3e38), np.inf, np.nan]])
    with np.errstate(over="ignore"):
        beside = [np.nextafter(base, s) for s in (np.float32(-np.inf), np.float32(np.inf))]
    bits = np.random.default_rng(1).integers(0, 2**32, 50000, np.uint32).view(np.float32)
    return np.concatenate([base, *beside, bits]).astype(np.float32)


@pytest.mark.parametrize("name, dtype", [("16", np.float16), ("b", ml_dtypes.bfloat16)])
@pytest.mark.filterwarnings("ignore")
def test_half_store_rounds_to_nearest_even(halves: ctypes.CDLL, name: str, dtype: type) -> None:
    x = near_ties(dtype)
    out = np.zeros(len(x), np.uint16)
    getattr(halves, f"store{name}")(address(x), address(out), ctypes.c_int64(len(x)))
    got, want = out.view(dtype), x.astype(dtype)
    nan = np.isnan(x)
    assert np.isnan(got[nan].astype(np.float32)).all()
    assert np.array_equal(out[~nan], want.view(np.uint16)[~nan])


@pytest.mark.filterwarnings("ignore")
def test_float16_from_double_rounds_once(halves: ctypes.CDLL) -> None:
    near = near_ties(np.float16).astype(np.float64)
    x = np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf), [1e300]])
    out = np.zeros(len(x), np.uint16)
    halves.store16d(address(x), address(out), ctypes.c_int64(len(x)))
    keep = ~np.isnan(x)
    assert np.array_equal(out[keep], x.astype(np.float16).view(np.uint16)[keep])


# ---- sorting -------------------------------------------------------------------------------------

SORTED = {n: s for n, s in SUFFIX.items() if n != "bool" and "float" not in n}


ROWS_OF = """
void merge_TYPE(void *a, void *b, int64_t side, void *out, int64_t rows, int64_t n)
{ spmd_merge_rows_TYPE(a, b, side, out, rows, n); }
void placed_TYPE(void *a, void *b, int64_t *p, int64_t *q, int64_t side, void *out, int64_t *at,
                 int64_t rows, int64_t n)
{ spmd_merge_placed_TYPE(a, b, p, q, side, out, at, rows, n); }
void partition_TYPE(void *x, int64_t *places, int64_t many, int64_t rows, int64_t n)
{ spmd_partition_rows_TYPE(x, places, many, rows, n); }
void search_TYPE(void *row, void *values, int64_t right, int64_t *out, int64_t n, int64_t many)
{ spmd_search_TYPE(row, values, right, out, n, many); }
"""


@pytest.fixture(scope="module")
def sorts(compiled: Callable[..., ctypes.CDLL]) -> ctypes.CDLL:
    source = '#include "spmd_rows.h"\n' + "".join(
        f"void sort_{s}(void *x, void *spare, int64_t n) {{ spmd_sort_lane_{s}(x, spare, n); }}\n"
        f"void argsort_{s}(const void *x, int64_t n, int64_t *out, int64_t *scratch) "
        f"{{ spmd_argsort_lane_{s}(x, n, out, scratch); }}\n"
        for s in SORTED.values()
    ) + "".join(ROWS_OF.replace("TYPE", s) for s in ("i8", "u16", "i64", "u64"))
    return compiled("sorts", source)


def lanes(dtype: np.dtype) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    out = []
    for n in (0, 1, 2, 3, 15, 16, 17, 33, 100, 1000, 5000):
        few, many = rng.integers(0, 5, n), rng.integers(0, 100, n)
        shapes = [few, many, np.sort(many), np.sort(many)[::-1], few * 0]
        if dtype.kind in "iu":
            shapes.append(rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype))
        if dtype.kind in "fcV":
            shapes.append(np.where(few == 0, np.nan, many - 50.0))
        if dtype.kind == "c":
            shapes = [s + 1j * rng.permutation(s) for s in shapes]
            shapes.append(np.where(few == 0, np.nan, 1) + 1j * np.where(few == 1, np.nan, many))
        out += [s.astype(dtype) for s in shapes]
    return out


@pytest.mark.parametrize("name", SORTED)
@pytest.mark.filterwarnings("ignore")
def test_sort_equals_numpy(sorts: ctypes.CDLL, name: str) -> None:
    dtype = np.dtype(name)
    for lane in lanes(dtype):
        n = ctypes.c_int64(len(lane))
        out, scratch = np.zeros(len(lane), np.int64), np.zeros(4 * len(lane), np.int64)
        getattr(sorts, f"argsort_{SORTED[name]}")(address(lane), n, address(out), address(scratch))
        assert np.array_equal(out, np.argsort(lane, kind="stable"))
        got = lane.copy()
        getattr(sorts, f"sort_{SORTED[name]}")(address(got), address(scratch), n)
        want = lane[np.argsort(lane, kind="stable")]
        parts = [x.view(x.real.dtype) if x.dtype.kind == "c" else x for x in (got, want)]
        assert np.array_equal(*parts, equal_nan=dtype.kind in "fcV")


def test_partition_of_a_hostile_lane_stays_fast(sorts: ctypes.CDLL) -> None:
    """A lane that makes the median of three bad at each step would take n^2 = 4e10 steps."""
    n = 200_000
    half = n // 2
    lane = np.empty(n, np.int64)
    lane[:half:2], lane[1:half:2] = np.arange(0, half, 2), np.arange(half + 1, n, 2)
    lane[half:] = np.arange(half) * 2
    want = np.sort(lane)
    places = np.array([half])
    one, many = ctypes.c_int64(1), ctypes.c_int64(n)
    sorts.partition_i64(address(lane), address(places), one, one, many)
    assert lane[half] == want[half]


@pytest.mark.parametrize("name", ["int8", "uint16", "int64", "uint64"])
def test_rows_equal_numpy(sorts: ctypes.CDLL, name: str) -> None:
    """Merged halves, with places and without; partitions; places of values."""
    rng, s = np.random.default_rng(5), SUFFIX[name]
    for n, most in itertools.product((0, 1, 2, 3, 4, 5, 8, 33, 100), (2, 100)):
        a, b = np.sort(rng.integers(0, most, (2, 2, n)), axis=-1).astype(name)
        at = np.argsort(rng.random((2, 2 * n)), axis=-1)
        p, q = at[:, :n].copy(), at[:, n:].copy()
        for rows, places in ((a, p), (b, q)):  # equal ones in the order of places
            order = np.lexsort([places, rows], -1)
            places[:] = np.take_along_axis(places, order, -1)
        both, where = np.concatenate([a, b], -1), np.concatenate([p, q], -1)
        order = np.lexsort([where, both], -1)
        size = [ctypes.c_int64(k) for k in (2, n)]
        out, into = np.empty_like(a), np.empty_like(p)
        for side, part in ((1, slice(0, n)), (2, slice(n, None)), (0, None)):
            want = a if part is None else np.take_along_axis(both, order[:, part], -1)
            getattr(sorts, f"merge_{s}")(address(a), address(b), ctypes.c_int64(side),
                                         address(out), *size)
            assert np.array_equal(out, want)
            getattr(sorts, f"placed_{s}")(*map(address, (a, b, p, q)), ctypes.c_int64(side),
                                          address(out), address(into), *size)
            want_at = p if part is None else np.take_along_axis(where, order[:, part], -1)
            assert np.array_equal(out, want) and np.array_equal(into, want_at)
        values = rng.integers(0, most, 50).astype(name)
        found = np.empty(50, np.int64)
        for right in (0, 1):
            getattr(sorts, f"search_{s}")(address(a), address(values), ctypes.c_int64(right),
                                          address(found), ctypes.c_int64(n), ctypes.c_int64(50))
            assert np.array_equal(found, np.searchsorted(a[0], values, ("left", "right")[right]))
        if n:
            x = rng.integers(0, most, (2, n)).astype(name)
            k = np.sort(rng.integers(0, n, (2, 3)), axis=-1)
            want = np.take_along_axis(np.sort(x, axis=-1), k, -1)
            getattr(sorts, f"partition_{s}")(address(x), address(k), ctypes.c_int64(3), *size)
            assert np.array_equal(np.take_along_axis(x, k, -1), want)
            assert all(x[r, : i + 1].max() <= x[r, i:].min() for r in (0, 1) for i in k[r])


# ---- text ----------------------------------------------------------------------------------------

PRINT = """#include "spmd_print.h"
int64_t text_f64(const char *spec, double x, char *out, int64_t n)
{ char *at = out; spmd_print_f64(&at, out + n, spec, x); return at - out; }
int64_t text_c128(const char *spec, double re, double im, char *out, int64_t n)
{ char *at = out; spmd_print_c128(&at, out + n, spec, re, im); return at - out; }
int64_t text_f32(const char *spec, double x, char *out, int64_t n)
{ return text_f64(spec, spmd_short(spec, x, 24), out, n); }
int64_t text_f16(const char *spec, double x, char *out, int64_t n)
{ return text_f64(spec, spmd_short(spec, x, 11), out, n); }
int64_t text_bf16(const char *spec, double x, char *out, int64_t n)
{ return text_f64(spec, spmd_short(spec, x, 8), out, n); }
int64_t text_i64(const char *spec, int64_t x, char *out, int64_t n)
{ char *at = out; spmd_print_i64(&at, out + n, spec, x); return at - out; }
int64_t text_u64(const char *spec, uint64_t x, char *out, int64_t n)
{ char *at = out; spmd_print_u64(&at, out + n, spec, x); return at - out; }
int64_t text_bool(const char *spec, int x, char *out, int64_t n)
{ char *at = out; spmd_print_bool(&at, out + n, spec, x); return at - out; }
int64_t text_text(const char *spec, const char *x, char *out, int64_t n)
{ char *at = out; spmd_print_text(&at, out + n, spec, x); return at - out; }
"""
C_TYPES = {
    **dict.fromkeys(("f64", "f32", "f16", "bf16"), [ctypes.c_double]),
    "c128": [ctypes.c_double] * 2, "i64": [ctypes.c_int64],
    "u64": [ctypes.c_uint64], "bool": [ctypes.c_int], "text": [ctypes.c_char_p],
}


class Printer:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __call__(self, kind: str, spec: str, *values: object, room: int = 8192) -> str:
        out = ctypes.create_string_buffer(room + 8)
        function = getattr(self.library, f"text_{kind}")
        function.argtypes = [ctypes.c_char_p, *C_TYPES[kind], ctypes.c_char_p, ctypes.c_int64]
        function.restype = ctypes.c_int64
        n = function(spec.encode(), *values, out, room)
        assert out.raw[room:] == b"\0" * 8, "wrote past the end"
        return out.raw[:n].decode()


@pytest.fixture(scope="module")
def text(compiled: Callable[..., ctypes.CDLL]) -> Printer:
    return Printer(compiled("text", PRINT))


FLOATS = [0.0, -0.0, 0.1, 0.5, 1.0, -1.5, 100.0, 1e-7, 1e-5, 1e-4, 123456.789, 1e15, 1e16, 1e17,
          1.7976931348623157e308, 5e-324, 2.5e-320, 1 / 3, 2 / 3, 1e22, 123456789012345678.0,
          float("inf"), -float("inf"), float("nan")]
FLOAT_SPECS = ["", ".4f", "8.3f", "e", ".2e", "g", ".3g", "5.2%", ".0f", ">8", "<12", "^11", "+",
               " .2f", "010.3f", ",.2f", "*>9.1f", ".3", ".1", "G", "#g", "+.3e", "=+9.2f",
               "012,.1f", "_.1f", "20", ".17g"]


@pytest.mark.parametrize("spec", FLOAT_SPECS)
def test_float_text_is_pythons(text: Printer, spec: str) -> None:
    for x in FLOATS:
        assert text("f64", spec, x) == format(x, spec), x


def test_float_repr_of_random_bits(text: Printer) -> None:
    bits = np.random.default_rng(5).integers(0, 2**63, 3000, np.uint64).view(np.float64)
    decimal = np.round(np.random.default_rng(6).uniform(-1000, 1000, 3000), 3)
    for x in [*bits.tolist(), *decimal.tolist()]:
        got = text("f64", "", x)
        assert got == repr(x) or (float(got) == x and len(got) <= len(repr(x))), x


def test_narrow_floats_have_the_digits_of_their_type(text: Printer) -> None:
    draw = np.random.default_rng(5)
    for kind, dtype, short in (("f32", np.float32, "0.1"), ("f16", np.float16, "0.1"),
                               ("bf16", ml_dtypes.bfloat16, "0.1")):
        bits = draw.integers(0, 2 ** (8 * dtype(0).itemsize), 700, np.uint32)
        random = bits.astype(f"u{dtype(0).itemsize}").view(dtype)
        with np.errstate(all="ignore"):
            values = [*np.array(FLOATS).astype(dtype), *random, dtype(0.1)]
        for x in values:
            for spec in ("", ">12", ".4f", "e", "g"):
                assert text(kind, spec, float(x)) == value_text(x, spec), (x, spec)
            if kind != "bf16":  # NumPy has no digits of it
                assert float(text(kind, "", float(x))) == float(str(x)) or x != x, x
        assert text(kind, "", float(dtype(0.1))) == short
    assert value_text(np.complex64(0.1 - 0.2j), "") == "(0.1-0.2j)"


@pytest.mark.parametrize(
    "spec", ["", "d", ">8", "08d", "+d", ",", "x", "#x", "#X", "b", "#o", "^9", "_", "08,", ".2f",
             "e", "-<7d", "_b", "#010x", "%"]
)
def test_integer_text_is_pythons(text: Printer, spec: str) -> None:
    for x in (0, 1, -1, 7, 1234, -123456, 2**63 - 1, -(2**63)):
        assert text("i64", spec, x) == format(x, spec), x
    assert text("u64", spec, 2**64 - 1) == format(2**64 - 1, spec)


def test_bool_complex_and_text(text: Printer) -> None:
    for x in (True, False):
        for spec in ("", "d", ">4"):
            assert text("bool", spec, x) == format(x, spec)
    for z in (1 + 2j, 0.5 - 1e-7j, 2j, -1.5 + 0j, complex(-0.0, 1), complex("nan+infj")):
        for spec in ("", ".2f", ".3e", ">24"):
            assert text("c128", spec, z.real, z.imag) == format(z, spec), (z, spec)
    for spec in ("", "s", ">8", "^9", ".2", "*<6"):
        assert text("text", spec, b"loss") == format("loss", spec)


@pytest.mark.parametrize("room", range(9))
def test_text_is_cut_off_at_the_end(text: Printer, room: int) -> None:
    assert text("f64", ">12.4f", 3.25, room=room) == format(3.25, ">12.4f")[:room]
    assert text("f64", "4000.120f", 1e300, room=room) == format(1e300, "4000.120f")[:room]
    assert text("text", "", b"0123456789", room=room) == "0123456789"[:room]


APART = """#include "spmd_support.h"
int64_t test_apart(void *room, const void *other);
int64_t test_apart(void *room, const void *other)
{
    return (char *)spmd_apart(room, other) - (char *)room;
}
"""


def test_lines_that_wait_lie_apart(compiled: Callable[..., ctypes.CDLL]) -> None:
    """Loads do not agree with stores just before them in the low 12 bits of their addresses."""
    apart = compiled("apart", APART).test_apart
    apart.argtypes, apart.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int64
    base = 1 << 40
    for room in range(base, base + 4096, 520):
        for other in range(base - 4096 - room % 8, base + 4096, 1032):
            found = apart(room, other)
            assert 0 <= found < 4096 and (room + found - other) % 4096 == 1280


# Where results leave their range, or the reduction of operands takes another step.
TURNS = [0.0, 5e-324, 1e-45, 2e-308, 1e-38, 0.17, 0.3465, 0.3466, 0.5, 1.0, 9.0, 10.5, 22.5, 87.3,
         88.72283, 88.7229, 103.97, 103.98, 708.4, 709.782712893384, 709.7827128933841, 745.1332,
         745.1333, 1e300, np.inf, np.nan]


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize(("function", "most"), [("exp", 1.0), ("tanh", 2.5)])
def test_our_own_functions(loops: ctypes.CDLL, function: str, most: float, name: str) -> None:
    """Units in the last place of results of ten digits more; the same bits wherever they stand."""
    rng = np.random.default_rng(11)
    patterns = rng.integers(0, 256, 400_000, np.uint8).view(name)  # of all sizes
    sizes = [rng.uniform(-r, r, 50_000) for r in (1, 3, 20, 110, 750)]
    with np.errstate(all="ignore"):
        a = np.concatenate([patterns, *sizes, TURNS, np.negative(TURNS)]).astype(name)
        want = getattr(np, function)(a.astype(np.longdouble))
        unit = np.spacing(np.abs(want).astype(name)).astype(np.longdouble)
    got = np.empty_like(a)
    loop = getattr(loops, f"test_{function}_{name}")
    loop(address(a), address(a), address(got), ctypes.c_int64(a.size))
    with np.errstate(all="ignore"):
        rounded = want.astype(name)
        same = (got == rounded) | (np.isnan(got) & np.isnan(want))
        apart = np.where(same, 0, np.abs(got - want) / unit)
    assert np.nanmax(apart) <= most and not np.isnan(apart).any(), a[np.argmax(apart)]
    np.testing.assert_array_equal(np.signbit(got)[got == 0], np.signbit(rounded)[got == 0])
    part = np.empty(64, name)
    for begin in range(a.size - 100, a.size - 80):
        for size in range(1, 40):
            piece = a[begin : begin + size].copy()
            loop(address(piece), address(piece), address(part), ctypes.c_int64(size))
            bits = part[:size].view(np.uint8), got[begin : begin + size].view(np.uint8)
            assert np.array_equal(*bits), (begin, size)
