"""Under users' flags the C compiler keeps what C says: rounding to float32 and to halves, whatever
is done with it afterwards (gcc -O3 drops a conversion there and back of two lanes); short rows.
"""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

import spmd
from codegen.image import link, target

pytestmark = pytest.mark.usefixtures("users_cc")
LENGTHS = range(1, 10)
DTYPES = {"f16": np.float16, "f32": np.float32}


@spmd.program(mesh=("r",))
def rounded():
    out = {}
    for n in LENGTHS:
        x = spmd.input(f"x{n}", (n,), np.float64)
        z = spmd.input(f"z{n}", (n,), np.complex128)
        for name, kind in DTYPES.items():
            out[f"cast {name} {n}"] = x.astype(kind).astype(np.float64)
            out[f"product {name} {n}"] = (x * x).astype(kind).astype(np.float64) - x
        out[f"complex {n}"] = z.astype(np.complex64).astype(np.complex128)
        single = x.astype(np.float32)
        out[f"hypot {n}"] = np.hypot(single, single).astype(np.float64)
        out[f"stored {n}"] = single * 1
        out[f"read {n}"] = np.sqrt(single).astype(np.float64) + single
    return out


def test_what_is_rounded_stays_rounded():
    image = spmd.build(rounded)
    rng = np.random.default_rng(3)
    given = {f"x{n}": rng.random(n) for n in LENGTHS}
    given |= {f"z{n}": rng.random(n) + 1j * rng.random(n) for n in LENGTHS}
    found = image.run(ranks=1, **given)
    for n in LENGTHS:
        x, z = given[f"x{n}"], given[f"z{n}"]
        for name, kind in DTYPES.items():
            single = x.astype(kind).astype(np.float64)
            np.testing.assert_array_equal(found[f"cast {name} {n}"], single)
            product = (x * x).astype(kind).astype(np.float64) - x
            np.testing.assert_array_equal(found[f"product {name} {n}"], product)
        np.testing.assert_array_equal(
            found[f"complex {n}"], z.astype(np.complex64).astype(np.complex128))
        single = x.astype(np.float32)
        np.testing.assert_array_equal(
            found[f"read {n}"], np.sqrt(single).astype(np.float64) + single)
        hypot = found[f"hypot {n}"]  # a float32, in float64
        np.testing.assert_array_equal(hypot, hypot.astype(np.float32))


MEANS = """
#include <stdint.h>

void means(double *restrict across, const double *restrict c, double *restrict along,
           double *restrict sums)
{
    for (int64_t i = 0; i < 8; i++)
        for (int64_t j = 0; j < 7; j++)
            across[7 * i + j] = 2.0 / (1.0 / c[9 * i + j + 10] + 1.0 / c[9 * i + j + 1]);
    for (int64_t i = 0; i < 7; i++)
        for (int64_t j = 0; j < 8; j++)
            along[8 * i + j] = 2.0 / (1.0 / c[9 * i + j + 10] + 1.0 / c[9 * i + j + 9]);
    for (int64_t i = 0; i < 7; i++)
        for (int64_t j = 0; j < 7; j++)
            sums[7 * i + j] = across[7 * i + j + 7] + across[7 * i + j]
                + along[8 * i + j + 1] + along[8 * i + j];
}
"""


def test_short_rows_are_computed_right(tmp_path):
    """gcc 12.2 gives one wrong element for them at -O3 with vectors of 512 bits."""
    (tmp_path / "means.c").write_text(MEANS)
    flags = [flag for flag in link.FLAGS if "visibility" not in flag]
    subprocess.run([*link.compiler(), *flags, f"-march={target.native()}", "-shared", "-o",
                    tmp_path / "means.so", tmp_path / "means.c"], check=True)
    c = np.arange(1.0, 82.0).reshape(9, 9)
    across, along, sums = np.zeros((8, 7)), np.zeros((7, 8)), np.zeros((7, 7))
    ctypes.CDLL(tmp_path / "means.so").means(*(
        ctypes.c_void_p(x.ctypes.data) for x in (across, c, along, sums)))
    expected = (2 / (1 / c[1:] + 1 / c[:-1]))[:, 1:-1], (2 / (1 / c[:, 1:] + 1 / c[:, :-1]))[1:-1]
    np.testing.assert_allclose(across, expected[0], 1e-15)
    np.testing.assert_allclose(along, expected[1], 1e-15)
    np.testing.assert_allclose(sums, across[1:] + across[:-1] + along[:, 1:] + along[:, :-1], 1e-15)
