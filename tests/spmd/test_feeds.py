"""Batches come while a program runs: from iterables, on any number of ranks, across checkpoints."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import spmd
from spmd.files.checkpoints import complete, complete_set, read_index
from spmd.launch import feeds as fed
from spmd.launch.iterable_supply import IterableSupply
from tests.conftest import PATIENCE, at_some_pace

SUMS = '''
import numpy as np
import spmd

@spmd.program(mesh=("r", "c"))
def sums(batch: int = 6, early: bool = False):
    feed = spmd.feed(x=spmd.spec((batch, 5), np.float32, layout=("r", "c")),
                     y=spmd.spec((batch,), np.int64), mask=spmd.spec((batch,), np.bool_))
    seen, t, k = spmd.zeros((40, 2)), spmd.asarray(np.zeros(5)), spmd.asarray(0)
    first = feed.next().y[0] if early else 0
    while feed.more():
        b = feed.next()
        t = t * 1.5 + np.sum(b.x, axis=0)
        seen[k, 0] = np.sum(np.where(b.mask, b.y, 0))
        seen[k, 1] = np.sum(b.mask) + first
        k = k + 1
    return {"t": t, "seen": seen}
'''


def batches(count: int = 9, rows: int = 6, last: int = 6) -> list[dict[str, np.ndarray]]:
    """Return batches; batch k has numbers from 100 k on, the last one has `last` rows."""
    made = []
    for k in range(count):
        n = last if k == count - 1 else rows
        y = 100 * k + np.arange(n)
        made.append({"x": (y[:, None] + np.arange(5) / 8).astype(np.float32), "y": y})
    return made


def expected(given, first: int = 0) -> dict[str, np.ndarray]:
    t, seen = np.zeros(5), np.zeros((40, 2))
    for k, b in enumerate(given):
        t = t * 1.5 + np.sum(b["x"], axis=0)
        seen[k] = np.sum(b["y"]), len(b["y"]) + first
    return {"t": t, "seen": seen}


def same(found, wanted) -> None:
    np.testing.assert_array_equal(found["seen"], wanted["seen"])
    np.testing.assert_allclose(found["t"], wanted["t"], rtol=1e-6)


@pytest.fixture(scope="module")
def sums(once, tmp_path_factory):
    file = tmp_path_factory.mktemp("feeds") / "sums_of_batches.py"
    file.write_text(SUMS)
    return spmd.build(file)


@pytest.fixture(scope="module")
def keeps(tmp_path_factory):
    file = tmp_path_factory.mktemp("feeds") / "kept_sums.py"
    file.write_text(SUMS)
    return {early: spmd.build(file, early=early, checkpoint=True) for early in (False, True)}


@pytest.mark.parametrize("mesh", [{"r": 1, "c": 1}, {"r": 3, "c": 2}, {"r": 8, "c": 1}])
@pytest.mark.parametrize("how", ["list", "function", "reused"])
def test_all_ranks_take_their_parts(sums, mesh, how):
    given = batches(last=4)  # rows that are not there are masked

    def reused():
        """An iterable may write the next batch where the last one was."""
        room = {"x": np.empty((6, 5), np.float32), "y": np.empty(6, np.int64)}
        for b in given:
            n = len(b["y"])
            for name, array in b.items():
                room[name][:n] = array
            yield {name: array[:n] for name, array in room.items()}

    source = {"list": given, "function": lambda: iter(given), "reused": reused()}[how]
    same(sums.run(mesh=mesh, threads=2, feed=source), expected(given))


def test_calls_go_on_and_begin_again(tmp_path):
    file = tmp_path / "a_batch_each.py"
    file.write_text('''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def one(n: int = 4):
    return np.sum(spmd.feed("train", x=spmd.spec((n,), np.int64)).next().x)
''')
    image = spmd.build(file)
    given = [{"x": np.full(4, k)} for k in range(6)]
    with image.open(ranks=3, feed=iter(given)) as job:
        assert [job(), job()] == [0, 4]
        assert job(feed={"train": given[5:]}) == 20
        with pytest.raises(spmd.SpmdError, match="feed 'train' has ended after 1 batches") as error:
            job()
    assert error.value.exit_code == 65

    def fails_later():
        yield given[3]
        raise KeyError("nobody asks for this one")

    assert image.run(ranks=2, feed=fails_later) == 12


def test_a_job_that_is_loaded_anew_goes_on(tmp_path):
    """Another scalar, another job: what was given, and nobody has taken, is not lost."""
    file = tmp_path / "scaled.py"
    file.write_text('''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def scaled():
    return np.sum(spmd.feed(x=spmd.spec((4,), np.int64)).next().x) * spmd.scalar("factor", 1)
''')
    image = spmd.build(file)
    with image.open(ranks=3, feed=({"x": np.full(4, k)} for k in range(9))) as job:
        assert [job(), job(factor=10), job(factor=10), job(), job(factor=5)] == [0, 40, 80, 12, 80]


def test_an_epoch_in_each_call(sums):
    given = batches(3)
    with sums.open(ranks=2, feed=given) as job:
        for _ in range(3):
            same(job(), expected(given))
    with sums.open(ranks=2, feed=iter(given)) as job:
        same(job(), expected(given))
        with pytest.raises(spmd.UsageError, match="its iterator has ended in a call before"):
            job()


@pytest.fixture
def slow(monkeypatch):
    """Return a function slow(count, seconds) that yields batches, each of them so long after a rank
    has begun to wait for it, however slow ranks are."""
    rings, begin = [], IterableSupply.begin

    def kept(self, feed, its_rings, start):
        rings[:] = its_rings
        begin(self, feed, its_rings, start)

    monkeypatch.setattr(IterableSupply, "begin", kept)

    def given(count, seconds):
        for k, b in enumerate(batches(count)):
            end = time.monotonic() + PATIENCE
            while not any(ring.is_wanted(k) for ring in rings) and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(seconds)
            yield b

    return given


def test_the_profile_says_what_was_waited_for(sums, tmp_path, slow):
    profile = sums.profile(ranks=2, feed=lambda: slow(8, 0.03))
    waited = sum(row["seconds"] * row["waiting"] for row in profile if row.get("feed") == "feed")
    assert waited > 0.1
    assert {row["kind"] for row in profile if "feed" in row} == {"more", "take"}
    share = float(str(profile).split('waiting for feed "feed": ')[1].split("%")[0])
    whole = sum(row["seconds"] for row in profile)
    assert share == pytest.approx(100 * waited / whole, abs=0.06) and whole >= waited
    file = tmp_path / "t.json"
    sums.timeline(file, ranks=2, feed=batches(3))
    sums.timeline(file, ranks=2, feed=lambda: slow(8, 0.03))
    names = [e["name"] for e in json.loads(file.read_text())["traceEvents"]]
    assert names.count('waits for feed "feed"') >= 8
    assert any(name.startswith('batch of feed "feed"') for name in names)


def test_the_first_batch_may_take_longer(sums, capfd, slow):
    """Workers import libraries before it; of the ones behind it that would be said."""
    def check(pace):
        capfd.readouterr()
        with sums.open(ranks=2, feed=lambda: slow(1, 0.3 * pace), time_limit=0.3 * pace) as job:
            job()
        assert "has not come" not in capfd.readouterr().err

    at_some_pace(check)


def test_starving_is_said(sums, capfd, monkeypatch, slow):
    monkeypatch.setattr(fed, "WORTH_SECONDS", 1.0)  # of runs of some seconds
    with sums.open(ranks=2, feed=lambda: slow(6, 0.25), time_limit=0.3) as job:
        job(), job()
    text = capfd.readouterr().err
    assert re.search('waits for feed "feed": batch [0-5] has not come for [0-9.]+ s', text)
    assert len(re.findall('"feed" was waited for .*% of the time: a pipeline with', text)) == 1


X, Y = np.zeros((6, 5), np.float32), np.zeros(6, np.int64)


@pytest.mark.parametrize(("feed", "code", "words"), [
    (None, 2, ['feed "feed" was not given', "--feed FILE.py"]),
    ({"train": []}, 2, ["the program has no feed 'train'", "expected: feed"]),
    (7, 2, ['feed "feed" is given something that has no batches', "found:    int"]),
    ([{"x": X, "y": Y}, {"x": X[:, :4], "y": Y}], 65,
     ['feed "feed", batch 1: field x has another shape', "(6, 5)", "(6, 4)"]),
    ([{"x": X.astype(complex), "y": Y}], 65,
     ['batch 0: field x has dtype complex128, which does not fit float32',
      "array.astype('float32')"]),
    ([{"x": X, "y": Y.astype(np.uint64) + np.uint64(2**63)}], 65,
     ['batch 0: field y has dtype uint64, which does not fit int64', "from 9223372036854775808"]),
    ([{"x": X.astype(float) + 1e39, "y": Y}], 65,
     ['batch 0: field x has dtype float64, which does not fit float32', "from 1e+39"]),
    ([{"x": np.ma.array(X, mask=X == 0), "y": Y}], 65,
     ["batch 0: field x: a masked array would lose its mask\n  expected: an array without a mask\n"
      "  found:    a masked array, 30 of whose elements are masked\n  try:      x.filled(v)"]),
    ([{"x": X, "z": Y}], 65, ["batch 0 has a field 'z' that the feed does not declare"]),
    ([{"x": X}], 65, ["batch 0 has no field y", "expected: x, y, mask"]),
    ([[X, Y]], 65, ["batch 0 is no dict of arrays", "found:    list"]),
])
def test_what_does_not_fit_is_refused(sums, feed, code, words):
    with pytest.raises(spmd.SpmdError) as error:
        sums.run(ranks=3, feed=feed)
    assert error.value.exit_code == code
    for word in words:
        assert word in str(error.value)


def test_values_that_fit_are_converted(sums):
    given = batches(2)
    lists = [{"x": b["x"].astype(np.float16), "y": [int(n) for n in b["y"]]} for b in given]
    lists[1] = {"x": lists[1]["x"].astype(np.float64), "y": given[1]["y"].astype(np.uint64)}
    wanted = [{"x": b["x"].astype(np.float32), "y": np.array(b["y"])} for b in lists]
    same(sums.run(ranks=3, feed=lists), expected(wanted))


def test_an_error_of_the_iterable_is_said_where_it_is_asked_for(sums):
    def fails():
        yield batches()[0]
        raise KeyError("no such photograph")

    with pytest.raises(spmd.InputError, match="batch 1: KeyError") as error:
        sums.run(ranks=2, feed=fails)
    assert "test_feeds.py" in str(error.value) and "no such photograph" in str(error.value)


def test_a_feed_that_starves_ends_the_run(sums):
    over = threading.Event()

    def stops():
        yield batches()[0]
        over.wait(PATIENCE)

    with pytest.raises(spmd.PeerError, match='feed "feed" starves: rank . has waited for batch 1'):
        sums.run(ranks=2, feed=stops, time_limit=0.01)
    over.set()


def test_an_image_without_feeds_takes_none(tmp_path):
    @spmd.program(mesh=("r",))
    def one():
        return spmd.zeros((3,))

    with pytest.raises(spmd.UsageError, match="the program has no feed"):
        spmd.build(one).run(feed=[])


# ---- values back -----------------------------------------------------------------------------

WALK = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def walk(n: int = 5):
    feed = spmd.feed(x=spmd.spec((n, 2), np.int64))
    k = spmd.asarray(0)
    for b in feed:
        feed.send(step=b.x[:, 0] % 3 + 1, far=b.x * 2)
        k = k + 1
    return k, k * 2
'''


class Walkers:
    """A supply whose next batch follows from what was sent back: each row steps on."""

    def __init__(self, turns: int) -> None:
        self.turns, self.state, self.seen = turns, {}, []

    def begin(self, feed, rings, start):
        assert [(f.name, f.shape) for f in feed.sends] == [("step", (5,)), ("far", (5, 2))]
        self.rings, self.stops = rings, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            self.walk()
        except BaseException as error:
            self.rings[0].fail(error)

    def walk(self):
        now = {r: np.arange(2 * r.rows[0], 2 * r.rows[1]).reshape(-1, 2) for r in self.rings}
        for k in range(self.turns):
            for ring in self.rings:
                ring.put(k, [(*ring.rows[:1], len(now[ring]), {"x": now[ring].copy()})])
            for ring in self.rings:
                while (back := ring.sent(k)) is None and not self.stops:
                    time.sleep(0.0005)
                if self.stops:
                    return
                np.testing.assert_array_equal(back["step"], now[ring][:, 0] % 3 + 1)
                np.testing.assert_array_equal(back["far"], now[ring] * 2)
                now[ring] = now[ring] + back["step"][:, None]
                self.seen.append(k)
        for ring in self.rings:
            ring.end(self.turns)

    def finish(self):
        self.stops = True
        self.thread.join()


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_the_next_batch_follows_from_what_was_sent(tmp_path, ranks):
    file = tmp_path / "walks_that_are_steered.py"
    file.write_text(WALK)
    walkers = Walkers(30)
    assert spmd.build(file).run(ranks=ranks, feed=walkers)[0] == 30
    assert len(walkers.seen) == 30 * len(walkers.rings) == 30 * ranks


@spmd.program(mesh=("r",))
def steers(n: int = 5, turns: int = 9):
    feed = spmd.feed(at=spmd.spec((n, 2), np.float64), done=spmd.spec((n,), np.bool_))
    seen, k = spmd.zeros((turns, n)), spmd.asarray(0)
    while k < turns and feed.more():
        b = feed.next()
        seen[k] = np.sum(b.at, axis=1) + b.done
        if k != 4:
            feed.send(push=np.where(b.at[:, 0] > 2, -1, 1), turn=np.full(n, k))
        k = k + 1
    return seen


def carts(told=None):
    """A generator is told what ranks send; None where they send nothing."""
    at = np.arange(10.0).reshape(5, 2)
    for turn in range(30):
        back = yield {"at": at, "done": at[:, 1] > 5}
        if told is not None:
            told.append(back)
        if back is not None:
            assert list(back["turn"]) == [turn % 9] * 5 and back["push"].dtype == np.int64
            at = at + back["push"][:, None]


def test_a_generator_is_told_what_ranks_send():
    image, eagerly = spmd.build(steers), []
    expected = steers.eager(feed=carts(eagerly))
    assert len(eagerly) == 8 and eagerly[4] is None
    for ranks in (1, 3, 7):
        told = []
        np.testing.assert_array_equal(image.run(ranks=ranks, feed=lambda: carts(told)), expected)
        assert len(told) >= 8 and told[4] is None
    with image.open(ranks=3, feed=carts()) as job:  # what was sent last is told in the next run
        np.testing.assert_array_equal(job(), expected)
        assert (job() != expected).any()


def test_an_iterable_takes_no_values(tmp_path):
    file = tmp_path / "walks_that_are_steered.py"
    file.write_text(WALK)
    with pytest.raises(spmd.UsageError, match='the program sends values back to feed "feed"'):
        spmd.build(file).run(ranks=1, feed=[{"x": np.zeros((5, 2), np.int64)}])


# ---- checkpoints -----------------------------------------------------------------------------


def cut(image, given, at: int, folder: Path, **how) -> None:
    """A run that is kept, of which the stream fails at a batch."""
    def fails():
        yield from given[:at]
        raise OSError("the disk is gone")

    with pytest.raises(spmd.InputError, match="the disk is gone"):
        image.run(feed=fails, checkpoint=str(folder), every=1, **how)


@pytest.mark.parametrize("early", [False, True])
def test_a_run_goes_on_with_the_next_batch(keeps, tmp_path, early):
    image, given, asked = keeps[early], batches(11), []
    cut(image, given, 6, tmp_path, ranks=4)
    index = read_index(str(tmp_path / complete(str(tmp_path))[-1]))
    assert index["feeds"]["feed"]["from"] == (0 if early else index["feeds"]["feed"]["taken"])
    assert 4 <= index["feeds"]["feed"]["taken"] <= 6

    def again():
        for k, b in enumerate(given):
            asked.append(k)
            yield b

    out = image.run(feed=again, resume=str(tmp_path), checkpoint=str(tmp_path), every=2, ranks=3)
    same(out, expected(given[early:]))
    assert asked == list(range(11))  # an iterable is advanced to where it was
    # What goes on from there has another cursor, and goes on once more.
    same(image.run(feed=given, resume=str(tmp_path), ranks=6), expected(given[early:]))


def test_old_sets_and_damaged_ones(keeps, tmp_path):
    cut(keeps[False], batches(), 4, tmp_path, ranks=2)
    newest = tmp_path / complete(str(tmp_path))[-1]
    index = read_index(str(newest))
    said = {k: v for k, v in index.items() if k not in ("format", "parts")}
    for feeds, match in [(None, "the checkpoint says nothing of feed"),
                         ({"feed": {"taken": 1, "from": 2}}, "the checkpoint is damaged")]:
        without = {k: v for k, v in said.items() if k != "feeds"}
        assert complete_set(str(newest), 1, without if feeds is None else without | {
            "feeds": feeds})
        with pytest.raises(spmd.InputError, match=match):
            keeps[False].run(feed=batches(), resume=str(tmp_path), ranks=2)


# ---- processes -------------------------------------------------------------------------------

SCRIPT = '''
import sys
import numpy as np
from mpi4py import MPI
import spmd

sys.path.insert(0, sys.argv[4])
from tests.spmd.test_feeds import batches, expected, same

comm, many = MPI.COMM_WORLD, int(sys.argv[3])
rank = comm.Get_rank()
given = batches(many - 2 if rank == 1 and sys.argv[5:] == ["differ"] else many)

def fails():
    yield given[0]
    raise KeyError("no such photograph")

feed = fails if sys.argv[5:] == ["fails"] else given
out = spmd.load(sys.argv[1]).run(comm=comm, transport=sys.argv[2], feed=feed)
out = {name: value.gather() for name, value in out.items()}
if rank == 0:
    same(out, expected(given))
    print("right")
'''


@pytest.fixture
def script(tmp_path, sums):
    (tmp_path / "script.py").write_text(SCRIPT)
    sums.save(tmp_path / "sums.img")
    root = Path(__file__).resolve().parents[2]

    def arguments(transport: str, many: int, *more: str) -> list[object]:
        return [tmp_path / "script.py", tmp_path / "sums.img", transport, many, root, *more]

    return arguments


@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_three_processes_iterate_alike(script, mpirun, transport):
    assert mpirun(3, *script(transport, 20)).expect(0).out == "right\n"


@pytest.mark.parametrize(("transport", "hosts"), [("auto", ""), ("mpi", ""), ("auto", "a,b,b")])
def test_streams_of_different_length_are_refused(script, mpirun, transport, hosts):
    done = mpirun(3, *script(transport, 12, "differ"), env={"SPMD_PRETEND_HOSTS": hosts})
    assert done.code == 65 and "the same stream" in done.text, done.text
    assert done.text.count("feed 'feed' ends after 10 batches in one process") == 1


def test_an_error_is_said_once(script, mpirun):
    done = mpirun(3, *script("auto", 12, "fails"))
    assert done.code == 65, done.text
    assert done.text.count("batch 1: KeyError") == 1
