"""Loops whose turns keep points apart run tile by tile, and what comes out is what NumPy says."""

from __future__ import annotations

from typing import Any

import numpy as np

import spmd
from codegen.compile import lower
from codegen.ir.plan import Exchange, Loop, Phase, WorkLoop
from codegen.ir.steps import walk_steps

N, K = 600, 21
_DRAW = np.random.default_rng(8)
GIVEN: dict[str, Any] = {
    "a": _DRAW.normal(size=(N, K)), "w": _DRAW.normal(size=(N + 1, K)),
    "wide": _DRAW.normal(size=(9, 2500)),
    "z": _DRAW.normal(size=5000) + 1j * _DRAW.normal(size=5000),
}


def columns(a: Any, w: Any, wide: Any, z: Any, turns: Any) -> Any:
    """Runs loops over columns and rows; `turns` is spmd.range, or Python's range for NumPy."""
    down, up, back = a.copy(), a.copy(), np.zeros(N)
    for k in turns(1, K):  # w's rows lie with others than those of a
        down[:, k] = down[:, k] * (w[1:, k] + w[:-1, k]) - 0.5 * down[:, k - 1]
    for k in turns(K - 2, -1, -1):
        back[:] = down[:, k] + back * 0.25
        up[:, k] = up[:, k + 1] * 0.5 + back
    long = wide.copy()
    for k in turns(5):  # a tile is one row
        long[::2] = long[::2] * 0.5 + wide[1] + k
    rows, sums = wide.copy(), np.zeros(9)
    for k in turns(5):
        rows = rows * 0.5 + k
        sums = sums * 0.5 + rows @ wide[1]
    point, n = z.copy(), np.zeros(z.shape, np.int64)
    for t in turns(12):
        near = np.abs(point) < 2.0
        n[near] = t
        point[near] = point[near] ** 2 + z[near]
    return {"down": down, "up": up, "long": long, "sums": sums, "point": point, "n": n}


def across(a: Any, turns: Any) -> Any:
    """Points of a turn are read by others in later ones."""
    next_row, turned, moved = a.copy(), a.copy(), a.copy()
    for k in turns(1, K):
        next_row[1:, k] += next_row[:-1, k - 1]
    for k in turns(1, K):
        turned[:, k] += turned[::-1, k - 1]
    for k in turns(4):
        moved[:, 1:] = moved[:, :-1] + k
    return {"next_row": next_row, "turned": turned, "moved": moved}


@spmd.program(mesh=("x",))
def case(rows: str = "") -> Any:
    def given(name: str) -> Any:
        x = GIVEN[name]
        layout = (rows or None, *(None,) * (x.ndim - 1))
        return spmd.input(name, x.shape, x.dtype, layout=layout)

    a, w, wide, z = map(given, GIVEN)
    return {**columns(a, w, wide, z, spmd.range), **across(a, spmd.range)}


def test_turns_that_keep_points_apart_run_in_tiles() -> None:
    steps = list(walk_steps(lower(case.graph({"rows": "x"}, ())).plan.steps))
    tiles = [w for s in steps if isinstance(s, Phase) for w in s.work if isinstance(w, WorkLoop)]
    assert [w.step.value for w in tiles] == [64, 64, 1, 1, 256]
    loops = [s for s in steps if isinstance(s, Loop)]
    assert len(loops) == 3  # those of `across`
    inside = [s for loop in loops[:2] for s in walk_steps(loop.body)]
    assert sum(isinstance(s, Exchange) for s in inside) == 2


def test_they_compute_what_numpy_does() -> None:
    wanted = {**columns(**GIVEN, turns=range), **across(GIVEN["a"], range)}
    for rows in ("", "x"):
        image = spmd.build(case, rows=rows)
        first = image.run(ranks=1, **GIVEN)
        for name, array in wanted.items():
            np.testing.assert_allclose(first[name], array, rtol=1e-12, err_msg=name)
        for ranks in (2, 3, 5):
            found = image.run(ranks=ranks, **GIVEN)
            for name in wanted:
                np.testing.assert_array_equal(found[name], first[name], f"{name} on {ranks}")


def test_what_all_turns_fetch_is_fetched_before_them() -> None:
    @spmd.program(mesh=("x",))
    def fetching() -> Any:
        w = spmd.input("w", (N + 1, K), np.float64, layout=("x", None))
        v, x = w[:-1].copy(), spmd.zeros((N, K), layout=("x", None))
        for k in spmd.range(2, K - 3):
            x[:, k] = w[1:, k] * 2 + w[:-1, k + 1] + x[:, k - 1]
            v[1:, k] = v[:-1, k] + 1  # of what turns change, each one fetches its own
        return {"x": x, "v": v}

    steps = lower(fetching.graph({}, ())).plan.steps
    (loop,) = (s for s in walk_steps(steps) if isinstance(s, Loop))
    inside = [s for s in walk_steps(loop.body) if isinstance(s, Exchange)]
    before = [s for s in walk_steps(steps) if isinstance(s, Exchange) and s not in inside]
    assert len(inside) == 1 and len(before) >= 1
    image, w = spmd.build(fetching), GIVEN["w"]
    v, x = w[:-1].copy(), np.zeros((N, K))
    for k in range(2, K - 3):
        x[:, k] = w[1:, k] * 2 + w[:-1, k + 1] + x[:, k - 1]
        v[1:, k] = v[:-1, k] + 1
    for ranks in (1, 2, 3, 5):
        found = image.run(ranks=ranks, w=w)
        np.testing.assert_array_equal(found["x"], x)
        np.testing.assert_array_equal(found["v"], v)


def test_magnitudes_are_compared_without_roots_to_the_bit() -> None:
    limits = (2.0, 0.1, np.float64(1e120), 1e-150)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e-200, 1e200, 1.7e308]
    z = [complex(a, b) for a in ends for b in ends]
    for c in map(float, limits):
        near = [c, np.nextafter(c, 0), np.nextafter(c, np.inf)]
        z += [complex(x, 0) for x in near] + [complex(0, -x) for x in near]
        z += list(c * np.exp(1j * _DRAW.uniform(0, 7, 300)))
    values = np.array(z)

    def answers(size: Any) -> Any:
        return sum((((size() < c) + 2 * (size() <= c) + 4 * (size() > c) + 8 * (c <= size()))
                    << 4 * k) for k, c in enumerate(limits))

    @spmd.program(mesh=("x",))
    def compared() -> Any:
        x = spmd.input("x", values.shape, np.complex128, layout=("x",))
        return {"size": np.abs(x), "answers": answers(lambda: np.abs(x))}

    text = lower(compared.graph({}, ())).source.text
    assert text.count("spmd_abs_c128") == 5  # the last limit is too small
    found = spmd.build(compared).run(ranks=2, x=values)
    np.testing.assert_allclose(found["size"], np.abs(values), rtol=1e-15)
    np.testing.assert_array_equal(found["answers"], answers(lambda: found["size"]))
