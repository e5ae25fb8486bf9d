"""Results as long as a size says, and the largest elements: NumPy's, eager and on any ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
import spmd.numpy as xp
from codegen.layouts.partition import partition
from codegen.ops import Move
from codegen.oracle import interpret

RNG = np.random.default_rng(0)
NAN = np.where(RNG.random((2, 17)) < 0.3, np.nan, np.round(RNG.normal(size=(2, 17)), 1))
GIVEN = {
    "x": RNG.integers(0, 9, 23), "y": RNG.integers(3, 14, 11), "m": RNG.integers(0, 2, (4, 5)),
    "g": NAN[0], "h": NAN[1, :9], "q": RNG.random(23) < 0.5, "e": np.zeros(3),
    "t": RNG.integers(-128, -125, (3, 7)).astype(np.int8), "z": np.array([0.0, 3, 0, 1, 0, 0]),
    "s": np.array([-0.0, 3, 0, np.nan, -0.0]), "o": np.zeros((0, 3)),
}
LAYOUTS = {"m": (None, "r"), "t": (None, "r"), "o": ("r", None)}


def filled(found: Any, size: int, fill: Any = None) -> np.ndarray:
    found = np.asarray(found)
    fill = found[0] if fill is None else fill
    return np.append(found, np.full(size, fill, found.dtype))[:size]


def pairs(given: dict[str, Any]) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return pairs of functions by name: one calls spmd.numpy, the other does the same in NumPy."""
    x, y, m, g, h, q, e, t, z, s, o = given.values()
    rows = [f"{f}1d" for f in ("union", "intersect", "setdiff", "setxor")]
    return {
        "unique": (lambda: xp.unique(x, True, True, True, size=12), lambda: [
            filled(a, n, f) for a, n, f in zip(np.unique(x, True, True, True), (12, 12, 23, 12),
                                               (None, None, 0, 0), strict=True)]),
        "first": (lambda: xp.unique(x, size=3), lambda: np.unique(x)[:3]),
        "counts": (lambda: xp.unique_counts(g, size=17, fill_value=-9), lambda: [
            filled(np.unique(g), 17, -9), filled(np.unique_counts(np.nan_to_num(g, nan=9)).counts,
                                                 17, 0)]),
        "all": (lambda: xp.unique_all(m, size=3).inverse_indices, lambda: m),
        "rows": (lambda: xp.unique(m * (y[:4, None] > 5), True, True, True, 0, size=5), lambda: [
            np.concatenate([a, *[a[:1] * f] * 5])[:n] for a, n, f in zip(
                np.unique(m * (y[:4, None] > 5), True, True, True, 0), (5, 5, 4, 5),
                (1, 1, 0, 0), strict=True)]),
        "parts of a row": (lambda: xp.unique(g, axis=0, size=17, fill_value=-9),
                           lambda: filled(np.unique(g, axis=0), 17, -9)),
        "of two types": (lambda: xp.intersect1d(t, z, size=5), lambda: filled(
            np.intersect1d(t, z), 5, 0)),
        "values": (lambda: xp.unique_values(e, size=2), lambda: np.zeros(2)),
        **{f: (lambda f=f: getattr(xp, f)(x, y, size=30, fill_value=99),
               lambda f=f: filled(getattr(np, f)(x, y), 30, 99)) for f in rows},
        **{f"nan {f}": (lambda f=f: getattr(xp, f)(g, h, size=30, fill_value=99),
                        lambda f=f: filled(getattr(np, f)(g, h), 30, 99)) for f in rows[3:]},
        "where both are": (lambda: xp.intersect1d(x, y, return_indices=True, size=9), lambda: [
            filled(a, 9, f) for a, f in zip(np.intersect1d(x, y, return_indices=True),
                                            (None, 23, 11), strict=True)]),
        "nonzero": (lambda: xp.nonzero(m, size=22, fill_value=(4, 5)), lambda: [
            filled(a, 22, f) for a, f in zip(np.nonzero(m), (4, 5), strict=True)]),
        "where": (lambda: xp.where(q, size=4)[0], lambda: np.flatnonzero(q)[:4]),
        "none": (lambda: xp.flatnonzero(e, size=2, fill_value=3), lambda: np.array([3, 3])),
        "argwhere": (lambda: xp.argwhere(m, size=2), lambda: np.argwhere(m)[:2]),
        "compress": (lambda: xp.compress(q, x, size=23), lambda: filled(x[q], 23, 0)),
        "columns": (lambda: xp.compress(q[:5], m, 1, size=5), lambda: np.hstack(
            [m[:, q[:5]], np.zeros((4, 5), int)])[:, :5]),
        "extract": (lambda: xp.extract(q, x, size=5), lambda: x[q][:5]),
        "trim": (lambda: xp.trim_zeros(z, size=5), lambda: filled(np.trim_zeros(z), 5, 0)),
        "signs": (lambda: [np.signbit(xp.extract(s == 0, s, size=3)), np.signbit(
            xp.extract(s == 0, np.conj(s.astype(complex)), size=3).imag)],
            lambda: [np.signbit(s[s == 0]), np.ones(3, bool)]),
        "unique of none": (lambda: xp.unique(o, True, True, True, size=2, fill_value=7), lambda: [
            np.full(2, 7.0), np.zeros(2, int), np.zeros((0, 3), int), np.zeros(2, int)]),
        "rows of none": (lambda: xp.unique(o, axis=0, size=2, fill_value=7),
                         lambda: np.full((2, 3), 7.0)),
        "both of none": (lambda: xp.intersect1d(x, o, return_indices=True, size=2, fill_value=9),
                         lambda: [np.full(2, 9.0), np.full(2, 23), np.zeros(2, int)]),
        "compress none": (lambda: xp.compress(o[:, 0], o, 0, size=2, fill_value=4),
                          lambda: np.full((2, 3), 4.0)),
        "places of none": (lambda: xp.argwhere(o, size=2, fill_value=4),
                           lambda: np.full((2, 2), 4)),
        "trim none": (lambda: xp.trim_zeros(o[:, 0], size=2), lambda: np.zeros(2)),
        "largest": (lambda: spmd.top_k(x, 5), lambda: largest(x, 5, 0)),
        "of least": (lambda: spmd.top_k(t, 6), lambda: largest(t, 6, 1)),
        "of columns": (lambda: spmd.top_k(t, 2, axis=0), lambda: largest(t, 2, 0)),
        "nan": (lambda: spmd.top_k(g, 8), lambda: largest(g, 8, 0)),
    }


def largest(x: np.ndarray, k: int, axis: int) -> Any:
    """Sorted by falling value, NaN first, then by position."""
    key = np.where(np.isnan(x), -np.inf, -x.astype(float))
    at = np.take(np.argsort(key, axis, kind="stable"), range(k), axis)
    return np.take_along_axis(x, at, axis), at


@spmd.program(mesh=("r",))
def sized(few: bool = False) -> Any:
    given = {k: spmd.input(k, a.shape, a.dtype, layout=LAYOUTS.get(k, ("r",)))
             for k, a in GIVEN.items()}
    return {name: ours() for name, (ours, _) in pairs(given).items()
            if not few or name in ("first", "nan")}


def agree(found: Any, where: str) -> None:
    for name in found:
        wanted = pairs(GIVEN)[name][1]()
        several = isinstance(wanted, (list, tuple))
        for got, want in zip(found[name] if several else [found[name]],
                             wanted if several else [wanted], strict=True):
            np.testing.assert_array_equal(got, want, f"{name}, {where}", strict=True)


@pytest.mark.slow
def test_a_size_is_given() -> None:
    agree(sized.eager(**GIVEN), "eager")
    lowered, image = partition(sized.capture()), spmd.build(sized, few=True)
    for ranks in (1, 5, 25):
        flat = iter(interpret.run(lowered, {"r": ranks}, GIVEN, {}).values())
        found = {name: [next(flat) for _ in of] if isinstance(of, (list, tuple)) else next(flat)
                 for name, (_, numpys) in pairs(GIVEN).items() for of in [numpys()]}
        agree(found, f"{ranks} ranks")
        agree(image.run(ranks=ranks, **GIVEN), f"{ranks} ranks, image")


def test_no_rank_gets_a_split_row() -> None:
    @spmd.program(mesh=("r",))
    def long(n: int = 10_000) -> Any:
        x = spmd.input("x", (n,), np.float64, layout=("r",))
        return {"k": spmd.top_k(x, 3), "u": xp.unique_counts(x, size=9), "n": xp.where(x, size=9),
                "s": xp.setxor1d(x, x + 1, size=9), "i": np.sum(np.isin(x, x + 1))}

    def walk(region: Any) -> None:
        for op in region.ops:
            for v in op.results if isinstance(op.kind, Move) else ():
                assert v.type.shape[-1].evaluate({"n_r": 100, "i_r": 0}) <= 300, (op.kind, v.type)
            for inner in op.regions:
                walk(inner)

    lowered = partition(long.capture())
    walk(lowered.body)
    x = np.round(np.random.default_rng(1).normal(size=10_000), 1)
    found = interpret.run(lowered, {"r": 3}, {"x": x}, {})
    assert found["i"] == np.sum(np.isin(x, x + 1))
