"""What a long build, check or run shows: what it is at, on a terminal, after a while."""

from __future__ import annotations

import contextvars
import io
import os
import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

import spmd
from codegen import progress as told
from spmd import cli, engine, progress_display
from spmd.launch import job, program_output
from spmd.launch.processes import Processes
from spmd.verify import images as verify
from tests.conftest import until

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
    """Return the lines that a listener in the terminal's place receives."""
    lines: list[str] = []

    class Listener:
        def __call__(self, what: str, done: int, total: int) -> None:
            lines.append(f"{what} {done}/{total}")

        def close(self) -> None:
            lines.append("closed")

    monkeypatch.setattr(progress_display, "display", Listener)
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
                              ranks=range(1, 4), execute=False, json=False, no_cache=False)
    assert verify.command(options, Processes()) == 0
    assert [h.rpartition(" ")[2] for h in heard[:-1]] == ["1/3", "2/3", "3/3"]


def test_the_line_comes_late_and_goes():
    stream = Terminal()
    line = progress_display.Line(stream, after_s=0.0)
    with told.told(line):
        for number in told.each("checking é", [1, 2]):
            until(lambda number=number: f"{number} of 2" in stream.getvalue())
        told.announce("")
        assert stream.getvalue().endswith("\r\x1b[K")  # before what else is written there
    line.close()
    assert "spmd: checking ?, 2 of 2 (" in stream.getvalue()
    assert stream.getvalue().endswith(" s)\r\x1b[K")
    quick = Terminal()
    line = progress_display.Line(quick, after_s=1000.0)
    line("compiling C", 0, 0)
    line.close()
    assert quick.getvalue() == ""


@pytest.mark.parametrize(("stream", "rank", "shows"), [
    (Terminal(), 0, True), (Terminal(), 1, False), (io.StringIO(), 0, False), (None, 0, False),
])
def test_only_on_a_terminal_of_the_first_rank(monkeypatch, stream, rank, shows):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_display, "launcher", lambda: (rank, 2))
    line = progress_display.on_terminal()
    assert (line is not None) == shows
    if line:
        line.close()


def test_a_build_tells_a_log_every_so_often(monkeypatch, tmp_path):
    """A log that is no terminal gets lines that stay, unless SPMD_PROGRESS=off."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_display, "AFTER_S", 0.0)
    monkeypatch.setattr(progress_display.Log, "again_s", 0.01)
    monkeypatch.setenv("SPMD_CACHE", str(tmp_path))
    monkeypatch.setenv("SPMD_PROGRESS", "off")
    spmd.build(small, cache=False)
    assert stream.getvalue() == ""
    monkeypatch.setenv("SPMD_PROGRESS", "")
    spmd.build(small, cache=False)
    lines = stream.getvalue().splitlines()
    assert lines and all(re.fullmatch(r"spmd: .+ \(\d+ s\)", line) for line in lines), lines
    monkeypatch.setattr(progress_display, "launcher", lambda: (1, 2))
    assert progress_display.in_log() is None  # one of the processes speaks


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
    monkeypatch.setattr(progress_display, "AFTER_S", 0.0)
    CELL.set("this one")
    assert progress_display.display() is None  # IPython in a terminal that is none
    shell.kernel = "a kernel"
    line = progress_display.display()
    assert type(line) is progress_display.Cell
    line("checking <b>", 1, 2)
    until(lambda: len(shown) >= 2)
    line.close()
    assert shown[0].startswith("spmd: checking <b>, 1 of 2 (")
    assert shown[1].startswith("<pre>spmd: checking &lt;b&gt;, 1 of 2 (") and shown[-1] == ""


def test_a_terminal_that_goes():
    """Whoever closes it ends no build."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w", buffering=1)
    os.close(read)
    line = progress_display.Line(stream, after_s=0.0)
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


# ---- spmd.progress -------------------------------------------------------------------------------


@spmd.program(mesh=("r",))
def steps(n: int = 7):
    w = spmd.zeros(4, np.float32, layout=("r",))
    for step in spmd.range(n):
        w = w + step
        spmd.barrier()
        spmd.print("at {}", step)
        spmd.progress(step, n, per_step={"tokens": 64}, loss=np.mean(w), odd=step % 2)
    return w


def test_a_program_says_how_far_it_is(capfd):
    """The last step in any case, from index 0 alone; the others now and then."""
    image = spmd.build(steps)
    for run in (lambda: image.run(ranks=3), steps.eager):
        run()
        out, err = capfd.readouterr()
        assert out == "".join(f"at {k}\n" for k in range(7))
        assert re.fullmatch(  # mostly too short for a pace, and for lines of other steps
            r"(step \d of 7, .*\n)*step 7 of 7, (\S+ tokens/s, )?loss 21, odd 0, in [\d:]+\n", err
        ), err


def test_lines_of_steps_come_when_they_are_wanted():
    now, there = told.Steps(live=True), told.Steps(live=False)
    said = "\tloss=2.5\t/tokens=100"
    assert [s.line(f"1\t1000{said}", 10.0) for s in (now, there)] == ["", ""]
    assert now.line(f"21\t1000{said}", 11.0) == (
        "step 21 of 1,000, loss 2.5, 2,000 tokens/s, 0:49 left")
    assert there.line(f"21\t1000{said}", 11.0) == ""
    assert there.line(f"101\t1000{said}", 20.0) == (
        "step 101 of 1,000, loss 2.5, 1,000 tokens/s, 1:30 left")
    assert there.line(f"1000\t1000{said}", 10.0 + 3999.6) == (
        "step 1,000 of 1,000, loss 2.5, 24.98 tokens/s, in 1:06:40")
    assert there.line("1\t2", 5000.0) == ""  # the next loop


def test_a_line_of_steps_gives_way_to_text(monkeypatch, capsys):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    say = program_output.ProgramOutput()
    say("first\n")
    say(f"{told.MARK}1\t9\n{told.MARK}2\t9\n")
    say(f"between\n{told.MARK}no number\n")
    say(f"{told.MARK}3\t9\n")
    say.close()
    shown = [line.split(",")[0] for line in stream.getvalue().split("\r\x1b[K")]
    assert shown == ["", "step 2 of 9", "", "step 3 of 9"] and stream.getvalue().endswith("\n")
    assert capsys.readouterr().out == f"first\nbetween\n{told.MARK}no number\n"


def test_only_numbers_are_shown():
    @spmd.program(mesh=("r",))
    def wrong():
        u = spmd.zeros(4)
        for k in spmd.range(3):
            u = u + 1
            spmd.progress(k, 3, u=u)
        return u

    with pytest.raises(spmd.UsageError, match="spmd.progress takes numbers"):
        spmd.build(wrong)
