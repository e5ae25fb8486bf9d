"""`run --entry`: one entry of a class from files to files, over state that comes from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.errors import UsageError
from tests.conftest import ROOT
from tests.spmd.walks import Walks

PROGRAM = ROOT / "tests" / "spmd" / "walks.py"
BY = np.arange(30.0).reshape(10, 3)

PLAIN = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def plain():
    return np.ones(3)
"""

TWO = """
import numpy as np
import spmd

def train():
    w = spmd.input("w", (4,), np.float64)
    return {"w": w + 1, "sum": np.sum(w)}

def infer():
    return spmd.input("w", (4,), np.float64) * 2

Two = spmd.entity(train=train, infer=infer, state=("w",), mesh=("r",))
"""

LONG = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
class Long:
    def __init__(self, n: int = 8):
        self.u = spmd.zeros((n,), np.float64, layout=("r",))
        self.n = n

    @spmd.entry
    def go(self):
        steps = spmd.scalar("steps", 10)
        stop = spmd.scalar("stop", 100)
        for k in spmd.range(steps):
            spmd.save("frames", self.u, every=5)
            self.u = self.u + k
            assert k < stop, "stopped"
        return self.u

    @spmd.entry
    def fed(self):
        feed = spmd.feed(x=spmd.spec((self.n,), np.float64))
        for _ in spmd.range(spmd.scalar("batches", 2)):
            self.u = self.u + feed.next().x
            spmd.print("took one")
        return self.u

    @spmd.entry
    def look(self):
        return self.u
"""


@pytest.fixture(scope="module")
def image(built):
    return built(PROGRAM)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    np.save(tmp_path / "by.npy", BY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_entry_from_files_to_files(image, folder, spmd_here):
    given = "--entry", "walk", "-i", "by=by.npy"
    spmd_here("run", image, "--ranks", 2, *given, "-o", "u=u.npy", "--set", "factor=2",
              "--save-state", "a.safetensors").expect(
        0, "state: 4 arrays in a.safetensors", f"sum: float64 {2 * BY.sum()}")
    assert np.array_equal(np.load("u.npy"), 2 * BY)
    spmd_here("run", image, "--ranks", 3, *given, "-o", "all.npz", "--state", "a.safetensors",
              "--save-state", "a.safetensors").expect(0)
    found = np.load("all.npz")
    assert sorted(found) == ["sum", "u"] and np.array_equal(found["u"], 3 * BY)
    done = spmd_here("run", PROGRAM, "--ranks", 5, "--entry", "where", "--state", "a.safetensors",
                     "-o", "0=w.npy").expect(0, "1: int64 2")
    assert "scalar" not in done.text and np.array_equal(np.load("w.npy"), 3 * BY)
    spmd_here("run", image, "--entry", "reset", "--state", "a.safetensors",
              "--save-state", "b.npz").expect(0)
    assert not np.load("b.npz")["u"].any() and np.load("b.npz")["steps"] == 2


def test_processes_run_an_entry(image, folder, mpirun):
    command = "-m", "spmd", "run", image, "--entry", "walk", "-i", "by=by.npy"
    mpirun(3, *command, "--save-state", "a.safetensors").expect(0, "state: 4 arrays")
    mpirun(2, *command, "--state", "a.safetensors", "--save-state", "b.npz", "-o", "u=u.npy",
           env={"SPMD_PRETEND_HOSTS": "a,b"}).expect(0, f"sum: float64 {2 * BY.sum()}")
    assert np.array_equal(np.load("u.npy"), 2 * BY)
    assert np.array_equal(np.load("b.npz")["u"], 2 * BY)
    one = ["-m", "spmd", "run", image, "--entry"]
    mpirun(1, *one, "where", "--state", "b.npz", ":", "-n", 1, "python", *one, "reset").expect(
        78, "hold different settings: rank 1 differs", "--entry 'where'", "--entry 'reset'")
    mpirun(1, *one, "where", "--state", "a.safetensors", ":", "-n", 1, "python", *one, "where",
           "--state", "b.npz").expect(78, "different arrays for state", "b.npz")


@pytest.mark.parametrize(("options", "code", "fragments"), [
    ([], 2, ["Walks has entries, and none is named", "reset, turned, walk, where"]),
    (["--entry", "predict"], 2, ['Walks has no entry "predict"; it has reset, turned, walk']),
    (["--entry", "wher"], 2, ["try:      where"]),
    (["--entry", "walk"], 2, ["input by was not given"]),
    (["--entry", "walk", "-i", "walk.by=by.npy"], 2, ["no input 'walk.by'", "expected: by"]),
    (["--entry", "where", "-i", "by=by.npy"], 2, ["no input 'by'"]),
    (["--entry", "where", "-o", "u=u.npy"], 2, ["no output 'u'", "expected: 0, 1"]),
    (["--entry", "where", "--set", "factor=2"], 2, ["entry where has no scalar 'factor'"]),
    (["--entry", "where", "--set", "far=2"], 2, ["entry where has no scalar 'far'", "no scalars"]),
    (["--entry", "where", "--set", "entry=2"], 2, ["no scalar 'entry'", "--entry NAME"]),
    (["--entry", "where", "--state", "by.npy"], 2, ["arrays by their names"]),
    (["--entry", "where", "--state", "none.npz"], 74, ["state: cannot open none.npz"]),
    (["--entry", "where", "--save-state", "no/a.npz"], 74, ["state: cannot write"]),
    (["--entry", "where", "-o", "0=a.npz", "--save-state", "a.npz"], 2, ["would be replaced"]),
    (["--entry", "walk", "-i", "by=by.npy", "--save-state", "by.npy"], 2, ["by.npy is the file"]),
])
def test_what_cannot_run_is_refused(image, folder, spmd_here, options, code, fragments):
    spmd_here("run", image, *options).expect(code, *fragments)
    assert sorted(path.name for path in folder.iterdir()) == ["by.npy"]


def test_a_program_without_entries_has_none_to_name(built, folder, spmd_here):
    image = built(PLAIN)
    spmd_here("run", image, "--entry", "walk").expect(2, "plain has no entries")
    spmd_here("run", image, "--state", "a.npz").expect(2, "plain has no state")
    with pytest.raises(UsageError, match="no input or scalar 'entry'"):
        spmd.load(image).run(entry="walk")


def test_images_from_python_run_one_entry(image, folder):
    loaded = spmd.load(image)
    assert loaded.run(entry="walk", ranks=3, by=BY, factor=3)["sum"] == 3 * BY.sum()
    for wrong in ({}, {"entry": "predict"}, {"entry": "where", "by": BY}):
        with pytest.raises(UsageError):
            loaded.run(ranks=2, **wrong)
    kinds = [row["kind"] for row in loaded.profile(entry="walk", ranks=2, by=BY)]
    assert "all-reduce" in kinds or "all_reduce" in kinds, kinds
    assert "line.json" in loaded.timeline("line.json", entry="where", ranks=2)
    built = spmd.build(Walks)
    assert built.run(entry="walk", ranks=2, by=BY, check=True)["sum"] == BY.sum()
    with pytest.raises(spmd.CheckError), np.errstate(all="ignore"):
        built.run(entry="walk", ranks=2, by=np.full_like(BY, 1e308), factor=1e9, check="nan")


def test_an_entry_runs_as_plain_python(image, folder, spmd_here):
    given = "--entry", "walk", "-i", "by=by.npy", "--set", "factor=2"
    plain = "run", PROGRAM, "--eager"
    spmd_here(*plain, *given, "-o", "u=u.npy", "--save-state", "a.safetensors").expect(
        0, "state: 4 arrays in a.safetensors", f"sum: float64 {2 * BY.sum()}")
    assert np.array_equal(np.load("u.npy"), 2 * BY)
    spmd_here("run", image, "--ranks", 3, "--entry", "where", "--state", "a.safetensors",
              "-o", "0=w.npy").expect(0, "1: int64 1")
    assert np.array_equal(np.load("w.npy"), 2 * BY)
    spmd_here(*plain, "--entry", "where", "--state", "a.safetensors").expect(0, "1: int64 1")
    np.savez("bad.npz", u=BY)
    spmd_here(*plain, "--entry", "where", "--state", "bad.npz").expect(
        65, "bad.npz is not the state of Walks", "no parts.in, parts.b.0, steps")
    for options, said in (([], "none is named"), (["--entry", "x"], 'has no entry "x"'),
                          (["--entry", "where", "--state", "a.npy"], "arrays by their names")):
        spmd_here(*plain, *options).expect(2, said)
    Path("plain.py").write_text(PLAIN)
    spmd_here("run", "plain.py", "--eager", "--entry", "x").expect(2, "plain has no entries")
    spmd_here("run", "plain.py", "--eager", "--state", "a.npz").expect(2, "plain has no state")


def test_a_state_that_nothing_begins_is_given(folder, spmd_here):
    Path("two.py").write_text(TWO)
    run = "run", "two.py", "--ranks", 2, "--entry"
    spmd_here(*run, "infer").expect(2, "Two has no state yet", "expected: w")
    np.savez("w.npz", w=np.arange(4.0))
    spmd_here(*run, "train", "--state", "w.npz", "--save-state", "w.npz").expect(
        0, "state: 1 array in w.npz", "sum: float64 6.0")
    spmd_here(*run, "infer", "--state", "w.npz").expect(0, "result: float64 (4,) [2. 4. 6. 8.]")


def test_a_long_entry_is_kept_and_gone_on_from(folder, spmd_here):
    Path("long.py").write_text(LONG)
    run = "run", "long.py", "--entry", "go"
    spmd_here(*run, "--ranks", 2, "--set", "steps=3", "--save-state", "a.npz").expect(0)
    spmd_here(*run, "--ranks", 2, "--state", "a.npz", "--checkpoint", "kept", "--every", 2,
              "--set", "stop=7", "-o", "frames=frames/{}.npy").expect(65, "stopped")
    resumed = "--ranks", 3, "--resume", "kept", "-o", "result=u.npy"
    done = spmd_here(*run, *resumed, "--state", "a.npz").expect(0, "goes on from turn")
    assert "other elements" not in done.text and "scalar entry" not in done.text
    assert (np.load("u.npy") == 3 + sum(range(10))).all()
    spmd_here(*run, *resumed).expect(0, "state u has other elements")
    spmd_here("run", "long.py", "--entry", "look", *resumed).expect(
        65, "kept in another entry", "--entry go")
    image = spmd.build("long.py")
    whole = image.run(entry="go", ranks=2, checkpoint="more", every=4)
    assert np.array_equal(image.run(entry="go", ranks=3, resume="more"), whole)


def test_feeds_and_frames_are_those_of_the_entry(folder, capfd):
    Path("long.py").write_text(LONG)
    image = spmd.build("long.py")
    batches = [{"x": np.full(8, 10.0**k)} for k in range(5)]
    with image.open(ranks=2, feed=batches, save={"frames": "frames/{}.npy"}) as long:
        assert (long.look() == 0).all() and not Path("frames").exists()
        assert (long.fed() == 11).all()
        assert (long.go() == 11 + 45).all()
        assert sorted(path.name for path in Path("frames").iterdir()) == ["0.npy", "1.npy"]
        assert (long.fed() == 1100 + 11 + 45).all()
        assert (long.look() == 1156).all()
        assert len(list(Path("frames").iterdir())) == 2 and (np.load("frames/0.npy") == 11).all()
    assert capfd.readouterr().out.count("took one") == 4
    with image.open(ranks=3) as long:
        assert (long.go(steps=3) == 3).all()
        with pytest.raises(UsageError, match='feed "feed" was not given'):
            long.fed()
        assert (long.look() == 3).all()
