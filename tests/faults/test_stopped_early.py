"""A process that stops before a job's watch begins, or after it has ended (17): no hang."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.conftest import ROOT, run
from tests.faults.test_launch import SQUARE

# One process stops itself when it comes to a place; `when` is a function of ours and which call.
SITE = """
import importlib, os, signal, sys

def stop_in(place):
    module, owner, name = place.split(":")
    def patch():
        holder = importlib.import_module(module)
        for part in filter(None, owner.split(".")):
            holder = getattr(holder, part)
        real = getattr(holder, name)
        def stops(*args, **keywords):
            os.kill(os.getpid(), signal.SIGSTOP)
            return real(*args, **keywords)
        setattr(holder, name, stops)
    return patch

stop_in(sys.argv.pop(1))()
from spmd.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("place", "when"), [
    ("spmd.run:Launch:prepare", "before the program ran"),
    ("spmd.job:Job:_make", "before the program ran"),
    ("spmd.launch:Processes:finish", "at its end"),
])  # fmt: skip
def test_a_process_that_stops(built, tmp_path, place, when):
    script, image = tmp_path / "stops.py", built(SQUARE)
    script.write_text(SITE)
    argv = ["mpirun", "-n", 2, sys.executable, "-m", "spmd", "run", image,
            ":", "-n", 1, sys.executable, script, place, "run", image,
            ":", "-n", 1, sys.executable, "-m", "spmd", "run", image]  # fmt: skip
    began = time.monotonic()
    done = run(argv, timeout=40, env={"PYTHONPATH": str(ROOT)})
    assert time.monotonic() - began < 9
    done.expect(75, f"process 2 of 4 on {os.uname().nodename} lost {when}", "is stopped")
    assert done.err.count("spmd:") == 1, done.err
