"""Runs that are kept, killed and gone on from: to the same bits, on other ranks and meshes."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import spmd
from spmd.files import npy
from spmd.files.checkpoints import MappedPart, Piece, complete_set, read_index, write_part
from tests.conftest import Launch, here, until

KILLS = int(os.environ.get("SPMD_TEST_KILLS", "1"))  # `make kills` sets it to 100

TURNS = '''
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def turns(n: int = 12):
    steps, least = spmd.scalar("steps", 20), spmd.scalar("least", 1100)
    u = spmd.input("u", (n, n + 1), np.int64, layout=("x", "y"), default=lambda i, j: 7 * i + j)
    v = u + 1
    w = spmd.zeros(n, np.complex128, layout=("y",))
    last = spmd.asarray(0)
    for _ in spmd.range(3):                        # an earlier loop, which is run again
        u = u + 1
    for k in spmd.range(steps):
        u = (np.roll(u, 1, axis=0) * 3 + np.roll(u, -1, axis=1) + k) % 1009
        w = w + u[:, 0] * 1j
        v[1:-1, 1:] += v[:-2, 1:] // 2 + v[2:, :-1]    # in an array with room for ghost cells
        last = np.max(u) + k
    if last > 0:
        while np.max(u) < least:                    # what a while in a branch carries
            u = u + 1 + last % 2
    return {"u": u, "v": v, "w": w, "last": last}
'''


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    file = tmp_path_factory.mktemp("checkpoints") / "keeps_turns.py"
    file.write_text(TURNS)
    return spmd.build(file, checkpoint=True)


def keepable(once, name: str, text: str) -> Path:
    """The image of a program, for checkpoints."""
    def make(path: Path) -> None:
        source = path.with_name(f"{name}_program.py")
        source.write_text(text)
        assert here("build", source, "--checkpoint", "-o", path) == 0

    return once(f"{name}.img", make)


def same(a, b) -> None:
    for name in a:
        assert np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes(), name


def sets(folder: Path) -> list[Path]:
    return sorted(p.parent for p in folder.glob("*/checkpoint.json"))


@pytest.mark.parametrize("every", [1, 7, "0.001s"])
def test_it_goes_on_where_it_was_on_other_ranks(turns, tmp_path, every):
    assert "static void room(" in turns._checked.image.notes()["c"]
    whole = turns.run(ranks=4)
    same(whole, turns.run(ranks=3, checkpoint=str(tmp_path), every=every))
    assert len(sets(tmp_path)) <= 2
    for _ in sets(tmp_path):  # each of those that are there
        for where in ({"ranks": 1}, {"mesh": {"x": 2, "y": 3}}, {"ranks": 7}):
            same(whole, turns.run(resume=str(tmp_path), **where))
        shutil.rmtree(max(sets(tmp_path)))


def test_a_run_goes_on_with_more_turns(turns, tmp_path):
    turns.run(ranks=2, steps=9, least=0, checkpoint=str(tmp_path), every=4)
    assert [p.name[:25] for p in sets(tmp_path)] == [f"loop0001-turn{k:012d}" for k in (4, 8)]
    for steps in (30, 8):  # the last one ended after as many turns as were kept
        same(turns.run(ranks=2, steps=steps), turns.run(ranks=5, steps=steps, resume=str(tmp_path)))
    for ranks, steps in ((1, 7), (3, 0)):
        with pytest.raises(spmd.SpmdError, match="before turn 8|before it came") as refused:
            turns.run(ranks=ranks, steps=steps, resume=str(tmp_path))
        assert refused.value.exit_code == 65


def test_it_says_which_inputs_and_scalars_are_others(turns, tmp_path, capsys):
    u = np.arange(12 * 13).reshape(12, 13)
    turns.run(ranks=3, u=u, checkpoint=str(tmp_path), every=9)
    where = {"mesh": {"x": 2, "y": 3}, "resume": str(tmp_path)}
    capsys.readouterr()
    turns.run(u=np.asfortranarray(u), **where)
    assert capsys.readouterr().err.count("\n") == 1  # that it goes on
    for other in ({"u": u[::-1]}, {"u": u + (u == 77)}, {}):
        turns.run(**other, steps=21, **where)
        assert capsys.readouterr().err.splitlines()[:2] == [
            "spmd: scalar steps was 20 when it was kept, now it is 21",
            "spmd: input u has other elements than when it was kept"]


@spmd.program(mesh=("r",))
def own(n: int = 9, size: int = 1 << 18):
    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def body():
        mine = np.zeros(size) + spmd.axis_index("r")
        for k in spmd.range(n):
            mine = mine + k * spmd.axis_index("r")
        return mine

    return {"mine": body()}


@pytest.fixture(scope="module")
def own_image():
    return spmd.build(own, checkpoint=True)


def test_what_ranks_have_of_their_own_stays_on_its_mesh(own_image, tmp_path):
    image = own_image
    whole = image.run(ranks=3, checkpoint=str(tmp_path), every=3)
    same(whole, image.run(ranks=3, resume=str(tmp_path)))
    with pytest.raises(spmd.MeshError, match="on its own mesh only.*mine differs between ranks"):
        image.run(ranks=2, resume=str(tmp_path))


def test_what_is_damaged_or_of_another_image_is_refused_by_its_name(
    turns, own_image, tmp_path, capfd
):
    smaller_file = tmp_path / "keeps_turns.py"
    smaller_file.write_text(TURNS)
    smaller = spmd.build(smaller_file, n=11, checkpoint=True)
    tmp_path /= "checkpoint"  # as messages say too
    turns.run(ranks=2, steps=3, least=0, checkpoint=str(tmp_path), every=90)
    said = "no checkpoint: the run ended before the first one, --every 90\n"
    assert said in capfd.readouterr().err
    turns.run(ranks=2, steps=30, checkpoint=str(tmp_path), every=10)
    *_, before, last = sets(tmp_path)
    part = last / "part-0.safetensors"
    data = bytearray(part.read_bytes())
    for wrong in (data[:-8], data[:-1] + bytes([data[-1] ^ 1]), data[:3]):
        part.write_bytes(wrong)
        with pytest.raises(spmd.InputError, match=f"damaged: {part}"):
            turns.run(ranks=2, resume=str(tmp_path))
    part.unlink()
    with pytest.raises(spmd.InputError, match=f"damaged: {part}"):
        turns.run(ranks=2, resume=str(tmp_path))
    shutil.rmtree(last)
    with pytest.raises(spmd.InputError, match=f"{before} was kept by another image"):
        own_image.run(ranks=2, resume=str(tmp_path))
    with pytest.raises(spmd.InputError, match="expected: n=12\n  found:    n=11\n"):
        smaller.run(ranks=2, resume=str(tmp_path))
    for name in ("checkpoint.json", "part-0.safetensors"):
        whole = (before / name).read_bytes()
        for at in range(0, len(whole), 7):
            (before / name).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with pytest.raises(spmd.InputError, match="damaged|another format"):
                MappedPart(str(before), read_index(str(before))["parts"][0])
        (before / name).write_bytes(whole)
    index = before / "checkpoint.json"
    index.write_text(index.read_text()[:-20])
    with pytest.raises(spmd.InputError, match=f"damaged: {index}"):
        turns.run(ranks=2, resume=str(tmp_path))


def test_an_interrupted_run_says_how_to_go_on(turns, tmp_path, capfd):
    def interrupt():
        with suppress(AssertionError):
            until(lambda: sets(tmp_path))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        turns.run(ranks=2, steps=10**9, checkpoint=str(tmp_path), every=500)
    last = int(sets(tmp_path)[-1].name.split("-")[1].removeprefix("turn"))
    said = f"the last checkpoint is of turn {last}: the same with --resume {tmp_path} goes on"
    assert last > 0 and capfd.readouterr().err.count(said) == 1


def test_a_set_that_lies_is_refused(turns, tmp_path):
    """Its check sums are right: nothing is read or written where it should not be."""
    turns.run(ranks=1, least=0, checkpoint=str(tmp_path), every=19)
    (path,) = map(str, sets(tmp_path))
    said = {k: v for k, v in read_index(path).items() if k not in ("parts", "format")}
    (part,) = read_index(path)["parts"]
    mapped = MappedPart(path, part)
    data = bytes(mapped.file.data)

    def lies(change):
        pieces = []
        for name, dtype, rank, offset, extent, start in mapped.pieces:
            size = int(np.prod(extent, dtype=int)) * npy.SIZES[dtype]
            pieces.append(Piece(name, dtype, rank, [*offset], extent, data[start : start + size]))
        index = {**said, **(change({p.name: p for p in pieces}) or {})}
        write_part(path, 0, [p for p in pieces if p.name])
        assert complete_set(path, 1, index)

    for change, found in (
        (lambda p: None, ""),
        (lambda p: p["u"].offset.__setitem__(0, 1), "u: int64"),
        (lambda p: setattr(p["w"], "dtype", "float64"), "input .*part-0.*is damaged"),
        (lambda p: setattr(p["v"], "extent", [13, 12]), "v: int64"),
        (lambda p: setattr(p["v"], "extent", [12 * 13]), "another header"),
        (lambda p: setattr(p["last"], "name", "lost"), "lost"),
        (lambda p: setattr(p["v"], "name", ""), "0"),
        (lambda p: {"point": 7}, "loop 7"),
        (lambda p: {"mesh": [["x"]]}, "something else"),
        (lambda p: {"turn": "3"}, "something else"),
    ):
        lies(change)
        if not found:
            turns.run(ranks=2, least=0, resume=str(tmp_path))
            continue
        with pytest.raises(spmd.InputError, match=f"damaged(.|\n)*found: *({found})"):
            turns.run(ranks=2, least=0, resume=str(tmp_path))


def test_mistakes(turns, tmp_path):
    here = str(tmp_path)
    for every in (0, -3, "0s", "soon", True, 2.5):
        with pytest.raises(spmd.UsageError, match="is no distance between checkpoints"):
            turns.run(ranks=2, checkpoint=here, every=every)
    with pytest.raises(spmd.UsageError, match="does not say how often"):
        turns.run(ranks=2, checkpoint=here)
    with pytest.raises(spmd.UsageError, match="and none are"):
        turns.run(ranks=2, every=3)
    with pytest.raises(spmd.InputError, match="there is no complete checkpoint"):
        turns.run(ranks=2, resume=here)
    turns.run(ranks=2, checkpoint=here, every=9)
    with pytest.raises(spmd.UsageError, match="there are checkpoints of another run"):
        turns.run(ranks=2, checkpoint=here, every=9)
    with pytest.raises(spmd.InputError, match="before it came to the loop"):
        turns.run(ranks=2, resume=here, least=0)


def test_a_full_disk_leaves_the_set_before(own_image, tmp_path):
    whole = own_image.run(ranks=2, checkpoint=str(tmp_path), every=5)
    (had,) = sets(tmp_path)[-1:]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        with pytest.raises(spmd.OutputError, match="checkpoint: cannot write"):
            own_image.run(ranks=2, resume=str(tmp_path), checkpoint=str(tmp_path), every=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert had in sets(tmp_path)
    same(whole, own_image.run(ranks=2, resume=str(tmp_path)))


def test_calls_of_an_open_image_each_keep_their_own(turns, tmp_path):
    with turns.open(ranks=2, checkpoint=str(tmp_path), every=5) as job:
        job(steps=40)
        opened = len(os.listdir("/proc/self/fd"))
        whole = job(steps=12)
        assert len(os.listdir("/proc/self/fd")) == opened  # whatever is kept is closed again
    turn = json.loads((sets(tmp_path)[-1] / "checkpoint.json").read_text())
    assert turn["scalars"]["steps"] == 12
    same(whole, turns.run(ranks=4, steps=12, resume=str(tmp_path)))


def test_copies_count_where_memory_is_checked(own_image, tmp_path):
    def taken(**options):
        with own_image.open(ranks=3, **options) as job:
            job()
            return job._job.host_bytes()

    assert taken(checkpoint=str(tmp_path), every=8) - taken() == 3 * (8 << 18)
    assert taken(resume=str(tmp_path)) - taken() == 3 * (8 << 18)


@pytest.mark.slow
@pytest.mark.mpi
def test_processes_write_their_parts(once, mpirun, tmp_path, spmd_command):
    image = keepable(once, "kept_turns", TURNS)
    whole = tmp_path / "whole.npy"
    run = ("-m", "spmd", "run", image)
    mpirun(3, *run, "--checkpoint", tmp_path, "--every", "6", "-o", f"u={whole}").expect(
        0, "checkpoints, the last of turn", "ranks were held up")
    assert len(list(sets(tmp_path)[-1].glob("part-*.safetensors"))) == 3
    again, apart = tmp_path / "again.npy", tmp_path / "apart"
    for ranks, how in ((2, ()), (4, ("--transport", "mpi"))):
        mpirun(ranks, *run, "--resume", tmp_path, *how, "-o", f"u={again}").expect(
            0, "goes on from turn")
        assert whole.read_bytes() == again.read_bytes()
    for hosts, more in (("a,b,a", ()), ("a,b,c", ("--resume", apart))):  # agreed by packets
        mpirun(3, *run, "--ranks", 7, "--checkpoint", apart, "--every", "0.0001s", *more,
               "-o", f"u={again}", env={"SPMD_PRETEND_HOSTS": hosts}).expect(0)
        assert whole.read_bytes() == again.read_bytes() and len(sets(apart)) == 2
    spmd_command("run", image, "--checkpoint", tmp_path, "--every", "0").expect(2, "--every")


@pytest.mark.mpi
def test_interrupted_under_mpirun_it_says_once_how_to_go_on(once, tmp_path, ended_by):
    kept = tmp_path / "kept"
    argv = ["mpirun", "-n", 3, sys.executable, "-m", "spmd", "run",
            keepable(once, "kept_turns", TURNS), "--set", f"steps={10**9}", "--time-limit", "60",
            "--checkpoint", kept, "--resume", kept, "--every"]
    for every, begins in (("500", "no checkpoint in"), (f"{10**8}", "goes on from turn")):
        with Launch([*argv, every]) as launch:
            assert launch.process.stderr is not None
            assert begins in launch.process.stderr.readline()
            until(lambda: sets(kept))
            time.sleep(0.5)
            os.killpg(launch.process.pid, signal.SIGINT)
            done = launch.finish()
        turns = [str(int(path.name.split("-")[1].removeprefix("turn"))) for path in sets(kept)]
        assert done.code == ended_by(signal.SIGINT), done.text
        if done.code == 1:
            continue  # Open MPI's launcher drops what processes say from then on
        ((turn, folder),) = re.findall(
            "the last checkpoint is of turn ([0-9]+): the same with --resume (.*) goes", done.err)
        # Until all have ended, ranks may keep some more.
        assert turn == turns[-1] or (every == "500" and 0 < int(turn) < int(turns[-1])), done.err
        assert folder == str(kept), done.err
        assert done.err.count("\n") == 1, done.err


LONG = TURNS.replace('"steps", 20', '"steps", 30000')


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_at_a_random_moment_it_goes_on(mpirun, seed, tmp_path, once):
    """A rank, or the launcher: again and again, on 1 to 4 ranks, until it comes to its end."""
    image, chance = keepable(once, "kept_long", LONG), random.Random(seed)
    whole = once("checkpoints-whole", lambda path: path.mkdir() or mpirun(
        2, "-m", "spmd", "run", image, "-o", f"u={path}/u.npy").expect(0) and path)
    options = ["--checkpoint", tmp_path / "kept", "--resume", tmp_path / "kept", "--every",
               chance.choice(["300", "0.05s"]), "-o", f"u={tmp_path}/u.npy"]
    for turn in range(4):
        argv = ["mpirun", "-n", chance.randint(1, 4), sys.executable, "-m", "spmd", "run", image]
        with Launch([*argv, *options]) as launch:
            if turn < 3:
                time.sleep(chance.uniform(0.4, 1.2))
                pids = [launch.process.pid] if chance.random() < 0.3 else launch.alive()
                try:
                    os.kill(chance.choice(pids or [launch.process.pid]), signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it was over
            done = launch.finish()
        assert "Traceback" not in done.err and "damaged" not in done.err, done.err
    assert done.code == 0, done.text
    assert (tmp_path / "u.npy").read_bytes() == (whole / "u.npy").read_bytes()


def test_loops_of_which_ranks_make_unequal_turns_are_not_kept(tmp_path):
    @spmd.program(mesh=("r",))
    def unequal():
        @spmd.shard_map(mesh="r", out_layouts=("r",))
        def body():
            u = np.ones(3)
            for t in spmd.range(3 + 4 * spmd.axis_index("r")):
                u = u + t
            return u

        return body()

    with pytest.raises(spmd.UsageError, match="as many turns on each rank"):
        spmd.build(unequal, checkpoint=True).run(ranks=2, checkpoint=str(tmp_path), every=2)
