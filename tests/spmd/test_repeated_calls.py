"""Calls of an open job that repeat the one before, and calls with other scalars: the same results
as those of an eager run, by the job that is loaded."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.errors import InputError


@spmd.program(mesh=("r",))
def rolled(n: int = 16):
    k = spmd.scalar("k", 3)
    a = spmd.scalar("a", 2.0)
    u = spmd.input("u", (n,), np.float64, layout=("r",))
    s = spmd.zeros(n, np.float64)
    for _ in spmd.range(k):
        s = s + np.roll(u, k) * a
    return {"s": s, "t": u[k]}


@spmd.program(mesh=("r",))
def affine(n: int = 8):
    x = spmd.input("x", (n,), np.float64, layout=("r",))
    y = spmd.input("y", (n,), np.float64, default=lambda i: i + 0.5)
    return x * 2 + y


@spmd.program(mesh=("r",))
def layer(n: int = 8):
    """A tree, an input, a scalar with a default and one without."""
    w = spmd.input("w", {"a": spmd.spec((n,), np.float64), "b": spmd.spec((), np.float64)})
    x = spmd.input("x", (n,), np.float64, layout=("r",))
    return w["a"] * x + w["b"] + spmd.scalar("shift", 10)


SEVERAL = """
import sys
import numpy as np
import spmd
from mpi4py import MPI

comm = MPI.COMM_WORLD
image = spmd.load(sys.argv[1])
u = np.arange(16.0)
for transport in ("auto", "mpi"):
    with image.open(comm=comm, transport=transport) as job:
        jobs = set()
        for k, a in [(3, 2.0), (5, 1.5), (0, 9.0), (15, 0.5)]:
            for call in ({"k": k, "a": a}, {}, {"k": k}):
                out = job(u=u, **call)
                jobs.add(id(job._job))
                k, a = call.get("k", 3), call.get("a", 2.0)
                begin, = out["s"].offsets
                part = slice(begin, begin + len(out["s"].local))
                np.testing.assert_allclose(out["s"].local, (k * a * np.roll(u, k))[part])
                np.testing.assert_allclose(out["t"].local, u[k])
        assert len(jobs) == 1
"""


@pytest.fixture(scope="module")
def images():
    return spmd.build(rolled), spmd.build(affine), spmd.build(layer)


def test_other_scalars_are_set_in_the_loaded_job(images):
    """Who reads which neighbour depends on k; an output that was kept stays where it lies."""
    u = np.arange(16.0)
    for ranks in (1, 2, 3, 5):
        with images[0].open(ranks=ranks, keep="s") as job:
            jobs, last = set(), None
            for k, a in [(3, 2.0), (5, 1.5), (1, 1.0), (0, 9.0), (15, 0.5), (3, 2.0)]:
                v = u if last is None else last["s"]
                want = rolled.eager(u=np.array(np.asarray(v)), k=k, a=a)
                last = job(u=v, k=k, a=a)
                jobs.add(id(job._job))
                np.testing.assert_allclose(np.asarray(last["s"]), want["s"])
                np.testing.assert_allclose(last["t"], want["t"])
            assert len(jobs) == 1
            # the default of k is back where no scalar is given
            np.testing.assert_allclose(np.asarray(job(u=u)["s"]), rolled.eager(u=u)["s"])


def test_several_processes_set_other_scalars(images, mpirun, tmp_path):
    images[0].save(tmp_path / "rolled.img")
    (tmp_path / "several.py").write_text(SEVERAL)
    done = mpirun(3, tmp_path / "several.py", tmp_path / "rolled.img")
    assert done.code == 0, done.text


def test_a_call_like_the_one_before_reads_its_arguments_anew(images):
    with images[1].open(ranks=3) as job:
        x = np.arange(8.0)
        for turn in range(4):
            x += turn
            np.testing.assert_array_equal(job(x=x), 2 * x + np.arange(8) + 0.5)
        np.testing.assert_array_equal(job(x=x[::-1]), 2 * x[::-1] + np.arange(8) + 0.5)
        np.testing.assert_array_equal(job(x=x, y=x), 3 * x)
        np.testing.assert_array_equal(job(x=x, y=x + 1), 3 * x + 1)
        np.testing.assert_array_equal(job(x=x), 2 * x + np.arange(8) + 0.5)  # the default again
        first = job(x=x)
        second = job(x=x)
        assert first is not second and not np.shares_memory(first, second)


def test_what_is_not_like_the_call_before_is_checked(images):
    with images[1].open(ranks=2) as job:
        x = np.arange(8.0)
        job(x=x)
        np.testing.assert_array_equal(job(x=x.astype(np.int32)), job(x=x))
        np.testing.assert_array_equal(job(x=list(x)), job(x=x))
        np.testing.assert_array_equal(job(x=x.astype(">f8")), job(x=x))
        with pytest.raises(InputError, match="has the wrong shape"):
            job(x=np.arange(9.0))
        with pytest.raises(InputError, match="dtype complex128"):
            job(x=x + 1j)
        with pytest.raises(spmd.UsageError, match="no input or scalar 'z'"):
            job(x=x, z=x)
        with pytest.raises(spmd.UsageError, match="input x was not given"):
            job(y=x)
        np.testing.assert_array_equal(job(x=x), 2 * x + np.arange(8) + 0.5)


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_what_the_call_before_gave_is_not_given_to_the_next(images, ranks):
    """Every way of calling after every other: a scalar that is left out has its default again, and
    an input or a tree that is left out is missed."""
    x, w = np.arange(8.0), {"a": np.arange(8.0) + 1, "b": np.float64(0.5)}
    ways = [{"x": x, "w": w}, {"x": x, "w": w, "shift": 3}, {"x": x + 1, "w": w, "shift": 4},
            {"x": x.astype(np.float32), "w": w}, {"x": x}, {"x": x, "shift": 3}, {"w": w}, {}]
    with images[2].open(ranks=ranks) as job:
        for before in ways:
            for call in ways:
                for given in (before, call, call):
                    if {"x", "w"} <= set(given):
                        want = w["a"] * given["x"] + w["b"] + given.get("shift", 10)
                        np.testing.assert_array_equal(job(**given), want)
                    else:
                        with pytest.raises(spmd.UsageError, match="was not given"):
                            job(**given)
    with images[1].open(ranks=ranks) as job:  # defaults of inputs, and of nothing else
        for before in ({"x": x}, {"x": x, "y": x}):
            for call in ({"x": x}, {"x": x, "y": x}):
                for given in (before, call, call):
                    want = 2 * x + given.get("y", np.arange(8) + 0.5)
                    np.testing.assert_array_equal(job(**given), want)


def test_defaults_of_scalars_return(images):
    u = np.arange(16.0)
    with images[0].open(ranks=2) as job:
        for _ in range(2):
            job(u=u, k=5, a=4.0)
            for _ in range(2):
                np.testing.assert_allclose(job(u=u)["s"], rolled.eager(u=u)["s"])
