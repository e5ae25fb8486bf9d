"""The scripts that the documentation has for Slurm, in jobs of a real one."""

from __future__ import annotations

import re

import numpy as np
import pytest

import spmd
from tests.conftest import ROOT, here, run, until
from tests.feeding import test_jobs
from tests.feeding.slurm_kit import Cluster, DoesNotStart, missing
from tests.pages import blocks

PAGE = ROOT / "docs" / "howto" / "feeding.md"
SCRIPTS = dict(zip(("one command", "a scheduler of its own"),
                   [b.text for b in blocks(PAGE) if "#SBATCH" in b.text], strict=True))
OVER = ""
SIZES = ("--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2", "--mem=900")
N = 8000
EXPECTED = [N * (N - 1) // 2, N]

PROGRAM = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def sums():
    feed = spmd.feed(y=spmd.spec((80,), np.int64))
    total, count = spmd.asarray(0), spmd.asarray(0)
    for b in feed:
        total = total + np.sum(b.y)
        count = count + 80
    return {"total": total, "count": count}
"""

# It takes a minute or more, until a file says that nobody does anything to it any more.
PIPELINE = f"""
import os, time
import spmd.data as data

@data.pipeline(source=data.range({N}), epochs=1)
def images(example):
    if not os.path.exists("%s"):
        time.sleep(0.03)
    return {{"y": example}}
"""


@pytest.fixture(scope="module")
def mpi_of_slurm():
    return "pmi2" if "HYDRA" in run(["mpirun", "--version"]).text else "pmix"


@pytest.fixture(scope="module")
def cluster(mpi_of_slurm):
    if gone := missing():
        pytest.skip(f"{', '.join(gone)} not found: apt install slurmctld slurmd slurm-client munge")
    try:
        one = Cluster()
    except DoesNotStart as why:
        pytest.skip(f"Slurm does not start here: {why}")
    try:
        if one.run("srun", f"--mpi={mpi_of_slurm}", "echo", "it starts", check=False) == "":
            pytest.skip(f"srun --mpi={mpi_of_slurm} starts nothing here: apt install libpmix-dev")
        yield one
    finally:
        one.close()


class Job:
    """The job of a script, which has kept a checkpoint and is not at its end."""

    def __init__(self, cluster, script, mpi, folder):
        self.cluster, self.soon = cluster, folder / "soon"
        (folder / "program.py").write_text(PROGRAM)
        assert here("build", folder / "program.py", "-o", cluster.work / "train.img",
                    "--checkpoint") == 0
        (cluster.work / "images.py").write_text(PIPELINE % self.soon)
        self.kept = folder / "kept"
        self.script = script.replace("=pmix", f"={mpi}").replace("300s", "1s").replace(
            "kept", str(self.kept))
        self.begin()

    def begin(self):
        self.number = self.cluster.submit(self.script, *SIZES)

        def has_kept():
            over = not self.cluster.state(self.number)
            assert not over, self.cluster.said(self.number)
            return list(self.kept.glob("*/checkpoint.json"))  # a whole one
        until(has_kept, 120)

    def end(self):
        """Lets it go on to its end; returns all that it said."""
        self.soon.touch()
        self.cluster.wait_for(self.number, OVER)
        return self.cluster.said(self.number)

    def left(self):
        """What is left on the machine and in folders, but for what a user wants to have."""
        until(lambda: not any("slurmstepd" in one for one in self.cluster.left()))
        names = {p.name for p in self.cluster.work.iterdir()} - {
            "train.img", "images.py", "job.sh", *(p.name for p in self.cluster.work.glob("job-*"))}
        return [*self.cluster.left(), *names, *(str(p) for p in self.cluster.tmp.iterdir())]


@pytest.fixture
def job(cluster, mpi_of_slurm, tmp_path, request):
    one = Job(cluster, SCRIPTS[request.param], mpi_of_slurm, tmp_path)
    yield one
    if cluster.state(one.number):
        cluster.run("scancel", one.number)
        cluster.wait_for(one.number, OVER)


def examples(said):
    """What a run printed of them."""
    return [int(n) for n in re.findall(r"^(?:total|count): int64 (\d+)$", said, re.M)]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("job", SCRIPTS, indirect=True)
def test_a_job_that_is_put_back_into_the_queue_goes_on(cluster, job):
    """With what comes after its last checkpoint, each example exactly once; nothing is left."""
    cluster.run("scontrol", "requeue", job.number)
    cluster.wait_for(job.number, "PENDING")
    assert job.left() == []
    cluster.run("scontrol", "update", f"jobid={job.number}", "StartTime=now")
    said = job.end()
    assert "spmd: goes on from turn" in said, said
    assert examples(said) == EXPECTED, said
    assert job.left() == []


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("job", ["a scheduler of its own"], indirect=True)
def test_a_job_that_is_cancelled_leaves_nothing(cluster, job):
    cluster.run("scancel", job.number)
    cluster.wait_for(job.number, OVER)
    assert job.left() == []
    assert examples(cluster.said(job.number)) == []


# ---- submitted jobs whose launcher is srun


@pytest.fixture
def submitting(cluster, mpi_of_slurm, tmp_path, monkeypatch):
    """A scheduler, workers, and an agent whose jobs start on two nodes."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "counts.py").write_text(test_jobs.PROGRAM)
    np.save(tmp_path / "shift.npy", np.int64(0))
    spmd.build(str(tmp_path / "counts.py")).save(tmp_path / "counts.img")
    launch = f"srun --mpi={mpi_of_slurm} --nodes=2 --mem=100 --job-name=ours -n {{ranks}}"
    one = test_jobs.Submitting(tmp_path, tmp_path / "counts.img", "--launch", launch)
    yield one
    one.close()
    until(lambda: not any("slurmstepd" in left for left in cluster.left()))


@pytest.mark.mpi
@pytest.mark.slow
def test_srun_starts_the_ranks_of_a_submitted_job(cluster, submitting, capfd):
    assert submitting.feed(*submitting.words("ids", ranks=4)) == 0
    assert submitting.counted_once("ids")
    assert "batch 5\n" in capfd.readouterr().out
    wrong = "srun --partition=none -n {ranks}"
    assert submitting.feed(*submitting.words("no", "--launch", wrong)) == 1
    said = capfd.readouterr().err
    assert "invalid partition" in said and "srun ended with status 1" in said, said


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_submitted_job_that_slurm_cancels(cluster, submitting, restarts):
    """It ends, or begins anew, as its submitter has said; nothing of it is left."""
    row = submitting.started_job("ids", "--restarts", restarts, seconds=0.03, ranks=4)
    nodes = cluster.run("squeue", "-h", "--name=ours", "-o", "%i %T %D").split()
    assert nodes[1:] == ["RUNNING", "2"]
    cluster.run("scancel", nodes[0])
    with submitting.client() as client:
        found = client.fetch(row["name"])
    if restarts:
        assert (found["status"], found["attempt"]) == (0, 2), found
        assert submitting.counted_once("ids")
    else:
        assert found["status"] and "srun ended with status" in found["why"], found
        assert not (submitting.folder / "ids.npy").exists()
    until(lambda: not cluster.jobs("ours"))


@pytest.mark.mpi
@pytest.mark.slow
def test_a_submitted_job_that_is_cancelled_is_none_of_slurm_any_more(cluster, submitting):
    row = submitting.started_job("ids", seconds=0.03, ranks=4)
    assert submitting.feed("cancel", row["name"]) == 0
    until(lambda: not cluster.jobs("ours"))
    until(lambda: not any("spmd run" in left for left in cluster.left()))
