"""A second build of the same program: what the first one kept, or made anew; never wrong."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numba
import numpy as np
import pytest

import spmd
from codegen.errors import UsageError
from codegen.image import build_cache, kernel_objects, link
from codegen.trace.program import Program
from spmd.cache import Cache
from tests.conftest import PATIENCE

SCALE = 3


@numba.njit
def offset():
    return OFFSET


@spmd.kernel
def shifted(u, v):
    for i in range(u.shape[0]):
        v[i] = u[i] + offset()


OFFSET = 0.0


def _scaled(x):
    return x * SCALE


@spmd.program(mesh=("x",))
def scaled():
    u = spmd.input("u", (6,), np.float64, layout=("x",), default=lambda i: i)
    shift = spmd.shard_map(lambda u: shifted(u, v=spmd.like(u)), mesh="x", out_layouts=("x",))
    return _scaled(shift(u))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    monkeypatch.setenv("SPMD_CACHE", str(tmp_path / "builds"))
    return tmp_path / "builds"


@pytest.fixture
def no_compilers(monkeypatch):
    """Whoever would compile now fails."""

    def refuse(*_: object, **__: object):
        raise AssertionError("compiled")

    monkeypatch.setattr(link, "link", refuse)
    monkeypatch.setattr(kernel_objects, "compile_kernel", refuse)


def test_it_follows_what_the_program_reads(request, monkeypatch):
    """Globals of the program, its helpers and its kernels; then all as before, from the cache."""
    image = spmd.build(scaled)
    assert list(image.run(ranks=2)) == [0, 3, 6, 9, 12, 15]
    monkeypatch.setitem(globals(), "SCALE", 4)
    with pytest.raises(UsageError, match="has changed since this image was built"):
        image.run(ranks=2, check=True)
    assert list(spmd.build(scaled).run(ranks=2)) == [0, 4, 8, 12, 16, 20]
    monkeypatch.setitem(globals(), "OFFSET", 0.5)
    assert list(spmd.build(scaled).run(ranks=2)) == [2, 6, 10, 14, 18, 22]
    monkeypatch.undo()
    monkeypatch.setenv("SPMD_CACHE", str(request.getfixturevalue("folder")))
    request.getfixturevalue("no_compilers")
    assert list(spmd.build(scaled).run(ranks=2)) == [0, 3, 6, 9, 12, 15]


def test_what_cannot_be_seen_is_read_again(request, tmp_path):
    """The program is captured each time; machine code is made once for the same C."""
    path = tmp_path / "factor"

    @spmd.program(mesh=("x",))
    def from_a_file():
        u = spmd.input("u", (2,), np.float64, layout=("x",), default=lambda i: i)
        return u * float(path.read_text())

    path.write_text("2.0")
    assert build_cache.program_key(from_a_file, {}, "x86-64") == ""
    assert list(spmd.build(from_a_file).run()) == [0, 2]
    request.getfixturevalue("no_compilers")
    assert list(spmd.build(from_a_file).run()) == [0, 2]
    path.write_text("5.0")
    with pytest.raises(Exception, match="compiled"):
        spmd.build(from_a_file)


def test_a_program_that_changes_what_it_reads_is_captured_each_time(monkeypatch):
    """A table is made once, and then it is another program: one that finds it."""
    tables, captures = {}, []
    trace = Program._trace
    monkeypatch.setattr(Program, "_trace", lambda *a: captures.append(1) or trace(*a))

    @spmd.program(mesh=("x",))
    def scaled_by_a_table():
        if "two" not in tables:
            tables["two"] = 2
        return spmd.input("u", (2,), np.float64, layout=("x",)) * tables["two"]

    for tables_before, count in (({}, 1), ({"two": 2}, 2), ({"two": 2}, 2), ({}, 3)):
        tables.clear()
        tables.update(tables_before)
        spmd.build(scaled_by_a_table)
        assert len(captures) == count


def test_other_compilers_targets_and_versions_have_other_keys(monkeypatch, tmp_path):
    def key() -> str:
        return build_cache.program_key(scaled, {}, "x86-64")

    keys = [key(), build_cache.program_key(scaled, {}, "x86-64-v2")]
    for name, value in (("CPATH", "/x"), ("NUMBA_OPT", "0"), ("CC", "gcc -g")):
        monkeypatch.setenv(name, value)
        keys.append(key())
    monkeypatch.setattr(build_cache, "_ourselves", lambda: "another version")
    keys.append(key())
    assert "" not in keys and len(set(keys)) == len(keys)


# ---- the folder ----------------------------------------------------------------------------------


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_damaged_entries_are_not_used(folder):
    Cache().put("k" * 64, b"whole")
    assert Cache().get("k" * 64) == b"whole"
    for path in entries(folder):
        before = path.read_bytes()
        for after in (b"", before[:-1], b"\0" + before[1:], before + b"x"):
            path.write_bytes(after)
            assert Cache().get("k" * 64) is None
        path.write_bytes(before)
    assert Cache().get("k" * 64) == b"whole"


def test_what_was_used_longest_ago_goes_first(folder):
    cache = Cache(most=100_000)
    for k in range(8):
        cache.put(f"{k}" * 64, bytes([k]) * 10_000)
        for path in entries(folder):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))
        assert cache.get("0" * 64) == bytes(10_000)  # used again and again
    kept_ = [k for k in range(8) if cache.get(f"{k}" * 64) is not None]
    assert sum(p.stat().st_size for p in entries(folder)) <= 100_000
    assert 0 in kept_ and 7 in kept_ and 1 not in kept_
    cache.put("z" * 64, bytes(90_000))  # more than half of all: not worth it
    assert cache.get("z" * 64) is None


def test_parts_of_killed_builds_go(folder):
    cache = Cache(most=100_000)  # so little that every put looks at the whole folder
    cache.put("a" * 64, b"a")
    for name, age in (("young", 10), ("old", 10_000)):
        path = folder / f".{name}.part"
        path.write_bytes(b"half")
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    cache.put("b" * 64, b"b")
    assert [p.name for p in entries(folder) if p.name.endswith(".part")] == [".young.part"]


def test_a_process_looks_seldom_at_the_whole_folder(folder, monkeypatch):
    looks, looked = [], Cache._make_room
    monkeypatch.setattr(Cache, "_make_room", lambda self: looks.append(looked(self)))
    for k in range(100):
        Cache(most=4_000_000).put(f"{k:064}", bytes([k]) * 10_000)
    assert len(looks) == 12  # the first, and one for each 125,000 bytes of 99 times 14,096


@pytest.mark.parametrize("how", ["a file", "others may write", "full", "read-only"])
def test_a_folder_that_cannot_be_used_is_no_cache(folder, how, monkeypatch):
    def fail(code):
        def failing(*_: object, **__: object):
            raise OSError(code, os.strerror(code))

        return failing

    if how == "a file":
        folder.write_text("")
    elif how == "others may write":
        Cache().put("k" * 64, b"theirs")
        folder.chmod(0o777)
    elif how == "full":
        monkeypatch.setattr(os, "replace", fail(errno.ENOSPC))
    else:
        monkeypatch.setattr("spmd.cache.whole", fail(errno.EROFS))
    Cache().put("k" * 64, b"mine")
    assert Cache().get("k" * 64) is None
    assert not [p for p in entries(folder) if ".part" in p.name] if folder.is_dir() else True


def test_a_folder_that_can_only_be_read_is_read(folder, monkeypatch):
    Cache().put("k" * 64, b"kept")

    def failing(*_: object):
        raise PermissionError

    monkeypatch.setattr(os, "utime", failing)
    assert Cache().get("k" * 64) == b"kept"


def test_many_at_once():
    """Everybody sees whole entries, or none, while others write and make room."""
    wrong: list[object] = []

    def work(own: int) -> None:
        cache = Cache(most=60_000)
        for turn in range(30):
            key = f"{(turn * 7 + own) % 5}" * 64
            cache.put(key, key.encode() * 100)
            if cache.get(key) not in (None, key.encode() * 100):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []


def test_it_can_be_left_out(folder, monkeypatch, spmd_here, tmp_path):
    spmd.build(scaled, cache=False)
    assert entries(folder) == []
    path = tmp_path / "p.py"
    path.write_text(
        "import numpy as np, spmd\n\n\n@spmd.program\ndef p():\n"
        '    return spmd.input("u", (4,), np.int32, layout=("x",), default=lambda i: i) + 1\n'
    )
    spmd_here("run", path, "--no-cache", "--ranks", 2).expect(0, "[1 2 3 4]")
    assert entries(folder) == []
    spmd_here("build", path).expect(0, "built in")
    spmd_here("build", path).expect(0, "from the cache")
    monkeypatch.setenv("SPMD_CACHE", "off")
    assert Cache().folder == "" and Cache().get("k" * 64) is None
