"""`patch`: local programs that differ in the index words only, and run as one job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import spmd
from codegen.image import elf, manifest
from tests.conftest import run

TURN = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def turn():
    scale = spmd.scalar("scale", 1.5)
    steps = spmd.scalar("steps", 2)
    x = spmd.input("x", (7,), np.float64, layout=("r",), default=lambda i: i)

    @spmd.shard_map(mesh="r", out_layouts=())
    def total(x):
        t = np.sum(x) * scale
        for _ in spmd.range(steps):
            t = spmd.ppermute(t, "r", shift=1)
        return spmd.psum(t, "r")

    return {"total": total(x)}
'''


def job(*images: object) -> list[object]:
    """One process for each."""
    start = [sys.executable, "-m", "spmd", "run"]
    argv: list[object] = ["mpirun"]
    for image in images:
        argv += [*([] if len(argv) == 1 else [":"]), "-n", "1", *start, image]
    return argv


@pytest.fixture(scope="module")
def programs(built, spmd_command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("local") / "made"
    done = spmd_command("patch", built(TURN), "--all", 3, "--set", "scale=2", "--set", "steps=5",
                        "-o", folder).expect(0)
    paths = sorted(folder.iterdir())
    assert [p.name.split(".", 1)[1] for p in paths] == [f"{k}-of-3.img" for k in range(3)]
    assert [line.split(": ")[1] for line in done.out.splitlines()] == [
        f"rank {k} of 3" for k in range(3)
    ]
    return paths


def test_they_differ_in_the_index_words_only(built, programs):
    image = built(TURN).read_bytes()
    offset, size = elf.read_sections(image)[1][".spmd.index"]
    words = set()
    for path in programs:
        data = path.read_bytes()
        assert data[:offset] == image[:offset] and data[offset + size :] == image[offset + size :]
        words.add(data[offset : offset + size])
    assert len(words) == 3
    found = [manifest.IndexWords(w) for w in sorted(words)]
    assert sorted(w.first for w in found) == [0, 1, 2] and {w.count for w in found} == {1}


@pytest.mark.one_mpi
@pytest.mark.mpi
def test_they_run_as_one_job_with_what_was_patched_in(programs):
    run(job(*programs)).expect(0, "total: float64 42.0")


@pytest.mark.one_mpi
@pytest.mark.mpi
def test_a_local_program_in_the_wrong_place(programs):
    done = run(job(programs[0], programs[0], programs[2])).expect(
        65, "index words are not those of this rank", "expected: rank 1 of 3", "found:    rank 0"
    )
    assert done.err.count("spmd:") == 1, done.err


@pytest.mark.parametrize("option", [
    ("--ranks", "4"), ("--mesh", "r=4"), ("--set", "scale=3"), ("--set", "steps=6"),
])
def test_options_cannot_contradict_what_was_patched_in(programs, spmd_command, option):
    what = "4 ranks" if option[0] == "--ranks" else option[1]
    spmd_command("run", programs[1], *option).expect(
        65, f"this is a local program: {what} is not what was patched into it",
        "expected: r=3, scale=2.0, steps=5",
    )


def test_a_whole_job_of_one_rank_runs_anywhere(built, spmd_command, tmp_path):
    spmd_command("patch", built(TURN), "--index", 0, "--ranks", 1, "-o", tmp_path / "a.img")
    spmd_command("run", tmp_path / "a.img").expect(0, "total: float64 31.5")
    spmd_command("run", tmp_path / "a.img", "--set", "scale=1.5", "--ranks", 1).expect(0)
    assert float(spmd.load(tmp_path / "a.img").run()["total"]) == 31.5


def test_any_of_them_can_be_patched_again(programs, built, spmd_command, tmp_path):
    again = tmp_path / "again.img"
    spmd_command("patch", programs[2], "--index", 1, "--ranks", 3, "--set", "scale=2",
                 "--set", "steps=5", "-o", again).expect(0)
    assert again.read_bytes() == programs[1].read_bytes()
    spmd_command("show", again).expect(0, "local       rank 1 of 3")
    spmd_command("patch", again, "--index", 2, "-o", again).expect(0)  # the rest stays as it was
    assert again.read_bytes() == programs[2].read_bytes()


def test_names(built, spmd_command, tmp_path):
    image = Path(tmp_path / "turn.img")
    image.write_bytes(built(TURN).read_bytes())
    spmd_command("patch", image, "--index", 3, "--ranks", 16).expect(0)
    spmd_command("patch", tmp_path / "turn.03-of-16.img", "--index", 1, "--ranks", 2).expect(0)
    spmd_command("patch", image, "--index", 0, "--ranks", 2, "-o", f"{tmp_path}/new/").expect(0)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["turn.0-of-2.img"]
    assert sorted(p.name for p in tmp_path.glob("*.img")) == [
        "turn.03-of-16.img", "turn.1-of-2.img", "turn.img",
    ]


@pytest.mark.parametrize(("options", "code", "text"), [
    ((), 2, "no index is given"),
    (("--index", "4", "--ranks", "4"), 2, "there is no index 4 among 4 ranks"),
    (("--index", "1", "--all", "4"), 2, "--all N already says"),
    (("--all", "2", "--set", "scales=1"), 2, "expected: scale, steps"),
    (("--index", "0", "--ranks", "4", "--mesh", "r=3"), 78, "cannot form the mesh"),
    (("--index", "0", "--ranks", "2", "-o", "/nowhere/at/all.img"), 74, "/nowhere/at"),
])
def test_what_is_refused(built, spmd_command, options, code, text):
    spmd_command("patch", built(TURN), *options).expect(code, text)
