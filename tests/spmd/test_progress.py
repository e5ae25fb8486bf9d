"""What a long build, check or run shows: what it is at, on a terminal, after a while."""

from __future__ import annotations

import contextvars
import io
import os
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import spmd
from codegen import progress as told
from spmd import cli, engine, progress
from spmd.launch import job
from spmd.launch.processes import Processes
from spmd.verify import images as verify

CELL = contextvars.ContextVar("CELL", default="")


class Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self) -> bool:
        return True


@spmd.program(mesh=("x",))
def small():
    u = spmd.input("u", (4,), np.float64, layout=("x",), default=1)
    spmd.print("made {}", u.shape[0])
    return u + 1


@pytest.fixture
def heard(monkeypatch):
    """What a listener in the place of the terminal hears."""
    lines: list[str] = []

    class Listener:
        def __call__(self, what: str, done: int, total: int) -> None:
            lines.append(f"{what} {done}/{total}")

        def close(self) -> None:
            lines.append("closed")

    monkeypatch.setattr(progress, "display", Listener)
    return lines


def test_a_build_and_a_check_say_what_they_are_at(heard, tmp_path, monkeypatch):
    monkeypatch.setenv("SPMD_CACHE", str(tmp_path / "builds"))
    image = spmd.build(small)
    assert heard[0] == "tracing small 0/0" and heard[-1] == "closed"
    assert "compiling C 0/0" in heard and any("sends and receives match" in h for h in heard)
    del heard[:]
    spmd.build(small)
    assert heard == ["closed"]  # taken from the cache
    del heard[:]
    image.save(tmp_path / "small.img")
    options = SimpleNamespace(image=[str(tmp_path / "small.img")], set={}, mesh={},
                              ranks=range(1, 4), execute=False, json=False)
    assert verify.command(options, Processes()) == 0
    assert [h.rpartition(" ")[2] for h in heard[:-1]] == ["1/3", "2/3", "3/3"]


def test_the_line_comes_late_and_goes():
    stream = Terminal()
    line = progress.Line(stream, after_s=0.0)
    with told.told(line):
        for number in told.each("checking é", [1, 2]):
            until = time.monotonic() + 20
            while f"{number} of 2" not in stream.getvalue() and time.monotonic() < until:
                time.sleep(0.01)
        told.at("")
        assert stream.getvalue().endswith("\r\x1b[K")  # before what else is written there
    line.close()
    assert "spmd: checking ?, 2 of 2 (" in stream.getvalue()
    assert stream.getvalue().endswith(" s)\r\x1b[K")
    quick = Terminal()
    line = progress.Line(quick, after_s=1000.0)
    line("compiling C", 0, 0)
    line.close()
    assert quick.getvalue() == ""


@pytest.mark.parametrize(("stream", "rank", "shows"), [
    (Terminal(), 0, True), (Terminal(), 1, False), (io.StringIO(), 0, False), (None, 0, False),
])
def test_only_on_a_terminal_of_the_first_rank(monkeypatch, stream, rank, shows):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "launcher", lambda: (rank, 2))
    line = progress.on_terminal()
    assert (line is not None) == shows
    if line:
        line.close()


def test_in_a_kernel_of_jupyter(monkeypatch):
    """In the cell, where a kernel has imported IPython's display; escaped, and gone at the end."""
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(data["text/html"])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw and display_id and CELL.get() == "this one"
        shown.append(data["text/plain"])
        return Handle()

    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    CELL.set("this one")
    assert progress.display() is None  # IPython in a terminal that is none
    shell.kernel = "a kernel"
    line = progress.display()
    assert type(line) is progress.Cell
    line("checking <b>", 1, 2)
    until = time.monotonic() + 20
    while len(shown) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    line.close()
    assert shown[0].startswith("spmd: checking <b>, 1 of 2 (")
    assert shown[1].startswith("<pre>spmd: checking &lt;b&gt;, 1 of 2 (") and shown[-1] == ""


def test_a_terminal_that_goes():
    """Whoever closes it ends no build."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w", buffering=1)
    os.close(read)
    line = progress.Line(stream, after_s=0.0)
    line("compiling C", 0, 0)
    time.sleep(0.3)
    line.close()
    with pytest.raises(OSError):
        stream.close()


def test_a_run_says_its_superstep_on_a_terminal(heard, tmp_path, monkeypatch, capsys):
    """And takes it back before the text of the program; where nobody looks it says nothing."""

    class Slow:
        """The engine, whose first wait ends before the program has."""

        def __init__(self) -> None:
            self.waits = 0

        def __getattr__(self, name: str):
            return getattr(engine.lib, name)

        def spmd_job_wait(self, *given) -> int:
            self.waits += 1
            if self.waits == 1:
                return engine.lib.SPMD_RUNNING
            return engine.lib.spmd_job_wait(*given)

    path = tmp_path / "small.img"
    spmd.build(small).save(path)
    for stream, says in ((Terminal(), True), (io.StringIO(), False)):
        del heard[:]
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(job, "lib", Slow())
        assert cli.main(["run", str(path), "--ranks", "2"]) == 0
        assert "made 4" in capsys.readouterr().out
        assert heard[-1:] == ["closed"] * says and (" 0/0" in heard) == says
        assert any(line.startswith("superstep ") for line in heard) == says
