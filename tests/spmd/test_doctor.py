"""`python -m spmd doctor`: what it sees here is true, and what it misses is named with a remedy."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from spmd import doctor
from spmd.doctor_check import MISSING, OK, WARNING, Check
from tests.conftest import run

NOWHERE = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}


def states(text: str) -> dict[str, str]:
    return {check["name"]: check["state"] for check in json.loads(text)["checks"]}


@pytest.mark.mpi
def test_all_is_here(spmd_command):
    """These tests need the same: an engine, a compiler, an MPI whose mpirun works."""
    found = states(spmd_command("doctor", "--json").expect(0).out)
    assert MISSING not in found.values()
    needed = "Python", "engine", "C compiler", "NumPy", "MPI library", "mpirun", "sharing"
    assert [name for name in needed if found[name] != OK] == []
    done = spmd_command("doctor").expect(
        0, sys.executable, "MPI_THREAD_", "two processes see each other", "mpirun work\n"
    )
    assert [line.split("  ")[0] for line in done.out.splitlines() if line[:1] > " "][:3] == [
        "Python", "engine", "C compiler"
    ]


@pytest.mark.mpi
def test_one_process_speaks(mpirun):
    """A process that asks under mpirun tries an mpirun of its own."""
    done = mpirun(3, "-m", "spmd", "doctor").expect(0)
    assert done.out.count("C compiler") == 1 and "two processes see each other" in done.out


@pytest.mark.mpi
def test_folders_of_killed_launchers(spmd_command, tmp_path):
    """Open MPI's launcher does not start where one of the same process number was killed."""
    if "Open MPI" not in run(["mpirun", "--version"]).text:
        pytest.skip("for Open MPI")
    last = int(Path("/proc/loadavg").read_text().split()[-1])  # process number given
    for step in range(3000):
        number = (last + step) % int(Path("/proc/sys/kernel/pid_max").read_text())
        folder = tmp_path / f"ompi.{number}"
        folder.mkdir()
        (folder / f"pmix.{socket.gethostname()}.tool").touch()
    done = spmd_command("doctor", env={"PRTE_MCA_prte_tmpdir_base": str(tmp_path)})
    done.expect(69, "listener thread failed to start", f"{tmp_path}/ompi.NUMBER")


def test_no_compiler(spmd_command):
    done = spmd_command("doctor", env={**NOWHERE, "CC": "/nowhere/cc"})
    done.expect(69, "/nowhere/cc not found", "missing: C compiler", "try: ")
    done = spmd_command("doctor", "--json", env={**NOWHERE, "CC": "false"})
    assert done.code == 69 and states(done.out)["C compiler"] == MISSING
    assert json.loads(done.out)["exit_code"] == 69


def test_no_mpi_is_a_warning(spmd_command):
    done = spmd_command("doctor", env=NOWHERE).expect(
        0, "MPI library        warning  none: ", "image.run(ranks=4) works; for mpirun: pip install"
    )
    assert "missing" not in done.out


def test_packages_of_feeds(monkeypatch):
    """Each by the name under which it is installed; without them all else works."""
    lacking = {"zmq", "PIL"}
    find = doctor.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda m: None if m in lacking else find(m))
    found = {c.name: c for c in doctor.software(Check("engine", OK, ""))}
    assert found["pyzmq"].state == found["Pillow"].state == WARNING
    assert "spmd feed (jobs), or serve --replicas needs it" in found["pyzmq"].found
    assert found["pyzmq"].remedy == "pip install pyzmq"
    assert found["Pillow"].remedy == "pip install pillow"
    assert found["lz4"].state == OK and found["lz4"].found[0].isdigit()


def test_ranks_and_cores(spmd_command):
    cores = len(os.sched_getaffinity(0))
    for ranks, state in ((cores, OK), (cores + 1, WARNING)):
        done = spmd_command("doctor", "--json", "--ranks", ranks, env=NOWHERE).expect(0)
        assert states(done.out)["cores"] == state, done.out
    slurm = {**NOWHERE, "SLURM_NTASKS": str(cores + 1)}
    assert states(spmd_command("doctor", "--json", env=slurm).out)["cores"] == WARNING
    spmd_command("doctor", "--ranks", "0").expect(2, "--ranks")


def test_table():
    checks = [Check("a", OK, "x"), Check("longer", WARNING, "y", "do it"), Check("b", MISSING, "z")]
    assert doctor.table(checks).splitlines() == [
        "a       ok       x",
        "longer  warning  y",
        "                 try: do it",
        "b       missing  z",
        "",
        "missing: b",
    ]
