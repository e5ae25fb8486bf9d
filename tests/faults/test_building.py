"""What users get wrong around builds and runs: arguments, files that would be lost, full disks."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

import spmd
from codegen.errors import UsageError
from spmd import cli
from spmd.launch import limits
from tests.conftest import run

SOURCE = """
import numpy as np
import spmd


@spmd.program(mesh=("x",))
def doubled():
    return spmd.input("u", (4,), np.float64, layout=("x",), default=lambda i: i) * 2
"""


@spmd.program(mesh=("r",))
def doubled():
    return spmd.input("u", (4,), np.float64, layout=("r",), default=lambda i: i) * 2


@pytest.fixture(scope="module")
def image():
    return spmd.build(doubled)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a program, its image, and an input."""
    (tmp_path / "p.py").write_text(SOURCE)
    spmd.build(str(tmp_path / "p.py")).save(tmp_path / "p.img")
    np.save(tmp_path / "u.npy", np.ones(4))
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRONG = [
    *[({"ranks": n}, "ranks=") for n in (0, -1, "4", 2.0, True)],
    *[({"threads": n}, "threads=") for n in (0, "2")],
    *[({"mesh": m}, "does not give sizes of axes") for m in ("r=4", 4, (2,), "")],
    *[({"mesh": {"r": n}}, "mesh axis r=") for n in ("4", 0, 1.5)],
    ({"mesh": {"q": 2}}, "no mesh axis 'q'"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_numbers_of_ranks(image, given, message):
    with pytest.raises(UsageError, match=message):
        image.run(**given)
    if "threads" not in given:
        with pytest.raises(UsageError, match=message):
            doubled.eager(**given)


def test_a_communicator_that_is_none(image):
    with pytest.raises(UsageError, match="comm=5 is not a communicator"):
        image.run(comm=5)
    assert list(image.run(ranks=np.int64(2), mesh={"r": np.int8(2)})) == [0, 2, 4, 6]


@pytest.mark.parametrize("arguments", [
    ["build", "p.py", "-o", "p.py"],
    ["build", "p.py:doubled", "-o", "./p.py"],
    ["build", "p.py", "-o", "other.py"],
    ["build", "p.py", "-o", "link"],
    ["run", "p.img", "-o", "result=p.img"],
    ["run", "p.py", "-o", "result=p.py"],
    ["run", "p.py", "--eager", "-o", "result=p.py"],
    ["run", "p.img", "-i", "u=u.npy", "-o", "result=u.npy"],
    ["run", "p.img", "-i", "u=u.npz:u", "-o", "u.npz"],
    ["run", "p.img", "-i", "u=u.npy", "--timeline", "u.npy"],
])
def test_what_is_read_is_not_written_over(folder, capsys, arguments):
    np.savez("u.npz", u=np.ones(4))
    (folder / "other.py").write_text("precious = 1\n")
    (folder / "link").symlink_to("p.py")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert "would be replaced" in err or "names no format" in err
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_files_keep_their_mode(folder, capsys):
    """A file that is replaced hands its mode on; a new one has what the umask leaves."""
    old = os.umask(0o027)
    try:
        commands = [["run", "p.img", "-o", "result=a.npy", "--timeline", "t.json"],
                    ["run", "p.img", "-o", "b.npz"], ["build", "p.py"]]
        (folder / "p.img").unlink()
        commands = [commands[2], *commands]
        for mode in (0o640, 0o604):
            for command in commands:
                assert cli.main(command) == 0, capsys.readouterr().err
            for name in ("a.npy", "b.npz", "p.img", "t.json"):
                assert (folder / name).stat().st_mode & 0o777 == mode, name
                (folder / name).chmod(0o604)
    finally:
        os.umask(old)


def test_a_calibration_that_cannot_be_used_is_said(monkeypatch, capsys, tmp_path):
    bad = tmp_path / "limits.json"
    bad.write_text("{}")
    for path, why in ((bad, "not of version"), (tmp_path / "none", "there is no such file")):
        monkeypatch.setenv(limits.CHOSEN, str(path))
        assert limits.in_use() is None and limits.in_use() is None
        said = capsys.readouterr().err
        assert said.count(f"{limits.CHOSEN}={path} is not used: {why}") == 1
    monkeypatch.setenv(limits.CHOSEN, "off")
    assert limits.in_use() is None and capsys.readouterr().err == ""


def test_letters_that_the_terminal_lacks(folder):
    done = run([sys.executable, "-m", "spmd", "verify", "p.img"],
               env={"PYTHONIOENCODING": "ascii"})
    done.expect(0, "\\u2026")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_named(unbuffered):
    with open("/dev/full", "w"):
        pass
    for words in ("--version", "run --help"):
        command = f"{sys.executable} -m spmd {words} > /dev/full"
        done = run(["sh", "-c", command], env={"PYTHONUNBUFFERED": unbuffered})
        done.expect(74, "standard output: No space left on device")
