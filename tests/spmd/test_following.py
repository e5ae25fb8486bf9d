"""Several processes of a job of which process 0 calls and the others follow, over shared memory and
over MPI: the same results and states, failures, and what ends them."""

from __future__ import annotations

import os
import signal

import pytest

import spmd
from tests.conftest import Launch, until
from tests.spmd.test_calls import Account

HEAD = """
import os, sys, threading, time, signal
import numpy as np
import spmd
from mpi4py import MPI

comm = MPI.COMM_WORLD
image, transport = spmd.load(sys.argv[1]), sys.argv[2]
x = np.arange(12.0)

def same(now, before):
    for name, value in before.items():
        np.testing.assert_array_equal(now[name], value)
"""

CALLS = """
def serve(m):
    total = m.turn(turns=0) + np.zeros(12)
    for k in range(6):
        total += k * x
        np.testing.assert_allclose(m.add(x=k * x, factor=1.0), total.sum())
    before = m.look()
    np.testing.assert_array_equal(before["total"], total)
    assert type(before["total"]) is np.ndarray and before["calls"] == 6
    for _ in range(2):
        for error, bad in ((spmd.CheckError, -x - 1), (spmd.CheckError, x * 1e4),
                           (spmd.InputError, x[:3]), (spmd.InputError, "x")):
            try:
                m.add(x=bad)
            except error:
                pass
            else:
                raise AssertionError(bad)
            same(m.look(), before)
            same(m.look(), before)
    for bad in (0, 11) * 6:  # one rank fails, others may have run to their end
        y = x.copy()
        y[bad] = -1
        try:
            m.add_parts(x=y)
        except spmd.SpmdError as error:
            assert "a debt here" in str(error)
        else:
            raise AssertionError(bad)
        same(m.look(), before)
        m.add_parts(x=0 * x)
        before["kept"] = before["kept"] + 1
        same(m.look(), before)
    for moment in (0.2, *np.random.default_rng(1).uniform(0, 0.004, 8)):  # in a call, and before
        try:
            threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT)).start()
            m.turn(turns=10**9)
        except KeyboardInterrupt:
            same(m.look(), before)
        else:
            raise AssertionError("not interrupted")
        m.turn(turns=0)
        before = m.look()
    calls = [m.add.start(x=k * x) for k in range(5)]
    for k, call in enumerate(calls):
        total += k * x
        np.testing.assert_allclose(call.result(), total.sum())
    for refused in (m.follow, lambda: m.add(x=spmd.local(x))):
        try:
            refused()
        except spmd.UsageError:
            pass
        else:
            raise AssertionError(refused)

with image.open(comm=comm, transport=transport) as m:
    serve(m) if comm.rank == 0 else m.follow()
    try:
        m.follow() if comm.rank else 1 / 0
    except (spmd.UsageError, ZeroDivisionError):
        pass
print(f"done {comm.rank}\\n", end="", flush=True)
"""

PLAIN = """
with image.open(comm=comm, transport=transport) as job:
    if comm.rank:
        job.follow()
    else:
        for k in range(4):
            np.testing.assert_array_equal(job(x=x + k, k=k), (x + k) * k)
        np.testing.assert_array_equal(job.start(x=x).result(), x * 2)
"""

NOT_CLOSED = """
m = image.open(comm=comm, transport=transport)
m.add(x=x) if comm.rank == 0 else m.follow()
print(f"done {comm.rank}\\n", end="", flush=True)
"""

THREADS = """
m = image.open(comm=comm, transport=transport)
if comm.rank:
    m.follow()
else:
    gate, totals = threading.Barrier(8), []
    def call(k):
        gate.wait()
        totals.append(m.state()["total"].sum() if k % 4 == 3 else m.add(x=x))
    threads = [threading.Thread(target=call, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(totals) == 8 and m.look()["calls"] == 6, totals
    m.close()
print(f"done {comm.rank}\\n", end="", flush=True)
"""

LEFT = """
try:
    with image.open(comm=comm, transport=transport) as m:
        if comm.rank:
            m.follow()
        m.add(x=x)
        m.add(x=x)
        raise ValueError("no more")
except Exception as error:
    print(f"{type(error).__name__} {comm.rank}\\n", end="", flush=True)
comm.Barrier()
"""

ROLES = """
with image.open(comm=comm, transport=transport) as m:
    try:
        m.follow() if comm.rank == 1 else m.add(x=x)
    except spmd.SpmdError as error:
        text = str(error)
        assert "some call" in text or "some processes of a job call it and some follow" in text
        print(f"refused {comm.rank}\\n", end="", flush=True)
"""

LATE = """
from spmd.launch.job import Job
rebind = Job.rebind

def late(*given):  # as on a machine that has much else to do
    time.sleep(0.2)
    return rebind(*given)

if comm.rank == 0:
    Job.rebind = late
with image.open(comm=comm, transport=transport) as job:
    if comm.rank and sys.argv[3] == "follows":
        job.follow()
    else:
        for rows in (3, 1, 2):
            try:
                job(x=-np.ones(rows))
            except spmd.SpmdError as error:
                assert "x must not be negative" in str(error), error
            else:
                raise AssertionError("not refused")
            y = job(x=np.ones(rows))
            y = y.gather() if sys.argv[3] == "calls" else y
            assert y is None or y.tolist() == [1] * rows
"""

ENDLESS = """
with image.open(comm=comm, transport=transport) as m:
    if comm.rank:
        m.follow()
    m.add(x=x)
    print("begins", flush=True)
    while sys.argv[3] == "idle":
        signal.pause()
    while True:
        m.turn(turns=10**9 if sys.argv[3] == "long" else 10)
"""


@spmd.program(mesh=("r",))
def scaled(n: int = 12):
    x = spmd.input("x", (n,), spmd.numpy.float64, layout=("r",))
    return x * spmd.scalar("k", 2)


@spmd.program(mesh=("r",))
def rooted():
    rows = spmd.Dim("rows", at_most=3)
    x = spmd.input("x", (rows,), spmd.numpy.float64, layout=(None,))
    assert spmd.numpy.all(x >= 0), "x must not be negative"
    return spmd.numpy.sqrt(x)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name, program in (("account", Account), ("scaled", scaled),
                          ("rooted", rooted)):
        spmd.build(program).save(folder / f"{name}.img")
    for name, text in (("calls", CALLS), ("plain", PLAIN), ("not_closed", NOT_CLOSED),
                       ("threads", THREADS), ("left", LEFT), ("roles", ROLES),
                       ("late", LATE), ("endless", ENDLESS)):
        (folder / f"{name}.py").write_text(HEAD + text)
    return folder


@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_followers_carry_out_what_process_0_calls(files, mpirun, ranks, transport):
    done = mpirun(ranks, files / "calls.py", files / "account.img", transport)
    done.expect(0, *(f"done {k}" for k in range(ranks)))
    mpirun(ranks, files / "plain.py", files / "scaled.img", transport).expect(0)


def test_a_caller_that_ends_releases_its_followers(files, mpirun):
    image = files / "account.img"
    mpirun(3, files / "not_closed.py", image, "auto").expect(0, "done 0", "done 1", "done 2")
    for transport in ("auto", "mpi"):
        done = mpirun(2, files / "left.py", image, transport)
        done.expect(0, "ValueError 0", "Elsewhere 1")


def test_threads_of_process_0_may_make_the_first_call(files, mpirun):
    for _ in range(3):
        done = mpirun(2, files / "threads.py", files / "account.img", "auto")
        done.expect(0, "done 0", "done 1")


def test_all_call_or_all_but_process_0_follow(files, mpirun):
    done = mpirun(3, files / "roles.py", files / "account.img", "auto")
    assert [f"refused {k}" in done.out for k in range(3)] == [True] * 3, done.text


@pytest.mark.parametrize("role", ["calls", "follows"])
def test_a_process_that_is_late_hears_why_another_has_failed(files, mpirun, role):
    """Its inputs have other extents than those of the call before."""
    mpirun(2, files / "late.py", files / "rooted.img", "auto", role).expect(0)


@pytest.mark.parametrize("what", ["idle", "short", "long"])
@pytest.mark.parametrize("who", [0, 1])
def test_no_process_waits_for_one_that_was_killed(files, what, who):
    with Launch(["mpirun", "-n", "2", "python", files / "endless.py", files / "account.img",
                 "auto", what]) as launch:
        pids = launch.ranks(2)
        assert launch.process.stdout.readline() == "begins\n"
        os.kill(pids[who], signal.SIGKILL)
        done = launch.finish(30)
        assert done.code != 0
        until(lambda: not launch.alive())


def test_an_interrupt_of_all_processes_ends_them(files):
    with Launch(["mpirun", "-n", "2", "python", files / "endless.py", files / "account.img",
                 "auto", "short"]) as launch:
        launch.ranks(2)
        assert launch.process.stdout.readline() == "begins\n"
        os.kill(launch.process.pid, signal.SIGINT)
        assert launch.finish(30).code != 0
