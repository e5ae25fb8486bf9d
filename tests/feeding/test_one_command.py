"""`run --feed images.py`: scheduler and workers start and end with the run, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

import spmd
import spmd.data as data
from spmd.data.pipeline_files import load_text
from spmd.feeding.clients.client import Client
from spmd.feeding.host.supervision import ChildSupervisor, SupervisedChild
from spmd.feeding.starting.local_agent import cores_of
from spmd.feeding.starting.local_feeding import LocalScheduler
from spmd.launch.eager_feeds import EagerFeed, eager_feeds
from tests.conftest import PATIENCE, Launch, run, until
from tests.feeding.served_kit import command_of
from tests.feeding.test_workers import ACTING

pytestmark = pytest.mark.slow  # it waits for processes of its own

PROGRAM = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def sums(batch: int = 16):
    feed = spmd.feed(y=spmd.spec((batch,), np.int64), mask=spmd.spec((batch,), np.bool_))
    total, count = spmd.asarray(0), spmd.asarray(0)
    while feed.more():
        b = feed.next()
        total = total + np.sum(np.where(b.mask, b.y, 0))
        count = count + np.sum(b.mask)
    return {"total": total, "count": count}
"""

PIPELINE = """
import time
import spmd.data as data

@data.pipeline(source=data.range({n}), epochs=1)
def numbers(example):
    {body}
    return {{"y": example}}
"""


@pytest.fixture
def image(built):
    return built(PROGRAM)


def pipeline(folder, body="pass", n=200):
    file = folder / "numbers_of_a_feed.py"
    file.write_text(PIPELINE.format(n=n, body=body))
    return file


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [3])
def test_it_starts_and_ends_with_the_run(image, mpirun, tmp_path, ranks):
    total, count = tmp_path / "total.npy", tmp_path / "count.npy"
    mpirun(ranks, "-m", "spmd", "run", image, "--feed", pipeline(tmp_path), "-o",
           f"total={total}", "-o", f"count={count}").expect(0)
    assert (np.load(total), np.load(count)) == (sum(range(200)), 200)


@pytest.mark.mpi
def test_an_example_that_fails_ends_the_run(image, mpirun, tmp_path):
    file = pipeline(tmp_path, "if example == 7: raise KeyError('no label')")
    mpirun(2, "-m", "spmd", "run", image, "--feed", file).expect(
        65, "numbers_of_a_feed.py:7: pipeline numbers failed at position", "number 7", "no label")


def test_environments_are_as_many_as_places(image):
    @data.pipeline(source=data.environments(object, 3))
    def play(seen):
        return {"y": seen.turn}

    play.check_batch(3)
    with pytest.raises(spmd.UsageError, match=r"a batch of 3, or data.environments\(…, 16\)"):
        spmd.load(image).run(feed=play)


CARTS = '''
import numpy as np
import spmd.data as data

class Cart:
    def reset(self, seed=None):
        self.x, self.turns = (seed or 7) % 10, 0
        return np.array([self.x, 0.0]), {}

    def step(self, action):
        self.x, self.turns = self.x + action["push"] * action["far"], self.turns + 1
        return np.array([self.x, self.turns]), 1.5, self.turns == 4, False, {}

@data.pipeline(source=data.environments(Cart, 5))
def carts(seen):
    return {"at": seen.obs, "done": seen.done}
'''


PLAY_IN_BLOCKS = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def play(turns: int = 6):
    feed = spmd.feed(at=spmd.spec((5, 2), np.float64, layout=("r", None)),
                     done=spmd.spec((5,), np.bool_, layout=("r",)))

    @spmd.shard_map(out_layouts=(None,))
    def blocks():
        mine, seen = spmd.index() + 1, np.zeros(turns)
        for k in spmd.range(turns):
            b = feed.next()
            seen[k] = spmd.psum(mine * np.sum(b.at) + 100 * np.sum(b.done), "r")
            feed.send({"push": np.where(b.at[:, 0] > 5, -1, 1) * mine, "far": b.at[:, 1] + 1})
        return seen

    return {"seen": blocks()}
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("transport", "hosts"), [("auto", ""), ("mpi", "a,b,b")])
def test_ranks_in_processes_take_their_own_blocks(built, mpirun, tmp_path, transport, hosts):
    """A feed in a shard_map: what a process takes, and sends back, is its own rows."""
    image, file, seen = built(PLAY_IN_BLOCKS), tmp_path / "carts.py", tmp_path / "seen.npy"
    file.write_text(CARTS)
    mpirun(3, "-m", "spmd", "run", image, "--feed", file, "--transport", transport, "-o",
           f"seen={seen}", env={"SPMD_PRETEND_HOSTS": hosts}).expect(0)
    names = {}
    exec(PLAY_IN_BLOCKS, names)
    for ranks in (1, 3):
        feed = EagerFeed("feed", str(file))
        other = names["play"].eager(ranks=ranks, feed=feed)["seen"]
        assert np.array_equal(np.load(seen), other) == (ranks == 3)


def test_environments_act_alike_in_an_eager_run(tmp_path):
    """With a pipeline, and with the file of one, as on the command line."""
    @spmd.program(mesh=("r",))
    def play(turns: int = 8):
        feed = spmd.feed(at=spmd.spec((5, 2), np.float64), done=spmd.spec((5,), np.bool_))
        seen = spmd.zeros((turns, 5))
        for k in spmd.range(turns):
            b = feed.next()
            seen[k] = np.sum(b.at, axis=1) + 100 * b.done
            feed.send(push=np.where(b.at[:, 0] > 5, -1, 1), far=b.at[:, 1] + 1)
        return seen

    (carts,) = load_text(CARTS, "carts.py").values()
    expected = play.eager(feed=carts)
    assert (expected >= 100).sum() == 5
    np.testing.assert_array_equal(play.eager(feed=carts), expected)  # once more, from the begin
    (file := tmp_path / "carts_of_a_feed.py").write_text(CARTS)
    np.testing.assert_array_equal(play.eager(feed=EagerFeed("feed", str(file))), expected)
    np.testing.assert_array_equal(spmd.build(play).run(ranks=2, feed=str(file)), expected)


CHANGES = """
import os
import spmd.data as data
from helper import SIGN

@data.pipeline(source=data.range(8), epochs=1, shuffle=False)
def numbers(example):
    return {"y": example * SIGN}

if not os.environ.get("SPMD_TEST_READ"):  # as an editor, once somebody has read them
    os.environ["SPMD_TEST_READ"] = "1"
    for file, old, new in (("numbers.py", "* SIGN", "* SIGN * 1000"), ("helper.py", "1", "1000")):
        path = os.path.join(os.path.dirname(__file__), file)
        text = open(path).read()
        with open(path, "w") as out:
            out.write(text.replace(old, new))
"""


@pytest.mark.parametrize("how", ["image", "eager"])
def test_two_feeds_of_a_run_have_one_text_of_a_file(tmp_path, monkeypatch, how):
    """The file, and a module of it, are written to as soon as the first feed has read them."""
    monkeypatch.setenv("SPMD_TEST_READ", "")

    @spmd.program(mesh=("r",))
    def both():
        one, two = (spmd.feed(name, y=spmd.spec((8,), np.int64)) for name in "ab")
        return one.next().y, two.next().y

    file = tmp_path / "numbers.py"
    file.write_text(CHANGES)
    (tmp_path / "helper.py").write_text("SIGN = 1\n")
    feeds = dict.fromkeys("ab", str(file))
    if how == "image":
        found = spmd.build(both).run(ranks=2, feed=feeds)
    else:
        with eager_feeds(feeds) as given:
            found = both.eager(feed=given)
    assert "* 1000" in file.read_text() and "1000" in (tmp_path / "helper.py").read_text()
    for one in found:
        np.testing.assert_array_equal(one, np.arange(8))


def test_an_eager_run_that_stops_before_the_stream_ends_ends_in_silence(tmp_path):
    (program := tmp_path / "first.py").write_text(
        PROGRAM.replace("while feed.more():", "for _ in range(2):"))
    done = subprocess.run(
        [sys.executable, "-m", "spmd", "run", program, "--eager", "--feed",
         pipeline(tmp_path, n=2000)], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "") and "count: int64 32" in done.stdout


def test_what_hangs_has_the_name_of_its_example(image, tmp_path):
    """Workers say no names where examples take no time: the run asks the source itself."""
    file = pipeline(tmp_path, "time.sleep(60 if example == 150 else 0)")
    file.write_text(file.read_text().replace("epochs=1", "epochs=1, shuffle=False, timeout=1"))
    with pytest.raises(spmd.InputError, match="failed at position 150, number 150\n"):
        spmd.load(image).run(feed=file)


SLOWLY = """
import sys
from spmd import cli
from spmd.data import reading_time
import spmd.data.pipelines  # now: the limit is for what the file does
reading_time.LOAD_S, reading_time.READ_TIMES = 1.0, 0  # for two minutes, and longer ones
sys.exit(cli.main(sys.argv[1:]))
"""
SOURCE = """
import time
import spmd.data as data

class Lost(data.ExampleSource):
    def length(self):
        return 200
    def get(self, index):
        return index
    def digest(self):
        {read}
        return "a"

{loaded}

@data.pipeline(source=Lost(), epochs=1)
def numbers(example):
    return {{"y": example}}
"""


@pytest.mark.parametrize(("where", "how"), [("read", []), ("loaded", []), ("loaded", ["--eager"])])
def test_what_hangs_while_the_run_itself_reads_it_is_ended(image, tmp_path, where, how):
    """As by workers: with the line, after their time. A debugger has any time."""
    file, program = tmp_path / "lost.py", tmp_path / "sums.py"
    file.write_text(SOURCE.format(**{"read": "", "loaded": ""} | {where: "time.sleep(600)"}))
    program.write_text(PROGRAM)
    line = 1 + [x.strip() for x in file.read_text().splitlines()].index("time.sleep(600)")
    command = ["run", program if how else image, "--feed", file, *how]
    said = run([sys.executable, "-c", SLOWLY, *command], timeout=60).expect(
        65, f"{file}:{line}: ", "is not read within 1 s", "time.sleep(600)")
    assert ("timeout= in @data.pipeline" in said.text) == (where == "read")
    traced = SLOWLY.replace("sys.exit(", "sys.settrace(lambda *_: None); sys.exit(")
    file.write_text(file.read_text().replace("600", "2"))
    run([sys.executable, "-c", traced, *command], timeout=60).expect(0, "count: int64 200")


@pytest.mark.parametrize(("given", "busy", "started_by", "all_cores"), [
    ([3], 1, "", False), ([3], 1, "Slurm", False), ([3, 4], 1, "Open MPI", False),
    ([3], 1, "Open MPI", True), ([0, 1], 2, "MPICH", True)])
def test_workers_take_no_core_of_somebody_else(given, busy, started_by, all_cores):
    everything = list(range(os.cpu_count() or 1))
    assert cores_of(given, busy, started_by) == (everything if all_cores else given)


def test_workers_stay_on_the_cores_of_their_run(image, tmp_path):
    """As taskset says them, or Slurm."""
    core = max(os.sched_getaffinity(0))
    file = pipeline(tmp_path, f"import os; assert os.sched_getaffinity(0) == {{{core}}}")
    run([sys.executable, "-c", f"import os, sys; os.sched_setaffinity(0, {{{core}}}); "
         "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])", "-m", "spmd", "run", image,
         "--feed", file]).expect(0, "count: int64 200")


def processes(launch, module):
    return [p for p in launch.alive() if f"spmd.feeding.{module} " in command_of(p)]


STARTS = ("import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)"
          "; time.sleep(0.05)")  # what an operation leaves behind, in a session of its own


@pytest.mark.mpi
@pytest.mark.parametrize("victim", ["launcher", "rank 0"])
def test_kill_9_leaves_nothing(image, tmp_path, victim):
    file = pipeline(tmp_path, STARTS, 10000)
    with Launch(["mpirun", "-n", 2, sys.executable, "-m", "spmd", "run", image, "--feed", file],
                ) as launch:
        ranks = launch.ranks(2)
        until(lambda: any(command_of(p).startswith("sleep") for p in launch.alive()))
        assert len(launch.alive()) >= 7  # launcher, ranks, scheduler, agent, worker, sleep
        os.kill(launch.process.pid if victim == "launcher" else ranks[0], signal.SIGKILL)
        until(lambda: not launch.alive())


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(image, tmp_path, number, ended_by):
    """As a terminal, or a scheduler of jobs, sends it to all processes of the group."""
    file = pipeline(tmp_path, "time.sleep(0.01)", 10000)
    with Launch(["mpirun", "-n", 2, sys.executable, "-m", "spmd", "run", image, "--feed", file],
                ) as launch:
        until(lambda: processes(launch, "workers.worker"))
        os.killpg(launch.process.pid, number)
        until(lambda: not launch.alive())
        done = launch.finish()
    assert done.code == ended_by(number) and "spmd:" not in done.err, done.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_again_while_a_run_ends_its_workers(image, tmp_path, number):
    file = pipeline(tmp_path, "time.sleep(0.01)", 10000)
    argv = [sys.executable, "-m", "spmd", "run", image, "--feed", file, "--ranks", 2]
    with Launch(argv) as launch:
        until(lambda: processes(launch, "workers.worker"), 20)
        for _ in range(2):
            launch.process.send_signal(number)
            time.sleep(0.1)
        until(lambda: not launch.alive())
        done = launch.finish()
    assert (done.code, done.text) == (128 + number, "")


@pytest.mark.mpi
def test_who_dies_is_started_again(image, tmp_path):
    """The scheduler at its address, with its keys and what it knew; the agent under its name."""
    go, total = tmp_path / "go", tmp_path / "total.npy"
    file = pipeline(tmp_path, f"{STARTS}\n    from os.path import exists\n"
                    f"    while example > 50 and not exists({str(go)!r}): time.sleep(0.01)", 100)
    with Launch([sys.executable, "-m", "spmd", "run", image, "--feed", file, "-o",
                 f"total={total}"]) as launch:
        both = "starting.scheduler_process", "starting.local_agent"
        for module, others in (both, both[::-1]):
            until(lambda: processes(launch, "workers.worker"))
            (dead,), (lives,) = processes(launch, module), processes(launch, others)
            before = until(lambda: {p for p in launch.alive() if command_of(p).startswith("sleep")})
            os.kill(dead, signal.SIGKILL)
            until(lambda: processes(launch, module) not in ([], [dead]))
            assert processes(launch, others) == [lives]
        until(lambda: not before & set(launch.alive()))  # those of the agent's workers go with it
        until(lambda: processes(launch, "workers.worker"))
        go.touch()
        done = launch.finish()
    done.expect(0, "the scheduler of numbers was killed by SIGKILL; another one has started",
                "the agent of workers of numbers was killed by SIGKILL; another one has started")
    assert np.load(total) == sum(range(100))


def test_who_dies_before_it_has_begun_is_started_again():
    local, keeper = LocalScheduler(False), ChildSupervisor("numbers")
    one = SupervisedChild("the scheduler", local.start, local.greet)
    keeper.add(one)
    first = one.child.pid
    os.kill(first, signal.SIGKILL)
    keeper.meet(one)
    assert one.child.pid != first
    with Client(local.address, local.keys, PATIENCE) as client:
        assert client.status()["pipelines"] == []
    keeper.end()


@pytest.mark.mpi
def test_what_dies_again_and_again_ends_the_run(image, tmp_path):
    file = pipeline(tmp_path, "time.sleep(0.05)", 10000)
    with Launch([sys.executable, "-m", "spmd", "run", image, "--feed", file]) as launch:
        until(lambda: processes(launch, "workers.worker"))
        end = time.monotonic() + PATIENCE
        while launch.process.poll() is None and time.monotonic() < end:
            for pid in processes(launch, "starting.scheduler_process"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        launch.finish().expect(75, "the scheduler of this run was killed by SIGKILL, for the 5th "
                                "time within 10 s")


@pytest.mark.mpi
def test_what_an_operation_starts_ends_with_the_run(image, mpirun, tmp_path):
    file = pipeline(tmp_path, "import os, subprocess; subprocess.Popen(['sleep', '60']); "
                    "example == 7 and os.fork()", 20)
    mpirun(1, "-m", "spmd", "run", image, "--feed", file).expect(0)  # looks for processes


def test_a_file_that_starts_a_run_when_a_worker_reads_it_is_refused():
    """Each worker would start workers of its own, without end."""
    text = ("from spmd.feeding.starting.connect import supply_for\n"
            "from spmd.launch.processes import Processes\n"
            "supply_for('x.py', feed=None, processes=Processes())\n")
    with pytest.raises(spmd.UsageError, match="below if __name__ == '__main__'"):
        load_text(text, "x.py")


@pytest.mark.mpi
def test_a_run_goes_on_with_the_same_stream_only(tmp_path):
    """Another seed would give examples twice; more epochs do not."""
    def given(seed, epochs=1):
        (tmp_path / "numbers.py").write_text(
            "import spmd.data as data\n"
            f"@data.pipeline(source=data.range(160), seed={seed}, epochs={epochs})\n"
            "def numbers(example):\n    return {'x': example}\n")
        return str(tmp_path / "numbers.py")

    @spmd.program(mesh=("r",))
    def summed():
        feed = spmd.feed(x=spmd.spec((16,), np.int64))
        total = spmd.asarray(0)
        for b in feed:
            total = total + np.sum(b.x)
        return total

    image, kept = spmd.build(summed, checkpoint=True), str(tmp_path / "kept")
    assert image.run(feed=given(3), checkpoint=kept, every=1) == 160 * 159 // 2
    with pytest.raises(spmd.InputError, match="(?s)another stream than that of the checkpoint"
                       ".*expected: seed=3\n.*found:    seed=4: examples would"):
        image.run(feed=given(4), resume=kept)
    assert image.run(feed=given(3, epochs=2), resume=kept, ranks=2) == 160 * 159


@pytest.mark.mpi
def test_a_batch_that_is_taken_before_anything_was_sent_back(tmp_path):
    (tmp_path / "adding.py").write_text(ACTING)

    @spmd.program(mesh=("r",))
    def hasty():
        feed = spmd.feed(x=spmd.spec((4,), np.int64))
        for _ in spmd.range(3):
            feed.send(action=feed.next().x)
            x = feed.next().x
        return np.sum(x)

    with pytest.raises(spmd.InputError, match="takes batch 2 .* sent nothing back behind batch 1"):
        spmd.build(hasty).run(ranks=2, feed=str(tmp_path / "adding.py"))


@pytest.mark.mpi
def test_what_is_skipped_is_said_once_for_the_run(image, mpirun, tmp_path):
    """By the first process, whichever rank has the example's place; deaths of workers too."""
    file = tmp_path / "numbers_of_a_feed.py"
    body = ("if example % 20 == 7: raise KeyError('no label')\n"
            "    if example == 9: import os; os.kill(os.getpid(), 9)")
    text = PIPELINE.format(n=64, body=body)
    file.write_text(text.replace("epochs=1", "epochs=1, on_error='skip'"))
    done = mpirun(4, "-m", "spmd", "run", image, "--feed", file)
    done.expect(0)
    lines = [line for line in done.err.splitlines() if "numbers: skipped" in line]
    assert len(lines) == 4 and sum("killed by SIGKILL" in line for line in lines) == 1, done.err


def test_calls_with_other_scalars_keep_their_workers(tmp_path):
    """Another number of steps is another job: what comes next, of the same worker; and no worker is
    left when the image is closed, though its object is."""
    @spmd.program(mesh=("r",))
    def some():
        feed = spmd.feed(y=spmd.spec((4,), np.int64), worker=spmd.spec((4,), np.int64))
        steps, last, worker = spmd.scalar("steps", 1), spmd.asarray(0), spmd.asarray(0)
        for _ in spmd.range(steps):
            b = feed.next()
            last, worker = b.y[3], b.worker[0]
        return last, worker

    file = tmp_path / "whose.py"
    file.write_text("import os\nimport spmd.data as data\n\n"
                    "@data.pipeline(source=data.range(1000), shuffle=False, workers=1)\n"
                    "def whose(example):\n    return {'y': example, 'worker': os.getpid()}\n")
    with spmd.build(some).open(ranks=2, feed=file) as job:
        found = [tuple(map(int, job(steps=n))) for n in (2, 3, 3, 1)]
        assert [last for last, _ in found] == [7, 19, 31, 35]
        assert len({worker for _, worker in found}) == 1
        used, began = time.process_time(), time.monotonic()
        time.sleep(0.5)  # nobody takes batches, and nothing is to be done
        assert time.process_time() - used < 0.5 * (time.monotonic() - began)
    until(lambda: not os.path.exists(f"/proc/{found[0][1]}"))
