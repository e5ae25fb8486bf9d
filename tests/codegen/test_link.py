"""From C to an image: what the compiler lacks is said, what spmd did wrong is a defect of spmd."""

import re
import signal
import stat
import subprocess
import sys
import time

import pytest

from codegen.errors import EnvironmentFault, InternalError
from codegen.image import commands, link, manifest
from tests.conftest import Launch

SOURCE = "int unused;\n"


def linked(source=SOURCE, target="x86-64", **changes):
    arguments = {"objects": [], "constants": b"", "manifest": {}, "notes": {}, "index_words": 0}
    return link.link(source, target=target, **{**arguments, **changes})


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Return a function that sets CC to a shell script: compiler("exit 0") has this body."""

    def use(body):
        path = tmp_path / "fake-cc"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CC", str(path))

    return use


def test_the_same_bytes_from_anywhere(tmp_path, monkeypatch):
    first = linked(constants=b"12345")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert linked(constants=b"12345") == first
    assert str(tmp_path).encode() not in first and b"/tmp" not in first
    assert not list(tmp_path.glob("spmd-*"))


def test_no_date_and_no_compiler_name_is_in_it():
    data = linked()
    assert not re.search(rb"20\d\d-\d\d-\d\d|GCC: |clang version", data)
    names = set(manifest.read_sections(data)[1])
    assert not names & {".note.gnu.build-id", ".comment", ".init", ".init_array", ".ctors"}


@pytest.mark.parametrize(
    "body, message, remedy",
    [
        ("exit 0", "is not a C compiler", "install gcc or set CC"),
        ("echo \"cc1: error: bad value 'x' for '-march=' switch\" >&2; exit 1",
         "does not know this target", "--target x86-64"),
        ("echo 'math.h: No such file or directory' >&2; exit 1",
         "has no C library headers", "libc6-dev"),
        ("echo 'ld: cannot find -lm: error' >&2; exit 1", "no C library to link", "libc6-dev"),
        ("echo 'error: /tmp/x.s: No space left on device' >&2; exit 1", "no room", "TMPDIR"),
        ("exit 1", "does not compile C as images need it", "CC=gcc"),
        ("exec g++ \"$@\"", "does not compile C as images need it", "CC=gcc"),
        ("kill -9 $$", "was killed", "more memory"),
        ("echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1",
         "was killed", "more memory"),
        ("echo 'x.c:1: internal compiler error: in f' >&2; exit 1", "a defect of its own", "CC="),
    ],
)
def test_what_the_compiler_lacks(compiler, body, message, remedy):
    compiler(body)
    with pytest.raises(EnvironmentFault, match=message) as caught:
        linked()
    assert remedy in caught.value.remedy and caught.value.exit_code == 69


def test_a_target_of_another_machine():
    with pytest.raises(EnvironmentFault, match="does not know this target"):
        linked(target="no-such-target")


@pytest.mark.parametrize(
    "source",
    ["int f(void) { return undeclared; }\n", "static int f(void) { return 1; }\n",
     "int f(int a) { { int a = 2; return a; } }\n", "int g(void); int f(void) { return g(); }\n"],
    ids=["wrong", "unused", "shadowed", "undefined"],
)
def test_warnings_and_missing_symbols_are_our_defects(source):
    with pytest.raises(InternalError, match="refused what spmd generated") as caught:
        linked(source)
    assert caught.value.exit_code == 70


def test_the_temporary_directory_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    assert linked() == linked()
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_cannot_be_started(tmp_path, monkeypatch):
    path = tmp_path / "cc"
    path.write_text("neither a program nor a script")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    with pytest.raises(EnvironmentFault, match="cannot be started"):
        linked()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_is_left_of_a_build_that_a_signal_ends(number, tmp_path):
    """Neither files nor programs, whatever the compiler has started by then."""
    compiler, left = tmp_path / "cc", tmp_path / "tmp"
    left.mkdir()
    compiler.write_text('#!/bin/sh\ntouch "$TMPDIR/cc1.s"\nsleep 60 &\necho > ready\nwait\n')
    compiler.chmod(0o755)
    code = "from tests.codegen.test_link import linked; linked()"
    environment = {"CC": str(compiler), "TMPDIR": str(left)}
    with Launch([sys.executable, "-c", code], env=environment) as launch:
        until = time.monotonic() + 60
        while not list(left.glob("spmd-*/ready")) and time.monotonic() < until:
            time.sleep(0.01)
        assert list(left.glob("spmd-*/cc1.s"))
        launch.process.send_signal(number)
        assert launch.finish().code == -number
    assert list(left.iterdir()) == []


def test_an_interrupt_when_a_program_has_just_ended(monkeypatch):
    """It is an interrupt, not a failure to kill what is gone."""

    def ended(self, *_: object, **__: object) -> None:
        self.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", ended)
    with pytest.raises(KeyboardInterrupt):
        commands.run(["true"], limit_s=20.0)
