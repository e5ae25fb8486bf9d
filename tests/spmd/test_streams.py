"""What a call saves, as a stream: beside the eager object and beside files; consumers that stop or
never come; calls that fail, threads, and several processes."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import spmd
from spmd.streaming import Streaming
from tests.conftest import until

N = 7
BFLOAT16 = ml_dtypes.bfloat16
START = np.arange(N, dtype=np.float32)
RANKS = [{"ranks": 1}, {"ranks": 2}, {"ranks": 3, "threads": 2}, {"ranks": 5},
         {"ranks": 5, "threads": 1}]


@spmd.program(mesh=("r",), layout={"rows": "r"})
class Steps:
    """Entries that save arrays of several kinds, in loops and in loops in them."""

    def __init__(self):
        self.rows = spmd.Dim("rows", N)
        self.x, self.total = spmd.zeros(self.rows, np.float32), 0
        self.cache = spmd.zeros((self.rows, 8), np.int32)

    @spmd.entry
    def several(self):
        start = spmd.input("start", (self.rows,), np.float32)
        steps = spmd.scalar("steps", 5)
        x = start
        for k in spmd.range(steps):
            x = x + start
            spmd.save("step", x, every=2)  # split over ranks
            for j in spmd.range(k):
                self.total += 1
                self.cache[:, j] = self.total
                spmd.save("count", self.total)
                spmd.save("half", x.astype(BFLOAT16), every=3)
            if k > 2:
                spmd.save("whole", x.relayout(None)[::-1])  # on every rank
        self.x = x
        return {"sum": np.sum(x)}

    @spmd.entry
    def one(self):
        steps, most = spmd.scalar("turns", 5), spmd.scalar("most", 10**9)
        for k in spmd.range(steps):
            self.x = self.x + np.float32(1)
            self.total += 1
            spmd.save("sums", self.x * self.total)
            assert k < most, f"{k} is too much"
        return {"total": self.total}

    @spmd.entry
    def look(self):
        return {"x": self.x, "total": self.total}

    @spmd.entry
    def part(self):
        part = spmd.input("part", (spmd.Dim("some", at_most=9), 2), np.int32)
        for _ in spmd.range(2):
            part = part * 2
            spmd.save("part", part)


@spmd.program(mesh=("r",))
def halves(n: int = N):
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
    for _ in spmd.range(spmd.scalar("turns", 4)):
        u = u / 2
        spmd.save("u", u)
    return u


@spmd.program(mesh=("r",))
def saves_nothing(n: int = N):
    return spmd.input("u", (n,), np.float64) + 1


@pytest.fixture(scope="module")
def image():
    return spmd.build(Steps)


def same(items, others) -> None:
    """The same arrays, under the same names, in one order."""
    assert len(items) == len(others)
    for item, other in zip(items, others, strict=True):
        pair = isinstance(item, tuple), isinstance(other, tuple)
        assert pair in ((True, True), (False, False))
        (name, x), (wanted, y) = (item, other) if pair[0] else (("", item), ("", other))
        assert (name, x.dtype, x.shape) == (wanted, y.dtype, y.shape)
        np.testing.assert_array_equal(x, y)


def taken(stream, items) -> None:
    """Append what comes, also where an error comes behind it."""
    for item in stream:
        items.append(item)


def same_state(m, plain) -> None:
    wanted = plain.state()
    for name, array in m.state().items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


@pytest.mark.parametrize("options", RANKS, ids=str)
def test_a_stream_is_what_the_eager_object_and_files_say(image, tmp_path, options):
    plain = Steps.eager()
    paths = {name: str(tmp_path / name / "{}.npy") for name in ("step", "count", "half", "whole")}
    with image.open(**options) as m, image.open(**options, save=paths) as files:
        for steps in (5, 0, 1, 6):
            wanted = plain.several.stream(start=START, steps=steps)
            items = list(wanted)
            for job in (m, files):
                stream = job.several.stream(start=START, steps=steps)
                same(list(stream), items)
                assert stream.result()["sum"] == wanted.result()["sum"] and stream.done()
            for name, path in paths.items():
                frames = [array for other, array in items if other == name]
                assert len(list(Path(path).parent.iterdir())) == len(frames)
                for k, frame in enumerate(frames):
                    found = np.load(path.format(k))
                    np.testing.assert_array_equal(found.view(frame.dtype), frame)
            for job in (m, files, plain):
                job.several(start=START, steps=3)
            same_state(m, plain)
            items = list(plain.one.stream(turns=steps))
            for job in (m, files):
                same(list(job.one.stream(turns=steps)), items)
                same_state(job, plain)


def test_an_eager_stream_beside_functions_that_take_frames():
    taken: list[np.ndarray] = []
    plain = Steps.eager(save={"sums": taken.append})
    items = list(plain.one.stream(turns=3))
    same(taken, items)
    assert not any(np.shares_memory(a, b) for a, b in zip(taken, items, strict=True))
    plain.one(turns=1)
    assert len(taken) == 4


def test_frames_have_as_many_rows_as_inputs(image):
    """A dim of an entry, in an image that saves; no call loads the image again."""
    plain = Steps.eager()
    with image.open(ranks=3) as m:
        m.look()
        before = m._job
        for rows in (3, 9, 0, 4):
            part = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2)
            same(list(m.part.stream(part=part)), list(plain.part.stream(part=part)))
            m.part(part=part)
            same(list(m.one.stream(turns=rows)), list(plain.one.stream(turns=rows)))
        assert m._job is before


@pytest.mark.parametrize("options", RANKS, ids=str)
def test_a_program_without_entries(tmp_path, options):
    image, frames = spmd.build(halves), []
    halves.eager(save={"u": frames.append})
    with image.open(**options) as job:
        stream = job.stream()
        same(list(stream), frames)
        np.testing.assert_array_equal(stream.result(), frames[-1])
        same(list(job.stream(u=frames[0], turns=3)), frames[1:])
        np.testing.assert_array_equal(job(turns=2), frames[1])
    with image.open(**options, keep=True) as job:
        kept = job()
        same(list(job.stream(u=kept, turns=1)), [frames[-1] / 2])


@pytest.mark.parametrize("ranks", [1, 3])
def test_neither_the_call_nor_later_ones_wait_for_a_consumer(image, ranks):
    """More frames than a rank has slots for."""
    plain = Steps.eager()
    many = list(plain.one.stream(turns=300))
    with image.open(ranks=ranks) as m:
        stream = m.one.stream(turns=300)
        first = next(stream)
        assert m.look()["total"] == 300  # behind the whole call
        same([first, *stream], many)
        assert list(stream) == []  # it has ended
        begun, abandoned = m.one.stream(turns=50), m.one.stream(turns=50)
        for _ in begun:
            break
        del abandoned
        two = m.one.stream(turns=4), m.one.stream(turns=3)
        for turns in (50, 50):
            plain.one(turns=turns)
        wanted = [list(plain.one.stream(turns=turns)) for turns in (4, 3)]
        same(list(two[1]), wanted[1])
        same(list(two[0]), wanted[0])
        assert len(list(begun)) == 49
        same_state(m, plain)


def test_what_nobody_wants_is_not_kept(image):
    """Frames of a closed stream, and of one that nobody refers to, are dropped."""
    with image.open(ranks=2) as m:
        stream, frames = m.one.stream(turns=100), []
        frames.append(stream._frames)
        next(stream)
        stream.close()
        assert list(stream) == [] and stream.result()["total"] == 100 and list(stream) == []
        stream = m.one.stream(turns=100)
        frames.append(stream._frames)
        del stream
        gc.collect()
        m.look()
        assert all(queue.is_closed for queue in frames)
        waiting, found = m.one.stream(turns=20000), []
        thread = threading.Thread(target=taken, args=(waiting, found))
        thread.start()
        waiting.close()  # wakes whoever waits
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("options", RANKS, ids=str)
def test_an_error_comes_behind_what_was_saved_before_it(image, options):
    plain = Steps.eager()
    plain.one(turns=2)
    with image.open(**options) as m:
        m.one(turns=2)
        for _ in range(3):
            wanted = plain.one.stream(turns=10, most=2)
            stream, items = m.one.stream(turns=10, most=2), []
            with pytest.raises(spmd.CheckError, match="2 is too much"):
                taken(stream, items)
            same(items, [next(wanted) for _ in range(3)])
            with pytest.raises(AssertionError, match="2 is too much"):
                next(wanted)
            assert list(stream) == list(wanted) == []  # it is said once
            with pytest.raises(spmd.CheckError, match="2 is too much"):
                stream.result()
            same_state(m, plain)
            same(list(m.one.stream(turns=1)), list(plain.one.stream(turns=1)))
        with pytest.raises(spmd.InputError) as called:
            m.several(start=START[:3])
        stream = m.several.stream(start=START[:3])
        with pytest.raises(spmd.InputError) as streamed:
            next(stream)
        assert str(streamed.value) == str(called.value)


def test_a_call_without_a_stream_makes_no_frames(image, monkeypatch):
    """Also behind one with a stream, and behind one that fails."""
    parts = []
    take = Streaming.take
    monkeypatch.setattr(Streaming, "take", lambda self, number, frame: (
        parts.append(number), take(self, number, frame)))
    with image.open(ranks=2) as m:
        list(m.one.stream(turns=3))
        assert len(parts) == 6
        m.one(turns=3)
        with pytest.raises(spmd.CheckError):
            list(m.one.stream(turns=3, most=0))
        parts.clear()
        m.one(turns=3)
        list(m.part.stream(part=np.zeros((1, 2), np.int32)))
        assert len(parts) == 2  # the first rank has it for all


def test_threads(image):
    plain = Steps.eager()
    with image.open(ranks=2) as m:
        found: dict[int, list[np.ndarray]] = {}

        def stream(k: int) -> None:
            found[k] = [x for _ in range(5) for x in m.one.stream(turns=4)]

        threads = [threading.Thread(target=stream, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wanted = list(plain.one.stream(turns=60))
        mine = sorted((x for items in found.values() for x in items), key=lambda x: x[0])
        same(mine, wanted)
        assert all(np.all(np.diff([x[0] for x in items]) > 0) for items in found.values())
        same_state(m, plain)


def test_an_image_that_is_closed_meanwhile(image):
    with image.open(ranks=2) as m:
        stream = m.one.stream(turns=50)
    assert len(list(stream)) == 50 and stream.result()["total"] == 50
    with pytest.raises(spmd.UsageError, match="this job is closed"):
        m.one.stream()


def test_a_stream_that_is_started_while_another_thread_closes_the_image(image):
    m = image.open(ranks=2)
    long = m.one.start(turns=300_000)
    closing = threading.Thread(target=m.close)
    closing.start()
    until(lambda: m._turns._gates or long.done())
    try:
        stream = m.one.stream()
    except spmd.UsageError:  # it was closed already
        assert long.done()
    else:
        with pytest.raises(spmd.UsageError, match="this job is closed"):
            next(stream)
    closing.join()


def test_there_has_to_be_something_to_stream(image):
    with image.open() as m, pytest.raises(
            spmd.UsageError, match="the entry look saves nothing while it runs") as opened:
        m.look.stream()
    assert "spmd.save(" in str(opened.value)
    with pytest.raises(spmd.UsageError) as eager:
        Steps.eager().look.stream()
    assert str(eager.value) == str(opened.value)
    with spmd.build(saves_nothing).open() as job, pytest.raises(
            spmd.UsageError, match="the program saves nothing while it runs"):
        job.stream(u=np.zeros(N))
    with image.open() as m, pytest.raises(spmd.MissingError, match=r"job.several\(…\)"):
        m.stream()
    with pytest.raises(spmd.UsageError, match="has a method stream of its own"):
        @spmd.program(mesh=("r",))
        class Taken:
            def __init__(self):
                self.x = np.zeros(3)

            @spmd.entry
            def stream(self):
                return self.x


PROCESSES = """
import sys
import numpy as np
import spmd
from mpi4py import MPI

comm = MPI.COMM_WORLD
image, transport = spmd.load(sys.argv[1]), sys.argv[2]
start = np.arange(7, dtype=np.float32)

def use(m):
    for most in (10**9, 3):
        stream, found = m.one.stream(turns=6, most=most), []
        try:
            found.extend(x.tolist() for x in stream)
        except spmd.SpmdError as error:
            assert most == 3 and "3 is too much" in str(error)
        else:
            assert most > 3
        text = f"{comm.rank} {most}: {found}"
        assert all(x == [float((k + 1) ** 2)] * 7 for k, x in enumerate(found)), text
        assert len(found) == 6 or (most == 3 and len(found) <= 4), text
        if most > 3:
            m.back()
    first = m.one.stream(turns=40)
    next(first)
    total = m.look()["total"]
    assert getattr(total, "local", total) == 40
    assert len(list(first)) == 39
    m.back()
    try:
        list(m.split.stream())
    except spmd.SpmdError as error:
        assert comm.size > 1 and "x.relayout(None)" in str(error)
    else:
        assert comm.size == 1
        m.back()
    assert [x.tolist() for x in m.one.stream(turns=2)] == [[1.0] * 7, [4.0] * 7]

for follows in (True, False):
    with image.open(comm=comm, transport=transport) as m:
        m.follow() if follows and comm.rank else use(m)
print(f"done {comm.rank}\\n", end="", flush=True)
"""


@spmd.program(mesh=("r",), layout={"rows": "r"})
class Whole:
    """An entity that saves in `one` an array that every process has, and in `split` one that none
    has."""

    def __init__(self):
        self.x, self.total = spmd.zeros(spmd.Dim("rows", N), np.float32), 0

    @spmd.entry
    def one(self):
        steps, most = spmd.scalar("turns", 5), spmd.scalar("most", 10**9)
        for k in spmd.range(steps):
            self.x = self.x + np.float32(1)
            self.total += 1
            spmd.save("sums", (self.x * self.total).relayout(None))
            assert k < most, f"{k} is too much"

    @spmd.entry
    def split(self):
        for _ in spmd.range(spmd.scalar("times", 3)):
            self.x = self.x + np.float32(1)
            spmd.save("x", self.x)

    @spmd.entry
    def back(self):
        self.x, self.total = self.x * 0, 0

    @spmd.entry
    def look(self):
        return {"total": self.total}


@pytest.mark.mpi
@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_several_processes(tmp_path, mpirun, n, transport):
    file = tmp_path / "use.py"
    file.write_text(PROCESSES)
    spmd.build(Whole).save(tmp_path / "whole.img")
    done = mpirun(n, file, tmp_path / "whole.img", transport)
    done.expect(0, *(f"done {k}" for k in range(n)))
