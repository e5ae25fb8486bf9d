"""One process of several stops, fails or was asked for something else (11, 15, 17): no hang, and
one message that says what is wrong."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from tests.conftest import run
from tests.faults.test_launch import SQUARE, TAKES_INPUT
from tests.faults.test_lost import TURNS

# One process stops itself, or fails, when it comes to a function of ours.
SITE = """
import importlib, os, signal, sys

def change(place, what):
    module, owner, name = place.split(":")
    def patch():
        holder = importlib.import_module(module)
        for part in filter(None, owner.split(".")):
            holder = getattr(holder, part)
        real = getattr(holder, name)
        def changed(*args, **keywords):
            if what == "fail":
                raise OSError(5, "Input/output error", "the-disk")
            os.kill(os.getpid(), signal.SIGSTOP)
            return real(*args, **keywords)
        setattr(holder, name, changed)
    return patch

change(sys.argv.pop(1), sys.argv.pop(1))()
from spmd.cli import main
sys.exit(main(sys.argv[1:]))
"""


def job(tmp_path, place: str, what: str, *options: object) -> list[object]:
    """Four processes with the same options; process 2 is changed."""
    script = tmp_path / "changed.py"
    script.write_text(SITE)
    usual = [sys.executable, "-m", "spmd", "run", *options]
    return ["mpirun", "-n", 2, *usual, ":", "-n", 1, sys.executable, script, place, what, "run",
            *options, ":", "-n", 1, *usual]


@pytest.mark.mpi
@pytest.mark.parametrize(("place", "when"), [
    ("spmd.launch.run:Run:prepare", "before the program ran"),
    ("spmd.launch.job:Job:_make", "before the program ran"),
    ("spmd.launch.processes:Processes:finish", "at its end"),
])
def test_a_process_that_stops(built, tmp_path, place, when):
    done = run(job(tmp_path, place, "stop", built(SQUARE), "--time-limit", 2))
    done.expect(75, f"process 2 of 4 on {os.uname().nodename} lost {when}", "is stopped")
    assert done.err.count("spmd:") == 1, done.err


@pytest.mark.mpi
def test_a_process_that_stops_in_mpi_finalize(built, tmp_path):
    """Nothing of Python is left by then. The launcher's own code is that of the one that is ended
    with the others, if it lets them live."""
    options = (built(SQUARE), "--time-limit", 2)
    done = run(job(tmp_path, "spmd.launch.process_watch:ProcessWatch:end", "stop", *options))
    assert done.code in (75, 9, 137), done.text
    assert done.err.count("warning: process 2 of 4") == 1, done.err
    assert done.err.count("lost at its end\n") == 1 and "in MPI_Finalize" in done.err, done.err


@pytest.mark.mpi
@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize("place", [
    "run:Run:prepare", "job:Job:_make", "job:Job:put", "job:Job:_wait", "run:Run:collect",
])
def test_a_process_that_fails(built, tmp_path, place, transport):
    """Before, while and after the program runs: its own words, once, and nothing left."""
    np.save(tmp_path / "x.npy", np.ones(1000))
    results = tmp_path / "results"
    results.mkdir()
    options = (built(TAKES_INPUT), "-i", f"x={tmp_path}/x.npy", "-o", f"total={results}/t.npy",
               "--transport", transport)
    done = run(job(tmp_path, f"spmd.launch.{place}", "fail", *options))
    done.expect(74, "the-disk: Input/output error")
    assert done.err.count("spmd:") == 1, done.err
    assert os.listdir(results) == []


@pytest.mark.mpi
@pytest.mark.parametrize(("options", "code", "text"), [
    (("--set", "steps=7"), 78, "expected: --set steps 3 (rank 0)"),
    (("--help",), 78, "found:    --help (process 2)"),
    (("bench", "barrier"), 78, "given different commands: process 2 differs"),
])
def test_other_options_on_one_process(built, options, code, text):
    usual = [sys.executable, "-m", "spmd", "run", built(TURNS), "--set", "steps=3"]
    other = {"--set": [*usual[:-2], *options], "bench": [*usual[:3], *options]}.get(
        options[0], [*usual, *options]
    )
    done = run(["mpirun", "-n", 2, *usual, ":", "-n", 1, *other, ":", "-n", 1, *usual])
    done.expect(code, text)
    assert done.err.count("spmd:") == 1, done.err


@pytest.mark.one_mpi
@pytest.mark.mpi
def test_a_program_on_one_process_and_an_image_on_the_others(built, tmp_path):
    (tmp_path / "turns.py").write_text(TURNS)
    usual = [sys.executable, "-m", "spmd", "run"]
    done = run(["mpirun", "-n", 2, *usual, built(TURNS), ":", "-n", 1, *usual,
                tmp_path / "turns.py"])
    done.expect(78, "different images: rank 2 differs", "found:    a program (rank 2)")
    assert done.err.count("spmd:") == 1, done.err
