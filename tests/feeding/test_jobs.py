"""Ranks that are submitted with a pipeline: real ones, whose processes are killed one at a time."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import spmd
from spmd import cli
from spmd.feeding.clients.client_jobs import PART_BYTES, send_file
from spmd.feeding.messages.scheduler_replies import Refused
from spmd.feeding.messages.wire import new_id
from tests.conftest import LAUNCH_ENVIRONMENT, PATIENCE, ROOT, until
from tests.feeding.served_kit import ServedProcess, command_of
from tests.linked_hosts import CUTS

pytestmark = pytest.mark.slow  # it waits for processes of its own

N = 400
PROGRAM = f"""
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def counts(batch: int = 20, n: int = {N}):
    feed = spmd.feed(i=spmd.spec((batch,), np.int64), mask=spmd.spec((batch,), np.bool_))
    shift = spmd.input("shift", (), np.int64)
    seen, k = spmd.zeros(n, np.int64), spmd.asarray(0)
    for b in feed:
        seen = seen + np.bincount(np.where(b.mask, b.i, n), minlength=n + 1)[:n]
        k = k + 1
        print("batch", k)
    return {{"seen": seen + shift, "batches": k}}
"""
PIPELINE = """
import time
import numpy as np
import spmd.data as data

@data.pipeline(source=data.range({n}), seed=3, epochs=1)
def {name}(example):
    time.sleep({seconds})
    return {{"i": example}}
"""
WORKER = "python -m spmd feed worker"
HERE = str(Path(sys.executable).parent)
MPIRUN = shutil.which("mpirun", path=f"{HERE}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module", autouse=True)
def room(tmp_path_factory):
    """Launchers run in the environment of their agent; jobs leave nothing in its folder."""
    folder = tmp_path_factory.mktemp("tmp")
    before = dict(os.environ)
    os.environ.update({**LAUNCH_ENVIRONMENT, "PRTE_MCA_prte_tmpdir_base": str(folder)})
    yield folder
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("image")
    (folder / "counts.py").write_text(PROGRAM)
    np.save(folder / "shift.npy", np.int64(0))
    spmd.build(str(folder / "counts.py")).save(folder / "counts.img")
    return folder / "counts.img"


class Submitting(ServedProcess):
    """A scheduler, an agent with two workers, and one with slots, whose jobs lie in a folder.
    offers: options of the latter."""

    def __init__(self, folder, image, *offers, slots=4):
        super().__init__(folder)
        self.image, self.jobs = image, folder / "jobs"
        self.jobs.mkdir()
        self.worker(2)
        self.agent = self.offers(slots, *offers)

    def offers(self, slots, *more):
        return self.worker(0, "--slots", str(slots), "--folder", str(self.jobs), *more)

    def pipeline(self, name, seconds=0.0):
        file = self.folder / f"{name}.py"
        file.write_text(PIPELINE.format(n=N, name=name, seconds=seconds))
        return file

    def words(self, name, *more, seconds=0.0, ranks=2):
        return ["submit", str(self.pipeline(name, seconds)), "--image", str(self.image),
                "--ranks", str(ranks), "-i", f"shift={self.image.parent}/shift.npy",
                "-o", f"seen={self.folder}/{name}.npy", *more]

    def feed(self, *words):
        return cli.main(["feed", *map(str, words), "--connect", self.address,
                         "--keys", self.keys_folder])

    def started_job(self, name, *more, **how):
        """A job of which the first batches are printed: its row."""
        assert self.feed(*self.words(name, "--detach", *more, **how)) == 0
        with self.client() as client:
            job = client.status()["jobs"][-1]["name"]
            return until(lambda: (row := client.job(job))["state"] == "running" and client.ask(
                "get", job=row["job"], attempt=row["attempt"], file="stdout", offset=0
            )["value"]["size"] > 20 and row)

    def counted_once(self, name):
        return (np.load(self.folder / f"{name}.npy") == 1).all()


@pytest.fixture(scope="module")
def served(tmp_path_factory, image):
    one = Submitting(tmp_path_factory.mktemp("served"), image)
    yield one
    one.close()


def descendants(pid):
    """Processes that one has started, those of its children too."""
    try:
        children = [int(c) for t in os.listdir(f"/proc/{pid}/task")
                    for c in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    except OSError:
        return []
    return children + [d for c in children for d in descendants(c)]


def is_there(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def of_job(served, word):
    """The process of a job whose command line begins so, and all processes of the agent."""
    def found():
        everybody = descendants(served.agent.pid)
        return [(p, everybody) for p in everybody if word in begin_of(p)]
    return until(found)[0]


def begin_of(pid):
    """Its command line up to the module that it runs, without what it is to start."""
    words = command_of(pid).split()
    return " ".join(words[: words.index("-m") + 3 if "-m" in words else 2]) if (
        "mpirun" not in " ".join(words[:2])) else "mpirun"


def test_one_request_and_its_ranks_end_with_prints_outputs_and_status(served, capfd):
    capfd.readouterr()
    assert served.feed(*served.words("once")) == 0
    out, err = capfd.readouterr()
    assert out.startswith("batch 1\nbatch 2\n") and "batches: int64 20\n" in out
    assert served.counted_once("once")
    assert "once/1: submitted\n" in err and "once/1 runs on" in err
    until(lambda: os.listdir(served.jobs) == [])  # its runner removes it once it has said so


def test_a_client_that_left_asks_later(served, capfd, tmp_path):
    words = [sys.executable, "-m", "spmd", "feed", *served.words("left", seconds=0.005),
             "--connect", served.address, "--keys", served.keys_folder]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as client:
        while "batch 2" not in client.stdout.readline():
            pass
        client.send_signal(signal.SIGINT)
        _, err = client.communicate(timeout=PATIENCE)
    assert client.returncode == 130 and "goes on; python -m spmd feed fetch left/" in err
    job = err.split("feed fetch ")[1].split()[0]
    assert not (served.folder / "left.npy").exists()
    capfd.readouterr()
    assert served.feed("fetch", job, "-o", f"seen={tmp_path}/other.npy") == 0
    assert capfd.readouterr().out.startswith("batch 1\n")
    assert (np.load(tmp_path / "other.npy") == 1).all() and os.listdir(tmp_path) == ["other.npy"]
    assert served.feed("status", job) == 0 and "ended" in capfd.readouterr().out
    assert served.feed("cancel", job) == 0 and "forgotten" in capfd.readouterr().out
    assert served.feed("fetch", job) == 2
    assert served.feed("status") == 0 and job not in capfd.readouterr().out


def test_a_launcher_starts_them_and_says_how_it_fails(served, capfd):
    launch = f"{MPIRUN} -n {{ranks}}"
    assert served.feed(*served.words("mpi", "--launch", launch)) == 0
    assert served.counted_once("mpi")
    capfd.readouterr()
    assert served.feed(*served.words("no", "--launch", "no-launcher -n {ranks}")) == 127
    err = capfd.readouterr().err
    assert "no-launcher: No such file or directory" in err
    assert err.endswith("ended with status 127: no-launcher ended with status 127\n")
    shell = "sh -c 'echo out of nodes >&2; exit 3' {ranks}"
    assert served.feed(*served.words("fails", "--launch", shell)) == 3
    with served.client() as client:
        job = client.status()["jobs"][-1]["name"]
        row = client.job(job)
    assert (row["status"], row["why"], row["said"]) == (3, "sh ended with status 3",
                                                        ["out of nodes"])
    assert not (served.folder / "fails.npy").exists()


def test_more_ranks_than_are_offered_wait_for_an_agent(served, capfd):
    assert served.feed(*served.words("many", "--detach", "--min-workers", 3, ranks=6)) == 0
    with served.client() as client:
        job = client.status()["jobs"][-1]["name"]
        row = until(lambda: (row := client.job(job))["why"] and row)
        assert row["why"].startswith("its setting min_workers is 3, and 2 workers are here; try: ")
        client.update("many", min_workers=2)
        row = until(lambda: "min_workers" not in (row := client.job(job))["why"] and row)
        assert row["state"] == "pending" and row["why"].startswith(
            "it needs 6 ranks, agents offer ")
        assert f" 4; try: --ranks 4, or one more agent: {WORKER} --slots 2 --connect tcp" in (
            row["why"])
        assert f"{job} waits: {row['why']}" in client.status()["warnings"]
        of = f'job="{job}",pipeline="many"'
        samples = served.metrics()
        assert samples["spmd_feed_job_pending", f'host="",{of}'] == 1
        assert samples["spmd_feed_job_ranks", f'host="",{of}'] == 6
        assert samples["spmd_feed_jobs", 'state="pending"'] == 1
        assert {value for (name, _), value in samples.items()
                if name == "spmd_feed_agent_slots_free"} == {4}
        assert '["free slots", "n"]' in served.get("")[1]
        more = served.offers(6)
        assert client.fetch(job)["status"] == 0
    assert served.counted_once("many")
    samples = until(lambda: ("spmd_feed_job_starts_total", of) not in (
        found := served.metrics()) and found)
    assert samples["spmd_feed_jobs", 'state="ended"'] >= 1
    more.terminate()
    assert more.wait(PATIENCE) == 0


def test_what_is_spent_starts_no_ranks(served):
    """Ranks cost what a worker of their agent does."""
    dear = served.offers(16, "--cost", "3600000")
    until(lambda: any(a["slots"] == 16 for a in served.status()["agents"]))
    assert served.feed(*served.words("dear", "--detach", "--cost", 1, ranks=16)) == 0
    with served.client() as client:
        first = client.status()["jobs"][-1]["name"]
        until(lambda: client.status("dear")["spent"].get("cost", 0) > 1)
        assert served.feed(*served.words("dear", "--detach", "--cost", 1, ranks=16)) == 0
        second = client.status()["jobs"][-1]["name"]
        row = until(lambda: (row := client.job(second))["why"] and row)
        assert row["why"].startswith("its setting cost allows no more; try: ")
        for job in (first, second):
            client.cancel_job(job)
    dear.terminate()
    assert dear.wait(PATIENCE) == 0


def test_a_job_that_is_cancelled_ends_and_nothing_of_it_counts_any_more(served):
    row = served.started_job("over", "--launch", f"{MPIRUN} -n {{ranks}}", seconds=0.05)
    _, everybody = of_job(served, "mpirun")
    with served.client() as client:
        assert client.cancel_job(row["name"])["what"] == "cancelled"
        assert client.job(row["name"])["status"] == 143
        until(lambda: not any(map(is_there, everybody)))
        until(lambda: os.listdir(served.jobs) == [])
        for file in ("stdout", "out.0"):
            with pytest.raises(Refused, match="this attempt of a job is over"):
                client.ask("put", [b"late"], job=row["job"], attempt=1, file=file, offset=0)


@pytest.mark.parametrize(("words", "says"), [
    (["-o", "w=w.npy"], "-o is for ranks"),
    (["--ranks", "0"], "'0' is not N, or LEAST-MOST"),
    (["--ranks", "2"], "which image do the ranks run?"),
    (["--ranks", "2", "--launch", "mpirun"], "does not say {ranks}"),
    (["--ranks", "2", "--image", "none.img"], "none.img"),
    (["--ranks", "2", "-o", "u=frames/{}.npy"], "the program saves nothing under 'u'"),
    (["--ranks", "2", "--until", "loss is small"], "is no condition"),
    (["--ranks", "2", "--until", ""], "is no condition"),
    (["--ranks", "2", "--until", "seen < 1"], "seen, an output, which is there at the end"),
    (["--until", "loss < 1"], "--until is for ranks"),
    (["--ranks", "2", "-o", "w=a/x.npy", "-o", "v=x.npy"], "cannot write a/x.npy"),
    (["--ranks", "2", "-o", "w=w.txt"], "names no format"),
    (["--ranks", "2", "-i", "w=none.npy"], "none.npy: No such file"),
])
def test_what_is_wrong_is_said_before_anything_starts(served, capfd, words, says):
    capfd.readouterr()
    if "--ranks" in words and "--image" not in words and "which image" not in says:
        words = [*words, "--image", served.image]
    assert served.feed("submit", served.pipeline("wrong"), *words) in (2, 65, 74)
    assert says in capfd.readouterr().err
    assert not any(j["pipeline"] == "wrong" for j in served.status()["jobs"])


def test_long_files_travel_in_parts_and_none_is_taken_with_a_hole(served, tmp_path):
    assert served.feed("submit", served.pipeline("parts")) == 0
    (file := tmp_path / "long").write_bytes(data := os.urandom(3 * PART_BYTES + 7))
    with served.client() as client:
        send_file(client, job := new_id(), "in.0", str(file))
        got, size = b"", 1
        while len(got) < size:
            answer = client.ask("get", job=job, attempt=0, file="in.0", offset=len(got))
            size, got = answer["value"]["size"], got + b"".join(map(bytes, answer.frames))
        assert got == data
        with pytest.raises(Refused, match="bytes before 5 did not come"):
            client.ask("put", [b"x"], job=job, attempt=0, file="in.1", offset=5)
        with pytest.raises(Refused, match="the image of a job with pipeline parts did not come"):
            client.ask("submit_job", job=job, pipeline="parts", image="a", least=1, most=1,
                       inputs=[], outputs=[], words=[], launch="", device="", restarts=0, feed="",
                       until="")


# ---- kills


@pytest.fixture
def alone(tmp_path, image):
    one = Submitting(tmp_path, image)
    yield one
    one.close()


def kill(pid):
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("launch", ["", f"{MPIRUN} -n {{ranks}}"], ids=["one process", "mpirun"])
def test_a_worker_and_the_scheduler_are_killed(alone, launch):
    """The ranks go on, and so does their client. What they give while there is no scheduler is
    there when one is again."""
    row = alone.started_job("ids", *(["--launch", launch] if launch else []), seconds=0.01)
    follows = alone.command("fetch", row["name"], "--connect", alone.address, "--keys",
                            alone.keys_folder, log=(log := alone.folder / "fetch.log"))
    until(lambda: "batch 1\n" in log.read_text())
    kill(next(d for d in descendants(alone.started[1].pid) if "worker" in command_of(d)))
    time.sleep(0.3)
    ranks = [d for d in descendants(alone.agent.pid) if " run counts.img" in command_of(d)]
    alone.process.kill()
    alone.process.wait()
    until(lambda: not any(map(is_there, ranks)))  # their run has come to its end
    alone.start()
    assert follows.wait(PATIENCE) == 0
    assert "batch 20\n" in log.read_text() and log.read_text().count("batch 1\n") == 1
    with alone.client() as client:
        found = client.job(row["name"])
    assert (found["status"], found["attempt"]) == (0, 1), found
    assert alone.counted_once("ids")
    until(lambda: os.listdir(alone.jobs) == [])


@pytest.mark.parametrize("word", ["mpirun", "jobs.runner", "spmd run"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_launcher_a_runner_or_a_rank_is_killed(alone, word, restarts):
    """It ends, or begins anew, as its submitter has said."""
    row = alone.started_job("ids", "--launch", f"{MPIRUN} -n {{ranks}}", "--restarts", restarts,
                            seconds=0.015)
    victim, everybody = of_job(alone, word)
    kill(victim)
    check_end(alone, row, restarts, everybody)


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_agent_is_killed(alone, restarts):
    """No job outlives its agent; another agent takes what may begin anew."""
    row = alone.started_job("ids", "--launch", f"{MPIRUN} -n {{ranks}}", "--restarts", restarts,
                            seconds=0.015)
    everybody = descendants(alone.agent.pid)
    alone.agent.kill()
    alone.agent.wait()
    alone.offers(2)
    check_end(alone, row, restarts, everybody)


def check_end(alone, row, restarts, everybody):
    with alone.client() as client:
        found = client.fetch(row["name"])
    until(lambda: not any(map(is_there, everybody)))
    until(lambda: os.listdir(alone.jobs) == [])
    if restarts:
        assert (found["status"], found["attempt"]) == (0, 2), "\n".join(map(str, found.items()))
        assert alone.counted_once("ids")
    else:
        assert found["status"] and found["why"] and found["attempt"] == 1, found
        assert not (alone.folder / "ids.npy").exists()


def test_an_agent_and_its_runner_are_killed_at_once(alone):
    """Nobody is left to say so; the next agent removes what is left."""
    row = alone.started_job("ids", "--restarts", 1, seconds=0.015)
    victim, everybody = of_job(alone, "jobs.runner")
    alone.agent.send_signal(signal.SIGSTOP)
    kill(victim)
    alone.agent.kill()
    alone.agent.wait()
    until(lambda: not any(map(is_there, everybody)))
    assert len(os.listdir(alone.jobs)) == 1
    alone.offers(2)
    until(lambda: os.listdir(alone.jobs) == [])
    with alone.client() as client:
        assert client.cancel_job(row["name"])["what"] == "cancelled"


def test_a_job_that_begins_anew_goes_on_from_its_checkpoint(alone):
    spmd.build(str(alone.image.parent / "counts.py"), checkpoint=True).save(
        alone.folder / "kept.img")
    alone.image, kept = alone.folder / "kept.img", alone.folder / "kept"
    np.save(alone.folder / "shift.npy", np.int64(0))
    row = alone.started_job("ids", "--restarts", 1, "--options",
                            f"--checkpoint {kept} --resume {kept} --every 2", seconds=0.015)
    until(lambda: kept.exists() and len(os.listdir(kept)) > 1)
    kill(of_job(alone, "spmd run")[0])
    with alone.client() as client:
        found = client.fetch(row["name"])
        said = client.ask("get", job=row["job"], attempt=2, file="stdout", offset=0).frames[0]
    assert (found["status"], found["attempt"]) == (0, 2), found
    assert alone.counted_once("ids")
    assert b"batch 20\n" in bytes(said) and b"batch 1\n" not in bytes(said)


def test_a_full_disk_of_the_scheduler_is_waited_for(alone):
    """Nothing of a job is lost for that: what is refused is sent again when there is room."""
    row = alone.started_job("ids", seconds=0.005)
    ranks = [d for d in descendants(alone.agent.pid) if " run counts.img" in command_of(d)]
    _, hard = resource.prlimit(alone.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(alone.process.pid, resource.RLIMIT_FSIZE, (16, hard))
    until(lambda: not any(map(is_there, ranks)))
    with alone.client() as client:
        assert client.job(row["name"])["state"] == "running"
        until(lambda: client.status()["scheduler"]["trouble"])
        resource.prlimit(alone.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert client.fetch(row["name"])["status"] == 0
    assert alone.counted_once("ids")


# ---- links that are cut


class Linked(Submitting):
    """A scheduler on host 0, which is the test's; workers and ranks on others."""

    LISTEN = "tcp://0.0.0.0:*"

    def __init__(self, folder, image, hosts, workers_at, ranks_at):
        self.hosts, self.workers_at, self.ranks_at = hosts, workers_at, ranks_at
        super().__init__(folder, image)

    def start(self):
        super().start()
        self.port = self.address.rpartition(":")[2]
        self.address = f"tcp://127.0.0.1:{self.port}"

    def worker(self, processes, *more):
        at = self.ranks_at if "--slots" in more else self.workers_at
        here, first = self.address, self.hosts.first(at or self.ranks_at or 1)
        with self.hosts.inside(at):
            self.address = f"tcp://{first}:{self.port}"
            try:
                return super().worker(processes, *more)
            finally:
                self.address = here


@pytest.fixture
def linked(tmp_path, image, hosts):
    """linked(1, 0): with two workers on host 1, and ranks on host 0."""
    started = []

    def start(workers_at, ranks_at):
        started.append(Linked(tmp_path, image, hosts, workers_at, ranks_at))
        return started[-1]

    with hosts.inside(0):
        yield start
        for one in started:
            one.close()


@pytest.mark.parametrize("cut", CUTS)
def test_workers_behind_a_link_that_is_cut(linked, hosts, cut):
    """Others compute what they had; they come back."""
    served = linked(1, 0)
    served.workers_at = 2
    served.worker(1)
    served.workers_come(3)
    row = served.started_job("ids", seconds=0.05)
    hosts.cut(1, cut)
    served.workers_come(1)
    assert served.feed("fetch", row["name"]) == 0
    assert served.counted_once("ids")
    hosts.mend(1)
    served.workers_come(3)
    assert served.feed(*served.words("more")) == 0 and served.counted_once("more")


@pytest.mark.parametrize(("cut", "away"), [("down", 14), ("one way", 6)])
def test_ranks_behind_a_link_that_is_cut(linked, hosts, cut, away):
    """The job goes on, or begins anew where its agent was silent for too long; its client waits."""
    served = linked(0, 2)
    row = served.started_job("ids", "--restarts", 3, seconds=0.05)
    hosts.cut(2, cut)
    ended = threading.Timer(away, hosts.mend, [2])
    ended.start()
    assert served.feed("fetch", row["name"]) == 0
    ended.join()
    assert served.counted_once("ids")
