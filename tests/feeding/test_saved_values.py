"""What the ranks of a job save while they run: it comes back whole, and may end the job."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.errors import OutputError, UsageError
from spmd.feeding.jobs.saved_values import SavedValues
from spmd.feeding.messages.end_conditions import EndCondition, condition
from spmd.files.packed_frames import frames_of, pack, unpacked
from tests.conftest import until
from tests.feeding.test_jobs import MPIRUN, Submitting, kill, of_job
from tests.feeding.test_jobs import room as room

pytestmark = pytest.mark.slow  # it waits for processes of its own

N = 4000
PROGRAM = f"""
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def falls(batch: int = 20, n: int = {N}):
    feed = spmd.feed(i=spmd.spec((batch,), np.int64))
    shift = spmd.input("shift", (), np.int64)
    seen, k = spmd.zeros(n, np.int64), spmd.asarray(0)
    for b in feed:
        seen = seen + np.bincount(b.i, minlength=n)
        k = k + 1
        spmd.save("loss", np.array([0.5, 1.5]) / k)
        spmd.save("counts", seen[:7], every=10)
    return {{"seen": seen + shift, "batches": k}}
"""
COUNTED = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def counted(batch: int = 20):
    feed = spmd.feed(i=spmd.spec((batch,), np.int64))
    x = spmd.asarray(0)
    for _ in spmd.range(10):
        x = x + np.sum(feed.next().i)
        spmd.save("x", x)
        spmd.save("z", x * 1j)
    return {"end": x}
"""
PIPELINE = """
import time
import numpy as np
import spmd.data as data

@data.pipeline(source=data.range({n}), seed=3, epochs={epochs})
def {name}(example):
    time.sleep({seconds})
    return {{"i": example}}
"""


class Saving(Submitting):
    def pipeline(self, name, seconds=0.0):
        file = self.folder / f"{name}.py"
        file.write_text(PIPELINE.format(n=N, name=name, seconds=seconds,
                                        epochs=1 if name.startswith("once") else None))
        return file

    def check(self, name, row):
        """Every example of the batches that ranks took is counted once: no epoch was over."""
        seen, batches = np.load(self.folder / f"{name}.npy"), row["batches"]
        assert seen.max() == 1 and seen.sum() == 20 * batches, (seen.max(), seen.sum(), batches)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("image")
    for name, text in (("falls", PROGRAM), ("counted", COUNTED)):
        (folder / f"{name}.py").write_text(text)
        spmd.build(str(folder / f"{name}.py"), checkpoint=name == "falls").save(
            folder / f"{name}.img")
    np.save(folder / "shift.npy", np.int64(0))
    return folder / "falls.img"


@pytest.fixture(scope="module")
def served(tmp_path_factory, image):
    one = Saving(tmp_path_factory.mktemp("served"), image)
    yield one
    one.close()


def last_job(served):
    with served.client() as client:
        return client.job(client.status()["jobs"][-1]["name"])


@pytest.mark.parametrize("launch", [[], ["--launch", f"{MPIRUN} -n {{ranks}}"]],
                         ids=["one process", "mpirun"])
def test_a_job_ends_well_once_a_value_is_so(served, capfd, launch):
    """The pipeline has no end. All ranks leave the loop behind the same batch, and the outputs are
    those of the batches before it."""
    frames = served.folder / "counts/{}.npy"
    assert served.feed(*served.words("ends", "--until", "loss < 0.1", "-o", f"counts={frames}",
                                     *launch, seconds=0.001)) == 0
    row = last_job(served)
    assert (row["state"], row["status"], row["attempt"]) == ("ended", 0, 1)
    assert row["why"] == "loss < 0.1: it was 0.0909091 in frame 10"
    assert row["batches"] > 10
    served.check("ends", row)
    assert sorted(os.listdir(frames.parent)) == sorted(
        f"{k}.npy" for k in range(-(-row["batches"] // 10)))
    assert np.load(str(frames).format(1)).shape == (7,)
    assert "ended with status 0: loss < 0.1" in capfd.readouterr().err
    assert served.feed("status", row["name"]) == 0
    assert "until loss < 0.1" in capfd.readouterr().out
    until(lambda: os.listdir(served.jobs) == [])


@pytest.mark.mpi
def test_a_job_on_two_agents_ends_once_a_value_is_so(served, capfd):
    """Its frames lie beside its checkpoints, where all agents see them; without such a folder it
    waits for one agent that has room."""
    other, kept = served.offers(4), served.folder / "wide"
    frames = served.folder / "of_both/{}.npy"
    words = served.words("wide", "--until", "loss < 0.1", "-o", f"counts={frames}", ranks=8,
                         seconds=0.001)
    try:
        assert served.feed(*words, "--detach") == 0
        with served.client() as client:
            name = last_job(served)["name"]
            until(lambda: "it needs 8 ranks on one agent, where its frames lie, and agents offer "
                  in client.job(name)["why"])
            client.cancel_job(name)
        assert served.feed(*words, "--options",
                           f"--checkpoint {kept} --resume {kept} --every 5") == 0
        row = last_job(served)
        assert " (ranks 4-7) with 8 ranks" in capfd.readouterr().err
        assert row["why"] == "loss < 0.1: it was 0.0909091 in frame 10"
        served.check("wide", row)
        assert sorted(os.listdir(frames.parent)) == sorted(
            f"{k}.npy" for k in range(-(-row["batches"] // 10)))
        until(lambda: os.listdir(served.jobs) == [])
    finally:
        other.terminate()
        other.wait()


def test_a_value_that_is_never_so_leaves_the_end_to_the_program(served):
    assert served.feed(*served.words("once", "--until", "loss<=-1e9")) == 0
    row = last_job(served)
    assert row["why"].startswith("loss <= -1e+09 never held: it was 0.005 in the last of 200")
    assert row["batches"] is None
    assert (np.load(served.folder / "once.npy") == 1).all()


@pytest.mark.parametrize("after", [0.0, 0.15, 0.3])
def test_the_scheduler_is_killed_as_the_value_is_so(served, after):
    """Ranks that hold wait for it, and end behind the same batch as all others."""
    assert served.feed(*served.words("ends", "--until", "loss < 0.05", "--detach", "--launch",
                                     f"{MPIRUN} -n {{ranks}}", ranks=3, seconds=0.01)) == 0
    name = last_job(served)["name"]
    until(lambda: list(served.jobs.glob("*/*/frames/loss/19.npy")))
    time.sleep(after)
    served.process.kill()
    served.process.wait()
    time.sleep(0.5)
    served.start()
    with served.client() as client:
        row = client.fetch(name)
    assert (row["status"], row["attempt"]) == (0, 1), row
    served.check("ends", row)


def test_a_job_that_begins_anew_is_looked_at_anew(served):
    """It goes on from its checkpoint, and so do its frames: those before it are not lost."""
    kept, frames = served.folder / "kept", served.folder / "loss.zarr"
    assert served.feed(*served.words(
        "again", "--restarts", 1, "--until", "loss < 0.02", "-o", f"loss={frames}", "--options",
        f"--checkpoint {kept} --resume {kept} --every 2", "--detach", seconds=0.01)) == 0
    until(lambda: kept.exists() and len(os.listdir(kept)) > 1)
    kill(of_job(served, "spmd run")[0])
    with served.client() as client:
        row = client.fetch(last_job(served)["name"])
    assert (row["status"], row["attempt"]) == (0, 2), "\n".join(map(str, row.items()))
    assert row["why"] == "loss < 0.02: it was 0.0196078 in frame 50"
    served.check("again", row)
    zarr = pytest.importorskip("zarr")
    got = zarr.open(frames, mode="r")[:]
    np.testing.assert_allclose(got.mean(1), 1 / np.arange(1, row["batches"] + 1))


@pytest.mark.parametrize(("words", "says"), [
    (["--until", "z < 1"], "z is complex"),
    (["--until", "y < 1"], "the program saves nothing under 'y' while it runs"),
    (["--until", "x < 1"], "cannot end before it has taken all of its batches"),
    (["-o", "x=x.npy"], "x is saved as many frames"),
    (["-o", "x={}/x.npy"], "needs a file for each frame"),
    (["-o", "x=f/{}.npy", "-o", "z=f/{}.npy"], "cannot have the same files"),
])
def test_what_cannot_be_is_said_before_anything_starts(served, capfd, words, says):
    capfd.readouterr()
    code = served.feed("submit", served.pipeline("wrong"), "--ranks", 2, "--image",
                       served.image.parent / "counted.img",
                       *words)
    assert code in (2, 65)
    out, err = capfd.readouterr()
    assert says in out + err


def test_frames_come_all_or_none(served, monkeypatch, capfd):
    """A disk that is full while they come leaves the older ones; then they are fetched again."""
    frames = served.folder / "older/at{:03}.npy"
    frames.parent.mkdir()
    (frames.parent / "at099.npy").write_bytes(b"of a run before")
    assert served.feed(*served.words("once_more", "-o", f"counts={frames}", "--detach")) == 0
    name = last_job(served)["name"]
    unpack = unpacked.unpack
    monkeypatch.setattr(unpacked, "unpack", lambda self: (unpack(self), (_ for _ in ()).throw(
        OSError(28, "No space left on device", "f")))[0])
    assert served.feed("fetch", name) == 74
    assert os.listdir(frames.parent) == ["at099.npy"]
    assert not (served.folder / "once_more.npy").exists()
    monkeypatch.undo()
    assert served.feed("fetch", name) == 0
    assert sorted(os.listdir(frames.parent)) == [f"at{k:03}.npy" for k in range(20)]
    assert served.feed("fetch", name, "-o", f"counts={served.folder}/n/{{}}.npy") == 0
    assert len(os.listdir(served.folder / "n")) == 20
    assert served.feed("fetch", name, "-o", f"counts={served.folder}/n.zarr") == 2
    assert "that is another kind of file" in capfd.readouterr().err


def test_conditions_are_what_they_say():
    assert condition("a.loss>= -1e-3") == EndCondition("a.loss", ">=", -0.001)
    assert str(condition("x<1")) == "x < 1"
    assert not condition("x < 1").holds(float("nan"))
    for text in ("", "x", "x <", "< 1", "x < y", "x == 1", "x < nan", "x < inf", "x < 1 < 2"):
        with pytest.raises(UsageError, match="is no condition"):
            condition(text)


@pytest.mark.parametrize("path", ["f/{}.npy", "f.zarr"])
def test_values_are_looked_at_once_each(tmp_path, path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @spmd.program(mesh=("r",))
    def steps(n: int = 3):
        x = spmd.zeros(n, np.float32)
        for _ in spmd.range(4):
            x = x + 1
            spmd.save("x", x)
        return x

    values = SavedValues(path, condition("x > 2.5"))
    assert not values.look() and values.last is None
    spmd.build(steps).run(ranks=2, save={"x": path})
    assert values.look() and (values.frames, values.last) == (3, 3.0)
    shutil.rmtree(path.split("/")[0])
    assert values.look() and str(values) == "x > 2.5: it was 3 in frame 2"


def test_packed_frames_are_checked(tmp_path, monkeypatch):
    import tarfile
    monkeypatch.chdir(tmp_path)
    Path("x").write_text("x")
    with tarfile.open("bad", "w") as packed:
        packed.add("x", arcname="../x")
    with pytest.raises(OutputError, match="is no frame"), unpacked("f/{}.npy") as frames:
        frames.file.write(Path("bad").read_bytes())
        frames.unpack()
    assert sorted(os.listdir()) == ["bad", "x"]
    pack("none/{}.npy", "empty")
    with unpacked("f/{}.npy") as frames:
        frames.file.write(Path("empty").read_bytes())
        frames.unpack()
    assert list(frames_of("f/{}.npy")) == [] and os.listdir("f") == []
