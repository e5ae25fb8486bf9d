"""`run --feed images.py`: scheduler and workers start and end with the run, however it ends."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import pytest

import spmd
import spmd.data as data
from spmd.data.pipeline_files import load_text
from tests.conftest import Launch
from tests.feeding.served_kit import command_of
from tests.feeding.test_workers import ACTING

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


@pytest.mark.mpi
@pytest.mark.parametrize("victim", ["launcher", "rank 0"])
def test_kill_9_leaves_nothing(image, tmp_path, victim):
    file = pipeline(tmp_path, f"open({str(tmp_path / 'began')!r}, 'w'); time.sleep(0.05)", 10000)
    with Launch(["mpirun", "-n", 2, sys.executable, "-m", "spmd", "run", image, "--feed", file],
                ) as launch:
        ranks = launch.ranks(2)
        end = time.monotonic() + 20
        while not (tmp_path / "began").exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert len(launch.alive()) >= 6  # launcher, ranks, scheduler, agent, worker
        for pid in {"launcher": [launch.process.pid], "rank 0": [ranks[0]]}[victim]:
            os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while launch.alive() and time.monotonic() < end:
            time.sleep(0.05)
        assert launch.alive() == []


@pytest.mark.mpi
def test_a_run_without_its_agent_ends(image, tmp_path):
    began = tmp_path / "began"
    file = pipeline(tmp_path, f"open({str(began)!r}, 'w'); time.sleep(0.05)", 10000)
    with Launch([sys.executable, "-m", "spmd", "run", image, "--feed", file]) as launch:
        end = time.monotonic() + 20
        while not began.exists() and time.monotonic() < end:
            time.sleep(0.05)
        agent = [p for p in launch.alive() if "spmd.feeding.local_agent" in command_of(p)]
        os.kill(agent[0], signal.SIGKILL)
        while launch.process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        err = launch.process.stderr.read()
    assert launch.process.returncode == 75 and "was killed by SIGKILL" in err, err


@pytest.mark.mpi
def test_what_an_operation_starts_ends_with_the_run(image, mpirun, tmp_path):
    file = pipeline(tmp_path, "import os, subprocess; subprocess.Popen(['sleep', '60']); "
                    "example == 7 and os.fork()", 20)
    mpirun(1, "-m", "spmd", "run", image, "--feed", file).expect(0)  # looks for processes


def test_a_file_that_starts_a_run_when_a_worker_reads_it_is_refused():
    """Each worker would start workers of its own, without end."""
    text = ("from spmd.feeding.connect import supply_for\n"
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
    with pytest.raises(spmd.InputError, match="another stream than that of the checkpoint"):
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
        used = time.process_time()
        time.sleep(0.5)  # nobody takes batches, and nothing is to be done
        assert time.process_time() - used < 0.25
    end = time.monotonic() + 5
    while os.path.exists(f"/proc/{found[0][1]}") and time.monotonic() < end:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{found[0][1]}")
