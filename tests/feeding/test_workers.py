"""Workers in real processes: they are killed, hang, raise, and eat memory; nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import numpy as np
import pytest

from spmd import InputError, UsageError
from spmd.data import reading_time
from spmd.data.pipeline_files import load_text
from spmd.feeding.clients.client import Client
from spmd.feeding.consumers import consumer
from spmd.feeding.consumers.ring_buffers import RingBuffers
from spmd.feeding.status import overview
from spmd.feeding.workers import agent
from tests.conftest import PATIENCE, at_some_pace, until
from tests.feeding.feeding_kit import Field, Proxy, mask_of, running, x_of

pytestmark = pytest.mark.slow  # it waits for processes of its own

HEAD = "import os, time\nimport numpy as np\nimport spmd.data as data\n"


def numbers(body="return {'x': example}", n=1000, **settings):
    words = "".join(f", {k}={v!r}" for k, v in settings.items())
    return (HEAD + f"@data.pipeline(source=data.range({n}){words})\n"
            "def numbers(example, rng):\n"
            + "".join(f"    {line}\n" for line in body.splitlines()))


def test_once_gives_every_example_of_an_epoch_once():
    with running(numbers(epochs=2, seed=3)) as run:
        run.workers(2)
        left, right = run.supply(x_of(50), 50, rows=[(0, 20), (20, 50)])
        seen = []
        while (a := left.next()) is not None:
            seen.append(np.concatenate([a["x"], right.next()["x"]]))
        assert right.next() is None and len(seen) == 40
        for epoch in (seen[:20], seen[20:]):
            assert sorted(np.concatenate(epoch).tolist()) == list(range(1000))


def test_batches_do_not_depend_on_workers_or_rows():
    found = []
    for workers, rows in ((1, [(0, 32)]), (2, [(0, 10), (22, 32), (10, 22)])):
        with running(numbers("return {'x': example + rng.integers(1 << 40)}", seed=5)) as run:
            run.workers(workers)
            rings = run.supply(x_of(32), 32, rows=rows)
            rings.sort(key=lambda r: r.rows)
            found.append([np.concatenate([r.next()["x"] for r in rings]) for _ in range(5)])
            (resumed,) = run.supply(x_of(32), 32, start=3)
            assert np.array_equal(resumed.next()["x"], found[-1][3])
    assert np.array_equal(*found)


@pytest.mark.parametrize(("asked", "epochs", "batches"), [(False, 1, 0), (True, 1, 50),
                                                          (True, None, 60)])
def test_a_process_without_rows_asks_for_no_example(asked, epochs, batches):
    """Where the program asks for more, it hears how far the stream goes, and is done."""
    with running(numbers("assert False", epochs=epochs)) as run:
        run.workers(1).wait_for_workers(1)
        (ring,) = run.supply(x_of(20), 20, rows=[(0, 0)], asked=asked)
        for _ in range(batches):
            assert ring.heard()
        assert batches in (0, 60) or not ring.heard()
        time.sleep(0.1)
        until(lambda: all(one.idle for one in run.served.scheduler.consumers.values()))


def test_kill_9_in_the_middle_loses_nothing_and_repeats_nothing():
    with running(numbers("time.sleep(0.002)\nreturn {'x': example}", epochs=1)) as run:
        mine, kills = run.workers(3), 0

        def said():
            return sum("was killed by SIGKILL" in text for text in mine.said)

        (ring,) = run.supply(x_of(20), 20)
        seen = []
        for k in range(50):
            seen += ring.next()["x"].tolist()
            if k in (5, 20):
                os.kill(mine.wait_for_workers(2)[0], signal.SIGKILL)
                kills += 1
                until(lambda: said() == kills)
        assert ring.next() is None
        assert sorted(seen) == list(range(1000))
        mine.wait_for_workers(3)
        assert said() == 2


def test_a_worker_that_is_told_to_end_is_named_without_an_example(tmp_path):
    mark = str(tmp_path / "told")
    body = (f"if example == 7 and not os.path.exists({mark!r}):\n    open({mark!r}, 'w').close()\n"
            "    os.kill(os.getpid(), 15)\nreturn {'x': example}")
    with running(numbers(body, n=40, epochs=1)) as run:
        mine = run.workers(1)
        (ring,) = run.supply(x_of(40), 40)
        assert sorted(ring.next()["x"].tolist()) == list(range(40))
        assert re.fullmatch("worker [0-9a-f]+ was killed by SIGTERM; another one starts",
                            mine.said[0])


def test_a_stopped_worker_holds_nobody_up():
    with running(numbers("time.sleep(0.001)\nreturn {'x': example}", n=400, epochs=1)) as run:
        mine = run.workers(2)
        (ring,) = run.supply(x_of(20), 20)
        seen = ring.next()["x"].tolist()
        stopped = mine.wait_for_workers(2)[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            while (batch := ring.next()) is not None:
                seen += batch["x"].tolist()
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert sorted(seen) == list(range(400))


def test_a_worker_that_comes_late_takes_part():
    body = "time.sleep(0.005)\nreturn {'x': os.getpid()}"
    with running(numbers(body)) as run:
        (ring,) = run.supply(x_of(20), 20)
        run.workers(1)
        first = set(ring.next()["x"].tolist())
        run.workers(1).wait_for_workers(1)
        later = set()

        def both():
            later.update(ring.next()["x"].tolist())
            return len(later) == 2

        until(both)
        assert len(first) == 1 and first < later


def test_the_end_with_and_without_a_mask():
    with running(numbers(n=50, epochs=1, shuffle=False)) as run:
        run.workers(1)
        (short,) = run.supply(x_of(20), 20)
        upper, lower = run.supply(x_of(20) + mask_of(20), 20, rows=[(0, 10), (10, 20)])
        assert [short.next()["x"][0] for _ in range(2)] == [0, 20] and short.next() is None
        for k in range(2):
            assert upper.next()["mask"].all() and lower.next()["x"][-1] == 20 * k + 19
        a, b = upper.next(), lower.next()
        assert a["mask"].all() and a["x"].tolist() == list(range(40, 50))
        assert not b["mask"].any() and not b["x"].any()
        assert upper.next() is None and lower.next() is None


def test_workers_that_are_still_starting_are_not_missed(capfd, monkeypatch):
    monkeypatch.setattr(consumer, "PENDING_S", 0.0)
    with running(numbers()) as run:
        # An agent that has joined, before its first worker has.
        monkeypatch.setattr(agent.Agent, "keep_number", lambda self: None)
        run.workers(1)
        run.supply(x_of(20), 20)
        until(lambda: "numbers waits: its workers are still starting" in capfd.readouterr().err)


def test_what_a_worker_owes_when_its_line_breaks_is_asked_again(monkeypatch):
    """A line between two machines, cut without a word to anybody: a proxy that forgets all of it.
    The scheduler sees its worker all the time."""
    monkeypatch.setattr(consumer, "host_name", lambda: "another host")
    with running(numbers("time.sleep(0.005)\nreturn {'x': example}", n=200, epochs=1)) as run, (
            Proxy()) as proxy:
        monkeypatch.setattr(consumer, "WorkerConnection", proxy.reached(consumer.WorkerConnection))
        run.workers(1)
        (ring,) = run.supply(x_of(20), 20)
        seen = ring.next()["x"].tolist()
        proxy.cut()
        while (batch := ring.next()) is not None:
            seen += batch["x"].tolist()
        assert sorted(seen) == list(range(200)) and proxy.connections > 1


def test_a_stream_of_unknown_length_ends_for_everybody():
    source = HEAD + ("@data.pipeline(source=data.iterator(lambda: iter(range(37))), epochs=1,\n"
                     "               shuffle=False)\n"
                     "def numbers(example): return {'x': example}\n")
    with running(source) as run:
        run.workers(2)
        first, second = run.supply(x_of(10), 10, rows=[(0, 5)]), run.supply(
            x_of(10), 10, rows=[(5, 10)])
        for k in range(3):
            assert first[0].next()["x"].tolist() == list(range(10 * k, 10 * k + 5))
            assert second[0].next()["x"][-1] == 10 * k + 9
        assert first[0].next() is None and second[0].next() is None


@pytest.mark.parametrize(("body", "says"), [
    ("if example == 7: raise KeyError('no such label')\nreturn {'x': example}",
     "made_here.py:6.*\n.*no such label"),
    ("return {'x': np.zeros(3)}", "another shape"),
    ("return {'y': example}", "other fields"),
])
def test_an_operation_that_fails_is_named(body, says):
    with running(numbers(body, n=20)) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(20), 20)
        with pytest.raises(InputError, match="pipeline numbers failed at position") as caught:
            ring.next()
        assert re.search(says, str(caught.value)), caught.value


def test_a_file_that_cannot_be_loaded_is_named():
    with running(HEAD + "1 / 0\n") as run:
        run.workers(1)
        (ring,) = run.supply(x_of(20), 20)
        with pytest.raises(InputError, match="(?s)made_here.py:4.*ZeroDivisionError"):
            ring.next()


def test_skip_marks_what_failed(capfd):
    body = "if example == 7: raise KeyError('no such label')\nreturn {'x': example + 1}"
    with running(numbers(body, n=20, on_error="skip", shuffle=False, epochs=1)) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(20) + mask_of(20), 20)
        batch = ring.next()
        assert np.flatnonzero(~batch["mask"]).tolist() == [7] and batch["x"][7] == 0
        (plain,) = run.supply(x_of(20), 20)
        with pytest.raises(UsageError, match="mask=spmd.spec"):
            plain.next()
    assert "skipped" in (said := capfd.readouterr().err) and "made_here.py:6" in said


DEADLY = "time.sleep(0.001)\nif example == 7: {}\nreturn {{'x': example + 1}}"
KILL = "os.kill(os.getpid(), 9)"  # as somebody else would: nothing tells the difference


@pytest.mark.parametrize(("how", "says", "deaths"), [
    ("os.abort()", "SIGABRT", 2), ("os._exit(3)", "status 3", 2), (KILL, "SIGKILL", 3)])
def test_an_example_that_kills_workers_is_named(how, says, deaths):
    with running(numbers(DEADLY.format(how), n=40, shuffle=False)) as run:
        mine = run.workers(2)
        (ring,) = run.supply(x_of(40), 40)
        with pytest.raises(InputError, match="(?s)position 7.*number 7.*"
                           f"{deaths} workers died.*{says}") as caught:
            ring.next()
        assert "made_here.py" in str(caught.value)
        until(lambda: len(mine.said) >= deaths)  # the agent's own line comes a moment later
        assert len(mine.said) <= deaths + 1 and "made_here.py:4" in mine.said[0]
        mine.wait_for_workers(2)


def test_two_kills_from_outside_at_one_example_are_no_fault_of_it(tmp_path):
    body = (f"f = {str(tmp_path / 'deaths')!r}\nif example == 7 and open(f, 'a').tell() < 2:\n"
            f"    open(f, 'a').write('x')\n    {KILL}\nreturn {{'x': example}}")
    with running(numbers(body, n=40, shuffle=False)) as run:
        mine = run.workers(1)
        (ring,) = run.supply(x_of(40), 40)
        assert ring.next()["x"].tolist() == list(range(40))
        until(lambda: len(mine.said) >= 2)
        assert len(mine.said) == 2


def test_the_memory_killer_is_named(monkeypatch):
    """It cannot be called up in a test; the kernel counts what it has killed."""
    count = iter(range(9))
    monkeypatch.setattr(agent, "memory_kills", lambda: next(count))
    with running(numbers(DEADLY.format(KILL), n=40, shuffle=False)) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(40), 40)
        with pytest.raises(InputError, match="2 workers died.*out of memory"):
            ring.next()


def test_an_example_that_kills_workers_is_skipped_where_that_is_asked_for():
    source = numbers(DEADLY.format("os.abort()"), n=40, shuffle=False, on_error="skip")
    with running(source) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(40) + mask_of(40), 40)
        batch = ring.next()
        assert np.flatnonzero(~batch["mask"]).tolist() == [7]
        assert batch["x"].tolist() == [i + 1 if i != 7 else 0 for i in range(40)]


def test_a_batch_that_kills_workers_is_skipped_as_a_whole():
    source = HEAD + ("@data.batched(source=data.range(40), size=8, epochs=1, shuffle=False,\n"
                     "              on_error='skip')\n"
                     "def numbers(examples):\n"
                     "    if 9 in examples: os._exit(1)\n"
                     "    return {'x': np.array(examples) + 1}\n")
    with running(source) as run:
        mine = run.workers(1)
        (ring,) = run.supply(x_of(40) + mask_of(40), 40)
        batch = ring.next()
        assert np.flatnonzero(~batch["mask"]).tolist() == list(range(8, 16))
        assert batch["x"].tolist() == [0 if 8 <= i < 16 else i + 1 for i in range(40)]
        until(lambda: len(mine.said) >= 2)
        assert len(mine.said) <= 3


def test_an_example_that_hangs_is_named_with_its_line():
    body = "if example == 7:\n    while True: time.sleep(60)\nreturn {'x': example}"
    with running(numbers(body, n=20, shuffle=False, timeout=1.0)) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(20), 20)
        with pytest.raises(InputError, match="(?s)position 7.*1 s, its timeout.*try:      "
                           "timeout=300") as found:
            ring.next()
        assert str(found.value).startswith("made_here.py:7: ")


def test_a_batch_that_hangs_is_named_after_the_timeout_of_one_call():
    source = HEAD + ("@data.batched(source=data.range(640), size=64, epochs=1, shuffle=False,\n"
                     "              timeout=0.5)\n"
                     "def numbers(examples):\n"
                     "    if 70 in examples: time.sleep(600)\n"
                     "    return {'x': np.array(examples)}\n")
    with running(source) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(64), 64)
        assert ring.next()["x"].tolist() == list(range(64))
        with pytest.raises(InputError, match="(?s)position 64.*longer than 0.5 s, its timeout for "
                           "a batch of 64") as found:
            ring.next()
        assert str(found.value).startswith("made_here.py:7: ")


HANGS = """
class Lost(data.ExampleSource):
    def length(self):
        {length}
        return 20
    def get(self, index):
        return index
    def digest(self):
        {digest}
        return "a"

@data.pipeline(source=Lost(), epochs=1, timeout=0.05)
def numbers(example):
    return {{"x": example}}
"""


def test_an_example_that_takes_long_is_named_before_its_timeout(monkeypatch):
    monkeypatch.setattr(agent, "TELL_S", 0.3)
    with running(numbers("time.sleep(1000 * (example == 3))\nreturn {'x': example}",
                         shuffle=False)) as run:
        mine = run.workers(1)
        run.supply(x_of(20), 20)
        slow = "is at number 3, of numbers (made_here.py:4)"
        until(lambda: [said for said in mine.said if slow in said])


@pytest.mark.parametrize("where", ["length", "digest"])
def test_a_source_that_hangs_is_named_with_its_line(monkeypatch, where):
    source = HEAD + HANGS.format(**{"length": "", "digest": ""} | {where: "time.sleep(600)"})
    line = 1 + source.splitlines().index("        time.sleep(600)")

    def check(pace):
        """limit: it comes to its line by then, or the file itself would be said to hang."""
        limit = 1.0 * pace
        monkeypatch.setattr(reading_time, "LOAD_S", limit)
        monkeypatch.setattr(agent, "TELL_S", limit / 3)
        monkeypatch.setattr(overview, "SLOW_S", limit / 3)
        with running(source) as run, Client(run.address, run.keys, PATIENCE) as client:
            mine = run.workers(1)
            (ring,) = run.supply(x_of(20), 20)
            until(lambda: [w for w in client.status()["warnings"] if "its source" in w], 6 * limit)
            with pytest.raises(InputError, match="failed at its source, while it was read\n"
                               f"  2 workers died so; the last took longer than {limit:g} s"
                               ) as found:
                ring.next()
            assert str(found.value).startswith(f"made_here.py:{line}: ")
            slow = f"its source, while it was read, of numbers (made_here.py:{line}), for "
            assert [said for said in mine.said if slow in said]

    at_some_pace(check)


@pytest.mark.parametrize("where", ["length", "digest"])
def test_a_source_that_is_read_for_long_here_is_said(monkeypatch, tmp_path, capfd, where):
    monkeypatch.setattr(reading_time, "TELL_S", 0.1)
    wait = f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"
    file, said = tmp_path / "lost.py", []
    file.write_text(HEAD + HANGS.format(**{"length": "", "digest": ""} | {where: wait}))
    line = 1 + file.read_text().splitlines().index("        " + wait)
    with running(numbers()) as run, Client(run.address, run.keys, PATIENCE) as client:
        submits = threading.Thread(target=client.submit, args=(file,), kwargs={"name": "lost"})
        submits.start()
        until(lambda: said.append(capfd.readouterr().err) or (
            f"still being read after 0.1 s, at {file}:{line}\n" in "".join(said)))
        (tmp_path / "go").touch()
        submits.join()
        assert client.status("lost")["version"] == 1


def test_an_example_that_takes_all_memory_is_named():
    body = "if example == 7: held = np.ones(1 << 40, np.uint8)\nreturn {'x': example}"
    with running(numbers(body, n=20, shuffle=False)) as run:
        run.workers(1, memory=256 << 20)
        (ring,) = run.supply(x_of(20), 20)
        with pytest.raises(InputError, match="(?s)made_here.py:6: .*position 7.*MemoryError"):
            ring.next()


def test_nothing_is_left():
    with running(numbers("time.sleep(0.001)\nreturn {'x': example}")) as run:
        mine = run.workers(2)
        (ring,) = run.supply(x_of(20), 20)
        ring.next()
        pids = mine.wait_for_workers(2)
        descriptors = len(os.listdir("/proc/self/fd"))
    until(lambda: not [p for p in pids if os.path.exists(f"/proc/{p}")])
    assert len(os.listdir("/proc/self/fd")) < descriptors


ACTING = """
import numpy as np
import spmd.data as data

class Adding:
    def reset(self, seed=None):
        self.sum = 0
        return self.sum, {}
    def step(self, action):
        self.sum += int(action)
        return self.sum, 1.0, False, False, {}

@data.pipeline(source=data.environments(Adding, 4))
def numbers(seen):
    return {"x": seen.obs}
"""


def test_actions_flow_back_to_the_environments():
    with running(ACTING) as run:
        run.workers(2).wait_for_workers(2)
        fields = [*x_of(4)]
        left, right = run.supply(fields, 4, rows=[(0, 2), (2, 4)],
                                 sends=[Field("action", (4,), np.int64)])
        total = np.zeros(4, np.int64)
        for k in range(12):
            shown = np.concatenate([left.next()["x"], right.next()["x"]])
            assert shown.tolist() == total.tolist()
            action = np.arange(4) + k
            left.send(k, action=action[:2])
            right.send(k, action=action[2:])
            total += action


def test_an_environment_that_takes_its_workers_with_it_ends_the_run():
    """Each time at another position: it is counted by its place."""
    dies = ACTING.replace("        self.sum +=", "        import os; action == 3 and os._exit(1)\n"
                                                 "        self.sum +=")
    with running(dies) as run:
        run.workers(2)
        (ring,) = run.supply(x_of(4), 4, sends=[Field("action", (4,), np.int64)])
        with pytest.raises(InputError, match="2 workers died .* the last ended with status 1"):
            for k in range(30):
                ring.next()
                ring.send(k, action=np.array([1, 1, 3 * (k % 4 == 3), 1]))


def test_the_next_batch_is_made_once_there_is_an_answer_whoever_still_reads_the_one_before():
    """A rank may read it where it lies, until it takes the next one."""
    with running(ACTING) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(4), 4, sends=[Field("action", (4,), np.int64)])
        assert ring.next()["x"].tolist() == [0] * 4
        ring.taken = 0
        ring.send(0, action=np.arange(4))
        until(lambda: ring.has(1))
        ring.taken = 1
        assert ring.next()["x"].tolist() == [0, 1, 2, 3]


def test_a_rank_that_resumes_leaves_out_more_than_was_made():
    """What comes is counted from the batch that it asks for."""
    with running(numbers("time.sleep(0.005)\nreturn {'x': example}", shuffle=False)) as run:
        run.workers(2)
        (ring,) = run.supply(x_of(10), 10)
        assert ring.next()["x"].tolist() == list(range(10))
        ring.leave_out(30)
        assert ring.next()["x"].tolist() == list(range(300, 310))


def test_the_newest_comes_first_where_that_is_asked_for(monkeypatch):
    """In the place of each batch that is taken the newest that is there; the others at the end."""
    source = numbers("return {'x': rng.integers(1 << 40)}", sampling="independent", queue="lifo",
                     n=40, epochs=1)
    made = []
    monkeypatch.setattr(consumer, "RingBuffers",
                        lambda *of: made.append(RingBuffers(*of)) or made[0])
    whole = load_text(source, "made_here.py")["numbers"].compute(0, 40).arrays["x"]
    batch_of = {x: k // 4 for k, x in enumerate(whole.tolist())}

    def whole_ones():
        (rings,) = made
        return sum(len(found) == rings.ledger.piece_counts.get(k) for k, found in
                   list(rings.ledger.results.items()))

    with running(source) as run:
        (ring,) = run.supply(x_of(4), 4, depth=6)
        run.workers(1)
        seen = []
        for k in range(10):
            until(lambda k=k: ring.has(k) and whole_ones() == min(5, 9 - k))
            rows = [batch_of[x] for x in ring.next()["x"].tolist()]
            seen.append(rows[0])
            assert rows == [rows[0]] * 4
        assert ring.next() is None
    assert sorted(seen) == list(range(10))
    early = sorted(set(range(6)) - {seen[0]})
    assert seen[1:] == [early.pop(), 6, 7, 8, 9, *reversed(early)]
