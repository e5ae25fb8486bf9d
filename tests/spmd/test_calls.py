"""Calls of images that stay open, of programs and of entries: what is started and asked for later,
calls from several threads, calls that fail, and calls of a job that is closed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import spmd
from codegen.errors import CheckError, InputError, UsageError
from spmd.launch.job import Job

N = 12


@spmd.program(mesh=("r",), layout={"i": "r"})
class Account:
    """State on all ranks, state of one element, and entries that fail before and after a change."""

    def __init__(self, n: int = N):
        self.i = spmd.Dim("i", n)
        self.total = spmd.zeros((self.i,), np.float64)
        self.kept = np.arange(3.0)
        self.calls = 0

    @spmd.entry
    def add(self):
        x = spmd.input("x", (self.i,), np.float64)
        factor = spmd.scalar("factor", 1.0)
        assert np.min(x) >= 0, "a debt"
        self.total = self.total + x * factor
        self.calls += 1
        assert np.max(self.total) < 1000, "too much"
        return np.sum(self.total)

    @spmd.entry
    def turn(self):
        turns = spmd.scalar("turns", 1)
        t = self.total
        for _ in spmd.range(turns):
            t = np.roll(t, 1) * 1.0000001 + 1e-9
        self.total, self.kept = t, self.kept + 1
        return t[0]

    @spmd.entry
    def add_parts(self):
        """Fails on one rank, while others may have run to their end."""
        x = spmd.input("x", (self.i,), np.float64)

        def added(total, x):
            assert np.min(x) >= 0, "a debt here"
            return total + x

        split = spmd.shard_map(added, in_layouts=(("r",), ("r",)), out_layouts=("r",))
        self.total, self.kept = split(self.total, x), self.kept + 1

    @spmd.entry
    def look(self):
        return {"total": self.total, "kept": self.kept, "calls": self.calls}


@spmd.program(mesh=("r",))
def scaled(n: int = 8):
    """A scalar that only the computation reads, a tree, and a default."""
    w = spmd.input("w", {"a": spmd.spec((n,), np.float64), "b": spmd.spec((), np.float64)})
    x = spmd.input("x", (n,), np.float64, layout=("r",))
    assert np.min(x) > -100, "too cold"
    return w["a"] * x * spmd.scalar("k", 2.0) + w["b"] + spmd.scalar("shift", 10)


@spmd.program(mesh=("r",))
def rolled(n: int = 16):
    """Scalars on which neighbours depend."""
    by, back = spmd.scalar("by", 3), spmd.scalar("back", 0)
    u = spmd.input("u", (n,), np.float64, layout=("r",))
    return np.roll(u, by) - np.roll(u, -back)


@pytest.fixture(scope="module")
def account():
    return spmd.build(Account)


@pytest.fixture(scope="module")
def image():
    return spmd.build(scaled)


def same(now, before):
    assert now.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(now[name], value)


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_a_call_that_fails_leaves_state_as_it_was(account, ranks, monkeypatch):
    x = np.arange(float(N))
    with account.open(ranks=ranks) as m:
        m.turn()
        assert m.add(x=x) == pytest.approx(66)
        assert m.add(x=x, factor=2) == pytest.approx(198)
        before = m.look()
        for kind, bad in ((CheckError, -x), (CheckError, 1e4 * x), (InputError, x[:3]),
                          (InputError, x + 1j), (InputError, "x.npy")):
            for _ in range(2):  # in the general way, and as a call like the one before
                with pytest.raises(kind):
                    m.add(x=bad)
                same(m.look(), before)
        with monkeypatch.context() as patched:
            def full(*_, **__):
                raise MemoryError
            patched.setattr(np, "empty", full)
            with pytest.raises(MemoryError):
                m.add(x=x)
            patched.setattr(Job, "run", full)
            with pytest.raises(MemoryError):
                m.turn(turns=3)
        same(m.look(), before)
        assert m.add(x=x) == pytest.approx(264)


def test_an_interrupted_call_leaves_state_as_it_was(account):
    with account.open(ranks=3) as m:
        m.add(x=np.arange(float(N)))
        before = m.look()
        for _ in range(2):
            begun = m._job
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                m.turn(turns=10**9)
            timer.join()
            same(m.look(), before)
            assert m._job is not begun
            m.turn(turns=0)
            before = m.look()


@spmd.program(mesh=("r",))
class Steps:
    """Short calls, which write one state where it lies and bind another anew."""

    def __init__(self):
        self.x = np.zeros(16)
        self.k = 0

    @spmd.entry
    def step(self):
        self.x[1] += 1
        self.k += 1


def test_an_interrupt_at_any_moment_leaves_whole_calls_and_no_turn_taken():
    kept = signal.signal(signal.SIGALRM, signal.default_int_handler)
    moments = random.Random(1)
    try:
        with spmd.build(Steps).open(ranks=1) as m:
            for _ in range(300):
                with pytest.raises(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.002, 0.01))
                    while True:
                        m.step()
                state = m.state()
                assert state["x"][1] == state["k"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


def test_state_stays_where_another_scalar_loads_the_job_anew(account, monkeypatch):
    with account.open(ranks=3) as m:
        m.add(x=np.ones(N))
        before, job = m.look(), m._job
        monkeypatch.setattr(Job, "rebind", lambda *_: False)
        same(m.look(), before)
        m._prepared.clear()
        same(m.look(), before)
        assert m._job is not job
        monkeypatch.setattr(Job, "_load", lambda *_: 1 / 0)  # and where loading fails
        m._prepared.clear()
        with pytest.raises(ZeroDivisionError):
            m.look()
        monkeypatch.undo()
        same(m.look(), before)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_calls_with_other_scalars(image, ranks):
    """Only what the computation reads: the job and what was prepared for the call stay."""
    a, x = np.arange(8.0), np.ones(8)
    with image.open(ranks=ranks) as job:
        calls = set()
        for k, shift in [(1.0, 2), (1.0, 2), (0.5, -3), (3, 2**40), (np.float32(0.25), True - 1)]:
            for w in ({"a": a, "b": 1.0}, {"b": np.float64(1), "a": a[::-1][::-1]}):
                np.testing.assert_array_equal(job(x=x, w=w, k=k, shift=shift), a * k + 1 + shift)
            calls.add((id(job._job), id(job._prepared[None, (), None])))
            with pytest.raises(UsageError, match="cannot be"):
                job(x=x, w=w, k="no", shift=shift)
            with pytest.raises(UsageError, match="cannot be"):
                job(x=x, w=w, k=k, shift=1.5)
        assert len(calls) == 1
        np.testing.assert_array_equal(job(x=x, w=w), a * 2 + 11)  # their defaults


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_calls_with_other_scalars_that_neighbours_depend_on(ranks):
    u = np.arange(16.0)
    with spmd.build(rolled).open(ranks=ranks) as job:
        calls = set()
        for by, back in [(3, 0), (1, 0), (1, 5), (15, 5), (3, 0), (0, 0), (16, 15)]:
            with pytest.raises(UsageError, match="scalar back"):
                job(u=u, by=by, back="no")
            for _ in range(2):
                want = np.roll(u, by) - np.roll(u, -back)
                np.testing.assert_array_equal(job(u=u, by=by, back=back), want)
            calls.add(job._prepared[None, (), None])
        np.testing.assert_array_equal(job(u=u), np.roll(u, 3) - u)
        assert len(calls) == 1


def test_a_started_call_copies_its_inputs_and_runs_in_its_turn(account, image):
    with account.open(ranks=2) as m:
        x = np.ones(N)
        slow = m.turn.start(turns=100_000)
        calls = []
        for _ in range(5):
            calls += [m.add.start(x=x), m.add.start(x=-x), m.look.start()]
            x += 1  # of the next call
        assert not slow.done() and not calls[-1].done()
        with pytest.raises(TimeoutError, match="within 0.001 s"):
            calls[0].result(0.001)
        after = m.look()  # waits for all of them
        assert slow.done() and all(call.done() for call in calls)
        same(calls[-1].result(), after)
        first, start = calls[0].result(), slow.result()
        assert first == pytest.approx(N * (start + 1))
        for k in range(5):
            assert calls[3 * k].result(0) == pytest.approx(N * (start + sum(range(k + 2))))
            assert calls[3 * k + 2].result()["calls"] == k + 1
            for _ in range(2):
                with pytest.raises(CheckError, match="a debt"):
                    calls[3 * k + 1].result()
        with pytest.raises(UsageError, match="no input or scalar 'y'"):
            m.add.start(y=x).result()
        m.add.start(x=np.ones(N))  # nobody asks
    with image.open(ranks=3) as job:
        w = {"a": np.arange(8.0), "b": np.zeros(())}
        calls = []
        for k in range(4):
            calls.append(job.start(x=np.ones(8), w=w, k=float(k), shift=0))
            w["a"] += 1
        for k, call in enumerate(calls):
            np.testing.assert_array_equal(call.result(), (np.arange(8) + k) * k)


def test_arguments_without_a_name_are_refused(account):
    with account.open(ranks=1) as m:
        for call in (m.add, m.add.start, m.add.stream):
            with pytest.raises(UsageError, match="add takes inputs and scalars by name") as caught:
                call(np.ones(N), 2.0)
            assert caught.value.expected == "add(x=…, factor=…)"
            assert caught.value.found == "2 arguments without a name"


def test_a_call_that_cannot_be_started_holds_no_later_one_up(account, monkeypatch):
    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    with account.open(ranks=2) as m:
        monkeypatch.setattr("spmd.started.start_new_thread", no_thread)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="new thread"):
                m.add.start(x=np.ones(N))
        monkeypatch.undo()
        assert m.add.start(x=np.ones(N)).result(timeout=60) == m.add(x=np.zeros(N))


def test_close_waits_for_started_calls_and_refuses_later_ones(account, image):
    with account.open(ranks=2) as m:
        started = [m.turn.start(turns=30_000), m.turn.start(turns=30_000)]
    assert all(call.done() and call.result() > 0 for call in started)
    for late in (m.look, m.look.start, lambda: m.add(x=np.ones(N))):
        with pytest.raises(UsageError, match="this job is closed"):
            late()
    m.close()
    job = image.open(ranks=1)
    job.close()
    for late in (job, job.start):
        with pytest.raises(UsageError, match="this job is closed"):
            late(x=np.ones(8))


def test_calls_from_eight_threads_have_the_results_of_some_order(account):
    """Every call adds its own number, so that sums tell which calls came before."""
    with account.open(ranks=3) as m, ThreadPoolExecutor(8) as pool:
        def calls(thread):
            chance, found = random.Random(thread), []
            for k in range(12):
                x = np.zeros(N)
                x[thread] = 1
                way = chance.randrange(4)
                if way == 0:
                    found.append(m.add(x=x))
                elif way == 1:
                    found.append(m.add.start(x=x).result())
                elif way == 2:
                    with pytest.raises(CheckError if k % 2 else InputError):
                        m.add(x=-x if k % 2 else x[1:])
                else:
                    now = m.look()
                    assert now["total"][thread] == len(found) and now["calls"] == sum(now["total"])
            return found
        sums = [s for found in pool.map(calls, range(8)) for s in found]
        assert sorted(sums) == list(range(1, len(sums) + 1))
        assert m.look()["calls"] == len(sums)


def test_two_jobs_side_by_side(account, image):
    """Calls of two jobs by turns, and from two threads."""
    x, w = np.ones(8), {"a": np.arange(8.0), "b": 1.0}
    with image.open(ranks=2) as first, account.open(ranks=2) as second:
        for k in range(20):
            np.testing.assert_array_equal(first(x=x, w=w, k=k), np.arange(8) * k + 11)
            assert second.add(x=np.ones(N)) == N * (k + 1)
        end = time.monotonic() + 0.3
        with ThreadPoolExecutor(2) as pool:
            def many(call):
                count = 0
                while time.monotonic() < end:
                    call()
                    count += 1
                return count
            counts = list(pool.map(many, (lambda: first(x=x, w=w), second.look)))
        assert min(counts) > 0


@spmd.program(mesh=("r",))
class Written:
    """Entries that write into states where they lie, at an element that a scalar names."""

    def __init__(self, n: int = N):
        self.u = spmd.zeros((n,), np.float64, layout=("r",))
        self.t = np.zeros(4)

    @spmd.entry
    def put(self):
        k, x = spmd.scalar("k", 0), spmd.scalar("x", 1.0)
        self.u[k] = x
        self.t[k % 4] += x
        assert x < 100, "too large"
        return self.u

    @spmd.entry
    def last(self):
        return self.u, self.t


@pytest.mark.parametrize("ranks", [1, 3])
def test_scalars_name_what_a_call_writes_and_failures_leave_it(ranks):
    u, t = np.zeros(N), np.zeros(4)
    with spmd.build(Written).open(ranks=ranks) as m:
        for k, x in ((1, 1.0), (2, 1.0), (5, 200.0), (5, 3.0), (2, 7.0), (2, 300.0), (11, 1.0)):
            if x < 100:
                u[k], t[k % 4] = x, t[k % 4] + x
                assert np.array_equal(m.put(k=k, x=x), u)
            else:
                with pytest.raises(CheckError, match="too large"):
                    m.put(k=k, x=x)
            for found, expected in zip(m.last(), (u, t), strict=True):
                assert np.array_equal(found, expected), (k, x)
