"""Images from Python: arrays in and out, scalars, many runs, text, interrupts, communicators."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import spmd
from codegen.errors import (
    CheckError,
    EnvironmentFault,
    ImageError,
    InputError,
    MeshError,
    OutputError,
    UsageError,
)
from spmd import source
from tests.conftest import run


@spmd.program(mesh=("x",))
def scale(n: int = 10):
    factor = spmd.scalar("factor", 2.0)
    steps = spmd.scalar("steps", 1)
    u = spmd.input("u", (n,), np.float64, layout=("x",), default=lambda i: i + 0.5)

    @spmd.shard_map(mesh="x", out_layouts=(("x",), ()))
    def body(u):
        spmd.print("{} steps", steps)
        for _ in spmd.range(steps):
            u = u * factor
        return u, spmd.psum(np.sum(u), "x")

    v, total = body(u)
    return {"v": v, "total": total}


@spmd.program(mesh=("x", "y"))
def transposed(n: int = 7, m: int = 8):
    u = spmd.input("u", (n, m), np.float32, layout=("x", "y"))
    small = spmd.input("small", (3,), np.int16, layout=(None,), default=lambda i: i)

    @spmd.shard_map(mesh=("x", "y"), out_layouts=(("y", "x"), (None,)))
    def body(u, small):
        return u.T, small + 1

    return body(u, small)


@spmd.program(mesh=("x",))
def one():
    u = spmd.input("u", (4,), np.float64, layout=("x",), default=lambda i: i)
    return spmd.shard_map(lambda u: -u, mesh="x", out_layouts=("x",))(u)


@spmd.program(mesh=("x",))
def endless():
    n = spmd.axis_size("x")
    u = spmd.input("u", (8 * n,), np.float32, layout=("x",), default=lambda i: i)

    @spmd.shard_map(mesh="x", out_layouts=("x",))
    def turn(u):
        for _ in spmd.range(10**15):
            u = spmd.ppermute(u, "x", shift=1) * 0.5
        return u

    return turn(u)


@pytest.fixture(scope="module")
def image() -> Any:
    return spmd.build(scale)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 10, 16])
def test_a_dict_of_arrays(image: Any, ranks: int) -> None:
    u = np.random.default_rng(0).random(10)
    out = image.run(ranks=ranks, u=u, factor=3.0, steps=2)
    assert list(out) == ["v", "total"]
    np.testing.assert_array_equal(out["v"], u * 3.0 * 3.0)
    np.testing.assert_allclose(out["total"], (u * 9).sum(), rtol=1e-14)
    assert out["total"].shape == () and out["v"].dtype == np.float64


def test_defaults(image: Any) -> None:
    np.testing.assert_array_equal(image.run()["v"], (np.arange(10) + 0.5) * 2)
    np.testing.assert_array_equal(image.run(ranks=3, factor=1)["v"], np.arange(10) + 0.5)


def test_a_tuple_and_a_single_array() -> None:
    u = np.arange(56, dtype=np.float32).reshape(7, 8)
    built = spmd.build(transposed)
    for ranks in (1, 4, 6):
        out = built.run(ranks=ranks, u=u)
        assert type(out) is tuple
        np.testing.assert_array_equal(out[0], u.T)
        np.testing.assert_array_equal(out[1], [1, 2, 3])
        assert out[1].dtype == np.int16
    out = built.run(mesh={"x": 1, "y": 3}, u=np.asfortranarray(u), small=np.arange(9, 3, -2, "i1"))
    np.testing.assert_array_equal(out[0], u.T)
    np.testing.assert_array_equal(out[1], [10, 8, 6])
    np.testing.assert_array_equal(built.run(ranks=4, u=u[::-1, ::-1])[0], u[::-1, ::-1].T)
    np.testing.assert_array_equal(spmd.build(one).run(ranks=2), -np.arange(4.0))


class Pair(NamedTuple):
    first: Any
    second: Any


@spmd.program(mesh=("x",))
def nested():
    x = spmd.zeros(3)
    return {
        "a.b": x, "a/b": [x, (x + 1,), {}, [], ()], "d": {"0": x, "1": 2, "": {"z": [x]}},
        "pair": Pair(x + 2, [Pair(x, 3)]), "": (), "caf\xe9\n": x - 1, "x.y": {"z.": x},
    }


def same_form(found: Any, wanted: Any) -> None:
    """The same containers and keys, in the same order, with equal leaves."""
    if not isinstance(wanted, (dict, list, tuple)):
        np.testing.assert_array_equal(found, wanted)
        return
    assert type(found).__name__ == type(wanted).__name__ and len(found) == len(wanted)
    assert getattr(found, "_fields", None) == getattr(wanted, "_fields", None)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = found.values(), wanted.values()
    for one, other in zip(found, wanted, strict=True):
        same_form(one, other)


def test_what_a_program_returns_keeps_its_form(tmp_path: Path) -> None:
    built, wanted = spmd.build(nested), nested.eager(ranks=2)
    same_form(built.run(ranks=2), wanted)
    built.save(tmp_path / "nested.img")
    names = [output["name"] for output in built.manifest["outputs"]]
    assert names[:3] == ["a.b", "a/b.0", "a/b.1.0"] and 'd."".z.0' in names
    assert "pair.second.0.first" in names and "caf\xe9\\x0a" in names
    found = spmd.load(tmp_path / "nested.img").run(ranks=3)
    same_form(pickle.loads(pickle.dumps(found)), wanted)


@spmd.program(mesh=("x",))
def doubled():
    c = spmd.input("c", (4,), np.float64, layout=(None,))
    return {"c": spmd.shard_map(lambda c: np.concatenate([c, c]), out_layouts=(None,))(c)}


def test_an_output_may_be_called_as_an_input_and_have_another_shape(
    tmp_path: Path, spmd_command: Callable[..., Any]
) -> None:
    image, c = spmd.build(doubled), np.arange(4.0)
    np.testing.assert_array_equal(image.run(ranks=2, c=c)["c"], np.concatenate([c, c]))
    image.save(tmp_path / "d.img")
    np.save(tmp_path / "in.npy", c)
    spmd_command("run", tmp_path / "d.img", "-i", f"c={tmp_path}/in.npy",
                 "-o", f"c={tmp_path}/out.npy").expect(0)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.concatenate([c, c]))


@spmd.program(mesh=("x",))
def total(n: int = 5000):
    u = spmd.input("u", (spmd.axis_size("x"), n), np.float64, layout=("x", None))
    local = spmd.shard_map(lambda u: spmd.psum(u, "x"), out_layouts=("x", None))
    return local(u)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_algorithm_gives_the_same_sum_on_all_ranks(ranks: int) -> None:
    image = spmd.build(total)
    u = np.random.default_rng(0).random((ranks, 5000))
    for algorithm in ("auto", "flat", "blocks", "ring"):
        for barrier in ("auto", "strict"):
            found = image.run(ranks=ranks, threads=2, algorithm=algorithm, barrier=barrier, u=u)
            np.testing.assert_allclose(found[0], u.sum(0), rtol=1e-12)
            assert all(np.array_equal(row, found[0]) for row in found)
    with pytest.raises(UsageError, match="no algorithm 'tree'"):
        image.run(algorithm="tree", u=u)
    with pytest.raises(UsageError, match="no barrier 'none'"):
        image.run(barrier="none", u=u)
    for limit in (-1, float("inf"), float("nan"), "5", None):
        with pytest.raises(UsageError, match="time_limit"):
            image.run(time_limit=limit, u=u)


def test_loaded_once_and_run_many_times(image: Any) -> None:
    with image.open(ranks=3) as job:
        first = job._job
        for k in range(5):
            np.testing.assert_array_equal(job(u=np.full(10, k))["v"], np.full(10, 2.0 * k))
            assert job._job is first or k == 0
            first = job._job
        np.testing.assert_array_equal(job()["v"], (np.arange(10) + 0.5) * 2)
        np.testing.assert_array_equal(job(factor=5.0)["v"], (np.arange(10) + 0.5) * 5)
        with pytest.raises(InputError):
            job(u=np.ones(3))
        np.testing.assert_array_equal(job(u=np.ones(10))["v"], np.full(10, 2.0))


def test_threads_take_turns(image: Any) -> None:
    """With one open job, and each with a job of its own."""
    wrong: list[float] = []

    def call(turn: Callable[..., Any], k: int) -> None:
        for _ in range(20):
            total = float(turn(u=np.full(10, float(k)))["total"])
            wrong.extend([total] * (total != 20 * k))

    with image.open(ranks=3, threads=2) as job:
        for turn in (job, lambda **given: image.run(ranks=2, threads=2, **given)):
            threads = [threading.Thread(target=call, args=(turn, k)) for k in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert wrong == []


def test_a_forked_child_cannot_call_its_parents_job(image: Any) -> None:
    with image.open(ranks=3, threads=2) as job:
        job()
        child = os.fork()
        if not child:  # in a copy of pytest: leave without a word
            code = 1
            try:
                job()
            except UsageError as error:
                code = 0 if "forked" in str(error) else 2
                job.close()
                image.run(ranks=2, threads=2)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        job()


def test_nothing_is_left_open(image: Any) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    image.run(ranks=2)
    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        image.run(ranks=5)
    assert descriptors() <= before and threading.active_count() <= threads
    assert len(os.listdir("/proc/self/task")) < 40


def test_saved_and_loaded(image: Any, tmp_path: Path) -> None:
    image.save(tmp_path / "a.img")
    again = spmd.load(tmp_path / "a.img")
    assert again.digest == image.digest and again.data == image.data
    assert "scale" in repr(again)
    np.testing.assert_array_equal(again.run(ranks=2)["v"], image.run(ranks=3)["v"])
    assert os.listdir(tmp_path) == ["a.img"]
    with pytest.raises(OutputError):
        image.save(tmp_path / "none" / "a.img")


def test_text_is_seen_by_python(image: Any, capsys: pytest.CaptureFixture[str]) -> None:
    image.run(ranks=4, steps=3)
    assert capsys.readouterr().out == "3 steps\n"


def test_inputs_are_checked(image: Any) -> None:
    def refused(kind: type, **arguments: Any) -> str:
        with pytest.raises(kind) as caught:
            image.run(ranks=2, **arguments)
        return str(caught.value)

    assert "(10,)" in refused(InputError, u=np.ones(9)) and "(9,)" in refused(
        InputError, u=np.ones(9)
    )
    text = refused(InputError, u=np.ones(10, complex))
    assert "complex128" in text and "float64" in text
    assert "u, factor, steps" in refused(UsageError, w=1)
    assert "integer" in refused(UsageError, steps=1.5)
    assert "parameter" in refused(UsageError, n=11)
    image.run(ranks=2, u=np.arange(10, dtype=np.float32))  # nothing is lost
    image.run(ranks=2, u=list(range(10)))
    with pytest.raises(UsageError, match="u was not given"):
        spmd.build(transposed).run()
    with pytest.raises(MeshError):
        image.run(ranks=3, mesh={"x": 2})


def test_too_much_memory_is_refused_before_it_is_taken() -> None:
    with pytest.raises(EnvironmentFault, match="needs .* have ") as caught:
        spmd.build(scale, n=1 << 44).run(ranks=4)
    assert caught.value.exit_code == 69


def test_what_ranks_take_beside_their_arrays_counts(image: Any, monkeypatch: Any) -> None:
    """A thousand ranks of ten numbers: it is the records that need room."""
    monkeypatch.setattr("spmd.launch.job.available_memory", lambda: 2_000_000)
    image.run(ranks=100)
    with pytest.raises(EnvironmentFault, match="needs [0-9.]+ MiB, have 1.9 MiB"):
        image.run(ranks=1000)


def test_a_limit_of_addresses(image: Any, monkeypatch: Any) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 30))
    with pytest.raises(EnvironmentFault, match="not enough address space") as caught:
        image.run(ranks=2)
    assert "ulimit -v" in caught.value.remedy and caught.value.found.startswith("0 bytes")


def test_an_interrupt_ends_a_run() -> None:
    image = spmd.build(endless)
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        image.run(ranks=4)
    timer.join()
    np.testing.assert_array_equal(spmd.build(one).run(ranks=2), -np.arange(4.0))


COMM = """
import sys
import numpy as np
import spmd
from mpi4py import MPI

comm = MPI.COMM_WORLD
image = spmd.load(sys.argv[1])
u = np.arange(10.0) ** 2
out = image.run(comm=comm, u=u, factor=3.0)
v = out["v"]
assert v.shape == (10,) and v.dtype == np.float64
(begin,) = v.offsets
np.testing.assert_array_equal(v.local, 3 * u[begin : begin + len(v.local)])
whole = v.gather(root=0)
assert (whole is None) == (comm.rank != 0)
if comm.rank == 0:
    np.testing.assert_array_equal(whole, 3 * u)
np.testing.assert_allclose(out["total"].local, 3 * u.sum())
np.testing.assert_allclose(np.asarray(out["total"]), 3 * u.sum())  # all have it
assert f"here [{begin}:{begin + len(v.local)}]" in repr(v), repr(v)
try:
    assert np.array_equal(np.asarray(v), 3 * u) and comm.size == 1
except spmd.UsageError as error:
    assert comm.size > 1 and "out.gather(root=0)" in str(error)
for keep in ((), "v"):  # outputs handed in again as they are
    with image.open(comm=comm, keep=keep) as job:
        first = again = job(u=u)
        for k in range(2):
            again = job(u=again["v"], factor=2.0)
        assert again["v"].is_held() == bool(keep)
        np.testing.assert_array_equal(again["v"].local, 8 * u[begin : begin + len(v.local)])
    np.testing.assert_array_equal(again["v"].local, 8 * u[begin : begin + len(v.local)])
with image.open(comm=comm) as job:
    for k in range(3):
        part = u[begin : begin + len(v.local)] + k
        again = job(u=spmd.local(part))
        np.testing.assert_array_equal(again["v"].local, 2 * part)
alone = image.run(ranks=3, u=u)["v"]
np.testing.assert_array_equal(alone, 2 * u)
if comm.size > 1:
    turned = spmd.load(sys.argv[2])
    with turned.open(comm=comm, keep=True) as job:
        out = job(u=np.zeros((8, 8), "f4"))[0]
        try:
            job(u=out)
            raise SystemExit("a part of columns became one of rows")
        except spmd.SpmdError as error:
            assert "was given an output of another layout" in str(error), error
try:
    job = image.run(comm=comm, u=spmd.local(np.ones(77)))
except Exception as error:
    assert getattr(error, "exit_code", 0) == 65, error
print("right", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("processes", [1, 3])
def test_inside_an_mpi_program(image: Any, tmp_path: Path, processes: int) -> None:
    image.save(tmp_path / "a.img")
    spmd.build(transposed, n=8).save(tmp_path / "t.img")
    (tmp_path / "script.py").write_text(COMM)
    done = run(["mpirun", "-n", processes, sys.executable, tmp_path / "script.py",
                tmp_path / "a.img", tmp_path / "t.img"]).expect(0)
    assert done.out.count("right") == processes


def test_what_every_rank_prints_reads_as_in_an_eager_run(capfd: Any) -> None:
    @spmd.program(mesh=("x",))
    def talking():
        u = spmd.input("u", (4,), np.float32, layout=("x",), default=lambda i: (i + 1) * 2e30)

        @spmd.shard_map(mesh="x", out_layouts=("x",))
        def body(u):
            spmd.print("{} of {:.1e}", u[0], u[0], every_rank=True)
            return u

        return body(u)

    spmd.build(talking).run(ranks=2)
    printed = sorted(capfd.readouterr().out.splitlines())
    talking.eager(ranks=2)
    assert printed == sorted(capfd.readouterr().out.splitlines())
    assert printed[1] == "rank 1: 6e+30 of 6.0e+30"


def test_programs_of_one_function_are_called_as_their_file_calls_them(tmp_path):
    """By that name an image finds its program again, for run --check."""
    path = tmp_path / "two.py"
    path.write_text("import spmd\ndef zeros(n: int = 3):\n    return spmd.zeros(n)\n"
                    "few = spmd.program(mesh=('x',))(zeros)\n"
                    "many = also = spmd.program(mesh=('x', 'y'))(zeros)\n")
    for name, expected in (("few", "few"), ("many", "many"), ("also", "many")):
        assert source.find_program(f"{path}:{name}").name == expected


@spmd.program(mesh=("r",))
def roots(n: int = 7):
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i + 1)
    return {"u": np.sqrt(u - spmd.scalar("less", 0.0))}


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_call_that_fails_leaves_what_was_kept(ranks: int) -> None:
    with spmd.build(roots, check="nan").open(ranks=ranks, keep=True) as job:
        first = job()
        out = job(u=first["u"])
        wanted = np.sqrt(np.sqrt(np.arange(1.0, 8)))
        for given in ({"u": np.full(7, -1.0)}, {"u": out["u"], "less": 9.0}):
            with pytest.raises(CheckError):
                job(**given)
            np.testing.assert_array_equal(np.asarray(out["u"]), wanted)
        with pytest.raises(UsageError, match="called again"):
            np.asarray(first["u"])  # of the call before: gone, as ever
        again = job(u=out["u"])
        assert "kept on the ranks" in repr(again["u"])
        np.testing.assert_array_equal(np.asarray(again["u"]), np.sqrt(wanted))


def test_a_closed_job_is_not_called(image: Any) -> None:
    with image.open(ranks=2) as job:
        job()
    for _ in range(2):
        with pytest.raises(UsageError, match=r"this job is closed(.|\n)*image\.open"):
            job()
        job.close()


def test_a_mistake_is_told_the_way_out(image: Any) -> None:
    for options, said in (({"rank": 4}, "ranks=…, if"), ({"facto": 2}, "factor=…, if"),
                          ({"ranks": 0}, "a whole number from 1"), ({"ranks": 2.5}, "ranks=4"),
                          ({"u": "u5.npy"}, r"u=np\.load\('u5\.npy'\)"),
                          ({"u": "u.npz"}, r"u=np\.load\('u\.npz'\)\['u'\]")):
        with pytest.raises((UsageError, InputError), match=said):
            image.run(**options)
    with pytest.raises(TypeError) as positional:
        image.run(4)
    assert "run(ranks=4)" in positional.value.__notes__[0]
    with pytest.raises(TypeError) as misspelt:
        image.open(rank=4)
    assert "ranks=…, if" in misspelt.value.__notes__[0]
    with pytest.raises(UsageError, match="check=…, if"):
        spmd.build(scale, chek=True)


def test_pickled_it_is_its_bytes(image: Any) -> None:
    text = ("import pickle, sys; im = pickle.load(sys.stdin.buffer); "
            "print(im.digest, im.run(ranks=2)['total'], 'codegen.compile' in sys.modules)")
    pickled = pickle.dumps(image)
    assert len(pickled) < len(image.data) + 1000
    done = subprocess.run([sys.executable, "-c", text], input=pickled, capture_output=True)
    assert done.stdout.decode().split()[2:] == [image.digest, str(image.run()["total"]), "False"]
    with pytest.raises(ImageError):
        pickle.loads(pickled.replace(image.data[-64:], bytes(64)))
