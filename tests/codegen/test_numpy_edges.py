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
                run(x=[1, lost, 2])
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


def test_eager_runs_refuse_what_a_type_does_not_hold():
    @spmd.program
    def same(dtype: str = "int8"):
        return spmd.input("x", (2,), dtype) * spmd.scalar("s", 1.0)

    for dtype, given in (("int8", [1, 300]), ("int64", [0.5, 1.0]), ("int64", [np.nan, 0.0]),
                         ("uint64", [-1, 2]), ("float64", [1j, 2]), ("float32", [1e300, 1]),
                         ("float64", ["1", "2"]), ("bool", [2, 1])):
        with pytest.raises(spmd.InputError, match="does not fit"):
            same.eager(dtype=dtype, x=np.array(given))
    assert same.eager(x=np.array([-128, 127])).tolist() == [-128, 127]
    with pytest.raises(spmd.UsageError, match="s cannot be"):
        same.eager(x=np.array([1, 2]), s=2**53 + 1)


# By what is wrong with it.
REFUSED = {
    "extent": [
        lambda x, z: np.broadcast_to(x[0], (-1, 2)), lambda x, z: np.resize(x, (-1,)),
        lambda x, z: np.vander(x[0], -1), lambda x, z: spmd.random.uniform(1, (2, -3)),
        lambda x, z: spmd.random.permutation(1, -3), lambda x, z: spmd.random.bits(1, -3)],
    "complex|common type": [
        lambda x, z: np.fabs(z), lambda x, z: np.degrees(z), lambda x, z: np.frexp(z),
        lambda x, z: np.i0(z), lambda x, z: np.spacing(z)],
}


def test_what_numpy_refuses_is_refused():
    for text, functions in REFUSED.items():
        for f in functions:
            @spmd.program
            def refused(f=f):
                x = spmd.input("x", (3, 2), np.float64)
                return f(x, spmd.input("z", (3, 2), np.complex128))

            with pytest.raises(spmd.ProgramError, match=text):
                refused.capture()


def test_a_lane_of_nan_has_no_largest_number():
    @spmd.program(mesh=("r",))
    def largest():
        return np.nanargmax(spmd.input("x", (3, 2), np.float64, layout=("r", None)), 0)

    graph = largest.capture()
    x = np.array([[np.nan, 1], [3, np.nan], [-np.inf, 2]])
    (found,) = interpret.run(graph, {"r": 2}, {"x": x}).values()
    assert np.array_equal(found, np.nanargmax(x, 0))
    x[1:, 0] = np.nan
    with pytest.raises(spmd.CheckError, match="All-NaN slice"):
        interpret.run(graph, {"r": 2}, {"x": x})


def test_logarithms_of_sums_of_small_integers_are_rounded_once():
    @spmd.program
    def sums():
        i = spmd.input("i", (8,), np.int8)
        return np.logaddexp2(i, np.int8(2))

    i = np.arange(-4, 4).astype(np.int8)
    (found,) = interpret.run(sums.capture(), {"x": 1}, {"i": i}).values()
    assert np.array_equal(found, np.logaddexp2(i, np.int8(2)))


def test_an_integer_of_the_run_that_a_type_does_not_hold():
    """Compared exactly, limits of a clip that limit nothing; else launches with it are refused."""
    compared = {
        "less": lambda x, s: x < s, "more": lambda x, s: -s < x, "equal": lambda x, s: x == s,
        "first": lambda x, s: s >= x, "clipped": lambda x, s: np.clip(x, 0, s),
    }
    small, large = np.array([1, 44, 127], np.int8), np.array([2**64 - 1, 44, 300], np.uint64)

    @spmd.program
    def beside():
        s = spmd.scalar("s", 44)
        xs = spmd.input("small", (3,), np.int8), spmd.input("large", (3,), np.uint64)
        return {f"{n}{k}": f(x, s) for k, x in enumerate(xs) for n, f in compared.items()}

    graph, inputs = beside.capture(), {"small": small, "large": large}
    for s in (44, 300):
        found = interpret.run(graph, {"x": 1}, inputs, {"s": s})
        for k, x in enumerate((small, large)):
            for name, f in compared.items():
                assert np.array_equal(found[f"{name}{k}"], f(x, s)), (name, k, s)
    with pytest.raises(spmd.MeshError, match=">= -128, as int8 holds"):  # for the clip
        interpret.run(graph, {"x": 1}, inputs, {"s": -300})

    @spmd.program
    def added():
        return spmd.input("small", (3,), np.int8) + spmd.scalar("s", 3)

    graph, inputs = added.capture(), {"small": small}
    interpret.run(graph, {"x": 1}, inputs, {"s": 127})
    for s, text in ((128, "s <= 127"), (-129, "s >= -128")):
        with pytest.raises(spmd.MeshError, match=text):
            interpret.run(graph, {"x": 1}, inputs, {"s": s})
