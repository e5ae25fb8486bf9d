"""Products of matrices as images call them, sgemm and dgemm: the engine's tiles beside NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from spmd.engine import ffi, lib
from spmd.launch import routines

TYPES = {"sgemm": (np.float32, "float"), "dgemm": (np.float64, "double")}
PLAIN, TRANSPOSED = 111, 112
# Rows around what a tile holds; columns around one and two registers; terms around a block of them.
SHAPES = [(1, 1, 1), (3, 700, 33), (12, 300, 520), (13, 256, 512), (25, 257, 47), (40, 513, 96),
          (64, 600, 10), (100, 255, 100), (400, 90, 70), (7, 1000, 513)]


def gemm(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, ways: tuple[bool, bool],
         alpha: float = 1.0, beta: float = 0.0) -> None:
    """Call a routine as an image does. a and b lie as `ways` says: transposed or not."""
    _, real = TYPES[name]
    matrix = f"const {real} *"
    kind = f"void(*)(int,int,int,int,int,int,{real},{matrix},int,{matrix},int,{real},{real} *,int)"
    call = ffi.cast(kind, routines.address("openblas", name))

    def at(x: np.ndarray) -> Any:
        return ffi.cast(f"{real} *", x.ctypes.data)

    k = a.shape[0] if ways[0] else a.shape[1]
    call(101, *(TRANSPOSED if way else PLAIN for way in ways), *c.shape, k, alpha,
         at(a), a.strides[0] // a.itemsize, at(b), b.strides[0] // b.itemsize, beta,
         at(c), c.strides[0] // c.itemsize)


def inside(x: np.ndarray) -> np.ndarray:
    """The same matrix inside a wider one, whose other elements are NaN."""
    wide = np.full((x.shape[0], x.shape[1] + 5), np.nan, x.dtype)
    wide[:, :x.shape[1]] = x
    return wide[:, :x.shape[1]]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("ways", list(itertools.product((False, True), repeat=2)))
def test_products_are_numpys(name: str, ways: tuple[bool, bool]) -> None:
    dtype, rng = TYPES[name][0], np.random.default_rng(1)
    for m, k, n in SHAPES:
        a, b, c = (rng.normal(size=s).astype(dtype) for s in ((m, k), (k, n), (m, n)))
        lies = [inside(np.ascontiguousarray(x.T if way else x)) for x, way in zip((a, b), ways)]
        exact = a.astype(np.float64) @ b.astype(np.float64)
        bound = 4 * np.finfo(dtype).eps * np.sqrt(k) * (1 + np.abs(a) @ np.abs(b))
        for alpha, beta in ((1, 0), (-1, 1), (0.5, 1), (2, 0.25)):
            out = inside(c if beta else np.full_like(c, np.nan))
            gemm(name, *lies, out, ways, alpha, beta)
            expected = alpha * exact + (beta * c if beta else 0)
            assert (np.abs(out - expected) <= bound).all(), (m, k, n, alpha, beta)
            assert np.isnan(out.base[:, n:]).all()  # nothing is written beside the result


@pytest.mark.parametrize("name", TYPES)
def test_bits_do_not_depend_on_how_rows_and_columns_are_divided(name: str) -> None:
    """A rank computes the same bits of its part of a product as one rank does of the whole."""
    routines.openblas()
    blas = lib.spmd_library_symbol(routines._openblas, f"scipy_cblas_{name}".encode())
    if routines.address("openblas", name) == blas:
        pytest.skip("this processor has no AVX2: OpenBLAS computes all products")
    dtype, rng = TYPES[name][0], np.random.default_rng(2)
    a, b = (rng.normal(size=s).astype(dtype) for s in ((300, 600), (600, 330)))
    whole = np.empty((300, 330), dtype)
    gemm(name, a, b, whole, (False, False))
    for rows, columns in ((slice(0, 97), slice(0, 330)), (slice(97, 300), slice(90, 200)),
                          (slice(5, 29), slice(201, 330))):
        part = np.empty_like(whole[rows, columns])
        gemm(name, a[rows], b[:, columns], part, (False, False))
        np.testing.assert_array_equal(part, whole[rows, columns])


def test_what_is_not_finite_stays_where_it_is() -> None:
    a, b = np.ones((64, 300), np.float32), np.ones((300, 64), np.float32)
    a[3, 7], b[20, 63] = np.nan, np.inf
    out = np.empty((64, 64), np.float32)
    gemm("sgemm", a, b, out, (False, False))
    expected = np.full((64, 64), 300, np.float32)
    expected[:, 63], expected[3] = np.inf, np.nan
    np.testing.assert_array_equal(out, expected)
