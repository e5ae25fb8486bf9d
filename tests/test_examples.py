"""Every example is a test: it checks itself in one process. Some run under mpirun too: with
sums over ranks, with elements that other ranks hold, with ghost cells."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import pytest

from tests.conftest import EXAMPLES, NETWORKS, PATIENCE

pytestmark = pytest.mark.usefixtures("users_cc")
RESULTS = ("losses", "accuracy", "w1")
OTHERS = sorted({p.name for p in EXAMPLES.glob("*.py")} - {*NETWORKS})


@pytest.mark.slow
@pytest.mark.parametrize("example", OTHERS)
def test_checks_itself(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example])
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")


@pytest.mark.parametrize("n", [1, 16])
def test_ring_under_mpirun(mpirun, built, tmp_path, n):
    image = built(EXAMPLES / "ring_allreduce.py", count=10)
    out = tmp_path / "sum.npy"
    mpirun(n, "-m", "spmd", "run", image, "-o", f"sum={out}").expect(0)
    part = np.add.outer(np.arange(n), np.arange(10) % 7).astype(np.float32)
    np.testing.assert_array_equal(np.load(out), np.tile(part.sum(axis=0), (n, 1)))


@pytest.mark.one_mpi
@pytest.mark.parametrize("n", [6])
def test_heat_under_mpirun(mpirun, built, tmp_path, n):
    u = np.random.default_rng(1).random((40, 40)).astype(np.float32)
    np.save(tmp_path / "start.npy", u)
    end = tmp_path / "end.npy"
    done = mpirun(
        n, "-m", "spmd", "run", built(EXAMPLES / "heat.py", n=40), "--set", "steps=20",
        "-i", f"u={tmp_path / 'start.npy'}", "-o", f"u={end}",
    ).expect(0, "after 20 steps")
    assert done.text.count("after 20 steps") == 1  # printed once, not by every rank
    v = np.pad(u, 1)
    for _ in range(20):
        v[1:-1, 1:-1] += 0.1 * (
            v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:] - 4 * v[1:-1, 1:-1]
        )
    np.testing.assert_array_equal(np.load(end), v[1:-1, 1:-1])


# Small, and what one of the outputs is compared in.
GLOBAL = {
    "conjugate_gradient": ({"n": 20}, "u"),
    "kmeans": ({"k": 4}, "nearest"),
    "pagerank": ({"pages": 50, "links": 300}, "scores"),
}


@pytest.mark.one_mpi
@pytest.mark.parametrize("name", GLOBAL)
def test_global_arrays_under_mpirun(mpirun, built, spmd_here, tmp_path, name):
    parameters, output = GLOBAL[name]
    image = built(EXAMPLES / f"{name}.py", **parameters)
    one, three = tmp_path / "one.npy", tmp_path / "three.npy"
    spmd_here("run", image, "--ranks", 1, "-o", f"{output}={one}").expect(0)
    mpirun(3, "-m", "spmd", "run", image, "-o", f"{output}={three}").expect(0)
    np.testing.assert_allclose(np.load(three), np.load(one), rtol=1e-6)


@pytest.fixture(scope="module")
def digits(built):
    return built(EXAMPLES / "train_digits.py", epochs=10)


@pytest.fixture(scope="module")
def digits_alone(digits, spmd_command, once):
    """Losses and accuracy on one rank: what every other number of ranks is compared with."""

    def make(folder):
        folder.mkdir()
        _train(digits, folder, spmd_command, "--ranks", "1")

    return _loaded(once("digits", make))


def _train(image, folder, start, *args):
    outputs = [x for k in RESULTS for x in ("-o", f"{k}={folder}/{k}.npy")]
    start("run", image, *args, *outputs, timeout=5 * PATIENCE).expect(0, "epoch 1 loss", "accuracy")
    return _loaded(folder)


def _loaded(folder):
    return {k: np.load(folder / f"{k}.npy") for k in RESULTS}


def _agree(got, alone):
    np.testing.assert_allclose(got["losses"][:20], alone["losses"][:20], rtol=1e-5)
    assert got["w1"].shape == (64, 32)
    assert abs(got["accuracy"] - alone["accuracy"]) <= 0.005
    assert got["accuracy"] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [7, 1000])
def test_digits_in_one_process(digits, digits_alone, spmd_command, tmp_path, ranks):
    _agree(_train(digits, tmp_path, spmd_command, "--ranks", ranks), digits_alone)


@pytest.mark.one_mpi
def test_digits_under_mpirun(mpirun, digits, digits_alone, tmp_path):
    def start(*args, **keywords):
        return mpirun(5, "-m", "spmd", *args, **keywords)

    _agree(_train(digits, tmp_path, start), digits_alone)
