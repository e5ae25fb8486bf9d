"""Rounding to float32 and to halves, under users' flags: what is rounded stays so.

gcc -O3 drops a conversion there and back of two lanes, in loops short or long.
"""

from __future__ import annotations

import numpy as np
import pytest

import spmd

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
