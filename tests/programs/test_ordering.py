"""Sorting and what follows from it along dims that ranks hold whole and along split ones.

One image for many functions; NumPy's results for any number of ranks, blocks without elements too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.layouts.partition import partition
from codegen.ops import Move
from codegen.oracle import interpret

RANKS = (1, 2, 3, 5, 16)


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Many equal ones; the ends of the type; of floats: both zeros, infinities and NaN."""
    rng = np.random.default_rng(len(shape) + sum(shape))
    few, kind = rng.integers(0, 9, shape), np.dtype(dtype)
    if kind.kind == "b":
        return few % 2 == 0
    if kind.kind in "iu":
        info = np.iinfo(kind)
        whole = rng.integers(info.min, info.max, shape, kind, endpoint=True)
        return np.where(few < 4, few.astype(kind), np.where(few == 4, info.max, whole))
    special = [np.nan, -0.0, 0.0, np.inf, -np.inf]
    real = np.select([few == k for k in range(5)], special, (few - 7) / 4)
    if kind.kind == "c":  # of both parts, which arithmetic would mix
        return np.stack([real, rng.permutation(real.ravel()).reshape(shape)], -1).astype(
            f"f{kind.itemsize // 2}").view(kind)[..., 0]
    return real.astype(kind)


def orders(d: int | None) -> dict[str, Callable[[Any], Any]]:
    return {
        "sort": lambda x: np.sort(x, axis=d),
        "stable": lambda x: np.sort(x, axis=d, kind="stable"),
        "argsort": lambda x: np.argsort(x, axis=d, kind="stable"),
        "places": lambda x: np.sort(np.partition(x, 2, axis=d), axis=d),
        "lexsort": lambda x: np.lexsort((x, x == x), axis=-1 if d is None else d),
        "first": lambda x: np.take_along_axis(x, np.argpartition(x, 2, axis=d), d).take(2, d),
    }


def middles(d: int | None) -> dict[str, Callable[[Any], Any]]:
    return {
        "median": lambda x: np.median(x, axis=d),
        "nanmedian": lambda x: np.nanmedian(x, axis=d, keepdims=True),
        "quantile": lambda x: np.quantile(x, [0.25, 0.9], axis=d),
        "nanpercentile": lambda x: np.nanpercentile(x, 30, axis=d),
    }


CASES = {  # the first two as images, too
    "one dim": ((37,), ("r",), 0, "float64", {**orders(0), **middles(0)}),
    "rows": ((3, 7, 2), (None, "r", None), 1, "int32", {**orders(1), **middles(1)}),
    "whole lanes": ((6, 9), ("r", None), 1, "float64", {**orders(1), **middles(1)}),
    "last dim": ((4, 13), (None, "r"), 1, "float32", {**orders(1), **middles(1)}),
    "all dims": ((3, 7, 2), (None, "r", None), None, "float64", middles(None)),
    "halves": ((23,), ("r",), 0, "float16", orders(0)),
    "few": ((3,), ("r",), 0, "uint8", {**orders(0), **middles(0)}),
    "bools": ((40,), ("r",), 0, "bool", orders(0)),
    "complex": ((31,), ("r",), 0, "complex64", {
        **orders(0), "median": np.median, "lexsort": lambda x: np.lexsort((x.imag, x, x == x))}),
    "complex rows": ((3, 9), (None, "r"), 1, "complex128", orders(1)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_numpy(case: str) -> None:
    shape, layout, _, dtype, functions = CASES[case]

    @spmd.program(mesh=("r",))
    def program() -> Any:
        x = spmd.input("x", shape, dtype, layout=layout)
        return {name: f(x) for name, f in functions.items()}

    x = values(shape, dtype)
    graph = program.capture()
    lowered = partition(graph)
    found: dict[Any, Any] = {n: interpret.run(lowered, {"r": n}, {"x": x}, {}) for n in (1, 3, 5)}
    found["Graph"] = interpret.run(graph, {"r": 3}, {"x": x}, {})
    if case in ("one dim", "rows", "whole lanes"):
        image = spmd.build(program)
        found |= {f"{n}, image": image.run(ranks=n, x=x) for n in RANKS}
    for n, results in found.items():
        for name, f in functions.items():
            got, want = np.asarray(results[name]), f(x)
            np.testing.assert_array_equal(got, want, err_msg=f"{name} on {n} ranks", strict=True)
            if name == "stable" and want.dtype.kind == "f":
                there = ~np.isnan(want)
                assert np.array_equal(np.signbit(got[there]), np.signbit(want[there]))


METHODS = ("linear lower higher midpoint nearest hazen weibull median_unbiased normal_unbiased "
           "inverted_cdf averaged_inverted_cdf closest_observation "
           "interpolated_inverted_cdf").split()


def test_methods_of_quantiles() -> None:
    """All of NumPy's, of an extent that is known and of one that depends on data."""
    x = np.random.default_rng(3).normal(size=(12, 5))
    missing = np.where(x > 1.2, np.nan, x)
    q = [0, 0.1, 0.25, 0.5, 0.97, 1]

    def all_of(x: Any, missing: Any) -> dict[str, Any]:
        made = {m: np.quantile(x, q, axis=0, method=m) for m in METHODS}
        made |= {f"nan {m}": np.nanquantile(missing, q, axis=0, method=m) for m in METHODS}
        whole = (x * 100).astype(np.int32)
        return made | {"int": np.percentile(whole, 40), "lower": np.quantile(whole, 0.3, 0)}

    @spmd.program(mesh=("r",))
    def program() -> Any:
        split = (spmd.input(k, (12, 5), np.float64, layout=("r", None)) for k in ("x", "m"))
        return all_of(*split)

    found = interpret.run(partition(program.capture()), {"r": 3}, {"x": x, "m": missing}, {})
    for name, want in all_of(x, missing).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-13, err_msg=name)


def test_places_of_values() -> None:
    """The sorted array split, the values, both, none; NaN and both zeros among them."""
    rng = np.random.default_rng(1)
    given = {
        "a": np.sort(np.r_[rng.integers(-20, 20, 40) / 2, np.nan, np.nan, -0.0, 0.0]),
        "v": np.r_[rng.integers(-25, 25, 31) / 2, np.nan, -0.0, 0.0, np.inf],
        "w": rng.normal(size=(3, 7)), "i": rng.integers(0, 9, 50),
    }

    def places(a: Any, v: Any, w: Any, i: Any, b: Any) -> dict[str, Any]:
        return {
            "both": np.searchsorted(a, v), "right": np.searchsorted(a, v, "right"),
            "row": np.searchsorted(a, w), "values": np.searchsorted(b, v),
            "known": np.searchsorted(a, [0.0, 1.5]), "number": np.searchsorted(a, 0.5, "right"),
            "digitize": np.digitize(v, np.linspace(-10, 10, 50)),
            "few": np.digitize(v, [0, 1, 2]), "count": np.bincount(i, minlength=9),
            "weights": np.bincount(i, weights=i * 0.5, minlength=12),
        }

    @spmd.program(mesh=("r",))
    def program() -> Any:
        x = {k: spmd.input(k, v.shape, v.dtype, layout=(None, "r") if v.ndim == 2 else ("r",))
             for k, v in given.items()}
        return places(**x, b=x["a"].relayout((None,)))

    image, want = spmd.build(program), places(**given, b=given["a"])
    lowered = partition(program.capture())
    found = {n: image.run(ranks=n, **given) for n in (1, 3, 60)}
    found[-2] = interpret.run(lowered, {"r": 2}, given, {})
    for n, results in found.items():
        for name in want:
            np.testing.assert_array_equal(results[name], want[name], f"{name} {n}", strict=True)
    with pytest.raises(spmd.CheckError, match=r"(?s)np\.bincount .* out of bounds: 18 .*0 to 8"):
        image.run(ranks=2, **{**given, "i": np.full(50, 18)})


def test_no_rank_holds_a_split_dim() -> None:
    """Nothing is gathered, and what a rank has is about as long as its block."""

    @spmd.program(mesh=("r",))
    def program(n: int = 10_000) -> Any:
        x = spmd.input("x", (n,), np.float64, layout=("r",))
        z = x * 1j + 1
        return {"s": np.sort(x), "o": np.argsort(x), "m": np.median(x),
                "p": np.searchsorted(x, x + 1), "z": np.sort(z), "l": np.lexsort((z, x))}

    lowered = partition(program.capture())
    names: list[str] = []

    def walk(region: Any) -> None:
        for op in region.ops:
            assert not isinstance(op.kind, Move) or op.kind.called == "redistribute"
            names.append(op.kind.name)
            for v in op.results:
                if v.name != "count" and v.type.ndim == 1:
                    sizes = {"n_r": 100, "i_r": 0}
                    assert v.type.shape[0].evaluate(sizes) <= 256, (op.kind.name, v.type)
            for inner in op.regions:
                walk(inner)

    walk(lowered.body)
    assert {"merge", "count", "permute", "searchsorted"} <= set(names)


def test_running_totals_of_few_rows():
    """Row after row, of none, one, two and more; of a split dim too."""
    given = {f"x{n}{m}": np.random.default_rng(n).normal(size=(n, m)) for n in range(4)
             for m in (1, 2, 5)}

    def totals(x):
        return {f"{name}{d}{f.__name__}": f(a, axis=d) for name, a in x.items() for d in (0, 1)
                for f in (np.cumsum, np.cumprod)}

    @spmd.program(mesh=("r",))
    def program():
        return totals({n: spmd.input(n, a.shape, layout=("r", None)) for n, a in given.items()})

    image, want = spmd.build(program), totals(given)
    for ranks in (1, 2, 3):
        out = image.run(ranks=ranks, **given)
        for name, value in want.items():
            np.testing.assert_allclose(out[name], value, rtol=1e-12, err_msg=name)
