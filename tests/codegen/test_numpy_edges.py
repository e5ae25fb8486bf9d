"""NumPy at its edges: dims of 1 in einsum, clips beyond a type, wide pads, weak numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import spmd
from codegen.oracle import interpret

# mypy: ignore-errors

pytestmark = pytest.mark.one_mpi

SUMS = ["ti,ti->", "ti,ti->i", "ti,tj->ij", "ti,ti->ti", "ti,ti->it"]
LIMITS = [(-5, 300), (-1, 3), (2, None), (None, 300), (0, 255), (None, None), (4, 256)]
WIDTHS = [(2, 2), (5, 0), (7, 9), (0, 16)]


def sums(x: Any, y: Any) -> Any:
    return [np.einsum(text, x, y) for text in SUMS] + [np.einsum("ab,bc,cd", x, y.T, y[:, :1])]


def clips(x: Any) -> Any:
    return [np.clip(x, low, high) for low, high in LIMITS if (low, high) != (None, None)] + [
        np.clip(x.astype(np.int8), -200, 200), x.clip(-1, 3)]


def pads(x: Any) -> Any:
    return [np.pad(x, (width, (1, 0)), mode=mode, reflect_type="odd")
            for width in WIDTHS for mode in ("reflect", "symmetric")] + [
        np.pad(x[:1], (9, 3), mode="reflect", reflect_type="odd")]


def pooled(x: Any) -> Any:
    rows = (x > 2).reshape(1, -1, 1)
    return spmd.nn.max_pool(rows, 2, padding="SAME"), spmd.nn.max_pool(rows, 3, padding="SAME")


@spmd.program(mesh=("r",))
def edges():
    u = spmd.input("u", (6,), np.uint8, layout=("r",))
    i = spmd.input("i", (3, 2), np.int64, layout=("r", None))
    f = spmd.input("f", (3, 2), np.float64)
    x, y = (spmd.input(k, (n, 2), np.float64) for k, n in (("x", 10), ("y", 1)))
    return {"sums": sums(x, y), "clips": clips(u), "ints": pads(i), "floats": pads(f),
            "pools": pooled(f.reshape(6))}


def test_numpys_edges():
    given = {"u": np.arange(6).astype(np.uint8) * 50, "i": np.arange(6).reshape(3, 2) ** 2,
             "f": np.array([[0.5, 3], [7, -2], [1, 9]]), "x": np.cos(np.arange(20)).reshape(10, 2),
             "y": np.array([[2.0, 3.0]])}
    wanted = {"sums": sums(given["x"], given["y"]), "clips": clips(given["u"]),
              "ints": pads(given["i"]), "floats": pads(given["f"]),
              "pools": [np.array([[[True], [True], [True]]]), np.array([[[True], [True]]])]}
    image = spmd.build(edges)
    for found in (edges.eager(**given), *(image.run(ranks=n, **given) for n in (1, 3, 5))):
        for name, arrays in wanted.items():
            for got, want in zip(found[name], arrays, strict=True):
                np.testing.assert_allclose(got, want, 1e-13, err_msg=name)
                assert np.asarray(got).dtype == np.asarray(want).dtype, name


def test_pads_keep_infinities_where_they_are():
    @spmd.program
    def padded():
        x = spmd.input("x", (3,), np.float64)
        return np.pad(x, (7, 2), mode="reflect", reflect_type="odd")

    x = np.array([1.0, 2.0, np.inf])
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(np.pad(x, (7, 2), mode="reflect", reflect_type="odd"))
    assert np.array_equal(np.isfinite(spmd.build(padded).run(x=x)), finite)


WEAK = {
    "product": lambda x: x * 0.5, "sum": lambda x: 1 + x, "quotient": lambda x: 1.0 / x,
    "square": lambda x: x**2.0, "cube": lambda x: x**3, "root": lambda x: x**0.5,
    "where": lambda x: np.where(x > 1, x, 0.1), "clip": lambda x: np.clip(x, 0.1, 2),
    "largest": lambda x: np.maximum(x, 0.1), "spmd": lambda x: spmd.nn.gelu(x),
}


def test_pythons_numbers_take_the_type_of_bfloat16_too():
    @spmd.program
    def weak():
        x = spmd.input("x", (5,), "bfloat16")
        s = spmd.scalar("s", 0.1)
        return {**{name: f(x) for name, f in WEAK.items()}, "scalar": x * s}

    x = np.array([0.1, 1, 1.5, 2.25, 300]).astype(ml_dtypes.bfloat16)
    found, eager = spmd.build(weak).run(x=x), weak.eager(x=x)
    for name in found:
        assert found[name].dtype == eager[name].dtype == "bfloat16", name
        assert np.array_equal(found[name], eager[name]), name


def test_rows_of_a_reshaped_array_are_taken_at_positions_that_data_decides():
    """A row lies in several runs of what was reshaped; where they begin is known within it only."""
    @spmd.program(mesh=("r",))
    def taken():
        x = spmd.input("x", (3, 2, 20, 16), np.float64, layout=(None, "r", None, None))
        at = spmd.input("at", (2, 30, 1), np.int64, layout=("r", None, None))
        rows = x.swapaxes(0, 1).reshape(2, 60, 16)
        found = np.take_along_axis(rows, at, 1)
        return found, spmd.grad(lambda x: np.sum(np.take_along_axis(
            x.swapaxes(0, 1).reshape(2, 60, 16), at, 1) ** 2))(x)

    rng = np.random.default_rng(2)
    x, at = rng.normal(size=(3, 2, 20, 16)), rng.integers(0, 60, (2, 30, 1))
    wanted = np.take_along_axis(x.swapaxes(0, 1).reshape(2, 60, 16), at, 1)
    for ranks in (1, 2, 3):
        found, slope = spmd.build(taken).run(ranks=ranks, x=x, at=at)
        assert np.array_equal(found, wanted)
        np.testing.assert_allclose(np.sum(slope * x), 2 * np.sum(wanted**2))


def test_an_integer_that_a_float_would_round_is_refused(tmp_path):
    @spmd.program
    def same():
        return spmd.input("x", (3,), np.float64) * 1

    image = spmd.build(same)
    exact = np.array([2**53, -(2**53), 3 << 60])
    assert image.run(x=exact).tolist() == exact.tolist()
    for lost in (2**53 + 1, -(2**53) - 1, 2**62 + 1):
        for run in (image.run, same.eager):
            with pytest.raises(spmd.InputError, match=f"would be rounded.* {lost}"):
                run(x=np.array([1, lost, 2]))
    with pytest.raises(spmd.InputError, match="would be rounded"):
        image.run(x=np.array([1, 2, 2**64 - 1], np.uint64))


def test_steps_of_bfloat16():
    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (12,), "bfloat16")
        return np.spacing(x), np.nextafter(x, np.inf), np.nextafter(x, -np.inf)

    edges = [-1, 1, -0.0, 0, 2**-126, -(2.0**-126), 2.0**-133, np.inf, -np.inf, np.nan, 3e38, 1.5]
    x = np.array(edges, ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        expected = program.eager(x=x)
    for found, e in zip(interpret.run(program.capture(), {"r": 1}, {"x": x}).values(), expected):
        assert found.dtype == e.dtype
        np.testing.assert_array_equal(found.astype(float), e.astype(float))
