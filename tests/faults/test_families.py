"""Launchers and libraries that do not fit (13): said once, at once, with what to do; never a hang.

Both families of MPI are real: `make test-openmpi` runs this beside the `.venv` of `make test`.
What srun sets is set by hand: Slurm itself is not here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from codegen.errors import EnvironmentFault
from spmd.launch import launchers
from tests.conftest import PATIENCE, Finished, run

MEAN = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def mean(n: int = 1000):
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i / n)

    @spmd.shard_map(mesh="r", out_layouts=())
    def local_mean(x):
        spmd.print("on {} ranks", spmd.ranks())
        return spmd.psum(np.sum(x), "r") / n

    return {"mean": local_mean(x)}
'''

FAMILIES = {".venv": launchers.MPICH, ".venv-openmpi": launchers.OPEN_MPI}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
VERSION = "from spmd.launch import launchers; print(launchers.library().Get_library_version())"
# As srun --mpi=none starts two processes; $0 is Python.
SRUN = """
SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 "$0" "$@" & other=$!
SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 "$0" "$@"; first=$?
wait $other; echo "ended with $first and $?"
"""


def environments() -> dict[str, Path]:
    """The folders of programs of both environments, by family."""
    beside = Path(sys.prefix).parent
    found = {family: beside / name / "bin" for name, family in FAMILIES.items()}
    for family, folder in found.items():
        version = run([folder / "mpirun", "--version"]) if (folder / "mpirun").exists() else None
        if version is None or launchers.family_of(version.text) != family:
            pytest.skip(f"no {family} beside this environment, in {folder}")
    return found


def told_once(done: Finished, *fragments: str) -> None:
    done.expect(69, *fragments)
    assert done.text.count("spmd: ") == 1, done.text
    for noise in ("Abort(", "RuntimeWarning", "Sorry!", "on 1 ranks"):
        assert noise not in done.text, done.text
    assert done.seconds < PATIENCE / 2


@pytest.mark.mpi
@pytest.mark.parametrize("launcher", FAMILIES.values())
@pytest.mark.parametrize("processes", [1, 3])
def test_a_launcher_of_the_other_family(built, launcher, processes):
    folders = environments()
    library = next(family for family in folders if family != launcher)
    python = folders[library] / "python"
    argv = [folders[launcher] / "mpirun", "-n", processes, python, "-m", "spmd", "run", built(MEAN)]
    done = run(argv)
    if processes == 1:  # nobody to miss: one process needs no MPI
        done.expect(0, "on 1 ranks", "mean: float64 0.4995")
    else:
        told_once(done, f"launcher is {launcher}, library is {library}",
                  f"try:      start with the mpirun of {library}")


SCRIPT = """
import sys, spmd
from mpi4py import MPI
print(spmd.load(sys.argv[1]).run(comm=MPI.COMM_WORLD))
"""


@pytest.mark.mpi
def test_a_program_that_starts_mpi_itself(built, tmp_path):
    """Under MPICH's launcher a library of Open MPI makes three jobs of one process."""
    folders = environments()
    (tmp_path / "script.py").write_text(SCRIPT)
    argv = [folders[launchers.MPICH] / "mpirun", "-n", 3, folders[launchers.OPEN_MPI] / "python",
            tmp_path / "script.py", built(MEAN)]
    done = run(argv)
    assert done.code == 69, done.text
    assert done.err.count("launcher is MPICH, library is Open MPI") == 1, done.err
    assert "on 1 ranks" not in done.text


@pytest.mark.mpi
def test_doctor_names_both(tmp_path):
    folders = environments()
    for launcher, library in ((a, b) for a in folders for b in folders):
        python = folders[library] / "python"
        path = 'PATH="$0:$PATH"; exec "$@"'
        done = run(["sh", "-c", path, folders[launcher], python, "-m", "spmd", "doctor"])
        if launcher == library:
            done.expect(0, f"({launcher}); two processes see each other", "mpirun work")
        else:
            done.expect(69, f"launcher is {launcher}, library is {library}", "missing: mpirun")


@pytest.mark.mpi
def test_no_library_under_a_launcher(built, mpirun):
    """mpi4py is installed, but no libmpi: the remedy is the family of the launcher."""
    nowhere = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    done = mpirun(2, "-m", "spmd", "run", built(MEAN), env=nowhere)
    family = launchers.family_of(run(["mpirun", "--version"]).text)
    told_once(done, f"started by {family}, but there is no MPI library here",
              launchers.install(family), "--ranks N")
    mpirun(1, "-m", "spmd", "run", built(MEAN), env=nowhere).expect(0, "on 1 ranks")


@pytest.mark.mpi
def test_srun_without_an_mpi_plugin(built):
    argv = ["sh", "-c", SRUN, sys.executable, "-m", "spmd", "run", built(MEAN)]
    done = run(argv, env=SLURM).expect(
        0, "ended with 69 and 69", "launcher is Slurm, library is", "try:      srun --mpi=pmi",
        "expected: 2 processes in one job", "found:    every process thinks it is alone",
    )
    assert done.err.count("spmd: ") == 1, done.err


@pytest.mark.mpi
def test_srun_with_a_plugin_for_the_other_family(built):
    """PMIx serves Open MPI; MPICH, unless it was built for it, would abort in every process."""
    version = run([sys.executable, "-c", VERSION]).expect(0).out
    if not version.startswith("MPICH") or "pmix" in version:
        pytest.skip("for an MPICH without PMIx")
    pmix = {**SLURM, "PMIX_NAMESPACE": "slurm.pmix.7.0"}
    argv = ["sh", "-c", SRUN, sys.executable, "-m", "spmd", "run", built(MEAN)]
    done = run(argv, env=pmix).expect(
        0, "ended with 69 and 69", "launcher is Slurm with PMIx, library is MPICH",
        "expected: a library that speaks PMIx", "try:      srun --mpi=pmi2",
    )
    assert done.err.count("spmd: ") == 1 and "Abort(" not in done.err, done.err


def test_too_little_shared_memory_for_mpich(monkeypatch, tmp_path):
    """Its processes would end with a bus error in MPI_Init."""
    real = os.statvfs

    def small(_):
        found = list(real(tmp_path))
        found[1], found[2], found[4] = 1, 8 << 20, free
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", small)
    monkeypatch.setattr(os, "listdir", lambda _: [])
    free = 8 << 20
    launchers._check_shared_memory("MPICH", 4)
    monkeypatch.setenv("MPI_LOCALNRANKS", "8")
    with pytest.raises(EnvironmentFault, match="too small for MPICH with 8") as caught:
        launchers._check_shared_memory("MPICH", 100)
    assert "found:    8192 KiB are free" in str(caught.value)


def test_a_batch_script_is_no_launcher(built, spmd_command):
    """A script of sbatch has SLURM_PROCID and SLURM_NTASKS, but no step was started in it."""
    batch = {**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    spmd_command("run", built(MEAN), "--ranks", "4", env=batch).expect(0, "on 4 ranks")
    spmd_command("run", built(MEAN), env=batch).expect(0, "on 1 ranks")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, "")),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4, "Open MPI")),
        ({"HYDI_CONTROL_FD": "7", "PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3, "MPICH")),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "3"}, (1, 3, "MVAPICH")),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "3", "PMI_RANK": "1", "PMI_SIZE": "3"},
         (1, 3, "Flux")),
        ({"PALS_RANKID": "5", "PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6, "PALS")),
        ({**SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2, "Slurm")),
        ({**SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "1"},
         (1, 2, "Slurm")),
        ({**SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "1",
          "PMI_SIZE": "2"}, (1, 2, "Slurm")),
        ({**SLURM, "SLURM_PROCID": "0"}, (0, 1, "")),
        # mpirun in a step of srun: the inner launcher started this process
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "HYDI_CONTROL_FD": "7",
          "PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4, "MPICH")),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3, "PMI")),
        ({"PMI_RANK": "", "PMI_SIZE": "three"}, (0, 1, "")),
    ],
)
def test_what_launchers_set(monkeypatch, variables, expected):
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI_COMM", "HYDI", "SLURM", "FLUX", "PALS", "MV2")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launchers.launcher() == expected


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("Open MPI v5.0.11, package: Open MPI", "Open MPI"),
        ("mpirun (Open MPI) 4.1.4", "Open MPI"),
        ("MPICH Version:      5.0.2\nMPICH ABI: 18", "MPICH"), ("HYDRA build details:", "MPICH"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "MPICH"),
        ("MVAPICH2 Version: 2.3", "MPICH"),
        ("MPI VERSION    : CRAY MPICH version 8.1.30", "MPICH"), ("another", ""),
    ],
)
def test_families(text, family):
    assert launchers.family_of(text) == family
