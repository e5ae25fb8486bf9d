"""Inputs with a dim whose extent only a run knows: what calls, commands and processes may give,
what they are told, and what stays loaded."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.image.manifest import evaluate
from spmd.arguments import extents_of

BATCH = spmd.Dim("batch", at_most=256)

SCORES = """
import numpy as np
import spmd

@spmd.program(mesh=("r",), layout={"batch": "r"})
def scores(at_most: int = 256):
    x = spmd.input("x", (spmd.Dim("batch", at_most=at_most), 4), np.float64)
    w = spmd.input("w", (4, 3), np.float64, default=lambda i, j: i - j)
    return {"y": x @ w, "order": np.argsort(x[:, 0], kind="stable"), "mean": np.mean(x, axis=0)}
"""

SEVERAL = """
import sys
import numpy as np
import spmd
from mpi4py import MPI

comm = MPI.COMM_WORLD
image = spmd.load(sys.argv[1])
x, w = np.random.default_rng(0).normal(size=(256, 4)), np.arange(4)[:, None] - np.arange(3)[None]
for transport in ("auto", "mpi"):
    with image.open(comm=comm, transport=transport) as job:
        jobs = set()
        for rows in (7, 0, 256, 2, 1, 7):
            part = np.array_split(x[:rows], comm.size)[comm.rank]
            for given in (x[:rows], spmd.local(part)):
                out = job(x=given)
                jobs.add(id(job._job))
                np.testing.assert_allclose(out["y"].local, part @ w, atol=1e-12)
                assert out["y"].shape == (rows, 3)
                order = np.argsort(x[:rows, 0], kind="stable")
                np.testing.assert_array_equal(out["order"].local,
                                              np.array_split(order, comm.size)[comm.rank])
        assert len(jobs) == 1
"""


@spmd.program(mesh=("r",), layout={"batch": "r"})
def layer():
    x = spmd.input("x", (BATCH, 4), np.float64)
    y = spmd.input("y", BATCH, np.float64, default=lambda i: 10.0 * i)
    z = spmd.input("z", (3, BATCH), np.float64, default=1.0)
    return {"sum": x.sum(axis=1) + y, "z": z * 2, "rows": BATCH}


@pytest.fixture(scope="module")
def image():
    return spmd.build(layer)


def test_inputs_agree_on_the_rows(image):
    x, y = np.ones((300, 4)), np.arange(300.0)
    with image.open(ranks=2) as job:
        for rows in (3, 0, 256):
            out = job(x=x[:rows])
            np.testing.assert_array_equal(out["sum"], 4 + 10.0 * np.arange(rows))
            assert out["rows"] == rows and out["z"].shape == (3, rows)
        with pytest.raises(spmd.InputError, match="input x has 300 rows; batch has at most 256"):
            job(x=x)
        with pytest.raises(spmd.InputError, match='input y has 8 rows, x has 7: both are "batch"'):
            job(x=x[:7], y=y[:8])
        with pytest.raises(spmd.InputError, match="input z has 1 element along dim 1, x has 7"):
            job(x=x[:7], z=np.ones((3, 1)))
        with pytest.raises(spmd.InputError, match="wrong shape"):
            job(x=x[:7, :3])
        with pytest.raises(spmd.UsageError, match="input x was not given"):
            job(y=y[:7])
        np.testing.assert_array_equal(job(x=x[:2], y=y[:2])["sum"], 4 + y[:2])
        np.testing.assert_array_equal(job(x=x[:2].tolist(), y=[5, 6])["sum"], [9, 10])
    for wrong, of in ((x, "300 rows"), (x[:7], "8 rows")):
        with pytest.raises(spmd.InputError, match=of):
            layer.eager(x=wrong, y=y[:8])


def test_without_inputs_there_are_as_many_as_may_be():
    @spmd.program(mesh=("r",), layout={"batch": "r"})
    def counts():
        y = spmd.input("y", BATCH, np.float64, default=lambda i: i)
        return {"y": y, "sum": np.sum(y)}

    image = spmd.build(counts)
    with image.open(ranks=3) as job:
        for call, rows in (({}, 256), ({"y": np.arange(7.0)}, 7), ({"batch": 5}, 5), ({}, 256)):
            np.testing.assert_array_equal(job(**call)["y"], np.arange(rows))
        with pytest.raises(spmd.InputError, match="batch was set to 4, and the inputs have 7"):
            job(y=np.arange(7.0), batch=4)
        with pytest.raises(spmd.UsageError, match="batch cannot be 257"):
            job(batch=257)
    assert counts.eager()["y"].shape == (256,)


def test_no_rows_where_an_operation_needs_one():
    """A call with no rows is refused, or its run ends, as NumPy has no maximum of no elements."""
    @spmd.program(mesh=("r",), layout={"batch": "r"})
    def largest():
        return np.max(spmd.input("y", BATCH, np.float64))

    @spmd.program(mesh=("r",), layout={"batch": "r"})
    def in_a_loop():
        y, t = spmd.input("y", BATCH, np.float64), 0.0
        for _ in spmd.range(3):
            t = t + np.max(y)
        return t

    y = np.arange(5.0)
    for program, error in ((largest, spmd.InputError), (in_a_loop, spmd.CheckError)):
        with spmd.build(program).open(ranks=2) as job:
            want = job(y=y[:2])
            with pytest.raises(error, match="np.max needs 1 or more|batch=0 breaks"):
                job(y=y[:0])
            assert job(y=y[:2]) == want


def test_conditions_of_the_program_are_asked_of_the_rows():
    @spmd.program(mesh=("r",), layout={"batch": "r"})
    def pairs():
        x = spmd.input("x", (BATCH, 2), np.float64)
        spmd.require(x.shape[0] % 2 == 0, "an even number of rows")
        return 2 * x[::2]

    with spmd.build(pairs).open(ranks=3) as job:
        for rows in (2, 6, 0, 256):
            np.testing.assert_array_equal(job(x=np.ones((rows, 2))), np.full((rows // 2, 2), 2))
        with pytest.raises(spmd.InputError, match="batch=3 breaks") as error:
            job(x=np.ones((3, 2)))
        assert "an even number of rows" in error.value.expected


def test_memory_is_laid_out_for_the_most(image):
    """No capacity depends on the rows, so that a job never lays its memory out anew."""
    for buffer in image.manifest["buffers"]:
        assert evaluate(buffer["bytes"], {"n_r": 2}) >= 0  # nothing else is asked for
    inputs = image.manifest["inputs"]
    assert extents_of(image.manifest, inputs, {"x": (7, 4), "z": (3, 7)}) == {"batch": 7}


def test_kept_outputs_have_their_own_rows():
    """Outputs that one call keeps are inputs of the next one, also if other rows change
    meanwhile."""
    @spmd.program(mesh=("r",), layout={"rows": "r", "more": "r"})
    def halves():
        x = spmd.input("x", (spmd.Dim("rows", at_most=20), 2), np.float64)
        y = spmd.input("y", (spmd.Dim("more", at_most=20), 2), np.float64)
        return {"x": x + 1, "y": y * 2}

    for ranks in (1, 3):
        with spmd.build(halves).open(ranks=ranks, keep=True) as job:
            x, y = np.ones((7, 2)), np.arange(10.0).reshape(5, 2)
            first = job(x=x, y=y)
            second = job(x=first["y"], y=first["x"])  # 5 rows, and 7 more
            np.testing.assert_array_equal(np.asarray(second["x"]), y * 2 + 1)
            np.testing.assert_array_equal(np.asarray(second["y"]), (x + 1) * 2)
            third = job(x=second["x"], y=y[:0])
            np.testing.assert_array_equal(np.asarray(third["x"]), y * 2 + 2)
            assert np.asarray(third["y"]).shape == (0, 2)
            fourth = job(x=x[:2], y=y[:1])
            assert np.asarray(fourth["x"]).shape == (2, 2)


def test_trees_of_inputs_have_rows_too():
    @spmd.program(mesh=("r",), layout={"batch": "r"})
    def tree():
        b = spmd.input("b", {"x": spmd.spec((BATCH, 2)), "y": spmd.spec(BATCH, np.int32)})
        return np.sum(b["x"], axis=1) * b["y"]

    with spmd.build(tree).open(ranks=2) as job:
        x, y = np.ones((9, 2), np.float32), np.arange(9, dtype=np.int32)
        for rows in (4, 0, 9):
            np.testing.assert_array_equal(job(b={"x": x[:rows], "y": y[:rows]}), 2 * y[:rows])
        with pytest.raises(spmd.InputError, match=r"input b.y has 3 rows, b.x has 4"):
            job(b={"x": x[:4], "y": y[:3]})


def test_commands_run_show_and_verify(spmd_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scores.py").write_text(SCORES)
    x = np.random.default_rng(0).normal(size=(300, 4))
    for rows in (0, 7, 300):
        np.save(f"x{rows}.npy", x[:rows])
    np.savetxt("x7.csv", x[:7], delimiter=",", header="a,b,c,d", comments="", fmt="%.17g")
    spmd_here("build", "scores.py").expect(0)
    for given, rows in (("x7.npy", 7), ("x0.npy", 0), ("x7.csv", 7)):
        spmd_here("run", "scores.img", "--ranks", "3", "-i", f"x={given}", "-o", "y=y.npy",
                  "-o", "order=order.npy").expect(0)
        np.testing.assert_allclose(
            np.load("y.npy"), x[:rows] @ (np.arange(4)[:, None] - np.arange(3)), atol=1e-12)
        assert np.load("order.npy").shape == (rows,)
    spmd_here("run", "scores.img", "-i", "x=x300.npy").expect(
        65, "input x has 300 rows; batch has at most 256")
    spmd_here("run", "scores.py", "--eager", "-i", "x=x7.npy").expect(0, "float64 (7, 3)")
    spmd_here("show", "scores.img").expect(0, "dim         batch: 0 to 256 elements")
    spmd_here("show", "scores.img", "--graph").expect(0, "float64[batch, 3]", "dim batch: 0 to 256")
    spmd_here("show", "scores.img", "--layouts").expect(0, "24 * ceil(batch / n_r) bytes")
    spmd_here("verify", "scores.img", "--execute", "--ranks", "1-9").expect(
        0, "batch: 0, 1, 5, 256 elements along it")
    spmd_here("patch", "scores.img", "--index", "0", "--ranks", "1", "-o", "own.img").expect(0)
    for rows in (7, 0):
        spmd_here("run", "own.img", "-i", f"x=x{rows}.npy").expect(0, f"float64 ({rows}, 3)")


def test_several_processes_give_other_rows(spmd_here, mpirun, tmp_path):
    """The whole input, or each process its part; over shared memory and over MPI alone."""
    (tmp_path / "scores.py").write_text(SCORES)
    (tmp_path / "several.py").write_text(SEVERAL)
    spmd_here("build", tmp_path / "scores.py", "-o", tmp_path / "scores.img").expect(0)
    for processes in (2, 3):
        done = mpirun(processes, tmp_path / "several.py", tmp_path / "scores.img")
        assert done.code == 0, done.text


def test_a_kept_run_goes_on_with_its_rows(tmp_path):
    @spmd.program(mesh=("r",), layout={"batch": "r"})
    def turns():
        x, steps = spmd.input("x", (BATCH, 2), np.float64), spmd.scalar("steps", 4)
        for _ in spmd.range(steps):
            x = x * 2 + np.mean(x, axis=0)
        return x

    image = spmd.build(turns, checkpoint=True)
    x = np.arange(14.0).reshape(7, 2)
    want = image.run(ranks=2, x=x, steps=4)
    image.run(ranks=2, x=x, steps=2, checkpoint=tmp_path / "kept", every="1")
    with pytest.raises(spmd.MeshError, match="x has another shape"):
        image.run(ranks=2, x=x[:6], steps=4, resume=tmp_path / "kept")
    out = image.run(ranks=3, x=x, steps=4, resume=tmp_path / "kept")
    np.testing.assert_allclose(out, want)


@pytest.mark.alone
def test_a_row_costs_what_it_costs_alone():
    """One row of at most 256 beside an image built for one row, in turns; and another number of
    rows beside the same."""
    import time

    rng = np.random.default_rng(0)
    a, c = rng.normal(size=(784, 256)) / 20, rng.normal(size=(256, 10)) / 10

    def network(batch):
        x = spmd.input("x", (batch, 784), np.float64)
        z = np.maximum(x @ a, 0) @ c
        e = np.exp(z - np.max(z, axis=1, keepdims=True))
        return e / np.sum(e, axis=1, keepdims=True)

    program = spmd.program(mesh=("r",), layout={"batch": "r"})
    many, one = (spmd.build(program(lambda d=d: network(d)))
                 for d in (BATCH, spmd.Dim("batch", 1)))
    x = rng.normal(size=(2, 784))
    with many.open(ranks=1) as job, one.open(ranks=1) as alone:
        calls = (lambda: job(x=x[:1]), lambda: alone(x=x[:1]), lambda: job(x=x))
        times = np.empty((400, 3))
        for turn in range(len(times)):
            for k, call in enumerate(calls):
                began = time.perf_counter()
                call()
                times[turn, k] = time.perf_counter() - began
        quick = np.quantile(times, 0.2, axis=0)
        assert quick[0] < 1.3 * quick[1]


@spmd.program(mesh=("r",), layout={"batch": "r"})
class Scores:
    """Two entries over one state, each with the rows that its call gives."""

    def __init__(self):
        self.rows = spmd.Dim("batch", at_most=256)
        self.w, self.most = np.arange(12.0).reshape(4, 3), np.zeros(())

    @spmd.entry
    def learn(self):
        x = spmd.input("x", (self.rows, 4), np.float64)
        self.w = self.w - 0.01 * x.T @ (x @ self.w)
        self.most = np.maximum(self.most, np.max(x))
        return np.mean(x @ self.w)

    @spmd.entry
    def infer(self):
        x = spmd.input("x", (self.rows, 4), np.float64)
        return {"y": x @ self.w, "most": self.most, "rows": self.rows}


def test_entries_have_rows_of_their_own():
    x, image = np.random.default_rng(2).normal(size=(256, 4)), spmd.build(Scores)
    for ranks in (1, 3):
        w, most = np.arange(12.0).reshape(4, 3), 0.0
        with image.open(ranks=ranks) as scores:
            for rows in (5, 1, 256, 7):
                w = w - 0.01 * x[:rows].T @ (x[:rows] @ w)
                most = max(most, np.max(x[:rows]))
                np.testing.assert_allclose(scores.learn(x=x[:rows]), np.mean(x[:rows] @ w))
                for others in (3, 0, 256, 1):
                    out = scores.infer(x=x[:others])
                    np.testing.assert_allclose(out["y"], x[:others] @ w, atol=1e-12)
                    assert (out["rows"], out["most"]) == (others, most)
            with pytest.raises(spmd.InputError, match="batch=0 breaks a condition"):
                scores.learn(x=x[:0])  # np.max of none; the other entry asks for nothing
            np.testing.assert_allclose(scores.infer(x=x[:2])["y"], x[:2] @ w, atol=1e-12)


def test_no_state_has_a_dim_that_only_a_run_knows():
    @spmd.program(mesh=("r",))
    class Keeps:
        def __init__(self):
            self.last = np.zeros((BATCH, 2))

        @spmd.entry
        def step(self):
            self.last = spmd.input("x", (BATCH, 2), np.float64)

    with pytest.raises(spmd.ProgramError, match="self.last has a dim whose extent only a run"):
        spmd.build(Keeps)
