"""spmd.save: frames that a program writes while it runs, on any number of ranks and processes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.errors import InputError, OutputError, ProgramError, UnsupportedError, UsageError
from spmd.files.frames import FrameFiles
from tests.conftest import Launch, here, run, until

zarr = pytest.importorskip("zarr")

PROGRAM = '''
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def waves(n: int = 7, k: int = 4):
    steps, often = spmd.scalar("steps", 7), spmd.scalar("often", 2)
    u = spmd.input("u", (n, k), np.float64, layout=("x", "y"), default=lambda i, j: 10 * i + j)
    c = spmd.zeros(n, np.complex64, layout=(("x", "y"),)) + 1
    small = spmd.asarray(np.int32(0))
    for s in spmd.range(steps):
        spmd.save("u", u, every=3)
        u[1:-1] = (u[2:] + u[:-2]) / 2
        for t in spmd.range(often):              # counted anew in each turn around it
            small += 1
            spmd.save("small", small, every=2)
        if np.sum(u) > 0:
            c = c * 1j
            spmd.save("c", c, every=2)
        spmd.save("turned", u.T[::2], every=4)
        spmd.save("late", (np.sum(u), u.sum(0))[1])
    while u[1, 0] < 60:
        u = u + 9
        spmd.save("whiled", u[1], every=2)
    return {"end": u}
'''

EVERY = {"u": 3, "small": 2, "c": 2, "turned": 4, "late": 1, "whiled": 2}


def by_numpy(steps: int = 7, often: int = 2) -> dict[str, list[np.ndarray]]:
    """The frames of the program, as a loop of NumPy makes them."""
    made: dict[str, list[np.ndarray]] = {name: [] for name in EVERY}

    def save(name: str, x: object, turn: int) -> None:
        if turn % EVERY[name] == 0:
            made[name].append(np.array(x))

    u = (10.0 * np.arange(7))[:, None] + np.arange(4)
    c, small = np.ones(7, np.complex64), np.int32(0)
    for s in range(steps):
        save("u", u, s)
        u[1:-1] = (u[2:] + u[:-2]) / 2
        for t in range(often):
            small += np.int32(1)
            save("small", small, t)
        c = c * np.complex64(1j)
        save("c", c, s)
        save("turned", u.T[::2], s)
        save("late", u.sum(0), s)
    turn = 0
    while u[1, 0] < 60:
        u = u + 9
        save("whiled", u[1], turn)
        turn += 1
    return made


def check(folder: Path, series: dict[str, str], wanted: dict[str, list[np.ndarray]]) -> None:
    """Every frame is there, none is there that was not made, and nothing else is."""
    for name, path in series.items():
        frames = wanted[name]
        if path.endswith(".zarr"):
            found = zarr.open(folder / path, mode="r")
            assert found.shape[0] == len(frames), name
            got = [found[k] for k in range(len(frames))]
            entries = {e.partition(".")[0] for e in os.listdir(folder / path) if e[0] != "."}
            assert entries == {str(k) for k in range(len(frames))}
        else:
            files = sorted((folder / path).parent.iterdir())
            assert {f.name for f in files} == {Path(path).name.format(k)
                                               for k in range(len(frames))}, name
            got = [np.load(folder / path.format(k)) for k in range(len(frames))]
        for one, frame in zip(got, frames, strict=True):
            assert one.dtype == frame.dtype, name
            np.testing.assert_allclose(one, frame, rtol=1e-12, err_msg=name)
        hidden = [e for e in os.listdir((folder / path).parent) if e.endswith((".part", ".done"))]
        assert not hidden


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    file = tmp_path_factory.mktemp("saving") / "waves.py"
    file.write_text(PROGRAM)
    return spmd.build(file, checkpoint=True)


SERIES = {"u": "u/{}.npy", "small": "small.zarr", "c": "c.zarr", "turned": "t/f{:03}.npy",
          "late": "late.zarr", "whiled": "w/{}.npy"}


def paths(folder: Path, names=SERIES) -> dict[str, str]:
    return {name: str(folder / SERIES[name]) for name in names}


@pytest.mark.parametrize("where", [{"ranks": 1}, {"ranks": 3, "threads": 2}, {"ranks": 5},
                                   {"mesh": {"x": 3, "y": 5}}])
def test_frames_are_what_numpy_makes(image, tmp_path, where):
    image.run(save=paths(tmp_path), **where)
    check(tmp_path, SERIES, by_numpy())
    image.run(save=paths(tmp_path, ["u", "small"]), steps=2, **where)  # others are cut, or stay
    check(tmp_path, {k: SERIES[k] for k in ("u", "small")}, by_numpy(steps=2))
    check(tmp_path, {"c": SERIES["c"]}, by_numpy())


def test_a_run_that_was_killed_as_it_began_is_no_stranger(image, tmp_path):
    """Its folder has nothing but a part of the attributes; anything else in it is not ours."""
    (folder := tmp_path / "c.zarr").mkdir()
    (folder / "..zattrs.123.0123abcd.part").write_bytes(b"{")
    image.run(ranks=2, save={"c": str(folder)})
    check(tmp_path, {"c": "c.zarr"}, by_numpy())
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes").write_text("mine")
    with pytest.raises(OutputError, match="nothing that spmd.save has written"):
        image.run(ranks=2, save={"c": str(folder)})


def test_nothing_is_written_that_nobody_asks_for(image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image.run(ranks=2)
    with image.open(ranks=3, save={"c": "c.zarr"}) as job:
        for steps in (5, 2):
            job(steps=steps)
            check(tmp_path, {"c": "c.zarr"}, by_numpy(steps))
    assert os.listdir(tmp_path) == ["c.zarr"]


def test_an_eager_run_makes_the_same(tmp_path, spmd_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("waves.py").write_text(PROGRAM)
    outputs = [x for name, path in SERIES.items() for x in ("-o", f"{name}={path}")]
    eager = spmd_here("run", "waves.py", "--eager", *outputs).expect(0).out.splitlines()
    check(tmp_path, SERIES, by_numpy())
    built = spmd_here("run", "waves.py", "--ranks", 2, *outputs).expect(0).out.splitlines()
    check(tmp_path, SERIES, by_numpy())
    assert sorted(eager[:6]) == sorted(built[:6])
    assert built[0] == "u: 3 frames of float64 (7, 4) in u/{}.npy"


def test_loops_of_functions_and_of_helpers_in_eager_runs():
    @spmd.program(mesh=("r",))
    def several():
        x = spmd.input("x", (4,), np.float64, layout=("r",), default=1)

        def helper(i, x):
            spmd.save("fori", x, every=2)
            return x + 1

        def scanned(x, _):
            spmd.save("scan", x, every=2)
            return x * 2, None

        def whiled(x):
            spmd.save("while", x, every=3)
            return x + 10

        x = spmd.fori_loop(0, 5, helper, x)
        x, _ = spmd.scan(scanned, x, length=3)
        return spmd.while_loop(lambda x: x[0] < 100, whiled, x)

    frames = {"fori": [], "scan": [], "while": []}
    several.eager(save={name: taken.append for name, taken in frames.items()})
    assert [f[0] for f in frames["fori"]] == [1, 3, 5]
    assert [f[0] for f in frames["scan"]] == [6, 24]
    assert [f[0] for f in frames["while"]] == [48, 78]


@pytest.mark.one_mpi
@pytest.mark.parametrize("processes, ranks", [(3, 5), (2, 2)])
def test_processes_write_their_parts(once, mpirun, tmp_path, processes, ranks):
    program = once("waves_program.py", lambda p: p.write_text(PROGRAM))
    made = once("waves.img", lambda p: here("build", program, "--checkpoint", "-o", p))
    outputs = [x for name, path in SERIES.items() for x in ("-o", f"{name}={path}")]
    mpirun(processes, "-m", "spmd", "run", made, "--ranks", ranks, *outputs,
           cwd=tmp_path).expect(0)
    check(tmp_path, SERIES, by_numpy())


@pytest.mark.parametrize("every", [2, 6])
def test_a_run_that_goes_on_cuts_later_frames(image, tmp_path, every):
    """Of the loop that was kept, and of one before it, which was over: it is not saved again."""
    names = ["u", "small", "c", "late"]
    kept, frames = str(tmp_path / "kept"), tmp_path / "frames"
    image.run(ranks=3, save=paths(frames, names), checkpoint=kept, every=every)
    for number in (2, 7) if every == 6 else (7,):
        (frames / f"u/{number}.npy").write_bytes(b"of a run that was cut")
    image.run(ranks=2, save=paths(frames, names), resume=kept)
    check(frames, {name: SERIES[name] for name in names}, by_numpy())
    os.unlink(frames / "u/0.npy")
    with pytest.raises(InputError, match="no frame 0"):
        image.run(ranks=2, save=paths(frames, names), resume=kept)


LONG = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def long():
    steps = spmd.scalar("steps", 80)
    u = spmd.input("u", (1000,), np.int64, layout=("r",), default=lambda i: i)
    for k in spmd.range(steps):
        u = (np.roll(u, 1) * 3 + k) % 1009
        spmd.save("u", u)
    return u
'''


def long_frames(count: int) -> list[np.ndarray]:
    u, made = np.arange(1000), []
    for k in range(count):
        u = (np.roll(u, 1) * 3 + k) % 1009
        made.append(u)
    return made


@pytest.mark.one_mpi
@pytest.mark.parametrize("processes", [2])
def test_killed_at_any_moment_frames_are_whole_and_it_goes_on(once, mpirun, tmp_path, processes):
    def make(path: Path) -> None:
        source = path.with_name("long_program.py")
        source.write_text(LONG)
        assert here("build", source, "--checkpoint", "-o", path) == 0

    made = once("long_saves.img", make)
    command = ["-m", "spmd", "run", made, "--ranks", 4, "-o", "u=u.zarr", "--checkpoint", "kept",
               "--every", 20]
    with Launch(["mpirun", "-n", processes, sys.executable, *command], cwd=tmp_path) as launch:
        until(lambda: (tmp_path / "u.zarr/20.0").exists())
        time.sleep(random.Random(processes).random() / 10)
        for pid in launch.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not launch.alive())
    there = json.loads((tmp_path / "u.zarr/.zarray").read_bytes())["shape"][0]
    wanted = long_frames(80)
    for k in range(there):
        raw = (tmp_path / f"u.zarr/{k}.0").read_bytes()
        np.testing.assert_array_equal(np.frombuffer(raw, np.int64), wanted[k])
    mpirun(2, *command, "--resume", "kept", cwd=tmp_path).expect(0)
    check(tmp_path, {"u": "u.zarr"}, {"u": wanted})


def test_a_full_disk_ends_the_run_with_the_frame(image, tmp_path, monkeypatch):
    """Earlier frames are whole, and no part is left."""
    write = FrameFiles.write

    def full(self, frame, *rest):
        if frame == 2 and self.name == "c":
            monkeypatch.setattr(os, "pwrite", no_space)
        write(self, frame, *rest)

    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FrameFiles, "write", full)
    with pytest.raises(OutputError, match=r"save c, frame 2: .*No space.*earlier ones are whole"):
        image.run(ranks=3, save=paths(tmp_path, ["c"]))
    monkeypatch.undo()
    check(tmp_path, {"c": SERIES["c"]}, {"c": by_numpy()["c"][:2]})


def test_frames_from_before_a_failure_are_written(tmp_path):
    """Those of the turns before an assert that does not hold, and of that turn where it is saved
    first."""
    @spmd.program(mesh=("r",))
    def grows():
        u = spmd.input("u", (4,), np.float64, layout=("r",), default=0)
        for _ in spmd.range(10):
            u = u + 1
            spmd.save("u", u)
            assert np.max(u) < 4, "too large"
        return u

    for ranks in (1, 3):
        with pytest.raises(spmd.CheckError, match="too large"):
            spmd.build(grows).run(ranks=ranks, save={"u": f"{tmp_path}/{ranks}/{{}}.npy"})
        wanted = {"u": [np.full(4, k + 1.0) for k in range(4)]}
        check(tmp_path, {"u": f"{ranks}/{{}}.npy"}, wanted)


def test_a_disk_that_is_full_for_a_moment_names_no_frame_that_is_not_whole(
        image, tmp_path, monkeypatch):
    """Metadata cannot be written, and could be a moment later, when parts are removed."""
    describe, failures = FrameFiles._describe, [OSError(28, "No space left on device")]

    def full_once(self, frames):
        if frames == 3 and failures:
            raise failures.pop()
        describe(self, frames)

    monkeypatch.setattr(FrameFiles, "_describe", full_once)
    with pytest.raises(OutputError, match=r"save c, frame 2: .*No space.*earlier ones are whole"):
        image.run(ranks=3, save=paths(tmp_path, ["c"]))
    check(tmp_path, {"c": SERIES["c"]}, {"c": by_numpy()["c"][:2]})
    (tmp_path / "c.zarr/..zarray.7.0123abcd.part").write_text("of a run that was killed")
    image.run(ranks=3, save=paths(tmp_path, ["c"]))
    assert not list((tmp_path / "c.zarr").glob(".*.part"))
    check(tmp_path, {"c": SERIES["c"]}, by_numpy())


def test_a_limit_of_files_is_a_full_disk(tmp_path):
    (tmp_path / "long.py").write_text(LONG.replace("(1000,)", "(100_000,)"))
    here("build", tmp_path / "long.py", "-o", tmp_path / "long.img")
    limited = ("import resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (500_000, 500_000)); "
               "from spmd import cli; sys.exit(cli.main(sys.argv[1:]))")
    done = run([sys.executable, "-c", limited, "run", "long.img", "-o", "u=f/{}.npy"], cwd=tmp_path)
    assert "save u, frame 0: cannot write" in done.expect(74).err
    assert os.listdir(tmp_path / "f") == []


def test_a_slow_disk_holds_ranks_and_it_is_said(image, tmp_path, monkeypatch, capfd):
    """Rings are small here: ranks wait for their writer, and no frame is lost."""
    close = FrameFiles.close
    monkeypatch.setattr("spmd.launch.saving.LATE_NS", 1e6)
    monkeypatch.setattr(FrameFiles, "close", lambda *a: (time.sleep(0.002), close(*a)))
    image.run(ranks=3, save=paths(tmp_path, ["late"]), steps=60)
    check(tmp_path, {"late": SERIES["late"]}, by_numpy(60))
    said = capfd.readouterr().err
    assert "ranks wait for frames of late" in said and "waited" in said


def test_paths_that_hold_no_frames(image, tmp_path, spmd_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.zarr").mkdir()
    (tmp_path / "mine.zarr/data").write_text("somebody's")
    for name, path, said in (("u", "u.npy", "many frames"), ("u", "u/{}.csv", "file for each"),
                             ("u", "{}/u.npy", "file for each"), ("u", "{x}.npy", "file for each"),
                             ("u", "f{:x}.npy", "file for each"),
                             ("uu", "f/{}.npy", "u, if that"), ("end", "end.zarr", "is an output")):
        with pytest.raises(UsageError, match=said):
            image.run(save={name: path})
        image.save("a.img")
        spmd_here("run", "a.img", "-o", f"{name}={path}").expect(2, said)
    image.run(ranks=2, save={"u": tmp_path / "p" / "{}.npy"})
    assert len(os.listdir("p")) == 3
    shutil.rmtree("p")
    both = {"u": "f/{}.npy", "late": str(tmp_path / "f/{}.npy")}
    with pytest.raises(UsageError, match="u and late cannot have the same files"):
        image.run(save=both)
    for path in ("f/u1{}.npy", "f/u{}0.npy"):
        with pytest.raises(UsageError, match="u and late cannot have the same files"):
            image.run(save={"u": "f/u{}.npy", "late": path})
    os.mkdir("f")
    np.save("f/2.npy", np.zeros((7, 4)))
    for more in (["-i", "u=f/2.npy"], ["-o", "end=f/0.npy"]):
        spmd_here("run", "a.img", "-o", "u=f/{}.npy", *more).expect(2, "replace it by a frame")
    assert os.listdir("f") == ["2.npy"]
    shutil.rmtree("f")
    with pytest.raises(UsageError, match="many frames"):
        image.run(save={"u": 3})
    (tmp_path / "waves.py").write_text(PROGRAM)
    for how in (["a.img"], ["waves.py", "--eager"]):
        spmd_here("run", *how, *(f"-o{name}={path}" for name, path in both.items())).expect(
            2, "cannot have the same files")
    os.unlink("waves.py")
    with pytest.raises(OutputError, match="nothing that spmd.save has written"):
        image.run(save={"u": "mine.zarr"})
    assert sorted(os.listdir(tmp_path)) == ["a.img", "mine.zarr"]


def program_of(body):
    @spmd.program(mesh=("r",))
    def refused():
        u = spmd.input("u", (6,), np.float64, layout=("r",), default=1)
        return {"end": body(u)}

    return refused


def test_saves_that_are_refused_when_built():
    def outside(u):
        spmd.save("u", u)
        return u

    def twice(u):
        for _ in spmd.range(3):
            u = u + 1
            spmd.save("u", u)
            spmd.save("u", u * 2)
        return u

    def unrolled(u):
        for _ in range(3):
            spmd.save("u", u)
        return u

    def as_output(u):
        for _ in spmd.range(3):
            spmd.save("end", u)
        return u

    def in_a_rank(u):
        @spmd.shard_map(mesh="r")
        def part(u):
            for _ in spmd.range(3):
                spmd.save("u", u)
            return u

        return part(u)

    def by_ranks(u):
        for _ in spmd.range(3):
            spmd.save("u", u, every=0)
        return u

    def differentiated(u):
        def loss(u):
            for _ in spmd.range(3):
                u = u * 2
                spmd.save("u", u)
            return np.sum(u)

        return spmd.grad(loss)(u)

    for body, kind, said in (
        (outside, UsageError, "outside of a loop"), (twice, ProgramError, "stands twice"),
        (unrolled, UsageError, "outside of a loop"), (as_output, ProgramError, "as an output"),
        (in_a_rank, UnsupportedError, "in a shard_map"), (by_ranks, UsageError, "whole number"),
        (differentiated, UnsupportedError, "is differentiated"),
    ):
        with pytest.raises(kind, match=said):
            spmd.build(program_of(body))
    for body in (outside, in_a_rank, by_ranks):
        with pytest.raises((UsageError, UnsupportedError)):
            program_of(body).eager()


def test_an_eager_run_takes_functions_not_paths() -> None:
    program = spmd.program(lambda: np.zeros(1))
    with pytest.raises(UsageError, match=r"(?s)is no function.*--eager -o"):
        program.eager(save={"u": "frames/{}.npy"})  # type: ignore[dict-item]
