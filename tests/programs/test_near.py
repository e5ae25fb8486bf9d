"""Stencils on global arrays: ranks wait for their neighbours only, and compute what NumPy computes.

The five-point heat program, wide halos and shifts: on 1 to 40 ranks in one process, most of them
with empty shards where arrays are small, and under real mpirun.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.image import manifest

pytestmark = pytest.mark.usefixtures("vectors_cc")

HEAT = """
import numpy as np
import spmd


@spmd.program(mesh=("x", "y"))
def heat(n: int = 30, m: int = 17):
    steps = spmd.scalar("steps", 5)
    u = spmd.input("u", (n, m), np.float64, layout=("x", "y"))
    for _ in spmd.range(steps):
        u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
                                - 4 * u[1:-1, 1:-1])
    return {"u": u}
"""


TORUS = """
import numpy as np
import spmd


@spmd.program(mesh=("x", "y"))
def torus(n: int = 30, m: int = 17, far: int = 1):
    steps = spmd.scalar("steps", 5)
    u = spmd.input("u", (n, m), np.float64, layout=("x", "y"))
    for _ in spmd.range(steps):
        u = u + 0.1 * (np.roll(u, far, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1)
                       + np.roll(u, -far, 1) - 4 * u + np.roll(u, (1, far), (0, 1)))
    return {"u": u}
"""


@spmd.program(mesh=("x",))
def shifts(n: int = 100, far: int = 7):
    a = spmd.input("a", (n, 3), np.int64, layout=("x", None))
    return {"wide": a[2 * far :] * 3 - a[:-2 * far] + a[far:-far], "ahead": a[far:] + 0 * a[:-far]}


def heated(u: Any, steps: int) -> Any:
    u = u.copy()
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
                                - 4 * u[1:-1, 1:-1])
    return u


def turned(u: Any, steps: int, far: int) -> Any:
    for _ in range(steps):
        u = u + 0.1 * (np.roll(u, far, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1)
                       + np.roll(u, -far, 1) - 4 * u + np.roll(u, (1, far), (0, 1)))
    return u


def start(n: int, m: int) -> Any:
    return np.random.default_rng(n).random((n, m))


def flows(image: Any) -> list[str]:
    return [row["flow"] for row in manifest.read(image.data).notes()["exchanges"]]


@pytest.mark.parametrize("shape", [(30, 17), (5, 3), (2, 40)])
def test_heat_is_numpys(built, shape):
    n, m = shape
    image = spmd.load(built(HEAT, n=n, m=m))
    assert flows(image) == ["near"]
    u = start(n, m)
    expected = heated(u, 5)
    for ranks in range(1, 41):
        out = image.run(ranks=ranks, u=u)["u"]
        np.testing.assert_array_equal(out, expected, str(ranks))
    for mesh in ({"x": 1, "y": 13}, {"x": 20, "y": 2}):
        out = image.run(ranks=mesh["x"] * mesh["y"], mesh=mesh, u=u)["u"]
        np.testing.assert_array_equal(out, expected, str(mesh))


@pytest.mark.parametrize(("n", "m", "far"), [(30, 17, 1), (5, 3, 2), (1, 40, 1)])
def test_around_a_torus_is_numpys(built, n, m, far):
    image = spmd.load(built(TORUS, n=n, m=m, far=far))
    assert set(flows(image)) == {"near"}
    u = start(n, m)
    expected = turned(u, 5, far)
    for ranks in (1, 2, 3, 4, 6, 9, 12, 25, 40):
        out = image.run(ranks=ranks, u=u)["u"]
        np.testing.assert_array_equal(out, expected, str(ranks))
    for mesh in ({"x": 1, "y": 5}, {"x": 2, "y": 1}):
        out = image.run(ranks=mesh["x"] * mesh["y"], mesh=mesh, u=u)["u"]
        np.testing.assert_array_equal(out, expected, str(mesh))


@pytest.mark.parametrize("far", [1, 7, 30])
def test_shifts_further_than_a_neighbour(far):
    image = spmd.build(shifts, far=far)
    assert set(flows(image)) == {"near"}
    a = np.arange(300).reshape(100, 3) ** 2 % 1001
    expected = shifts.eager(far=far, a=a)
    for ranks in (1, 2, 3, 7, 16, 33, 120):
        out = image.run(ranks=ranks, a=a)
        for name, e in expected.items():
            np.testing.assert_array_equal(out[name], e, f"{name} on {ranks} ranks")


def test_a_thousand_ranks(built):
    """All in one process; a shard has 2 rows and 3 columns, or less."""
    u = start(64, 90)
    out = spmd.load(built(HEAT, n=64, m=90)).run(ranks=1000, u=u, steps=3)
    np.testing.assert_array_equal(out["u"], heated(u, 3))


SEVERAL = """
import numpy as np
import spmd


@spmd.program(mesh=("x", "y"))
def several():
    out = {}
    for n, m in ((30, 17), (3, 400), (900, 700)):
        u, v = (spmd.input(f"{name}{n}", (n, m), np.float64, layout=("x", "y")) for name in "uv")
        for _ in spmd.range(5):
            u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
                                    - 4 * u[1:-1, 1:-1])
            v = v + 0.1 * (np.roll(v, 1, 0) + np.roll(v, -1, 0) + np.roll(v, 1, 1)
                           + np.roll(v, -1, 1) - 4 * v + np.roll(v, (1, 1), (0, 1)))
        out |= {f"heat{n}": u, f"torus{n}": v}
    return out
"""


@pytest.mark.slow
@pytest.mark.one_mpi
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_under_mpirun(mpirun, built, tmp_path, transport):
    """Also where a row of ghost cells is too long for a slot; one rank and several in a process."""
    given = {n: start(n, m) for n, m in ((30, 17), (3, 400), (900, 700))}
    expected = {f"heat{n}": heated(u, 5) for n, u in given.items()}
    expected |= {f"torus{n}": turned(u, 5, 1) for n, u in given.items()}
    options: list[object] = ["--transport", transport]
    for n, u in given.items():
        np.save(tmp_path / f"{n}.npy", u)
        options += [x for name in "uv" for x in ("-i", f"{name}{n}={tmp_path}/{n}.npy")]
    options += [x for name in expected for x in ("-o", f"{name}={tmp_path}/{name}.npy")]
    image = built(SEVERAL)
    assert set(flows(spmd.load(image))) == {"near"}
    for ranks in (4, 14):
        mpirun(4, "-m", "spmd", "run", image, "--ranks", ranks, *options).expect(0)
        for name, e in expected.items():
            found = np.load(tmp_path / f"{name}.npy")
            np.testing.assert_array_equal(found, e, f"{name} on {ranks} ranks")


def test_neighbours_are_verified(built, spmd_here):
    spmd_here("verify", built(TORUS, n=7, m=5), "--ranks", "1-30", "--execute").expect(
        0, "1 match", "say the same"
    )
    spmd_here("verify", built(HEAT, n=7, m=5), "--ranks", "1-30", "--execute").expect(
        0, "1 match", "say the same"
    )
